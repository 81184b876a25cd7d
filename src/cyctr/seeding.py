"""Randomness without state: a number is a function of its seed and its position alone.

The same bits on every device, in every batch, under `torch.compile` and after a resume, because nothing is drawn
from a generator that remembers what came before.
"""

import torch
from torch import Tensor

_LOW_32_BITS = 0xFFFFFFFF


def random_bits(seeds: Tensor, count: int) -> Tensor:
    """32 random bits for each of `count` positions under each seed.

    Args:
        seeds: (B,) int64.
        count: how many positions.

    Returns:
        (B, count) int64 in [0, 2**32), on the device of `seeds`.
    """
    position = torch.arange(count, device=seeds.device)  # (count,)
    return _mix(position ^ _mix(seeds)[:, None])  # (B, count)


def _mix(value: Tensor) -> Tensor:
    """Scrambles 32-bit integers: a bijection in which every input bit moves every output bit."""
    value = value + 0x9E3779B9  # so that 0 does not stay 0
    for multiplier in (0x7FEB352D, 0x2C1B3C6D, 0x297A2D39):
        value = value & _LOW_32_BITS
        value = (value ^ (value >> 16)) * multiplier
    value = value & _LOW_32_BITS
    return value ^ (value >> 15)
