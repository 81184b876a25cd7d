"""Predicted attention: each token says where to look and how much each place counts (section 3.3.1, equation 6)."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyctr.methods.cyctr.config import EncoderConfig
from cyctr.speed import kernels, on_cpu

_CHUNK = 2**21  # numbers read together on the CPU: 8 MB stay in its cache


def sample_points(values: Tensor, points: Tensor) -> Tensor:
    """Reads maps at fractional positions, bilinearly; zero outside.

    Args:
        values: (B, C, h, w).
        points: (B, P, T, 2) as (x, y) in cells: (0, 0) is the centre of the first.

    Returns:
        (B, C, P, T) float32.
    """
    height, width = values.shape[-2:]
    x, y = points.float().unbind(-1)  # float32: bfloat16 would be a tenth of a cell off
    if values.device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
        return gather_points(values.float(), x, y)
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    return F.grid_sample(values.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def gather_points(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """As `sample_points`, from its corners: slower, but its gradient is added up in a fixed order on a GPU too.

    Args:
        values: (B, C, h, w) float32.
        x: (B, P, T) columns.
        y: (B, P, T) rows.
    """
    height, width = values.shape[-2:]
    flat = values.flatten(2)  # (B, C, hw)
    left, top = x.detach().floor(), y.detach().floor()
    across, down = x - left, y - top  # how far towards the next column and row
    corners = []
    for right, below in itertools.product((0, 1), (0, 1)):
        weight = (across if right else 1 - across) * (down if below else 1 - down)  # (B, P, T)
        column, row = left + right, top + below
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        place = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long().flatten(1)  # (B, PT)
        read = flat.gather(2, place[:, None].expand(-1, flat.shape[1], -1)).unflatten(2, x.shape[1:])  # (B, C, P, T)
        corners.append(read * (weight * inside)[:, None])
    return torch.stack(corners).sum(0)


class PredictedAttention(nn.Module):
    """Multi-head attention over P predicted positions: offsets and weights come from `Q + Coord`, values from a map."""

    def __init__(self, dim: int, config: EncoderConfig, biased: bool = True) -> None:
        super().__init__()
        self.heads, self.points = config.heads, config.points
        self.q = nn.Identity() if config.unprojected else nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.offsets = nn.Linear(dim, self.heads * self.points * 2)  # f
        self.weights = nn.Linear(dim, self.heads * self.points)  # g
        self.dropout = nn.Dropout(config.dropout)
        self.out = nn.Linear(dim, dim, bias=biased) if config.output_projection else nn.Identity()
        self._start_on_rays()

    def forward(
        self,
        query: Tensor,
        position: Tensor,
        grid: tuple[int, int],
        maps: Tensor | None = None,
        silent: Tensor | None = None,
    ) -> Tensor:
        """Gathers what each query token asks for.

        Args:
            query: (B, hw, d).
            position: (hw, d) or (B, hw, d), `Coord` of the query's cells.
            grid: (h, w) of the query.
            maps: (B, K, d, h', w') to read from, the mean over K; by default the query itself.
            silent: (B, hw) bool, cells of the query whose values are zero.

        Returns:
            (B, hw, d).
        """
        batch, tokens, dim = query.shape
        q = self.q(query)
        guide = q + position.to(q.dtype)
        with torch.autocast(query.device.type, enabled=False):  # a place nine cells away needs more than eight bits
            offsets = self.offsets(guide.float()).unflatten(-1, (self.heads, self.points, 2))  # (B, hw, heads, P, 2)
        weights = self.weights(guide).float().unflatten(-1, (self.heads, self.points)).softmax(-1)  # (B, hw, heads, P)
        weights = self.dropout(weights)
        if maps is None and kernels.usable(query) and not torch.are_deterministic_algorithms_enabled():
            values = self._values(query, silent).unflatten(-1, (self.heads, -1))  # (B, hw, heads, d / heads)
            return self.out(kernels.mix_points(values, offsets, weights, *grid).flatten(2))

        if maps is None:
            values, shots, size = self._values(query, silent), 1, grid
        else:
            shots, size = maps.shape[1], (maps.shape[-2], maps.shape[-1])
            values = self.v(maps.flatten(3).transpose(2, 3).flatten(0, 1))  # (B * K, h'w', d)
        values = values.transpose(1, 2).reshape(batch * shots * self.heads, dim // self.heads, *size)

        points = _centres(grid, size, query.device) + offsets.permute(0, 2, 3, 1, 4)  # (B, heads, P, hw, 2)
        by_head = weights.permute(0, 2, 3, 1)  # (B, heads, P, hw)
        mixed = _weighted_read(values, _for_shots(points, shots), _for_shots(by_head, shots))
        mixed = mixed.reshape(batch, shots, dim, tokens).mean(1)  # (B, d, hw)
        return self.out(mixed.transpose(1, 2).to(q.dtype))

    def _values(self, query: Tensor, silent: Tensor | None) -> Tensor:
        """(B, hw, d) what the cells of the query have to say."""
        values = self.v(query)
        return values if silent is None else values.masked_fill(silent[..., None], 0.0)

    def _start_on_rays(self) -> None:
        """Deformable attention's start: head m looks along direction m, point p at distance p, all about equally.

        Its exact zeros would keep the first gradient from reaching `q`; small numbers do not.
        """
        angle = torch.arange(self.heads) * (2 * math.pi / self.heads)
        direction = torch.stack([angle.cos(), angle.sin()], -1)  # (heads, 2)
        direction = direction / direction.abs().amax(-1, keepdim=True)
        distance = torch.arange(1, self.points + 1).float()
        with torch.no_grad():
            self.offsets.weight.normal_(0, 0.01)
            self.offsets.bias.copy_((direction[:, None] * distance[:, None]).flatten())
            self.weights.weight.normal_(0, 0.01)
            self.weights.bias.zero_()


def _weighted_read(values: Tensor, points: Tensor, weights: Tensor) -> Tensor:
    """(G, C, T): the sum of what maps (G, C, h, w) hold at points (G, P, T, 2), by weights (G, P, T)."""
    if on_cpu.usable(values):
        return on_cpu.weighted_read(values, points, weights)
    whole = torch.compiler.is_compiling() or values.device.type != "cpu"
    size = len(values) if whole else max(1, _CHUNK // (values.shape[1] * weights[0].numel()))
    pieces = zip(values.split(size), points.split(size), weights.split(size), strict=True)
    return torch.cat([(sample_points(maps, places) * share[:, None]).sum(2) for maps, places, share in pieces])


def _for_shots(values: Tensor, shots: int) -> Tensor:
    """(B * K * heads, ...) from (B, heads, ...), the same for every shot."""
    return values[:, None].expand(-1, shots, *values.shape[1:]).flatten(0, 2)


def _centres(grid: tuple[int, int], target: tuple[int, int], device: torch.device) -> Tensor:
    """(hw, 2) the (x, y) of every cell of `grid`, in cells of a `target` grid laid over the same extent."""
    y, x = (
        (torch.arange(cells, device=device) + 0.5) * (other / cells) - 0.5 for cells, other in zip(grid, target, strict=True)
    )
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).flatten(0, 1)
