"""The digit network of the paper's § "Implementation Details": four 3×3 convolutions of 64 channels, 32×32 input.

Comes in: normalised images (V,3,H,W); goes out: pooled features (V, num_features), 256 for 32×32.
"""

from torch import Tensor, nn


class DigitCNN(nn.Module):
    mean = (0.5, 0.5, 0.5)
    std = (0.5, 0.5, 0.5)
    sizes = (16, 128)  # its features, and with them the head, grow with the square of the size

    def __init__(self, image_size: int) -> None:
        super().__init__()
        # Pooling before the ReLU gives the same values (both are monotone) on a quarter of the pixels.
        blocks = []
        for channels in (3, 64, 64, 64):
            blocks += [nn.Conv2d(channels, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*blocks)
        self.num_features = 64 * (image_size // 16) ** 2
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)  # pyright: ignore[reportArgumentType]

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).flatten(1)
