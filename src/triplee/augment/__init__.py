"""ESAug and its alternatives: draws first (draw.py), then application (apply.py); pure functions on uint8 tensors."""

from triplee.augment.apply import apply_draw, apply_op, normalise
from triplee.augment.draw import Draw, draw_views
from triplee.augment.fourier import fourier_mix
from triplee.augment.ops import OPS
from triplee.augment.transform import ESAug, ReplayCollate

__all__ = ["OPS", "Draw", "ESAug", "ReplayCollate", "apply_draw", "apply_op", "draw_views", "fourier_mix", "normalise"]
