"""ResNet-18 and -50 with torchvision's state-dict names, the backbones of the paper's natural-image benchmarks.

Comes in: normalised images (V,3,H,W); goes out: pooled features (V, num_features), 512 or 2048. There is no `fc`:
the classifier is the Network's. A bottleneck strides in its 3×3 convolution ("v1.5"), as torchvision's weights expect.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from triplee.nets.fused import batch_norm


def _conv(channels_in: int, channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """What both kinds of block share: the sum of a path of convolutions and a shortcut."""

    expansion: int

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        channels_out = channels * self.expansion
        self.downsample = None
        if stride != 1 or channels_in != channels_out:
            self.downsample = nn.Sequential(_conv(channels_in, channels_out, 1, stride), nn.BatchNorm2d(channels_out))

    def shortcut(self, x: Tensor) -> Tensor:
        if self.downsample is None:
            return x
        conv, norm = self.downsample
        return batch_norm(norm, conv(x), relu=False)  # pyright: ignore[reportArgumentType]


class BasicBlock(Block):
    expansion = 1

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__(channels_in, channels, stride)
        self.conv1, self.bn1 = _conv(channels_in, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = _conv(channels, channels, 3), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        path = batch_norm(self.bn1, self.conv1(x))
        return batch_norm(self.bn2, self.conv2(path), self.shortcut(x))


class Bottleneck(Block):
    expansion = 4

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__(channels_in, channels, stride)
        self.conv1, self.bn1 = _conv(channels_in, channels, 1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = _conv(channels, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv3, self.bn3 = _conv(channels, 4 * channels, 1), nn.BatchNorm2d(4 * channels)

    def forward(self, x: Tensor) -> Tensor:
        path = batch_norm(self.bn1, self.conv1(x))
        path = batch_norm(self.bn2, self.conv2(path))
        return batch_norm(self.bn3, self.conv3(path), self.shortcut(x))


def _stage(block: type[Block], depth: int, channels_in: int, channels: int, stride: int) -> nn.Sequential:
    first = block(channels_in, channels, stride)
    return nn.Sequential(first, *(block(channels * block.expansion, channels, 1) for _ in range(depth - 1)))


class ResNet(nn.Module):
    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)
    sizes = (32, 1024)  # five halvings leave one pixel of 32

    def __init__(self, block: type[Block], depths: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(3, 64, 7, stride=2), nn.BatchNorm2d(64)
        self.layer1 = _stage(block, depths[0], 64, 64, stride=1)
        self.layer2 = _stage(block, depths[1], 64 * block.expansion, 128, stride=2)
        self.layer3 = _stage(block, depths[2], 128 * block.expansion, 256, stride=2)
        self.layer4 = _stage(block, depths[3], 256 * block.expansion, 512, stride=2)
        self.num_features = 512 * block.expansion
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        return self.after_stem(F.max_pool2d(batch_norm(self.bn1, self.conv1(images)), 3, stride=2, padding=1))

    def after_stem(self, x: Tensor) -> Tensor:
        """The rest, where the stem was done by other means."""
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((2, 3))


def resnet18() -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2))


def resnet50() -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3))
