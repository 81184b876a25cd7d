import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from pycocotools import mask as drawing
from pycocotools.coco import COCO
from shapes import EDGE_CASES, blobs, disc, filled, found, full, iou, nothing, one_pixel, regions, ring, speckle

from cyctr import json_files
from cyctr.datasets.own_folder import open_folder
from cyctr.errors import ConfigError, DataError
from cyctr.formats import open_writer

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # pycocotools' decode
RECORDS = ".coco.jsonl"


def written(folder, masks, **choices):
    """The JSON of {key: {class: mask}}, as text and as pycocotools reads it."""
    writer = open_writer("coco", folder, ["cup", "plate"], **choices)
    for key, given in masks.items():
        writer.write(key, None, [found(mask, name) for name, mask in given.items()])
    assert writer.finish() == ["annotations.json"]
    return json.loads((folder / "annotations.json").read_text()), COCO(folder / "annotations.json")


def whole(coco, image, category):
    """All annotations of one class in one image, drawn."""
    picture = coco.loadImgs(image)[0]
    parts = coco.loadAnns(coco.getAnnIds(imgIds=image, catIds=category))
    return np.logical_or.reduce(
        [np.zeros((picture["height"], picture["width"]), bool), *(coco.annToMask(part) > 0 for part in parts)]
    )


@pytest.mark.parametrize("instances", [False, True])
def test_masks_come_back_from_rle(instances, tmp_path):
    masks = {
        f"{number:03}": mask
        for number, mask in enumerate([*EDGE_CASES.values(), *map(speckle, range(60)), *map(blobs, range(3))])
    }
    document, coco = written(tmp_path, {key: {"plate": mask} for key, mask in masks.items()}, instances=instances)
    assert [image["file_name"] for image in document["images"]] == list(masks)
    for image, mask in zip(document["images"], masks.values(), strict=True):
        assert np.array_equal(whole(coco, image["id"], 2), mask)
        parts = coco.loadAnns(coco.getAnnIds(imgIds=image["id"]))
        assert len(parts) == (regions(mask) if instances else mask.any())
        for part in parts:
            drawn = coco.annToMask(part) > 0
            rows, columns = np.nonzero(drawn)
            assert part["area"] == drawn.sum() == drawing.area(part["segmentation"])
            assert part["bbox"] == [columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1]
            assert part["bbox"] == drawing.toBbox(part["segmentation"]).tolist()
            assert regions(drawn) == 1 or not instances
            assert (
                part["segmentation"]["counts"] == drawing.encode(np.asfortranarray(drawn.astype(np.uint8)))["counts"].decode()
            )


def test_how_a_mask_lies_in_memory_does_not_matter(tmp_path):
    others = [np.asfortranarray(blobs(0)), np.repeat(blobs(0), 2, axis=1)[:, ::2], blobs(0).T.copy().T]
    document, coco = written(tmp_path, {f"{number}": {"cup": mask} for number, mask in enumerate(others)})
    assert all(np.array_equal(whole(coco, image["id"], 1), blobs(0)) for image in document["images"])


def test_the_json_says_what_coco_s_does(tmp_path):
    writer = open_writer("coco", tmp_path, ["cup", "plate"])
    assert writer.write(
        "room/b", tmp_path / "photos" / "room" / "b.JPG", [found(disc(), "plate", confidence=np.float32(0.25))]
    ) == [RECORDS]
    writer.write(
        "a",
        None,
        [
            found(full(), "cup"),
            found(full(), "plate"),
        ],
    )
    writer.write("c", None, [found(nothing(), "cup")])
    writer.finish()
    document = json.loads((tmp_path / "annotations.json").read_text())
    assert document["categories"] == [
        {"id": 1, "name": "cup", "supercategory": ""},
        {"id": 2, "name": "plate", "supercategory": ""},
    ]
    assert document["images"] == [
        {"id": 1, "file_name": "a", "height": 6, "width": 8},
        {"id": 2, "file_name": "c", "height": 6, "width": 8},
        {"id": 3, "file_name": "room/b.JPG", "height": 60, "width": 80},
    ]
    shown = [{part: value for part, value in one.items() if part != "segmentation"} for one in document["annotations"]]
    assert shown == [
        {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 8, 6], "area": 48, "iscrowd": 0, "score": 0.75},
        {"id": 2, "image_id": 1, "category_id": 2, "bbox": [0, 0, 8, 6], "area": 48, "iscrowd": 0, "score": 0.75},
        {
            "id": 3,
            "image_id": 3,
            "category_id": 2,
            "bbox": [15, 10, 41, 41],
            "area": int(disc().sum()),
            "iscrowd": 0,
            "score": 0.25,
        },
    ]


