import pytest
import torch

from cyctr.backbones.grid import Grid

CORNER, CENTER = Grid(8, "corner"), Grid(8, "center")


def cells_of(pixels: int, grid: Grid) -> int:
    return -(-pixels // 8) if grid.alignment == "corner" else pixels // 8


@pytest.mark.parametrize("pixels", [65, 64, 72, 70, 473])
def test_a_cell_takes_the_label_of_the_pixel_it_sits_on(pixels):
    labels = torch.randint(0, 2, (2, pixels, pixels), dtype=torch.uint8)
    count = cells_of(pixels, CORNER)
    assert torch.equal(CORNER.cells(labels, (count, count)), labels[:, ::8, ::8])


def test_a_patch_takes_the_label_at_its_middle():
    labels = torch.randint(0, 2, (2, 64, 64), dtype=torch.uint8)
    assert torch.equal(CENTER.cells(labels, (8, 8)), labels[:, 4::8, 4::8])


@pytest.mark.parametrize("grid", [CORNER, CENTER])
@pytest.mark.parametrize("pixels", [65, 70, 79])
def test_an_object_of_one_pixel_keeps_the_nearest_cell_wherever_it_lies(grid, pixels):
    count = cells_of(pixels, grid)
    anchor = torch.arange(count) * 8 + (0 if grid.alignment == "corner" else 4)
    for y in range(0, pixels, 7):
        for x in range(0, pixels, 5):
            labels = torch.zeros(1, pixels, pixels, dtype=torch.uint8)
            labels[0, y, x] = 1
            cells = grid.cells(labels, (count, count))
            assert int(cells.sum()) == 1
            row, column = (cells[0] == 1).nonzero()[0].tolist()
            assert (anchor[row] - y).abs() == (anchor - y).abs().min()
            assert (anchor[column] - x).abs() == (anchor - x).abs().min()


def test_a_vanishing_object_wins_its_cell_even_where_that_is_ignored():
    labels = torch.full((1, 65, 65), 255, dtype=torch.uint8)
    labels[0, 12:15, 12:15] = 1
    assert CORNER.cells(labels, (9, 9)).eq(1).sum() == 1


def test_an_empty_label_stays_empty_and_255_stays_ignored():
    labels = torch.zeros(1, 65, 65, dtype=torch.uint8)
    labels[:, 32:] = 255
    cells = CORNER.cells(labels, (9, 9))
    assert (cells[:, :4] == 0).all()
    assert (cells[:, 4:] == 255).all()


@pytest.mark.parametrize("pixels", [65, 66, 72, 473])
def test_each_cell_s_value_lands_on_its_own_pixel(pixels):
    count = cells_of(pixels, CORNER)
    maps = torch.randn(1, 2, count, count)
    up = CORNER.upsample(maps, (pixels, pixels))
    assert up.shape == (1, 2, pixels, pixels)
    torch.testing.assert_close(up[..., ::8, ::8], maps)


@pytest.mark.parametrize("grid", [CORNER, CENTER])
def test_a_ramp_of_positions_becomes_the_positions_of_the_pixels(grid):
    count = cells_of(65, grid)
    centre = torch.arange(count) * 8.0 + (0 if grid.alignment == "corner" else 3.5)
    up = grid.upsample(centre.expand(1, 1, count, count), (65, 65))[0, 0, 0]
    inside = slice(4, 57)
    torch.testing.assert_close(up[inside], torch.arange(65.0)[inside])


def test_a_mask_of_whole_cells_survives_the_way_down_and_up():
    labels = torch.zeros(1, 473, 473, dtype=torch.uint8)
    labels[:, 100:300, 150:400] = 1
    cells = CORNER.cells(labels, (60, 60))
    back = CORNER.upsample((cells == 1).float()[:, None], (473, 473))[:, 0] > 0.5
    truth = labels == 1
    assert (back & truth).sum() / (back | truth).sum() > 0.95


@pytest.mark.parametrize("alignment", ["corner", "center"])
@pytest.mark.parametrize("pixels", [65, 73, 120, 473])
@pytest.mark.parametrize("stride", [4, 8, 16, 32])
def test_maps_of_another_stride_keep_their_place(alignment, pixels, stride):
    source, target = Grid(stride, alignment), Grid(8, alignment)

    def positions(grid):
        count = -(-pixels // grid.stride) if alignment == "corner" else pixels // grid.stride
        return grid.centres(torch.arange(count), count)[:, 0].float()

    ramp, wanted = positions(source), positions(target)
    moved = target.regrid(ramp.expand(1, 1, len(ramp), len(ramp)), source, (len(wanted), len(wanted)))[0, 0, 0]
    between = (wanted >= ramp[0]) & (wanted <= ramp[-1])  # beyond the outermost cells values are repeated
    tolerance = 2.0 if alignment == "center" and stride < 8 else 1e-3  # the maximum of a ramp is its upper end
    assert (moved - wanted)[between].abs().max() <= tolerance


@pytest.mark.parametrize("offset", [-12, -3, 5, 8])
def test_with_an_offset_labels_are_read_and_values_land_beside_where_cells_sit(offset):
    grid, count = Grid(8, "corner", offset), 9
    places = torch.arange(count) * 8 + offset
    inside = ((places >= 0) & (places < 65)).nonzero()[:, 0]
    labels = torch.randint(0, 2, (1, 65, 65), dtype=torch.uint8)
    read = grid.cells(labels, (count, count))[0]
    assert torch.equal(read[inside[:, None], inside], labels[0][places[inside, None], places[inside]])
    maps = torch.randn(1, 2, count, count)
    up = grid.upsample(maps, (65, 65))
    assert up.shape == (1, 2, 65, 65)
    torch.testing.assert_close(up[..., places[inside, None], places[inside]], maps[..., inside[:, None], inside])
    assert grid.centres(torch.tensor([0, 10]), count).tolist() == [[offset, offset], [8 + offset, 8 + offset]]
