import torch

from cyctr.transfer import Fetching, constant, to_device

CPU = torch.device("cpu")


def test_what_is_taken_to_a_device_and_fetched_is_what_it_was():
    numbers = torch.arange(6).view(2, 3)
    there = to_device(numbers, CPU)
    assert there.device == CPU
    assert torch.equal(Fetching(there).get(), numbers)


def test_a_constant_is_made_once_for_each_device():
    first = constant((0.5, 2, 7), CPU)
    assert first.tolist() == [0.5, 2.0, 7.0]
    assert first.dtype == torch.float32
    assert constant((0.5, 2, 7), CPU) is first
