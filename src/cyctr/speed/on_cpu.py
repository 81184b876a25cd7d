"""Operators of the network as a CPU does them fastest, without gradients. Each has a twin in plain torch beside its caller."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK = 2**17  # affinities looked at together: half a megabyte stays in the cache
_BLOCK = 16  # query tokens whose largest affinity is found first


def usable(tensor: Tensor) -> bool:
    """Whether these operators can run where this tensor is."""
    return tensor.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def landings(q: Tensor, k: Tensor, valid: Tensor) -> Tensor:
    """Where round trips end: from each support token to the nearest query token, and to the nearest support token of that.

    A part of the affinities at a time, and the way back only from query tokens that some support token comes to.

    Args:
        q: (B, heads, hw, C) query tokens.
        k: (B, heads, N, C) support tokens.
        valid: (B, 1, N) bool; no trip ends at the others.

    Returns:
        (B, heads, N) int64 in N.
    """
    batch, heads = q.shape[:2]
    hidden = None if bool(valid.all()) else ~valid
    found = k.new_empty((batch, heads, k.shape[2]), dtype=torch.int64)
    for episode, head in itertools.product(range(batch), range(heads)):
        own, keys = q[episode, head], k[episode, head]
        visited, visitors = _nearest_query(own, keys).unique(return_inverse=True)
        affinity = own[visited] @ keys.T  # (visited, N)
        if hidden is not None:
            affinity.masked_fill_(hidden[episode], -math.inf)
        found[episode, head] = affinity.max(-1).indices[visitors]
    return found


def _nearest_query(q: Tensor, k: Tensor) -> Tensor:
    """(N,) the most similar of (hw, C) query tokens for each of (N, C) support tokens; the first of equals.

    Finding a maximum is much faster than finding where it is, so blocks are compared first, then the tokens of the best block.
    """
    rows = max(1, _CHUNK // (_BLOCK * len(k))) * _BLOCK
    whole = len(q) // _BLOCK * _BLOCK
    parts = [(part @ k.T).unflatten(0, (-1, _BLOCK)).amax(1) for part in q[:whole].split(rows)] if whole else []
    rest = [(q[whole:] @ k.T).amax(0, keepdim=True)] if whole < len(q) else []
    block = torch.cat([*parts, *rest]).argmax(0)  # (N,)
    places = (block[:, None] * _BLOCK + torch.arange(_BLOCK, device=q.device)).clamp_max(len(q) - 1)  # (N, _BLOCK)
    best = (q[places] @ k[:, :, None])[..., 0].argmax(1, keepdim=True)
    return places.gather(1, best)[:, 0]


def weighted_read(values: Tensor, points: Tensor, weights: Tensor) -> Tensor:
    """Reads maps at fractional positions, bilinearly, and adds up what is read; zero outside.

    Each sum is one weighted sum of the cells around all its points, so no map of a single point is ever made.

    Args:
        values: (G, C, h, w).
        points: (G, P, T, 2) as (x, y) in cells.
        weights: (G, P, T).

    Returns:
        (G, C, T) float32.
    """
    groups, channels, height, width = values.shape
    x, y = (part.contiguous() for part in points.float().transpose(1, 2).unbind(-1))  # (G, T, P)
    share = weights.float().transpose(1, 2).contiguous()
    first = height * width * torch.arange(groups, dtype=torch.int32)[:, None, None]  # cell of each map
    left, top = x.floor(), y.floor()
    across, down = x - left, y - top  # how far towards the next column and row
    cells, shares = [], []
    for right, below in itertools.product((0, 1), (0, 1)):
        column, row = left + right, top + below
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        place = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        cells.append(place.to(torch.int32) + first)
        shares.append((across if right else 1 - across) * (down if below else 1 - down) * share * inside)
    rows = values.float().flatten(2).transpose(1, 2).reshape(-1, channels)  # (G * hw, C)
    bags, by = torch.cat(cells, 2).flatten(0, 1), torch.cat(shares, 2).flatten(0, 1)  # (G * T, 4 P)
    read = F.embedding_bag(bags, rows, per_sample_weights=by, mode="sum")
    return read.unflatten(0, (groups, -1)).transpose(1, 2)
