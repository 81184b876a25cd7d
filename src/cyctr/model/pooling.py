"""The masked average: one vector for what the support marks."""

from torch import Tensor


def masked_average(features: Tensor, mask: Tensor) -> Tensor:
    """The mean over shots of each shot's mean foreground feature.

    Args:
        features: (B, K, C, h, w).
        mask: (B, K, h, w) bool.

    Returns:
        (B, C). A shot without foreground is left out; zero if all are.
    """
    weight = mask.to(features.dtype).flatten(2)  # (B, K, hw)
    total = (features.flatten(3) * weight[:, :, None]).sum(-1)  # (B, K, C)
    per_shot = total / weight.sum(-1, keepdim=True).clamp_min(1)  # (B, K, C)
    present = mask.flatten(2).any(-1, keepdim=True).to(features.dtype)  # (B, K, 1)
    return (per_shot * present).sum(1) / present.sum(1).clamp_min(1)
