"""The networks of the style op (§ "Style-based augmentation"): an encoder, and the decoder that undoes it.

Comes in: images (V,3,H,W) from 0 to 1; goes out: features (V,C,h,w), and images again. Three kinds of encoder: VGG-19
to relu4_1, laid out as the weights that AdaIN's users share; the first stages of a ResNet or MobileNetV2, with whatever
weights a backbone has; and a small one, which learns together with its decoder.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from triplee.nets.mobilenet import MobileNetV2
from triplee.nets.resnet import ResNet, resnet18, resnet50


def _layers(*widths: int) -> list[nn.Module]:
    """3×3 convolutions with a ReLU each: channels in, then out of each; 0 doubles the sides, −1 halves them."""
    layers: list[nn.Module] = []
    last = widths[0]
    for width in widths[1:]:
        if width > 0:  # a mirrored border: zeros there would show as a frame
            layers += [nn.ReflectionPad2d(1), nn.Conv2d(last, width, 3), nn.ReLU()]
            last = width
        else:
            layers.append(nn.MaxPool2d(2, ceil_mode=True) if width else nn.Upsample(scale_factor=2))
    return layers


class Encoder(nn.Module):
    """A chain of stages; the style loss looks at the end of each, AdaIN acts at the end of the last."""

    learns = False  # whether it is fitted together with its decoder
    decoder_widths: tuple[int, ...]
    mean: Tensor
    std: Tensor

    def __init__(
        self, stages: Sequence[nn.Module], mean: tuple[float, ...] = (0.0,) * 3, std: tuple[float, ...] = (1.0,) * 3
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> list[Tensor]:
        """The features at the end of every stage."""
        features, outputs = (images - self.mean) / self.std, []
        for stage in self.stages:
            features = stage(features)
            outputs.append(features)
        return outputs


class SmallEncoder(Encoder):
    """Halves the sides once: what a digit of 32 px can do without."""

    learns = True
    decoder_widths = (64, 64, 0, 32, 3)

    def __init__(self) -> None:
        stages = (_layers(3, 32), _layers(32, -1, 64), _layers(64, 64))
        super().__init__([nn.Sequential(*stage) for stage in stages], (0.5,) * 3, (0.5,) * 3)


class ResNetEncoder(Encoder):
    """A ResNet up to a quarter of the sides; batch norm keeps its running statistics."""

    def __init__(self, backbone: ResNet) -> None:
        stages = [
            nn.Sequential(backbone.conv1, backbone.bn1, nn.ReLU()),
            nn.Sequential(nn.MaxPool2d(3, stride=2, padding=1), backbone.layer1),
        ]
        super().__init__(stages, backbone.mean, backbone.std)
        self.decoder_widths = (backbone.num_features // 8, 64, 0, 32, 0, 16, 3)


class MobileNetEncoder(Encoder):
    """MobileNetV2 up to a quarter of the sides; batch norm keeps its running statistics."""

    decoder_widths = (24, 64, 0, 32, 0, 16, 3)

    def __init__(self, backbone: MobileNetV2) -> None:
        super().__init__([backbone.features[:2], backbone.features[2:4]], backbone.mean, backbone.std)


class VGGEncoder(Encoder):
    """VGG-19 to relu4_1; its first layer, 1×1, does the normalising."""

    ends = (4, 11, 18, 31)  # of the stages, in layers
    decoder_widths = (512, 256, 0, 256, 256, 256, 128, 0, 128, 64, 0, 64, 3)

    def __init__(self) -> None:
        convolutions = _layers(3, 64, 64, -1, 128, 128, -1, 256, 256, 256, 256, -1, 512)
        self.layers = [nn.Conv2d(3, 3, 1), *convolutions]
        super().__init__([nn.Sequential(*self.layers[a:b]) for a, b in pairwise((0, *self.ends))])


ENCODERS = {
    "small": SmallEncoder,
    "resnet18": lambda: ResNetEncoder(resnet18()),
    "resnet50": lambda: ResNetEncoder(resnet50()),
    "mobilenet-v2": lambda: MobileNetEncoder(MobileNetV2()),
    "vgg19": VGGEncoder,
}


class Stylizer(nn.Module):
    """An encoder (one with random weights where none is given) and its decoder."""

    def __init__(self, encoder_name: str, encoder: Encoder | None = None) -> None:
        super().__init__()
        self.encoder_name, self.encoder = encoder_name, encoder or ENCODERS[encoder_name]()
        self.decoder = nn.Sequential(*_layers(*self.encoder.decoder_widths)[:-1])

    def encode(self, images: Tensor) -> Tensor:
        """What AdaIN acts on."""
        return self.encoder(images)[-1]

    def decode(self, features: Tensor, height: int, width: int) -> Tensor:
        """Images; where halving rounded up, doubling gave too much."""
        return self.decoder(features)[..., :height, :width]
