import torch

from cyctr.methods.cyctr.position import coordinates

CPU = torch.device("cpu")


def test_every_cell_has_a_coordinate_of_its_own():
    encoded = coordinates(60, 60, 32, CPU)
    distance = torch.cdist(encoded, encoded) + 1e3 * torch.eye(3600)
    assert distance.min() > 1e-2


def test_the_first_half_tells_the_row_and_the_second_the_column():
    encoded = coordinates(4, 6, 16, CPU).view(4, 6, 16)
    assert torch.equal(encoded[:, :1, :8].expand(4, 6, 8), encoded[..., :8])
    assert torch.equal(encoded[:1, :, 8:].expand(4, 6, 8), encoded[..., 8:])


def test_a_larger_grid_keeps_the_coordinates_of_a_smaller_one():
    assert torch.equal(coordinates(9, 9, 16, CPU).view(9, 9, 16)[:4, :5], coordinates(4, 5, 16, CPU).view(4, 5, 16))