@pytest.mark.parametrize("instances", [False, True])
def test_polygons_are_nearly_the_masks_with_holes_filled(instances, tmp_path):
    masks = {"a": filled(blobs(0)), "b": ring(), "c": full(), "d": one_pixel(), "e": nothing()}
    document, coco = written(tmp_path, {key: {"cup": mask} for key, mask in masks.items()}, instances=instances, polygons=True)
    for image, mask in zip(document["images"], masks.values(), strict=True):
        drawn = whole(coco, image["id"], 1)
        assert iou(drawn, filled(mask)) > 0.97 if mask.any() else not drawn.any()
        parts = coco.loadAnns(coco.getAnnIds(imgIds=image["id"]))
        assert len(parts) == (regions(mask) if instances else mask.any())
        assert sum(part["area"] for part in parts) == mask.sum()


def test_nothing_written_gives_a_json_without_images(tmp_path):
    document, _ = written(tmp_path, {})
    assert document["images"] == document["annotations"] == []


@pytest.mark.parametrize("tail", ["", "{", '{"key": "c", "height"', '{"key": "c"}\n', "\0\0\0\n", "[1]\n", "\udcff\n"])
def test_a_run_that_was_stopped_goes_on_after_its_last_whole_line(tail, tmp_path):
    masks = {key: {"cup": blobs(number)} for number, key in enumerate("abcd")}
    expected, _ = written(tmp_path / "whole", masks)
    writer = open_writer("coco", tmp_path / "stopped", ["cup", "plate"])
    for key in "ba":
        writer.write(key, None, [found(masks[key]["cup"])])
    with (tmp_path / "stopped" / RECORDS).open("ab") as file:
        file.write(tail.encode(errors="surrogateescape"))
    later = open_writer("coco", tmp_path / "stopped", ["cup", "plate"])
    assert [later.done(key) for key in "abcd"] == [True, True, False, False]
    for key in "dc":
        later.write(key, None, [found(masks[key]["cup"])])
    later.finish()
    assert json.loads((tmp_path / "stopped" / "annotations.json").read_text()) == expected
    assert all(open_writer("coco", tmp_path / "stopped", ["cup", "plate"]).done(key) for key in "abcd")


