import torch

from cyctr.seeding import random_bits


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
