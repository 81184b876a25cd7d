"""What holds for every format."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from making import without_rights
from PIL import Image
from shapes import EDGE_CASES, blobs, disc, found, full, nothing, one_pixel

from cyctr.errors import ConfigError, DataError
from cyctr.formats import FORMATS, Found, open_writer
from cyctr.formats.writing import file_names

CHOICES = {
    **{kind: (kind, {}) for kind in FORMATS},
    "png overlapping": ("png", {"overlapping": True}),
    "coco instances": ("coco", {"instances": True}),
    "coco polygons": ("coco", {"polygons": True}),
}
KEYS = [
    "table",
    "room/table",
    "room/a.b/table.top",
    "two words",
    "Tür/日本",
    "line\nbreak",
    "-rf",
    "~",
    "a\udcffb",
    "#1 'x' \"y\"",
]
BAD_KEYS = ["..", "../a", "a/../b", "/etc/a", "", ".", "a//b", "a/", "./a", "a\0b"]


@pytest.fixture(params=CHOICES)
def opened(request, tmp_path):
    """Opens a writer of each kind, anew as a later run would."""
    kind, choices = CHOICES[request.param]
    return lambda classes=("cup", "plate"), folder=tmp_path / "out": open_writer(kind, folder, classes, **choices)


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_opening_writes_nothing(opened, tmp_path):
    opened()
    assert not any(tmp_path.iterdir())


def test_what_is_said_to_be_written_is_there_and_nothing_else(opened, tmp_path):
    writer = opened()
    written = {name for key in KEYS for name in writer.write(key, None, [found(blobs(0))])}
    written |= set(writer.finish())
    assert files(tmp_path / "out") == sorted(written)


def test_an_image_is_done_once_it_is_written_and_for_later_runs_too(opened):
    writer = opened()
    for key in KEYS:
        assert not writer.done(key)
        writer.write(key, None, [found(disc())])
        assert writer.done(key) and opened().done(key)
    assert not writer.done("another") and not writer.done("room")
    writer.finish()
    assert all(opened().done(key) for key in KEYS)


def test_a_run_in_two_halves_leaves_the_same_files_as_one(opened, tmp_path):
    masks = {f"{place}/{name}": blobs(place) for place in range(4) for name in ("b", "a")}
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    writer = opened(folder=whole)
    for key, mask in masks.items():
        writer.write(key, None, [found(mask)])
    writer.finish()
    for keys in (list(masks)[:3], reversed(masks)):
        writer = opened(folder=halves)
        for key in keys:
            if not writer.done(key):
                writer.write(key, None, [found(masks[key])])
    writer.finish()
    seen = [{name: (folder / name).read_bytes() for name in files(folder) if name[0] != "."} for folder in (whole, halves)]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_no_name_leads_out_of_the_folder(opened, key, tmp_path):
    writer = opened()
    with pytest.raises(
        DataError, match=r"would be written outside the folder or nowhere; expected a relative name.*: rename it$"
    ):
        writer.write(key, None, [found(disc())])
    with pytest.raises(DataError, match="outside the folder"):
        writer.done(key)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("mask", EDGE_CASES.values(), ids=EDGE_CASES)
def test_every_mask_can_be_written(opened, mask):
    writer = opened()
    writer.write("a", None, [found(mask), found(~mask, name="plate")])
    writer.finish()
    assert writer.done("a")


def test_where_nothing_was_found_the_size_is_that_of_the_image(opened, tmp_path):
    image = tmp_path / "a.png"
    Image.new("RGB", (8, 6)).save(image)
    writer = opened()
    writer.write("a", image, [])
    writer.finish()
    assert writer.done("a")
    again = opened(folder=tmp_path / "again")
    again.write("a", image, [found(nothing(), name="cup")])
    again.finish()


def test_writing_again_replaces_that_image_and_touches_no_other_file(opened, tmp_path):
    writer = opened()
    writer.write("a", None, [found(disc())])
    writer.write("b", None, [found(disc())])
    mine = tmp_path / "out" / "notes.txt"
    mine.write_text("mine")
    before = snapshot(tmp_path / "out")
    changed = writer.write("b", None, [found(disc(radius=5))])
    after = snapshot(tmp_path / "out")
    assert before.keys() == after.keys()
    assert {path for path in before if before[path] != after[path]} <= {tmp_path / "out" / name for name in changed}


def test_threads_may_write_at_once(opened, tmp_path):
    writer = opened()
    keys = [f"{number}/a" for number in range(24)]
    with ThreadPoolExecutor(8) as workers:
        list(workers.map(lambda key: writer.write(key, None, [found(disc(radius=int(key[0])))]), keys))
    assert all(opened().done(key) for key in keys)
    assert not [name for name in files(tmp_path / "out") if name.startswith(".") and name != ".coco.jsonl"]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="rights work otherwise here")
@pytest.mark.parametrize("key", ["a", "line\nbreak"])
def test_a_folder_one_may_not_write_to_gives_one_line(opened, key, tmp_path):
    for folder in (tmp_path, *tmp_path.parents[:3]):  # somebody else must come as far as here
        folder.chmod(0o755)
    (tmp_path / "out").mkdir()
    writer = opened()
    with (
        without_rights(tmp_path / "out", 0o555),
        pytest.raises(DataError, match=r"^[^\n]*out/.*: cannot be written \(Permission denied\); choose"),
    ):
        writer.write(key, None, [found(disc())])
    assert files(tmp_path / "out") == []


def test_a_file_in_the_place_of_the_folder_is_refused(opened, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(DataError, match=r"out: is a file; expected a folder: choose another place$"):
        opened()


def test_a_full_disk_leaves_what_was_there_and_gives_one_line(opened, tmp_path, monkeypatch):
    writer = opened()
    writer.write("a", None, [found(disc())])
    writer.finish()
    before = snapshot(tmp_path / "out")

    really_open = Path.open

    def fail(path, mode="r", *rest, **more):
        if mode == "rb":
            return really_open(path, mode, *rest, **more)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fail)
        patch.setattr(Path, "open", fail)
        with pytest.raises(DataError, match=r"cannot be written \(No space left on device\); choose another place"):
            writer.write("a", None, [found(disc(radius=3))])
    assert snapshot(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([found(disc()), found(disc())], "image 'a': holds cup more than once; expected each class once"),
        ([found(disc(), name="fork")], "image 'a': holds fork; expected the classes cup, plate"),
        (
            [found(full((2, 3))), found(full((3, 2)), name="plate")],
            r"masks of the sizes \(2, 3\) and \(3, 2\); expected one size",
        ),
    ],
    ids=["twice", "unknown", "sizes"],
)
def test_what_does_not_belong_together_is_refused(opened, given, message, tmp_path):
    with pytest.raises(DataError, match=message):
        opened().write("a", None, given)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((np.zeros((2, 3), np.uint8), None, 0.5), r"mask is uint8 of shape \(2, 3\); expected bool of shape \(H, W\)"),
        ((np.zeros((0, 3), bool), None, 0.5), r"mask is bool of shape \(0, 3\)"),
        ((full(), np.zeros((2, 2), np.float32), 0.5), r"probability is \(2, 2\), mask is \(6, 8\); expected one size"),
        ((full(), None, 1.5), "confidence is 1.5; expected 0 to 1"),
        ((full(), None, float("nan")), "confidence is nan; expected 0 to 1"),
    ],
)
def test_a_value_that_is_none_is_refused_at_the_door(values, message):
    with pytest.raises(DataError, match=f"what was found of 'cup': {message}"):
        Found("cup", *values)


@pytest.mark.parametrize(
    ("kind", "classes", "choices", "message"),
    [
        ("tiff", ["a"], {}, "format is 'tiff'; expected one of png, coco, labelme, yolo, npz"),
        ("png", [], {}, "no classes; expected one name or more"),
        ("png", ["a", "b", "a"], {}, "the class 'a' is named 2 times; expected once"),
        ("png", [""], {}, "a class is called ''; expected a text"),
        ("png", ["a"], {"instances": True}, "format is png, which has no instances; choose coco, labelme or yolo, or leave"),
        ("npz", ["a"], {"polygons": True}, "format is npz, which has no polygons; choose"),
        (
            "png",
            [str(number) for number in range(255)],
            {},
            "255 classes; a PNG of class numbers holds 254: write a mask for each",
        ),
    ],
)
def test_choices_that_make_no_sense_are_refused(kind, classes, choices, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        open_writer(kind, tmp_path, classes, **choices)


def test_ordinary_classes_keep_their_names_in_files():
    ordinary = ["cup", "coffee cup", "Tür", "日本", "a_b-c", "x2"]
    assert file_names(ordinary) == {name: name for name in ordinary}


def test_odd_classes_get_safe_names_and_no_two_the_same():
    odd = [
        "a/b", "a_b", "a\\b", "a.b", "..", ".", " ", "a\nb", "a:b", "a?b", "Cup", "cup", "CUP", "e\u0301", "é", "x" * 300,
        "x" * 301, "\udcff", "ﬁ", "fi", "a_b-12345678", "🦊",
    ]  # fmt: skip
    names = file_names(odd)
    assert len({name.casefold() for name in names.values()}) == len(odd)
    for name in names.values():
        assert not set(name) & set('/\\.:?*"<>|\n\0') and 0 < len(name.encode()) < 100 and name == name.strip()
    assert file_names([*reversed(odd), "more"])["a/b"] == names["a/b"]


def test_two_images_and_classes_never_share_a_file(tmp_path):
    writer = open_writer("png", tmp_path, ["b.c", "c", "b"], overlapping=True)
    written = [name for key in ("a", "a.b", "a.b.c") for name in writer.write(key, None, [found(one_pixel(), name="c")])]
    assert len(written) == len(set(written)) == 9
