import cmath
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from cyctr.config import PROTOCOLS, AugmentationConfig, InputConfig
from cyctr.episodes.augmentation import BLUR, CHANCES, FILL, augmentation_matrices, blur, warp
from cyctr.images import geometry
from cyctr.images.geometry import content_size, fit_image, fit_label, padding_of, planes, restore, restore_all
from cyctr.seeding import Stream

PASCAL_SIZES = [
    (375, 500),
    (500, 375),
    (333, 500),
    (500, 334),
    (300, 500),
    (500, 500),
    (366, 500),
    (442, 500),
    (500, 301),
    (281, 311),
]
OTHER_SIZES = [(1, 1), (7, 5), (30, 9), (9, 200), (473, 473), (472, 474), (480, 640), (1100, 800), (60, 900), (2000, 1500)]
INPUTS = {
    "pad": InputConfig(),
    "squash": PROTOCOLS["hsnet"].input,
    "multiples": InputConfig(multiple=8),
    "small": InputConfig(size=129, fill=77),
}
STILL = {"scale": (1.0, 1.0), "rotation": 0.0, "blur": 0.0, "flip": 0.0}
WILD = {"scale": (0.5, 1.8), "rotation": 180.0, "blur": 0.0, "flip": 0.5}


def noise(height, width, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, height, width), dtype=np.uint8))


def oval(height, width):
    """(H, W) label: an ellipse that leans to the lower right and touches neither side."""
    y, x = np.mgrid[0:height, 0:width] + 0.5
    inside = ((x / width - 0.6) / 0.36) ** 2 + ((y / height - 0.55) / 0.4) ** 2 < 1
    return torch.from_numpy(inside.astype(np.uint8))


