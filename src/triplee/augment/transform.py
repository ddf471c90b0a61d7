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
from triplee.augment.draw import draw_esaug
from triplee.settings import InputError, make_recipe

ImageLike = TypeVar("ImageLike", Tensor, Image.Image)


class ESAug:
    """Exactly one op of random strength per image: uint8 (3,H,W) or (N,3,H,W) tensor or PIL image in, same kind out.

    `ops="fourier"` mixes in other images: those of the same batch, or of `partners`, a uint8 tensor (P,3,H,W) of
    source images, which a single image cannot do without.
    """

    def __init__(
        self,
        ops: Literal["basic", "fourier"] = "fourier",
        *,
        partners: Tensor | None = None,
        cross_image_probability: float | None = None,
        ops_per_view: int = 1,
        translate_pixels: int = 10,
    ) -> None:
        self.ops = ops
        self.partners = partners
        self.options = {
            "ops": ops,
            "cross_image_probability": cross_image_probability,
            "ops_per_view": ops_per_view,
            "translate_pixels": translate_pixels,
        }
        make_recipe(self.options)  # refuses what a recipe would refuse

    def __call__(self, image: ImageLike) -> ImageLike:
        if isinstance(image, Image.Image):
            view = self(_to_tensor(image))
            return Image.fromarray(view.permute(1, 2, 0).numpy()).convert(image.mode)
        if image.dtype != torch.uint8 or image.ndim not in (3, 4) or image.shape[-3] != 3:
            raise InputError(f"ESAug takes uint8 (3,H,W) or (N,3,H,W), not {image.dtype} {tuple(image.shape)}")
        batch = image if image.ndim == 4 else image[None]
        return self._views(batch).view_as(image)

    def _views(self, batch: Tensor) -> Tensor:
        num_views = len(batch)
        rng = np.random.Generator(np.random.Philox(int(torch.randint(2**62, (1,)))))
        if self.ops == "basic":
            return apply_draw(batch, np.arange(num_views), draw_esaug(rng, num_views, np.arange(0), **self.options))
        if self.partners is None and num_views == 1:
            raise InputError("the fourier op mixes in another image: give ESAug partners=..., or call it on a batch")
        images, partners = batch, np.arange(num_views)
        if self.partners is not None:
            if self.partners.shape[1:] != batch.shape[1:]:
                raise InputError(f"partners are {tuple(self.partners.shape[1:])}, images {tuple(batch.shape[1:])}")
            partners = np.arange(num_views, num_views + len(self.partners))
        draw = draw_esaug(rng, num_views, partners, **self.options)
        if self.partners is not None:
            # Only the partners that were drawn join the images, so a large set of partners costs nothing per call.
            drawn = draw.partner_VK >= 0
            chosen = torch.from_numpy(draw.partner_VK[drawn] - num_views)
            images = torch.cat([batch, self.partners[chosen].to(batch.device)])
            draw.partner_VK[drawn] = np.arange(num_views, num_views + int(drawn.sum()))
        return apply_draw(images, np.arange(num_views), draw)


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
            return self.transform(images.repeat_interleave(self.r, 0)), labels
        views = [self.transform(image) for image, _ in samples for _ in range(self.r)]
        return default_collate(views), labels


def _to_tensor(image: Tensor | Image.Image) -> Tensor:
    if isinstance(image, Tensor):
        return image
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()
