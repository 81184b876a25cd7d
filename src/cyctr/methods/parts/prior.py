"""Prior maps: how much each query cell looks like what the support marks (appendix A.1, after PFENet), before any learning."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

_PRODUCTS = 2**20  # looked at together on the CPU: 4 MB


def support_vectors(high: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The support's side of the prior map, to be compared with any number of queries.

    Args:
        high: (B, K, C, h, w) high-level support features.
        mask: (B, K, h, w) bool foreground.

    Returns:
        (B, K, M, C) vectors of unit length, and (B, K, M) bool: which of them are foreground.
    """
    vectors = high.flatten(3).transpose(2, 3)  # (B, K, hw, C)
    valid = mask.flatten(2)  # (B, K, hw)
    if high.device.type == "cpu" and not torch.compiler.is_compiling():
        # Only foreground takes part, a sixth of an image on average: on the CPU the rest is worth leaving out. On a GPU,
        # or while tracing, asking how much there is would cost more than it saves.
        most = max(1, int(valid.sum(-1).max()))
        order = (~valid).to(torch.uint8).argsort(dim=-1, stable=True)[..., :most]  # (B, K, M) foreground first
        vectors = vectors.gather(2, order[..., None].expand(-1, -1, -1, vectors.shape[-1]))
        valid = valid.gather(2, order)
    return F.normalize(vectors, dim=-1), valid


def prior_map(query_high: Tensor, vectors: Tensor, valid: Tensor, all_shots: bool = False) -> Tensor:
    """The largest cosine similarity of each query cell to the foreground of each shot, spread to [0, 1], mean over shots.

    Args:
        query_high: (B, C, h, w).
        vectors: (B, K, M, C) from `support_vectors`.
        valid: (B, K, M) bool.
        all_shots: a shot without foreground counts as zero, as in the release; else it does not count.

    Returns:
        (B, h, w) in [0, 1].
    """
    query = query_high.flatten(2).transpose(1, 2)[:, None]  # (B, 1, hw, C)

    def nearest(part: Tensor) -> Tensor:
        similarity = as_other(part, vectors) @ vectors.transpose(2, 3)  # (B, K, rows, M)
        return similarity.masked_fill(~valid[:, :, None], torch.finfo(similarity.dtype).min).amax(-1)

    found = torch.cat([nearest(part) for part in in_parts(query, valid[0].numel())], -1)  # (B, K, hw)
    best = found.float() / lengths(query)  # a cosine: the length of a query vector moves no maximum
    present = valid.any(-1, keepdim=True)  # (B, K, 1): a shot without foreground says nothing
    best = best.masked_fill(~present, 0.0)
    low, high = best.amin(-1, keepdim=True), best.amax(-1, keepdim=True)
    noise = max(1e-4, 2 * torch.finfo(found.dtype).eps)  # of rounding: it is not spread out
    spread = (best - low) / (high - low).clamp_min(noise)  # (B, K, hw)
    mean = spread.mean(1) if all_shots else spread.sum(1) / present.sum(1).clamp_min(1)  # (B, hw)
    return mean.unflatten(1, query_high.shape[-2:])


def in_parts(cells: Tensor, others: int) -> Sequence[Tensor]:
    """(..., hw, C) cells in parts of some rows, whose products with so many others stay in a CPU's cache; elsewhere all."""
    if cells.device.type != "cpu" or torch.compiler.is_compiling():
        return [cells]
    return cells.split(max(1, _PRODUCTS // max(1, len(cells) * others)), dim=-2)


def as_other(vectors: Tensor, other: Tensor) -> Tensor:
    """The vectors in the type of the other factor of a product; autocast sees to that by itself, without a larger copy."""
    return vectors if torch.is_autocast_enabled(vectors.device.type) else vectors.to(other.dtype)


def lengths(vectors: Tensor) -> Tensor:
    """(...) float32 lengths of (..., C) vectors, summed up in float32 without a copy of them."""
    return torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float32).clamp_min(1e-12)
