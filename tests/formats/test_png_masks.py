import json

import numpy as np
import pytest
from PIL import Image
from shapes import EDGE_CASES, blobs, disc, found, full, nothing, one_pixel, speckle

from cyctr.datasets.own_folder import open_folder
from cyctr.errors import DataError
from cyctr.formats import open_writer
from cyctr.images.imaging import read_values, voc_palette


@pytest.mark.parametrize("mask", [*EDGE_CASES.values(), blobs(0), speckle(0)])
def test_one_class_comes_back_from_black_and_white(mask, tmp_path):
    assert open_writer("png", tmp_path, ["cup"]).write("room/a", None, [found(mask)]) == ["masks/room/a.png"]
    with Image.open(tmp_path / "masks/room/a.png") as image:
        assert image.mode == "L"
        assert np.array_equal(np.array(image), mask * 255)


def test_one_class_has_one_file_even_where_masks_could_overlap(tmp_path):
    writer = open_writer("png", tmp_path, ["cup"], overlapping=True)
    assert writer.write("a", None, [found(disc())]) == ["masks/a.png"]
    assert writer.finish() == []


def test_several_classes_come_back_as_numbers_in_the_colours_of_voc(tmp_path):
    writer = open_writer("png", tmp_path, ["cup", "plate", "fork"])
    numbers = np.random.default_rng(0).integers(0, 4, (40, 50))
    given = [found(numbers == number, name) for number, name in ((3, "fork"), (1, "cup"), (2, "plate"))]
    assert writer.write("a", None, given) == ["masks/a.png"]
    assert np.array_equal(read_values(tmp_path / "masks/a.png"), numbers)
    with Image.open(tmp_path / "masks/a.png") as image:
        assert image.mode == "P" and image.getpalette()[:12] == voc_palette()[:12]
    assert writer.finish() == ["classes.txt"]
    assert (tmp_path / "classes.txt").read_text() == "cup\nplate\nfork\n"


def test_where_masks_overlap_the_later_class_is_seen_and_a_missing_one_is_nowhere(tmp_path):
    writer = open_writer("png", tmp_path, ["cup", "plate", "fork"])
    writer.write("a", None, [found(one_pixel(), "fork"), found(full(), "cup")])
    assert np.array_equal(read_values(tmp_path / "masks/a.png"), np.where(one_pixel(), 3, 1))


def test_masks_that_may_overlap_have_a_file_for_each_class(tmp_path):
    classes = ["cup", "a/b", "plate"]
    writer = open_writer("png", tmp_path, classes, overlapping=True)
    masks = dict(zip(classes, (full(), one_pixel(), nothing()), strict=True))
    names = writer.write("room/a.b", None, [found(masks["a/b"], "a/b"), found(masks["cup"], "cup")])
    assert names[0] == "masks/room/a.b.cup.png" and names[2] == "masks/room/a.b.plate.png"
    assert writer.finish() == ["classes.json"]
    meaning = json.loads((tmp_path / "classes.json").read_text())
    for name in names:
        part = name.removeprefix("masks/room/a.b.").removesuffix(".png")
        assert np.array_equal(read_values(tmp_path / name), masks[meaning[part]] * 255)


def test_an_image_that_lacks_one_of_its_files_is_not_done(tmp_path):
    writer = open_writer("png", tmp_path, ["cup", "plate"], overlapping=True)
    for name in writer.write("a", None, [found(disc())]):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        assert not writer.done("a")
        (tmp_path / name).write_bytes(content)
    assert writer.done("a")


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("others", [["plate", "cup"], ["cup"], ["cup", "plate", "fork"], ["plate", "fork"]])
def test_a_folder_of_other_classes_is_not_gone_on_with(overlapping, others, tmp_path):
    classes = ["cup", "plate", "knife"]
    open_writer("png", tmp_path, classes, overlapping=overlapping).write("a", None, [found(disc())])
    open_writer("png", tmp_path, classes, overlapping=overlapping)
    if len(others) > 1:  # one class needs no list
        with pytest.raises(DataError, match=r"classes\.\w+: names other classes than these; expected those of the earlier run"):
            open_writer("png", tmp_path, others, overlapping=overlapping)


def test_a_list_of_classes_that_an_editor_has_saved_is_still_the_same(tmp_path):
    (tmp_path / "classes.txt").write_bytes("\ufeffcup\r\nTür".encode())
    writer = open_writer("png", tmp_path, ["cup", "Tür"])
    writer.write("a", None, [found(disc())])
    writer.finish()
    assert (tmp_path / "classes.txt").read_bytes() == "\ufeffcup\r\nTür".encode()


def test_a_name_that_cannot_be_a_line_has_one_that_can(tmp_path):
    open_writer("png", tmp_path, ["cup", "a\nb", "#1", " x", "\udcff"]).finish()
    lines = (tmp_path / "classes.txt").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 5
    assert lines[0] == "cup" and not any("#" in line or line != line.strip() for line in lines)


@pytest.mark.parametrize("classes", [["cup", "plate"], ["object"]])
def test_what_is_written_can_be_learned_from(classes, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    writer = open_writer("png", tmp_path, classes)
    masks = {f"{number}": blobs(number) for number in range(3)}
    for key, mask in masks.items():
        Image.new("RGB", mask.shape[::-1]).save(images / f"{key}.png")
        writer.write(key, images / f"{key}.png", [found(mask, classes[-1])])
    writer.finish()
    dataset = open_folder(tmp_path)
    assert dataset.classes[-1] == classes[-1]
    pool = dataset.pools["train"]
    for place, mask in enumerate(masks.values()):
        assert np.array_equal(pool.label(place, len(dataset.classes) - 1) == 1, mask)
