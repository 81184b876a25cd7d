"""The masked average: one vector for what the support marks."""

from torch import Tensor


def shot_averages(features: Tensor, mask: Tensor) -> Tensor:
    """Each shot's mean foreground feature.

    Args:
        features: (B, K, C, h, w).
        mask: (B, K, h, w) bool.

    Returns:
        (B, K, C): zero where a shot has no foreground.
    """
    total, area = sums(features, mask)
    return total / area.clamp_min(1)


def masked_average(features: Tensor, mask: Tensor) -> Tensor:
    """The mean over shots of each shot's mean foreground feature; arguments as above.

    Returns:
        (B, C). A shot without foreground is left out; zero if all are.
    """
    return mean_of_shots(shot_averages(features, mask), mask)


def mean_of_shots(averages: Tensor, mask: Tensor) -> Tensor:
    """(B, C) the mean of (B, K, C) averages over the shots that have foreground in (B, K, h, w)."""
    present = mask.flatten(2).any(-1, keepdim=True).to(averages.dtype)  # (B, K, 1)
    return (averages * present).sum(1) / present.sum(1).clamp_min(1)


def sums(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(B, K, C) sums over the foreground, and (B, K, 1) its area."""
    weight = mask.to(features.dtype).flatten(2)  # (B, K, hw)
    return (features.flatten(3) * weight[:, :, None]).sum(-1), weight.sum(-1, keepdim=True)


class Pooling:
    """How a method makes one vector of what several shots mark.

    Attributes:
        keeps_small: an object that lies between the pixels of all cells keeps the cell that it covers most.
        all_shots: a shot without foreground counts as zero in prior maps; otherwise it does not count.
    """

    keeps_small = True
    all_shots = False

    def of_shots(self, features: Tensor, mask: Tensor) -> Tensor:
        """(B, K, C) each shot's mean foreground feature; see `shot_averages`."""
        return shot_averages(features, mask)

    def joined(self, averages: Tensor, mask: Tensor) -> Tensor:
        """(B, C) of all shots; see `mean_of_shots`."""
        return mean_of_shots(averages, mask)
