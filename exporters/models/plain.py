"""Join features and a classifier into a network, as AlexNet, OverFeat and VGG are made."""

from __future__ import annotations

from torch import Tensor, nn


class PlainNetwork(nn.Module):
    """Images go through `features`, which are flattened and go through `classifier`. State-dict keys are torchvision's.

    torchvision puts an adaptive pooling in between that changes nothing at the canonical input but would be a kernel.
    """

    def __init__(self, features: list[nn.Module], classifier: list[nn.Module]) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(*classifier)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))  # type: ignore[no-any-return]
