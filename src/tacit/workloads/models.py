"""The built-in models for pictures: none draws random numbers or keeps buffers, so that many replicas run as one."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import nearest, require

MODELS = ("softmax", "mlp", "cnn", "resnet")


def check_model(model: str, hidden: int, known: tuple[str, ...] = MODELS) -> None:
    """Raise ``ValueError`` unless ``model`` is one of ``known`` and ``hidden`` a positive width."""
    require(
        model in known,
        f"model={model!r} is unknown{nearest(model, known)} Use custom() for a model of your own.",
    )
    require(hidden >= 1, f"hidden={hidden} must be at least 1; it is the width of the mlp's hidden layer.")


def picture_model(model: str, shape: tuple[int, int, int], classes: int, hidden: int) -> nn.Module:
    """Build a classifier of pictures of ``shape`` (channels, height, width)."""
    channels, height, width = shape
    pixels = channels * height * width
    if model == "softmax":
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes))
    if model == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    smallest = 4  # both convolutional models halve a picture twice
    require(
        min(height, width) >= smallest,
        f'model={model!r} needs at least {smallest}x{smallest} pixels, not {height}x{width}; use model="mlp".',
    )
    if model == "cnn":
        return nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), classes),
        )
    return ResNet20(channels, classes)


class ResNet20(nn.Module):
    """ResNet-20 of He et al. (arXiv 1512.03385), with GroupNorm for BatchNorm, so that replicas keep no statistics.

    Convolutions start as in that paper's training (arXiv 1502.01852), and each block starts as its shortcut, which
    large batches need (arXiv 1706.02677, section 5.1).
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)  # the stem, then three blocks at each of three sizes
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(8, 16)
        self.blocks = nn.Sequential(*(ResidualBlock(a, b) for a, b in pairwise(widths)))
        self.head = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, ResidualBlock):
                nn.init.zeros_(module.second_norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(functional.relu(self.norm(self.stem(x))))
        prediction: Tensor = self.head(features.mean((-2, -1)))
        return prediction


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut; a wider output halves the picture and pads the shortcut with zeros."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride = 1 if inputs == outputs else 2
        self.missing = outputs - inputs
        self.first = nn.Conv2d(inputs, outputs, 3, stride=self.stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(8, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.first_norm(self.first(x)))
        shortcut = functional.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.missing))
        return functional.relu(self.second_norm(self.second(inner)) + shortcut)
