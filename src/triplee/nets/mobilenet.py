"""MobileNetV2 (Sandler et al. 2018, "MobileNetV2", Table 2) of width 1.0, with torchvision's state-dict names.

Comes in: normalised images (V,3,H,W); goes out: pooled features (V,1280). There is neither `classifier` nor its
dropout: the classifier is the Network's, and nothing is drawn at random inside a step.
"""

from torch import Tensor, nn

# Expansion, channels, blocks, stride of the first: the paper's t, c, n, s.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _conv(channels_in: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False)


def _normed(conv: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """Widened, filtered channel by channel, and narrowed again, with no ReLU6 at the narrow end."""

    def __init__(self, channels_in: int, channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = expansion * channels_in
        widen = [_normed(_conv(channels_in, wide, 1))] if expansion > 1 else []
        filter_each = _normed(_conv(wide, wide, 3, stride, groups=wide))
        self.conv = nn.Sequential(*widen, filter_each, _conv(wide, channels, 1), nn.BatchNorm2d(channels))
        self.has_shortcut = stride == 1 and channels_in == channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.has_shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)
    sizes = (32, 1024)  # five halvings leave one pixel of 32
    num_features = 1280

    def __init__(self) -> None:
        super().__init__()
        last = 32
        layers: list[nn.Module] = [_normed(_conv(3, last, 3, stride=2))]
        for expansion, channels, blocks, stride in STAGES:
            for k in range(blocks):
                layers.append(InvertedResidual(last, channels, expansion, stride if k == 0 else 1))
                last = channels
        self.features = nn.Sequential(*layers, _normed(_conv(last, self.num_features, 1)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        return self.features(images).mean((2, 3))
