"""Randomness without state: a number is a function of its seed and its position only.

The same bits on every device, in every batch, under `torch.compile` and after a resume, because nothing is drawn
from a generator that remembers what came before.
"""

import hashlib
import operator

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
    value = value + 0x9E3779B9  # otherwise 0 would stay 0
    for multiplier in (0x7FEB352D, 0x2C1B3C6D, 0x297A2D39):
        value = value & _LOW_32_BITS
        value = (value ^ (value >> 16)) * multiplier
    value = value & _LOW_32_BITS
    return value ^ (value >> 15)


class Stream:
    """Random numbers that are a function of a key: the same on every machine and with every version of a library."""

    def __init__(self, *key: str | int) -> None:
        whole = (part if isinstance(part, str) else operator.index(part) for part in key)  # numpy's integers, too
        self._key = ascii(tuple(whole)).encode()
        self._block = 0
        self._words: list[int] = []

    def word(self) -> int:
        """The next 64 random bits."""
        if not self._words:
            block = hashlib.sha256(self._key + self._block.to_bytes(8, "little")).digest()
            self._block += 1
            self._words = [int.from_bytes(block[start : start + 8], "little") for start in (24, 16, 8, 0)]
        return self._words.pop()

    def below(self, count: int) -> int:
        """A whole number from 0 to count - 1."""
        return self.word() * count >> 64

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A number in [low, high)."""
        return low + (high - low) * (self.word() >> 11) * 2.0**-53

    def choose(self, count: int, chosen: int) -> list[int]:
        """`chosen` different numbers below `count` in random order; fewer of them are the beginning of more."""
        moved: dict[int, int] = {}  # a shuffle of range(count) that keeps only what it touched
        picks = []
        for place in range(chosen):
            other = place + self.below(count - place)
            picks.append(moved.get(other, other))
            moved[other] = moved.get(place, place)
        return picks
