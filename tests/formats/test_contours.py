import numpy as np
import pytest
from making import most_memory
from pycocotools import mask as drawing
from shapes import EDGE_CASES, blobs, disc, filled, inside, iou, one_pixel, regions, ring, speckle, union, wide_diagonal

from cyctr.formats import contours as module
from cyctr.formats.contours import contours, rings, signed_area, simplify

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # pycocotools' decode


def drawn_by_coco(polygons, size):
    if not polygons:
        return np.zeros(size, bool)
    parts = drawing.frPyObjects([polygon.ravel().astype(float).tolist() for polygon in polygons], *size)
    return drawing.decode(drawing.merge(parts)).astype(bool)


def every_mask():
    return [*EDGE_CASES.values(), *(speckle(seed) for seed in range(150)), blobs(0), blobs(1, smoothness=3)]


def test_filling_all_boundaries_gives_the_mask_back():
    for mask in every_mask():
        assert np.array_equal(inside(rings(mask), mask.shape), mask)


def test_each_region_has_one_outer_boundary_and_each_hole_an_inner_one():
    for mask in every_mask():
        areas = [signed_area(ring) for ring in rings(mask)]
        assert sum(area > 0 for area in areas) == regions(mask)
        assert sum(areas) == mask.sum()


def test_boundaries_turn_at_each_corner_and_begin_at_the_top_left():
    for mask in every_mask():
        found = rings(mask)
        starts = []
        for corners in found:
            steps = np.roll(corners, -1, axis=0) - corners
            assert ((steps == 0).sum(1) == 1).all()
            assert ((steps[:, 0] == 0) != (np.roll(steps, 1, axis=0)[:, 0] == 0)).all()
            starts.append(corners[0, ::-1].tolist())
            assert starts[-1] == min(corners[:, ::-1].tolist())
        assert starts == sorted(starts)


def test_how_a_mask_lies_in_memory_does_not_matter():
    mask = blobs(0)
    for other in (np.asfortranarray(mask), np.repeat(mask, 2, axis=1)[:, ::2], mask[::-1][::-1]):
        assert all(np.array_equal(*pair) for pair in zip(rings(mask), rings(other), strict=True))


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_boundaries_are_the_same_whether_they_are_looked_for_at_once_or_in_strips(rows, monkeypatch):
    for mask in (*EDGE_CASES.values(), blobs(0), speckle(0)):
        whole = rings(mask)
        monkeypatch.setattr(module, "_STRIP", rows * mask.shape[1])
        assert all(np.array_equal(*pair) for pair in zip(whole, rings(mask), strict=True))
        monkeypatch.undo()


def test_the_outline_of_a_large_mask_takes_a_byte_a_pixel():
    mask = np.zeros((6000, 6000), bool)
    mask[100:5000, 100:5000] = True
    assert most_memory(lambda: contours(mask)) < 2 * mask.size


def test_the_boundary_of_one_pixel_is_its_square():
    (square,) = rings(one_pixel(at=(2, 5)))
    assert square.tolist() == [[5, 2], [6, 2], [6, 3], [5, 3]]


def test_outer_boundaries_that_are_not_simplified_fill_to_the_mask_with_its_holes_closed():
    for mask in every_mask():
        polygons = contours(mask, tolerance=0)
        assert len(polygons) == regions(mask)
        assert np.array_equal(union(polygons, mask.shape), filled(mask))


def test_pycocotools_draws_unsimplified_polygons_as_the_mask():
    for mask in [filled(blobs(seed)) for seed in range(4)] + [EDGE_CASES["full"], EDGE_CASES["one pixel"], disc()]:
        assert np.array_equal(drawn_by_coco(contours(mask, tolerance=0), mask.shape), mask)


@pytest.mark.parametrize("seed", range(8))
def test_simplified_polygons_are_nearly_the_mask(seed):
    mask = filled(blobs(seed))
    polygons = contours(mask)
    assert iou(union(polygons, mask.shape), mask) > 0.97
    assert iou(drawn_by_coco(polygons, mask.shape), mask) > 0.97


@pytest.mark.parametrize("mask", [disc(140, (300, 300), (150, 150)), filled(blobs(0, (300, 400), 30))], ids=["disc", "blobs"])
def test_large_regions_need_less_than_half_of_their_corners(mask):
    polygons = contours(mask)
    assert sum(map(len, polygons)) < 0.5 * sum(map(len, contours(mask, tolerance=0)))
    assert iou(drawn_by_coco(polygons, mask.shape), mask) > 0.99


def distance(point, start, end):
    along = np.clip((point - start) @ (end - start) / max((end - start) @ (end - start), 1e-9), 0, 1)
    return np.hypot(*(point - start - along * (end - start)))


@pytest.mark.parametrize("tolerance", [0.4, 0.75, 2.0])
def test_corners_left_out_are_within_the_tolerance_of_the_polygon(tolerance):
    for seed in range(4):
        for exact in rings(blobs(seed, size=(50, 60), smoothness=4)):
            kept = simplify(exact, tolerance).astype(float)
            assert {*map(tuple, kept.tolist())} <= {*map(tuple, exact.tolist())}
            for corner in exact.astype(float):
                ends = zip(kept, np.roll(kept, -1, axis=0), strict=True)
                assert min(distance(corner, start, end) for start, end in ends) <= tolerance + 1e-9


def test_specks_and_thin_lines_are_not_simplified_away():
    stairs = np.indices((30, 30))
    for mask in (one_pixel(), wide_diagonal(), abs(stairs[0] - stairs[1]) <= 1, *(speckle(seed) for seed in range(50))):
        for polygon in contours(mask):
            assert len(polygon) >= 3
        if mask.any():
            exact = union(contours(mask, tolerance=0), mask.shape)
            areas = [sum(map(signed_area, contours(mask, tolerance))) for tolerance in (0.75, 0)]
            assert abs(areas[0] - areas[1]) <= 0.02 * areas[1]
            assert np.array_equal(exact, filled(mask))


def test_a_hole_is_left_out_and_an_island_in_it_is_a_polygon():
    mask = ring()
    mask[30, 35] = True
    outer, island = contours(mask, tolerance=0)
    assert signed_area(outer) == disc().sum()
    assert signed_area(island) == 1


def test_twelve_megapixels_with_a_comb_of_edges_have_outlines():
    mask = np.kron(blobs(3, size=(300, 400), smoothness=20), np.ones((10, 10), bool))
    mask[:, ::2] &= ~np.roll(mask, 3, axis=0)[:, ::2]  # a comb of edges
    mask = np.ascontiguousarray(mask)
    assert mask.size == 12_000_000 and contours(mask)
