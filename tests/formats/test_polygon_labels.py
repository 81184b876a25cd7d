import json

import numpy as np
import pytest
import yaml
from PIL import Image
from shapes import EDGE_CASES, blobs, disc, filled, found, full, iou, nothing, one_pixel, regions, ring, union

from cyctr.errors import DataError
from cyctr.formats import open_writer


def labelme(folder, key):
    return json.loads((folder / "labels" / f"{key}.json").read_text())


def yolo(folder, key, size):
    """(class, polygon in pixels) of each line."""
    lines = (folder / "labels" / f"{key}.txt").read_text().splitlines()
    rows = [line.split(" ") for line in lines]
    assert all(len(row) % 2 == 1 and len(row) >= 7 for row in rows)
    return [(int(row[0]), np.array(row[1:], float).reshape(-1, 2) * size[::-1]) for row in rows]


def test_labelme_s_json_has_its_fields(tmp_path):
    image = tmp_path / "photos" / "room" / "a.jpg"
    writer = open_writer("labelme", tmp_path / "out", ["cup", "plate"])
    assert writer.write("room/a", image, [found(one_pixel(), "plate"), found(full(), "cup")]) == ["labels/room/a.json"]
    assert writer.finish() == []
    square = {"group_id": None, "shape_type": "polygon", "flags": {}}
    assert labelme(tmp_path / "out", "room/a") == {
        "version": "5.5.0",
        "flags": {},
        "shapes": [
            {"label": "cup", "points": [[0, 0], [8, 0], [8, 6], [0, 6]], **square},
            {"label": "plate", "points": [[5, 2], [6, 2], [6, 3], [5, 3]], **square},
        ],
        "imagePath": "../../../photos/room/a.jpg",
        "imageData": None,
        "imageHeight": 6,
        "imageWidth": 8,
    }


def test_labelme_finds_the_image_from_where_the_labels_really_are(tmp_path):
    (tmp_path / "deep" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "real")
    image = tmp_path / "a.png"
    Image.new("RGB", (8, 6)).save(image)
    open_writer("labelme", tmp_path / "link", ["cup"]).write("a", image, [found(full())])
    path = tmp_path / "link" / "labels" / "a.json"
    assert (path.parent / json.loads(path.read_text())["imagePath"]).samefile(image)


@pytest.mark.parametrize("seed", range(4))
def test_polygons_fill_to_nearly_the_masks(seed, tmp_path):
    cup, plate = filled(blobs(seed)), filled(blobs(seed + 10))
    given = [found(cup, "cup"), found(plate, "plate")]
    for kind in ("labelme", "yolo"):
        open_writer(kind, tmp_path, ["cup", "plate"]).write("a", None, given)
    shapes = labelme(tmp_path, "a")["shapes"]
    lines = yolo(tmp_path, "a", cup.shape)
    for number, (name, mask) in enumerate((("cup", cup), ("plate", plate))):
        for polygons in (
            [np.array(shape["points"]) for shape in shapes if shape["label"] == name],
            [polygon for line, polygon in lines if line == number],
        ):
            assert len(polygons) == regions(mask)
            assert iou(union(polygons, mask.shape), mask) > 0.97


@pytest.mark.parametrize("mask", EDGE_CASES.values(), ids=EDGE_CASES)
def test_each_region_of_odd_masks_has_a_polygon_inside_the_image(mask, tmp_path):
    for kind in ("labelme", "yolo"):
        open_writer(kind, tmp_path, ["cup"]).write("a", None, [found(mask)])
    polygons = [polygon for _, polygon in yolo(tmp_path, "a", mask.shape)]
    points = [np.array(shape["points"]) for shape in labelme(tmp_path, "a")["shapes"]]
    assert len(polygons) == len(points) == regions(mask)
    for polygon, exact in zip(polygons, points, strict=True):
        assert np.allclose(polygon, exact, atol=1e-4)
        assert (exact >= 0).all() and (exact <= mask.shape[::-1]).all()


def test_a_hole_is_filled(tmp_path):
    open_writer("yolo", tmp_path, ["cup"]).write("a", None, [found(ring())])
    ((_, polygon),) = yolo(tmp_path, "a", ring().shape)
    assert iou(union([polygon], ring().shape), disc()) > 0.97


@pytest.mark.parametrize("given", [[], [found(nothing())]], ids=["none", "empty mask"])
def test_nothing_found_is_an_empty_file_for_yolo(given, tmp_path):
    writer = open_writer("yolo", tmp_path, ["cup"])
    assert writer.write("a", None, given) == ["labels/a.txt"]
    assert (tmp_path / "labels/a.txt").read_bytes() == b""
    assert writer.done("a")


def test_nothing_found_in_no_file_has_no_size_for_labelme(tmp_path):
    with pytest.raises(DataError, match="image 'a': nothing was found, and it has no file; expected one to read its size from"):
        open_writer("labelme", tmp_path, ["cup"]).write("a", None, [])


ODD = [
    "cup",
    "coffee cup",
    'say "x"',
    "back\\slash",
    "a: b # c",
    "no",
    "1",
    "Tür",
    "日本",
    "🦊",
    "a\nb",
    "\x85\u2028\ufeff",
    "\udcff",
    "- x",
    "{}",
]


def test_yolo_s_classes_come_back_whatever_they_are_called(tmp_path):
    writer = open_writer("yolo", tmp_path, ODD)
    writer.write("a", None, [found(full(), "🦊")])
    assert writer.finish() == ["data.yaml"]
    assert yaml.safe_load((tmp_path / "data.yaml").read_bytes()) == {"names": dict(enumerate(ODD))}
    assert [number for number, _ in yolo(tmp_path, "a", (6, 8))] == [ODD.index("🦊")]


def test_labelme_s_classes_come_back_whatever_they_are_called(tmp_path):
    open_writer("labelme", tmp_path, ODD).write("a", None, [found(full(), name) for name in ODD])
    assert [shape["label"] for shape in labelme(tmp_path, "a")["shapes"]] == ODD


def test_what_a_user_adds_to_data_yaml_stays(tmp_path):
    open_writer("yolo", tmp_path, ["cup", "plate"]).finish()
    path = tmp_path / "data.yaml"
    path.write_text(f"path: here\n{path.read_text()}train: images\n")
    edited = path.read_bytes()
    writer = open_writer("yolo", tmp_path, ["cup", "plate"])
    writer.write("a", None, [found(full())])
    writer.finish()
    assert path.read_bytes() == edited


@pytest.mark.parametrize("others", [["plate", "cup"], ["cup"], ["cup", "plate", "fork"]])
def test_labels_of_other_classes_are_not_mixed_in(others, tmp_path):
    open_writer("yolo", tmp_path, ["cup", "plate"]).write("a", None, [found(full())])
    with pytest.raises(DataError, match=r"data\.yaml: names other classes than these; expected those of the earlier run"):
        open_writer("yolo", tmp_path, others)
