"""Images too many for the device: each window of them is sent over when it is wanted, and nothing stays.

Comes in: the pool's images, in host memory or on disk; goes out: something to index with image numbers on the device.
"""

import torch
from torch import Tensor

from triplee.data.pool import MappedImages

SHARE_OF_FREE_MEMORY = 0.6  # the rest is for networks and their activations


class Windows:
    """Stands in for a tensor of images (N,C,H,W) on `device` where only rows are ever asked for."""

    def __init__(self, images_NCHW: Tensor | MappedImages, device: torch.device) -> None:
        self.images_NCHW, self.device, self.shape = images_NCHW, device, images_NCHW.shape

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.images_NCHW[index.cpu()].to(self.device)


def free_bytes(device: torch.device) -> int:
    """Free memory of a GPU; what torch keeps without using it counts."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def place_images(images_NCHW: Tensor | MappedImages, device: torch.device) -> Tensor | Windows:
    """All images on the device where they fit, else windows onto them."""
    if isinstance(images_NCHW, MappedImages):
        return Windows(images_NCHW, device)
    if device.type == "cuda" and images_NCHW.nbytes > SHARE_OF_FREE_MEMORY * free_bytes(device):
        return Windows(images_NCHW, device)
    return images_NCHW.to(device)
