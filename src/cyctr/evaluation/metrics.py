"""Counts -> IoU. Integers are added up over episodes; ratios are taken once, at the end."""

from dataclasses import dataclass

from torch import Tensor

from cyctr.types import IGNORE


@dataclass(frozen=True)
class Overlap:
    """Foreground pixels that prediction and truth share, and that either has; sums with `+`."""

    intersection: int = 0
    union: int = 0

    def __add__(self, other: "Overlap") -> "Overlap":
        return Overlap(self.intersection + other.intersection, self.union + other.union)

    @property
    def iou(self) -> float:
        """Intersection over union; 0 where both are empty."""
        return self.intersection / self.union if self.union else 0.0


def overlap(mask: Tensor, labels: Tensor) -> Overlap:
    """Counts a bool prediction against uint8 labels of the same shape; pixels of 255 do not count."""
    counted, truth = labels != IGNORE, labels == 1
    return Overlap(int((mask & truth).sum()), int(((mask | truth) & counted).sum()))
