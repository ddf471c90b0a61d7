"""ESAug and EReplayB's replay as drop-in pieces for somebody's own loop (§ "ESAug", § "EReplayB").

Both draw from torch's global generator, so `torch.manual_seed` and DataLoader workers behave as with any transform.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import default_collate

from triplee.augment.apply import apply_draw
from triplee.augment.draw import STYLE, draw_esaug
from triplee.augment.style import Restyler, StyleTable
from triplee.settings import InputError, make_recipe

ImageLike = TypeVar("ImageLike", Tensor, Image.Image)


class ESAug:
    """Exactly one op of random strength per image: uint8 (3,H,W) or (N,3,H,W) tensor or PIL image in, same kind out.

    `ops="fourier"` mixes in other images: those of the same batch, or of `partners`, a uint8 tensor (P,3,H,W) of
    source images, which a single image cannot do without. `ops="style"` and `"both"` take their style from such
    images, of the same class where labels are given here and in the call, with a `stylizer` (`load_stylizer`).
    """

    def __init__(
        self,
        ops: Literal["basic", "fourier", "style", "both"] = "fourier",
        *,
        partners: Tensor | None = None,
        partner_labels: Tensor | None = None,
        stylizer: Restyler | None = None,
        cross_image_probability: float | None = None,
        ops_per_view: int = 1,
        translate_pixels: int = 10,
    ) -> None:
        self.ops = ops
        self.partners, self.stylizer = partners, stylizer
        self.partner_labels = None if partner_labels is None else partner_labels.cpu().numpy()
        if partners is not None:
            shape = tuple(partners.shape)
            if partners.dtype != torch.uint8 or len(shape) != 4 or shape[1] != 3 or not shape[0]:
                kind = f"{type(partners).__name__} {partners.dtype} {shape}"
                raise InputError(f"partners are a uint8 tensor (P,3,H,W) of at least one image, not {kind}")
        if partner_labels is not None and (partners is None or len(partners) != len(partner_labels)):
            raise InputError(f"{len(partner_labels)} partner_labels: give one for each of partners")
        self.options = {
            "ops": ops,
            "cross_image_probability": cross_image_probability,
            "ops_per_view": ops_per_view,
            "translate_pixels": translate_pixels,
        }
        if make_recipe(self.options).restyles and stylizer is None:  # which also refuses what a recipe would refuse
            raise InputError(f"ops={ops!r} restyles images: give ESAug stylizer=load_stylizer(FILE)")

    def __call__(self, image: ImageLike, labels: Tensor | int | None = None) -> ImageLike:
        if isinstance(image, Image.Image):
            view = self(_to_tensor(image), labels)
            return Image.fromarray(view.permute(1, 2, 0).numpy()).convert(image.mode)
        if image.dtype != torch.uint8 or image.ndim not in (3, 4) or image.shape[-3] != 3:
            raise InputError(f"ESAug takes uint8 (3,H,W) or (N,3,H,W), not {image.dtype} {tuple(image.shape)}")
        batch = image if image.ndim == 4 else image[None]
        if labels is None or self.stylizer is None:  # only a style has to be of the same class
            return self._views(batch, None).view_as(image)
        return self._views(batch, torch.as_tensor(labels).expand(len(batch)).cpu().numpy()).view_as(image)

    def _views(self, batch: Tensor, label_V: np.ndarray | None) -> Tensor:
        num_views = len(batch)
        rng = np.random.Generator(np.random.Philox(int(torch.randint(2**62, (1,)))))
        if self.ops == "basic":
            return apply_draw(batch, np.arange(num_views), draw_esaug(rng, num_views, np.arange(0), **self.options))
        if self.partners is None and num_views == 1:
            raise InputError(
                f"ops={self.ops!r} takes from other images: give ESAug partners=..., or call it on a batch"
            )
        images, partners, partner_labels = batch, np.arange(num_views), label_V
        if self.partners is not None:
            if self.partners.shape[1:] != batch.shape[1:]:
                raise InputError(f"partners are {tuple(self.partners.shape[1:])}, images {tuple(batch.shape[1:])}")
            partners, partner_labels = np.arange(num_views, num_views + len(self.partners)), self.partner_labels
        labels = None if label_V is None or partner_labels is None else (label_V, partner_labels)
        draw = draw_esaug(rng, num_views, partners, labels=labels, **self.options)
        if self.partners is not None:
            # Only the partners that were drawn join the images, so a large set of partners costs nothing per call.
            drawn = draw.partner_VK >= 0
            chosen = torch.from_numpy(draw.partner_VK[drawn] - num_views)
            images = torch.cat([batch, self.partners[chosen].to(batch.device)])
            draw.partner_VK[drawn] = np.arange(num_views, num_views + int(drawn.sum()))
        lending = np.unique(draw.partner_VK[draw.op_VK == STYLE])
        if isinstance(self.stylizer, torch.nn.Module):
            self.stylizer.to(batch.device)
        styles = StyleTable(self.stylizer, images, lending) if self.stylizer and len(lending) else None
        return apply_draw(images, np.arange(num_views), draw, styles)


class ReplayCollate:
    """DataLoader collate for EReplayB: b samples (image, label) in, b·r views and labels out, r in a row per sample.

    `transform` is applied to each view anew: an ESAug to all views at once, anything else one view at a time.
    """

    def __init__(self, r: int, transform: Callable[[Any], Any]) -> None:
        if r < 1:
            raise InputError(f"the replay count is at least 1, not {r}")
        self.r = r
        self.transform = transform

    def __call__(self, samples: Sequence[tuple[Any, Any]]) -> tuple[Tensor, Tensor]:
        labels = default_collate([label for _, label in samples]).repeat_interleave(self.r, 0)
        if isinstance(self.transform, ESAug):
            images = torch.stack([_to_tensor(image) for image, _ in samples])
            return self.transform(images.repeat_interleave(self.r, 0), labels), labels
        views = [self.transform(image) for image, _ in samples for _ in range(self.r)]
        return default_collate(views), labels


def _to_tensor(image: Tensor | Image.Image) -> Tensor:
    if isinstance(image, Tensor):
        return image
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()