@pytest.mark.parametrize("after", [b"\n", b""])
def test_a_line_too_long_to_be_a_record_is_passed_over_without_being_held(after, tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "NOTES_BYTES", 2**16)
    expected, _ = written(tmp_path, {"a": {"cup": one_pixel()}, "b": {"cup": full()}})
    first, second, third = (tmp_path / RECORDS).read_bytes().splitlines(keepends=True)
    (tmp_path / RECORDS).write_bytes(first + second + (bytes(10**7) + after + third if after else third + bytes(10**7)))
    tracemalloc.start()
    writer = open_writer("coco", tmp_path, ["cup", "plate"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert writer.done("a") and writer.done("b") and peak < 2**20
    writer.finish()
    assert json.loads((tmp_path / "annotations.json").read_text()) == expected


def test_wherever_a_run_was_cut_off_it_goes_on_to_the_same_json(tmp_path):
    masks = {key: {"cup": one_pixel(at=(number, 0))} for number, key in enumerate("ab")}
    expected, _ = written(tmp_path, masks)
    lines = (tmp_path / RECORDS).read_bytes()
    for length in [*range(0, len(lines), 7), len(lines) - 1, len(lines)]:
        (tmp_path / RECORDS).write_bytes(lines[:length])
        writer = open_writer("coco", tmp_path, ["cup", "plate"])
        assert writer.done("b") == (length == len(lines))
        for key, given in masks.items():
            if not writer.done(key):
                writer.write(key, None, [found(given["cup"])])
        writer.finish()
        assert json.loads((tmp_path / "annotations.json").read_text()) == expected


def test_a_process_that_is_killed_loses_no_image_that_was_written(tmp_path):
    code = (
        "import os, pathlib, numpy, cyctr.formats as f\n"
        f"writer = f.open_writer('coco', pathlib.Path({str(tmp_path)!r}), ['cup'])\n"
        "writer.write('a', None, [f.Found('cup', numpy.ones((3, 4), bool), None, 1.0)])\n"
        "os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert open_writer("coco", tmp_path, ["cup"]).done("a")


def test_of_an_image_written_twice_the_later_counts(tmp_path):
    writer = open_writer("coco", tmp_path, ["cup"])
    writer.write("a", None, [found(full())])
    writer.write("a", None, [found(one_pixel())])
    for opened in (writer, open_writer("coco", tmp_path, ["cup"])):
        opened.finish()
        document = json.loads((tmp_path / "annotations.json").read_text())
        assert len(document["images"]) == 1 and [one["area"] for one in document["annotations"]] == [1]


def test_after_finish_more_images_can_be_added(tmp_path):
    written(tmp_path, {"a": {"cup": full()}})
    document, _ = written(tmp_path, {"b": {"cup": full()}})
    assert [image["file_name"] for image in document["images"]] == ["a", "b"]


def test_somebody_else_s_annotations_are_not_replaced(tmp_path):
    (tmp_path / "annotations.json").write_text("mine")
    with pytest.raises(DataError, match=r"annotations\.json: is there, and it would be replaced; choose another place"):
        open_writer("coco", tmp_path, ["cup"])


@pytest.mark.parametrize(
    ("classes", "choices", "message"),
    [
        (
            ["plate", "cup"],
            {},
            "is of the classes cup, plate; expected those of this run in the same order: choose another place",
        ),
        (["cup", "plate"], {"instances": True}, "was begun without instances; do the same, or choose another place"),
        (["cup", "plate"], {"polygons": True}, "was begun without polygons; do the same, or choose another place"),
    ],
)
def test_a_run_goes_on_only_in_the_way_it_began(classes, choices, message, tmp_path):
    written(tmp_path, {"a": {"cup": full()}})
    with pytest.raises(DataError, match=message):
        open_writer("coco", tmp_path, classes, **choices)


def test_a_file_of_records_that_is_none_is_refused(tmp_path):
    (tmp_path / RECORDS).write_text("mine\n")
    with pytest.raises(DataError, match=r"\.coco\.jsonl: does not begin like a record of images; choose another place"):
        open_writer("coco", tmp_path, ["cup"])


def test_without_pycocotools_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.mask", None)
    with pytest.raises(ConfigError, match=r'^pycocotools is not installed, .*; run: pip install "cyctr\[coco\]"$'):
        open_writer("coco", tmp_path, ["cup"])
    open_writer("coco", tmp_path, ["cup"], polygons=True)


def test_memory_does_not_grow_with_the_pixels_of_all_images(tmp_path):
    writer = open_writer("coco", tmp_path, ["cup"])
    mask = np.random.default_rng(0).random((128, 128)) < 0.5  # which RLE does not make much smaller
    writer.write("first", None, [found(mask)])
    tracemalloc.start()
    for number in range(200):
        writer.write(f"{number}", None, [found(mask)])
    writer.finish()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "annotations.json").stat().st_size > 1_500_000
    assert most < 500_000


def test_what_is_written_can_be_learned_from(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "cache"))
    images = tmp_path / "set" / "images"
    images.mkdir(parents=True)
    writer = open_writer("coco", tmp_path / "set", ["cup", "plate"])
    masks = {f"{number}": blobs(number) for number in range(3)}
    for key, mask in masks.items():
        Image.new("RGB", mask.shape[::-1]).save(images / f"{key}.png")
        writer.write(key, images / f"{key}.png", [found(mask, "plate")])
    writer.finish()
    dataset = open_folder(tmp_path / "set")
    assert dataset.classes == ("cup", "plate")
    for place, mask in enumerate(masks.values()):
        assert np.array_equal(dataset.pools["train"].label(place, 1) == 1, mask)
