"""The masked average: one vector for what the support marks."""

from torch import Tensor

_SLACK = 0.0005  # what the release adds to an area


def shot_averages(features: Tensor, mask: Tensor) -> Tensor:
    """Each shot's mean foreground feature.

    Args:
        features: (B, K, C, h, w).
        mask: (B, K, h, w) bool.

    Returns:
        (B, K, C): zero where a shot has no foreground.
    """
    total, area = _sums(features, mask)
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


def released_averages(features: Tensor, mask: Tensor) -> Tensor:
    """As `shot_averages`, with the release's divisor."""
    total, area = _sums(features, mask)
    return total / (area + _SLACK)


def released_mean(averages: Tensor, mask: Tensor) -> Tensor:
    """As `mean_of_shots`, over all shots: one without foreground counts as zero."""
    return averages.mean(1)


def _sums(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(B, K, C) sums over the foreground, and (B, K, 1) its area."""
    weight = mask.to(features.dtype).flatten(2)  # (B, K, hw)
    return (features.flatten(3) * weight[:, :, None]).sum(-1), weight.sum(-1, keepdim=True)
