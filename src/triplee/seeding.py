"""Randomness is data: every draw comes from a generator keyed by (seed, purpose, member, epoch).

So a resumed run, another device and another executor see the same draws. Comes in: the key; goes out: a NumPy
generator. The key is hashed, so neighbouring seeds and epochs share nothing.
"""

import hashlib

import numpy as np


def generator(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """The generator of one purpose: the same key gives the same stream on every machine."""
    key = hashlib.blake2b(repr((seed, purpose, ids)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def torch_seed(seed: int, purpose: str, *ids: int) -> int:
    """A seed for torch's own generator, for what torch must draw itself (initial weights)."""
    return int(generator(seed, purpose, *ids).integers(2**62))
