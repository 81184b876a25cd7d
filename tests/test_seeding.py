import hashlib
import struct
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

from cyctr.seeding import Stream, random_bits


def test_every_bit_is_set_half_of_the_time():
    bits = random_bits(torch.arange(50), 2000)
    assert bits.min() >= 0 and bits.max() < 2**32
    for place in range(32):
        assert abs(float(((bits >> place) & 1).float().mean()) - 0.5) < 0.01


def test_neighbouring_seeds_and_positions_are_unrelated():
    bits = random_bits(torch.arange(200), 200).double()
    centred = bits - bits.mean()
    for one, other in ((centred[1:], centred[:-1]), (centred[:, 1:], centred[:, :-1])):
        correlation = (one * other).mean() / centred.var()
        assert abs(float(correlation)) < 0.02


def test_bits_depend_on_seed_and_position_alone():
    assert torch.equal(random_bits(torch.tensor([3, 9]), 100)[1, :40], random_bits(torch.tensor([9]), 40)[0])


def test_positions_under_one_seed_never_collide():
    assert len(random_bits(torch.tensor([5]), 100_000).unique()) == 100_000


def slow_words(*key):
    """SHA-256 in counter mode: a digest of the key and the block's number, read as four little-endian words."""
    block = 0
    while True:
        yield from struct.unpack("<4Q", hashlib.sha256(repr(key).encode("ascii") + struct.pack("<Q", block)).digest())
        block += 1


def slow_choice(words, count, chosen):
    """A Fisher-Yates shuffle of the whole list, of which the beginning is kept."""
    numbers = list(range(count))
    for place in range(chosen):
        other = place + next(words) * (count - place) // 2**64
        numbers[place], numbers[other] = numbers[other], numbers[place]
    return numbers[:chosen]


@pytest.mark.parametrize("key", [("episode", "pascal", 0, "test", 0, 17), ("a",), (), (-5, 2**70)])
def test_a_stream_is_sha_256_in_counter_mode(key):
    stream = Stream(*key)
    assert [stream.word() for _ in range(13)] == list(islice(slow_words(*key), 13))


def test_below_and_uniform_are_the_words_scaled():
    stream, words = Stream("scaled", 1), slow_words("scaled", 1)
    for count in (1, 2, 7, 1000, 2**40):
        assert stream.below(count) == next(words) * count // 2**64
        assert stream.uniform() == next(words) // 2**11 / 2**53
        assert stream.uniform(-3.0, 5.0) == -3.0 + 8.0 * (next(words) // 2**11 / 2**53)


@pytest.mark.parametrize(("count", "chosen"), [(1, 1), (5, 5), (20, 6), (300, 300), (10**12, 3)])
def test_a_choice_is_the_beginning_of_a_shuffle(count, chosen):
    key = ("choice", count, chosen)
    if count < 10**6:
        assert Stream(*key).choose(count, chosen) == slow_choice(slow_words(*key), count, chosen)
    picks = Stream(*key).choose(count, chosen)
    assert len(set(picks)) == chosen and all(0 <= pick < count for pick in picks)


def test_the_same_key_gives_the_same_numbers_and_another_key_others():
    def numbers(*key):
        stream = Stream(*key)
        return tuple(stream.word() for _ in range(6))

    keys = [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("a", 1, 0),
        ("a", 11),
        ("a", "1"),
        ("a1",),
        (1, "a"),
        ("a", -1),
        ("a",),
        ("", "a", 1),
    ]
    assert all(numbers(*key) == numbers(*key) for key in keys)
    words = [word for key in keys for word in numbers(*key)]
    assert len(set(words)) == len(words)


def test_whole_numbers_of_any_kind_are_the_same_key():
    expected = Stream("a", 7).word()
    assert Stream("a", np.int64(7)).word() == Stream("a", np.uint8(7)).word() == expected
    with pytest.raises(TypeError):
        Stream("a", 7.5)


def test_a_key_may_hold_any_text():
    strange = ["é", "\U0001fae8", "\udcff", "'", '"', "\\", "\n"]
    assert len({Stream(text).word() for text in strange}) == len(strange)


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_whole_numbers_below_are_in_range_and_roughly_equally_frequent(count):
    stream = Stream("below", count)
    found = Counter(stream.below(count) for _ in range(2000 * count))
    assert sorted(found) == list(range(count))
    assert all(abs(times - 2000) < 4 * 2000**0.5 for times in found.values())


def test_uniform_numbers_fill_their_range():
    stream = Stream("uniform")
    numbers = np.array([stream.uniform(2.0, 5.0) for _ in range(8000)])
    assert numbers.min() >= 2.0 and numbers.max() < 5.0
    shares = np.histogram(numbers, 10, (2.0, 5.0))[0] / len(numbers)
    assert abs(shares - 0.1).max() < 0.015


def test_a_choice_of_fewer_is_the_beginning_of_a_choice_of_more():
    for seed in range(30):
        everything = Stream("prefix", seed).choose(12, 12)
        assert sorted(everything) == list(range(12))
        assert all(Stream("prefix", seed).choose(12, chosen) == everything[:chosen] for chosen in range(12))


def test_every_order_of_a_choice_is_equally_likely():
    orders = Counter(tuple(Stream("orders", seed).choose(4, 2)) for seed in range(6000))
    assert len(orders) == 12
    assert all(abs(times - 500) < 4 * 500**0.5 for times in orders.values())