def blobs(height, width, seed=0):
    """(H, W) label of patches: background, foreground and undecided."""
    coarse = np.random.default_rng(seed).choice([0, 1, 255], (height // 6 + 1, width // 6 + 1)).astype(np.uint8)
    return torch.from_numpy(coarse.repeat(6, 0).repeat(6, 1)[:height, :width].copy())


def one_hot(label):
    """(2, S, S) logits that say what the label says."""
    marked = (label == 1).float()
    return torch.stack([1 - marked, marked])


def iou(one, other):
    return float((one & other).sum() / (one | other).sum())


def there_and_back(label, config):
    maps = restore(one_hot(fit_label(label, config)), (label.shape[0], label.shape[1]), config)
    return maps[1] > maps[0]


@pytest.mark.parametrize(
    ("size", "config", "expected"),
    [
        ((375, 500), InputConfig(), (355, 473)),  # 354.75
        ((500, 333), InputConfig(), (473, 315)),  # 315.018
        ((473, 473), InputConfig(), (473, 473)),
        ((1, 1), InputConfig(), (473, 473)),
        ((1, 5000), InputConfig(), (1, 473)),  # 0.09 keeps a row
        ((500, 375), InputConfig(fit="squash", size=400), (400, 400)),
        ((333, 500), InputConfig(multiple=8), (312, 472)),
        ((372, 500), InputConfig(multiple=8), (344, 472)),  # 351.912 has 43 whole eights, 352 would have 44
        ((1, 5000), InputConfig(multiple=8), (8, 472)),
        ((20, 10), InputConfig(size=16, multiple=16), (16, 16)),
        ((300, 200), InputConfig(size=400, multiple=8), (400, 264)),
    ],
)
def test_the_content_has_the_size_of_the_longest_side_to_the_input_s(size, config, expected):
    assert content_size(size, config) == expected


def test_the_content_keeps_the_aspect_to_half_a_pixel_and_fills_the_longest_side():
    config = InputConfig(size=97)
    for height in range(1, 240, 7):
        for width in range(1, 240, 5):
            content = content_size((height, width), config)
            assert max(content) == 97
            for found, side in zip(content, (height, width), strict=True):
                assert abs(found - side * 97 / max(height, width)) <= 0.5 or found == 1


def test_multiples_round_the_exact_sides_down():
    config = InputConfig(multiple=8)
    for height in range(30, 501):
        found = content_size((height, 500), config)
        assert found == (max(8, math.floor(height * 473 / 500 / 8) * 8), 472)
        assert content_size((500, height), config) == found[::-1]


@pytest.mark.parametrize("config", INPUTS.values(), ids=INPUTS)
def test_padding_is_what_lies_beyond_the_content(config):
    sizes = [*PASCAL_SIZES, *OTHER_SIZES]
    padding = padding_of(sizes, config, torch.device("cpu"))
    for place, size in enumerate(sizes):
        height, width = content_size(size, config)
        inside = torch.zeros(config.size, config.size, dtype=torch.bool)
        inside[:height, :width] = True
        assert padding[place].equal(~inside)


@pytest.mark.parametrize("config", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("size", [*PASCAL_SIZES, *OTHER_SIZES], ids=str)
def test_a_label_equals_a_slow_reading_of_the_nearest_pixels(size, config):
    label = blobs(*size)
    height, width = content_size(size, config)
    rows = [int((i + 0.5) * size[0] / height) for i in range(height)]
    columns = [int((j + 0.5) * size[1] / width) for j in range(width)]
    fitted = fit_label(label, config)
    assert fitted.shape == (config.size, config.size) and fitted.dtype == torch.uint8
    clear_rows = [i for i in range(height) if (2 * i + 1) * size[0] % (2 * height)]  # not between two pixels
    clear_columns = [j for j in range(width) if (2 * j + 1) * size[1] % (2 * width)]
    expected = label[rows][:, columns]
    assert torch.equal(fitted[clear_rows][:, clear_columns], expected[clear_rows][:, clear_columns])
    assert (fitted[height:] == 255).all() and (fitted[:, width:] == 255).all()


@pytest.mark.parametrize("config", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("size", [(375, 500), (500, 301), (30, 9), (1100, 800)], ids=str)
def test_an_image_is_filled_where_it_ends(size, config):
    fitted = fit_image(noise(*size), config)
    height, width = content_size(size, config)
    assert fitted.shape == (3, config.size, config.size) and fitted.dtype == torch.uint8
    assert (fitted[:, height:] == config.fill).all() and (fitted[:, :, width:] == config.fill).all()
    assert fitted[:, :height, :width].float().std() > 3


@pytest.mark.parametrize("size", [(375, 500), (500, 301), (120, 90), (1100, 800)], ids=str)
def test_an_image_equals_pillow_s_resizing(size):
    from PIL import Image

    image = noise(*size)
    config = InputConfig(size=241)
    height, width = content_size(size, config)
    pillow = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((width, height), Image.Resampling.BILINEAR)
    difference = fit_image(image, config)[:, :height, :width].int() - torch.from_numpy(np.array(pillow)).permute(2, 0, 1).int()
    assert difference.abs().max() <= 1


def test_an_image_of_the_input_s_size_stays_as_it_is():
    image, label = noise(65, 65), blobs(65, 65)
    for fit in ("pad", "squash"):
        config = InputConfig(size=65, fit=fit)
        assert torch.equal(fit_image(image, config), image) and torch.equal(fit_label(label, config), label)
        assert torch.allclose(restore(image.float(), (65, 65), config), image.float())


@pytest.mark.parametrize("config", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("size", PASCAL_SIZES, ids=str)
def test_a_mask_that_goes_there_and_back_is_the_same(size, config):
    label = oval(*size)
    assert iou(there_and_back(label, config), label == 1) >= (0.99 if config.size > 400 else 0.98)


@pytest.mark.parametrize("fit", ["pad", "squash"])
@pytest.mark.parametrize("size", OTHER_SIZES, ids=str)
def test_a_mask_of_any_size_and_shape_comes_back(size, fit):
    label = oval(*size)
    label[size[0] // 2, size[1] // 2] = 1
    found = there_and_back(label, InputConfig(fit=fit))
    assert found.shape == label.shape
    if max(size) <= 473 and fit == "pad":
        assert torch.equal(found, label == 1)  # enlarged and reduced again: nothing is lost
    assert iou(found, label == 1) >= (0.99 if min(size) > 60 or max(size) <= 473 else 0.95)


@pytest.mark.parametrize("config", INPUTS.values(), ids=INPUTS)
def test_what_comes_back_is_neither_moved_nor_stretched(config):
    """The position of each pixel, as a map: what stands at the middle of the input pixel comes back as the image's."""
    size = (333, 500)
    height, width = content_size(size, config)
    y = (torch.arange(config.size) + 0.5) * size[0] / height
    x = (torch.arange(config.size) + 0.5) * size[1] / width
    positions = torch.stack(torch.meshgrid(y, x, indexing="ij"))
    restored = restore(positions, size, config)
    expected = torch.stack(torch.meshgrid(torch.arange(333) + 0.5, torch.arange(500) + 0.5, indexing="ij"))
    inner = (slice(None), slice(3, -3), slice(3, -3))  # there is nothing beyond the outermost centres to mix with
    assert (restored - expected)[inner].abs().max() < 0.01


WAYS_BACK = INPUTS | {"pfenet": PROTOCOLS["pfenet"].input, "small pfenet": replace(PROTOCOLS["pfenet"].input, size=49)}


def smooth(count, config, dtype):
    """(n, 2, S, S) maps without edges: what rounding does to a place does next to nothing to what is read there."""
    waves = torch.arange(1, 2 * count + 1).view(count, 2, 1, 1).to(dtype)
    y, x = torch.meshgrid(*[torch.linspace(0, 3, config.size, dtype=dtype)] * 2, indexing="ij")
    return torch.sin(waves * x + 0.3) + torch.cos(y * waves / 2)


def assert_restored_as_alone(maps, sizes, config, tolerance):
    together = restore_all(maps, sizes, config)
    assert together.shape == (*maps.shape[:2], max(size[0] for size in sizes), max(size[1] for size in sizes))
    assert together.dtype == maps.dtype
    for one, own, (height, width) in zip(together, maps, sizes, strict=True):
        torch.testing.assert_close(
            one[:, :height, :width], restore(own, (height, width), config), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("config", WAYS_BACK.values(), ids=WAYS_BACK)
@pytest.mark.parametrize(
    "sizes",
    [
        [(1, 1), (2, 1), (1, 3)],
        [(7, 5), (30, 9), (9, 200), (1, 64)],
        [(375, 500), (500, 375), (281, 311)],
        [(473, 473), (1, 1), (800, 600), (60, 900)],
    ],
    ids=["tiny", "small", "pascal", "mixed"],
)
def test_restoring_a_batch_is_restoring_each_image(config, sizes):
    noisy = torch.randn(len(sizes), 2, config.size, config.size, dtype=torch.float64)
    assert_restored_as_alone(noisy, sizes, config, 1e-9)
    assert_restored_as_alone(smooth(len(sizes), config, torch.float32), sizes, config, 1e-4)


@pytest.mark.parametrize("config", WAYS_BACK.values(), ids=WAYS_BACK)
def test_an_image_alone_fills_what_it_is_restored_to_and_beside_others_reads_the_same(config):
    maps = torch.randn(3, 2, config.size, config.size)
    sizes = [(90, 61), (33, 120), (120, 33)]
    together = restore_all(maps, sizes, config)
    for i, (height, width) in enumerate(sizes):
        alone = restore_all(maps[i : i + 1], sizes[i : i + 1], config)
        assert alone.shape == (1, 2, height, width)
        assert torch.equal(alone[0], together[i, :, :height, :width])


@pytest.mark.parametrize("config", [value for value in WAYS_BACK.values() if value.register])
def test_a_batch_is_restored_from_the_content_alone(config):
    """Whatever the maps say of the padding, no pixel of an image hears more of it than rounding lets through."""
    sizes = [(50, 80), (80, 50), (64, 64)]
    maps = torch.randn(3, 2, config.size, config.size)
    loud = maps.clone()
    for one, size in zip(loud, sizes, strict=True):
        height, width = content_size(size, config)
        one[:, height:], one[:, :, width:] = 1e3, 1e3
    for found, expected, (height, width) in zip(
        restore_all(loud, sizes, config), restore_all(maps, sizes, config), sizes, strict=True
    ):
        torch.testing.assert_close(found[:, :height, :width], expected[:, :height, :width], rtol=0, atol=0.1)


@pytest.mark.parametrize("size", PASCAL_SIZES, ids=str)
def test_pfenet_s_way_back_misregisters_where_the_exact_one_does_not(size):
    label = oval(*size)
    pfenet = PROTOCOLS["pfenet"].input
    exact = iou(there_and_back(label, InputConfig(multiple=8)), label == 1)
    assert iou(there_and_back(label, pfenet), label == 1) < exact - 0.002


def test_pfenet_s_way_back_moves_the_far_edge_by_what_its_formula_says():
    label = torch.zeros(375, 500, dtype=torch.uint8)
    label[:350] = 1  # ends at 350 of 375 rows, which is 350 * 352 / 375 of the input, and 499 / 472 times that less a half
    found = there_and_back(label, PROTOCOLS["pfenet"].input)
    edge = int(found[:, 100].sum())
    assert abs(edge - ((350 * 352 / 375 - 0.5) * 499 / 472 + 0.5)) <= 1
    assert 350 - edge in (2, 3) and int(there_and_back(label, InputConfig(multiple=8))[:, 100].sum()) == 350


@pytest.mark.parametrize("config", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("place", [(0, 0), (1999, 1499), (0, 1499), (1001, 703), (13, 2)])
def test_an_object_of_one_pixel_keeps_one_pixel_where_it_is(place, config):
    label = torch.zeros(2000, 1500, dtype=torch.uint8)
    label[place] = 1
    marked = (fit_label(label, config) == 1).nonzero()
    height, width = content_size((2000, 1500), config)
    assert len(marked) == 1
    row, column = marked[0].tolist()
    assert row == int((place[0] + 0.5) * height / 2000) and column == int((place[1] + 0.5) * width / 1500)


@pytest.mark.parametrize("seed", range(8))
def test_of_what_is_too_small_the_pixel_in_the_middle_is_kept(seed):
    places = torch.Generator().manual_seed(seed)
    label = torch.zeros(2000, 1500, dtype=torch.uint8)
    label[2::7, 3::11] = (torch.rand(286, 137, generator=places) < 0.0002).byte()  # a few pixels apart from each other
    label[1001, 703] = 1
    marked = (label == 1).nonzero()
    row, column = marked[len(marked) // 2].tolist()
    config = InputConfig(73)
    height, width = content_size((2000, 1500), config)
    kept = (fit_label(label, config) == 1).nonzero().tolist()
    assert [int((row + 0.5) * height / 2000), int((column + 0.5) * width / 1500)] in kept


def test_a_label_without_object_gets_none_and_is_left_as_it_was():
    label = torch.zeros(900, 700, dtype=torch.uint8)
    label[5, 5] = 255
    before = label.clone()
    assert not (fit_label(label, InputConfig()) == 1).any()
    assert torch.equal(label, before)


@pytest.mark.parametrize("config", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("size", [(375, 500), (500, 375), (90, 61), (1100, 800)], ids=str)
def test_the_edges_of_a_bright_square_and_of_its_mask_coincide(size, config):
    top, bottom, left, right = size[0] // 5, size[0] // 2, size[1] // 4, 2 * size[1] // 3
    label = torch.zeros(*size, dtype=torch.uint8)
    label[top:bottom, left:right] = 1
    height, width = content_size(size, config)
    seen = fit_image((label * 255).expand(3, *size).contiguous(), config)[0, :height, :width] / 255
    marked = (fit_label(label, config)[:height, :width] == 1).float()
    assert (marked[seen == 1] == 1).all() and (marked[seen == 0] == 0).all()
    down, across = height / size[0], width / size[1]
    row, column = int((top + bottom) / 2 * down), int((left + right) / 2 * across)
    for maps, tolerance in ((seen, 0.1), (marked, 0.5001)):  # grey tells where within a pixel the edge is, a mask does not
        for line, middle, low, high in (
            (maps[row], column, left * across, right * across),
            (maps[:, column], row, top * down, bottom * down),
        ):
            assert abs(float((1 - line[:middle]).sum()) - low) <= tolerance
            assert abs(middle + float(line[middle:].sum()) - high) <= tolerance


def chances(stream):
    """(1, 6) the numbers of one change."""
    return torch.tensor([[stream.uniform() for _ in range(CHANCES)]], dtype=torch.float64)


def matrix_of(config, stream, size, anchor):
    """(2, 3) of one change, drawn from a stream."""
    anchors = torch.tensor([anchor], dtype=torch.float64)
    return augmentation_matrices(config, chances(stream), torch.tensor([size]), anchors)[0]


class Drawn:
    """The numbers of an augmentation, drawn again, and where they put a point of the image."""

    def __init__(self, config, stream, size, anchor):
        self.scale = stream.uniform(*config.scale)
        self.angle = math.radians(stream.uniform(-config.rotation, config.rotation))
        self.flipped = stream.uniform() < config.flip
        self.blurred = stream.uniform() < config.blur
        self.middle = complex(size[1] / 2, size[0] / 2)
        landed = self._turned(anchor)
        place = (stream.uniform(), stream.uniform())
        self.corner = complex(
            self._corner(landed.real, size[1] * self.scale, config.size, place[0]),
            self._corner(landed.imag, size[0] * self.scale, config.size, place[1]),
        )

    def _turned(self, point):
        """About the image's centre: mirrored, turned from x towards y, enlarged."""
        z = complex(*point) - self.middle
        return (-z.conjugate() if self.flipped else z) * cmath.rect(self.scale, self.angle)

    @staticmethod
    def _corner(anchor, extent, size, place):
        corner = -extent / 2 + place * (extent - size) if extent > size else -size / 2
        pixel = min(max(round(anchor - corner - 0.5), 0), size - 1)  # of the crop, on whose middle the anchor is put
        return anchor - (pixel + 0.5)

    def __call__(self, x, y):
        z = self._turned((x, y)) - self.corner
        return z.real, z.imag


def changed(image, label, settings, key, anchor, size=64):
    config = AugmentationConfig(size=size, **settings)
    shape = (label.shape[0], label.shape[1])
    matrix = matrix_of(config, Stream(*key), shape, anchor)
    drawn = Drawn(config, Stream(*key), shape, anchor)
    images, labels = warp(image[None], label[None], matrix[None], size)
    return images[0], labels[0], matrix, drawn


def slow_warp(image, label, matrix, size):
    """Every pixel of the crop on its own; also how far its source is from the border between two pixels."""
    height, width = label.shape
    colours, marks = np.zeros((size, size, 3)), np.full((size, size), 255)
    margin = np.zeros((size, size))

    def pixel(row, column):
        return image[row, column] if 0 <= row < height and 0 <= column < width else np.array(FILL)

    for i in range(size):
        for j in range(size):
            x, y = (a * (j + 0.5) + b * (i + 0.5) + c for a, b, c in matrix)
            row, column = math.floor(y), math.floor(x)
            if 0 <= row < height and 0 <= column < width:
                marks[i, j] = label[row, column]
            margin[i, j] = min(x - column, column + 1 - x, y - row, row + 1 - y)
            top, left = math.floor(y - 0.5), math.floor(x - 0.5)
            down, across = y - 0.5 - top, x - 0.5 - left
            for r, share_r in ((top, 1 - down), (top + 1, down)):
                for c, share_c in ((left, 1 - across), (left + 1, across)):
                    colours[i, j] += share_r * share_c * pixel(r, c)
    return colours, marks, margin


@pytest.mark.parametrize("number", range(8))
def test_a_crop_equals_a_slow_reading_of_every_pixel(number):
    size = [(40, 50), (20, 90), (70, 15), (33, 33)][number % 4]
    image, label = noise(*size, number), blobs(*size, number)
    crop, marks, matrix, _ = changed(image, label, WILD, ("slow", number), (size[1] / 3, size[0] / 2), size=32)
    colours, expected, margin = slow_warp(image.permute(1, 2, 0).numpy().astype(float), label.numpy(), matrix.tolist(), 32)
    assert np.abs(crop.permute(1, 2, 0).numpy() - colours).max() < 0.51
    clear = margin > 1e-3
    assert clear.mean() > 0.95
    np.testing.assert_array_equal(marks.numpy()[clear], expected[clear])


def test_a_spot_lands_where_the_formula_says_in_image_and_mask():
    """Scale, turn, flip and crop, recomputed from the same numbers with complex arithmetic."""
    centres = torch.arange(96) + 0.5
    tested = 0
    for number in range(40):
        column, row = 30 + number, 20 + number
        label = torch.zeros(90, 120, dtype=torch.uint8)
        label[row - 5 : row + 6, column - 5 : column + 6] = 1
        image = torch.where(label == 1, 250, torch.tensor(FILL).view(3, 1, 1)).byte()
        anchor, spot = (column - 3.5, row + 4.5), (column + 0.5, row + 0.5)
        settings = {"scale": (0.7, 1.6), "rotation": 60.0, "blur": 0.0, "flip": 0.5}
        crop, marks, _, drawn = changed(image, label, settings, ("spot", number), anchor, size=96)
        x, y = drawn(*spot)
        if not (13 < x < 83 and 13 < y < 83):  # cut in two by the edge of the crop
            continue
        tested += 1
        shown, marked = (crop[2].double() - FILL[2]) / (250 - FILL[2]), (marks == 1).double()
        for weights, tolerance, error in ((shown, 0.1, 0.04), (marked, 0.5, 0.2)):  # a mask has whole pixels only
            total = float(weights.sum())
            assert abs(float((weights.sum(0) * centres).sum()) / total - x) < tolerance
            assert abs(float((weights.sum(1) * centres).sum()) / total - y) < tolerance
            assert total == pytest.approx(121 * drawn.scale**2, rel=error)
    assert tested > 15


def test_the_matrix_leads_from_the_crop_back_to_the_image():
    for number in range(60):
        size = (30 + number, 140 - 2 * number)
        config = AugmentationConfig(size=41, **WILD)
        anchor = (size[1] * 0.7, size[0] * 0.2)
        matrix = matrix_of(config, Stream("back", number), size, anchor)
        drawn = Drawn(config, Stream("back", number), size, anchor)
        for point in ((0.0, 0.0), anchor, (size[1], size[0]), (3.25, 11.5)):
            x, y = drawn(*point)
            found = [a * x + b * y + c for a, b, c in matrix.tolist()]
            assert found == pytest.approx(point, abs=1e-9)
        blurred = bool(chances(Stream("back", number))[0, BLUR] < 0.5)
        assert blurred == Drawn(replace(config, blur=0.5), Stream("back", number), size, anchor).blurred


def test_a_positive_turn_goes_from_right_to_down_for_image_and_mask():
    label = torch.zeros(65, 65, dtype=torch.uint8)
    label[30:35, 50:60] = 1  # right of the centre
    image = torch.where(label == 1, 250, torch.tensor(FILL).view(3, 1, 1)).byte()
    directions = set()
    for number in range(10):
        settings = STILL | {"rotation": 80.0}
        crop, marks, _, drawn = changed(image, label, settings, ("turn", number), (55.0, 32.5), size=65)
        downwards = drawn.angle > 0
        for marked in (marks == 1, crop[2] > 180):
            rows = marked.nonzero()[:, 0].double()
            assert (rows.mean() > 32) == downwards
        directions.add(downwards)
    assert directions == {True, False}


@pytest.mark.parametrize("number", range(10))
def test_the_mask_moves_with_the_image(number):
    label = blobs(80, 110, number)
    image = torch.stack([torch.where(label == value, 240, 20) for value in (0, 1, 255)]).byte()  # a colour for each label
    crop, marks, matrix, _ = changed(image, label, WILD, ("together", number), (50.5, 40.5), size=70)
    shown = torch.tensor([0, 1, 255])[crop.int().argmax(0)]
    columns, rows = torch.meshgrid(torch.arange(70) + 0.5, torch.arange(70) + 0.5, indexing="xy")
    x, y = (a * columns + b * rows + c for a, b, c in matrix.tolist())
    inside = (x > 1) & (x < 109) & (y > 1) & (y < 79)
    plain = inside & (crop.amax(0) == 240)  # all of the neighbours agree there
    assert plain.sum() > 500
    assert torch.equal(marks[plain].long(), shown[plain])
    assert (marks[inside] == shown[inside]).float().mean() > 0.95


def test_nothing_random_gives_the_image_itself():
    image, label = noise(64, 64), blobs(64, 64)
    for anchor in ((0.5, 0.5), (63.5, 63.5), (31.5, 7.5)):
        crop, marks, _, _ = changed(image, label, STILL, ("still",), anchor, size=64)
        assert torch.equal(crop, image) and torch.equal(marks, label)


def test_a_flip_mirrors_left_and_right():
    image, label = noise(64, 64), blobs(64, 64)
    crop, marks, _, _ = changed(image, label, STILL | {"flip": 1.0}, ("flip",), (9.5, 3.5), size=64)
    assert torch.equal(crop, image.flip(-1)) and torch.equal(marks, label.flip(-1))


def test_a_crop_alone_is_a_piece_of_the_image_that_the_drawn_numbers_choose():
    image, label = noise(70, 95), blobs(70, 95)
    corners = set()
    for number in range(30):
        stream = Stream("piece", number)
        for _ in range(4):
            stream.uniform()
        left, top = stream.uniform() * (95 - 40), stream.uniform() * (70 - 40)
        row, column = number + 20, 40 + number
        crop, marks, _, _ = changed(image, label, STILL, ("piece", number), (column + 0.5, row + 0.5), size=40)
        left, top = (round(min(max(corner, at - 39), at)) for corner, at in ((left, column), (top, row)))
        assert torch.equal(crop, image[:, top : top + 40, left : left + 40])
        assert torch.equal(marks, label[top : top + 40, left : left + 40])
        corners.add((left, top))
    assert len(corners) > 25


def test_every_crop_inside_the_image_is_equally_likely():
    config = AugmentationConfig(size=20, **STILL)
    lefts = []
    for number in range(3000):
        matrix = matrix_of(config, Stream("where", number), (20, 24), (12.5, 10.5))
        lefts.append(round(matrix[0, 2].item()))
        assert matrix[1, 2].item() == pytest.approx(0)
    shares = np.bincount(lefts, minlength=5) / 3000
    assert np.allclose(shares, [1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 8], atol=0.03)  # rounded to whole pixels


@pytest.mark.parametrize("size", [(30, 40), (31, 41), (64, 20)], ids=str)
def test_beyond_the_image_lies_the_mean_colour_and_nobody_decided(size):
    image, label = noise(*size), torch.ones(size, dtype=torch.uint8)
    crop, marks, _, _ = changed(image, label, STILL, ("beyond",), (20.0 - 0.5, 15.5), size=64)
    inside = marks != 255
    rows, columns = inside.any(1).nonzero()[:, 0], inside.any(0).nonzero()[:, 0]
    top, bottom, left, right = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
    assert (bottom - top, right - left) == size
    assert abs(top - (64 - bottom)) <= 1 and abs(left - (64 - right)) <= 1  # in the middle
    assert torch.equal(crop[:, top:bottom, left:right], image) and (marks[inside] == 1).all()
    assert (crop.permute(1, 2, 0)[~inside] == torch.tensor(FILL, dtype=torch.uint8)).all()


def test_the_pixel_of_the_anchor_is_in_every_crop_and_keeps_its_label():
    """An object of one pixel, at its most likely to fall between the pixels of a smaller copy."""
    for number in range(300):
        stream = Stream("anchors", number)
        size = (10 + stream.below(150), 10 + stream.below(150))
        row, column = stream.below(size[0]), stream.below(size[1])
        label = torch.zeros(size, dtype=torch.uint8)
        label[row, column] = 1
        image = torch.zeros(3, *size, dtype=torch.uint8)
        settings = {"scale": (0.2, 1.5), "rotation": 180.0, "blur": 0.0, "flip": 0.5}
        _, marks, _, drawn = changed(image, label, settings, ("anchor", number), (column + 0.5, row + 0.5), size=32)
        x, y = drawn(column + 0.5, row + 0.5)
        assert 0 <= x < 32 and 0 <= y < 32
        assert marks[int(y), int(x)] == 1


def test_augmentations_fill_their_ranges():
    config = AugmentationConfig(size=64, scale=(0.8, 1.25), rotation=20.0, blur=0.3, flip=0.25)
    drawn = torch.cat([chances(Stream("ranges", number)) for number in range(2000)])
    middle = torch.full((2000, 2), 40.0, dtype=torch.float64)
    matrices = augmentation_matrices(config, drawn, 2 * middle.long(), middle).numpy()[:, :, :2]
    areas = np.linalg.det(matrices)
    scales = np.abs(areas) ** -0.5
    angles = np.degrees(np.arcsin(-matrices[:, 1, 0] * scales))
    for found, low, high in ((scales, 0.8, 1.25), (angles, -20.0, 20.0)):
        assert low <= found.min() < low + 0.02 * (high - low) and high - 0.02 * (high - low) < found.max() <= high
        assert abs(found.mean() - (low + high) / 2) < 0.03 * (high - low)
    assert abs((areas < 0).mean() - 0.25) < 0.03
    assert abs((drawn[:, BLUR] < config.blur).double().mean() - 0.3) < 0.03
    blurred, flipped = drawn[:, BLUR] < config.blur, torch.from_numpy(areas < 0)
    assert abs((blurred & flipped).double().mean() - 0.3 * 0.25) < 0.03  # one has nothing to do with the other


def batch_of_three():
    config = AugmentationConfig(size=48, **WILD)
    sizes = [(40, 70), (64, 33), (64, 70)]
    images, labels = (
        [noise(*size, seed=i) for i, size in enumerate(sizes)],
        [blobs(*size, seed=i) for i, size in enumerate(sizes)],
    )
    matrices = torch.stack([matrix_of(config, Stream("three", i), size, (20.5, 20.5)) for i, size in enumerate(sizes)])
    return images, labels, matrices


def test_the_changes_of_a_batch_are_those_of_its_images_alone():
    config = AugmentationConfig(size=48, **WILD)
    drawn = torch.cat([chances(Stream("many", i)) for i in range(20)])
    sizes = torch.tensor([[30 + 3 * i, 90 - 4 * i] for i in range(20)])
    anchors = sizes.flip(-1) * torch.rand(20, 2, dtype=torch.float64)
    together = augmentation_matrices(config, drawn, sizes, anchors)
    for i in range(20):
        alone = matrix_of(config, Stream("many", i), sizes[i].tolist(), anchors[i].tolist())
        torch.testing.assert_close(together[i], alone, rtol=1e-12, atol=1e-12)


def test_a_batch_equals_its_images_one_by_one():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (3, 3, 50, 60), generator=generator, dtype=torch.uint8)
    labels = torch.stack([blobs(50, 60, i) for i in range(3)])
    _, _, matrices = batch_of_three()
    together = warp(images, labels, matrices, 48)
    for i in range(3):
        alone = warp(images[i : i + 1], labels[i : i + 1], matrices[i : i + 1], 48)
        assert torch.equal(together[0][i], alone[0][0]) and torch.equal(together[1][i], alone[1][0])


def test_images_that_fill_the_top_left_of_a_larger_tensor_are_warped_as_if_alone():
    images, labels, matrices = batch_of_three()
    held = torch.full((3, 3, 64, 70), 200, dtype=torch.uint8)
    marked = torch.ones(3, 64, 70, dtype=torch.uint8)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        held[i, :, : image.shape[1], : image.shape[2]] = image
        marked[i, : image.shape[1], : image.shape[2]] = label
    sources = torch.tensor([image.shape[1:] for image in images])
    crops, marks = warp(held, marked, matrices, 48, sources)
    for i in range(3):
        crop, mark = warp(images[i][None], labels[i][None], matrices[i : i + 1], 48)
        assert (crops[i].int() - crop[0].int()).abs().max() <= 1
        assert (marks[i] != mark[0]).float().mean() < 0.001
        assert (marks[i] == 255).any()
    bare = warp(held, marked, matrices, 48)[0]
    assert (bare[0].int() - crops[0].int()).abs().max() > 20  # what lies beyond the image would be seen


def test_a_blur_is_a_gaussian_over_five_pixels():
    image = torch.zeros(1, 3, 31, 31, dtype=torch.uint8)
    image[0, :, 15, 15] = 255
    weights = np.exp(-(np.arange(-2, 3) ** 2) / (2 * 1.1**2))
    kernel = np.outer(weights, weights) / weights.sum() ** 2
    found = blur(image)[0, 0].numpy()
    assert np.abs(found[13:18, 13:18] - 255 * kernel).max() <= 0.51
    assert found.sum() == found[13:18, 13:18].sum()


def test_a_blur_leaves_a_plain_image_as_it_is():
    plain = torch.tensor(FILL, dtype=torch.uint8).view(1, 3, 1, 1).expand(2, 3, 16, 16)
    assert torch.equal(blur(plain), plain)


def test_planes_are_the_colours_of_the_pixels_in_memory_of_their_own():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    made = planes(pixels)
    assert made.shape == (3, 5, 7) and made.is_contiguous()
    assert all(np.array_equal(made[c].numpy(), pixels[..., c]) for c in range(3))


@pytest.mark.parametrize("large", [2**25, 100])
def test_a_mirror_image_is_fitted_as_if_it_had_been_mirrored_before(large, monkeypatch):
    monkeypatch.setattr(geometry, "_LARGE", large)
    image = torch.randint(0, 256, (3, 30, 47), dtype=torch.uint8)
    assert torch.equal(fit_image(image, InputConfig(33), mirrored=True), fit_image(image.flip(-1), InputConfig(33)))
