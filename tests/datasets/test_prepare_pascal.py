import contextlib
import hashlib
import http.server
import importlib
import os
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from scipy.sparse import csc_matrix

from cyctr import cli, compat
from cyctr.datasets import pascal_masks
from cyctr.datasets import prepare_pascal as module
from cyctr.datasets.pascal_masks import Fate, read_sbd_mask
from cyctr.datasets.prepare_pascal import bundled_list, prepare_pascal
from cyctr.errors import DataError
from cyctr.images.imaging import write_values

HEIGHT, WIDTH = 6, 9
TRAIN, VAL = ("2007_000032", "2007_000039"), ("2007_000033", "2007_000042")
SBD_TRAIN, SBD_VAL = ("2008_000008", "2007_000032", "2007_000033"), ("2008_000015", "2007_000042")
BUNDLED = ["2008_000015", "2007_000032", "2007_000039"]  # as in the real one: SBD's first, not sorted
ONLY_SBD = ("2008_000008", "2008_000015")
UNUSED = "2009_000001"
EVERY_LIST = {"train", "val", "train_aug_5953", "train_aug"}
NO_IMAGE, NO_MASK = "ids in the lists without image", "ids in the lists without mask"
FROM_SBD = "ids in VOC's lists without VOC's mask (SBD's is in its place)"
UNREADABLE = "ids with an unreadable file"


def values_of(seed, highest=20, border=False):
    """Distinct masks, so that one in the place of another is noticed."""
    values = np.random.default_rng(seed).integers(0, highest + 1, (HEIGHT, WIDTH), np.uint8)
    if border:
        values[0] = 255
    return values


VOC_VALUES = {name: values_of(i, border=True) for i, name in enumerate((*TRAIN, *VAL))}
SBD_VALUES = {name: values_of(100 + i) for i, name in enumerate(dict.fromkeys((*SBD_TRAIN, *SBD_VAL)))}
EXPECTED = SBD_VALUES | VOC_VALUES


def save_png(path, values, mode="P"):
    image = Image.fromarray(values)
    if mode == "P":
        image = image.convert("P")
        image.putdata(values.ravel().tolist())
        image.putpalette([(7 * i) % 256 for i in range(768)])
    image.save(path)


def save_mat(path, values):
    boundaries = np.empty((20, 1), object)
    for number in range(20):
        boundaries[number, 0] = csc_matrix(values == number + 1)
    present = np.unique(values[values > 0])[:, None]
    content = {"Boundaries": boundaries, "Segmentation": values, "CategoriesPresent": present}
    savemat(path, {"GTcls": content}, do_compression=True)


def save_list(path, names):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}\n" for name in names))


def make_voc(folder):
    """A VOC2012 folder in which everything is as in the real one, only less of it."""
    for part in ("JPEGImages", "SegmentationClass", "SegmentationObject", "Annotations"):
        (folder / part).mkdir(parents=True)
    for i, name in enumerate((*EXPECTED, UNUSED)):
        Image.new("RGB", (WIDTH, HEIGHT), (i, i, i)).save(folder / "JPEGImages" / f"{name}.jpg")
    for name, values in VOC_VALUES.items():
        save_png(folder / "SegmentationClass" / f"{name}.png", values)
    for name, ids in (("train", TRAIN), ("val", VAL), ("trainval", sorted(TRAIN + VAL))):
        save_list(folder / "ImageSets" / "Segmentation" / f"{name}.txt", ids)
    return folder


def make_sbd(folder):
    (folder / "cls").mkdir(parents=True)
    for name, values in SBD_VALUES.items():
        save_mat(folder / "cls" / f"{name}.mat", values)
    save_list(folder / "train.txt", SBD_TRAIN)
    save_list(folder / "val.txt", SBD_VAL)
    return folder


@pytest.fixture
def voc(tmp_path):
    return make_voc(tmp_path / "VOCdevkit" / "VOC2012")


@pytest.fixture
def sbd(tmp_path):
    return make_sbd(tmp_path / "benchmark_RELEASE" / "dataset")


@pytest.fixture(autouse=True)
def _small_list(monkeypatch):
    monkeypatch.setattr(module, "bundled_list", lambda: list(BUNDLED))


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `cyctr prepare pascal` in this process: its exit code, output and errors."""

    def main(*arguments):
        monkeypatch.setattr(sys, "argv", ["cyctr", "prepare", "pascal", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return main


def assert_one_line(result, *words):
    code, _, error = result
    assert code == 2
    assert error.startswith("cyctr: ") and error.endswith("\n") and error.count("\n") == 1, error
    assert all(str(word) in error for word in words), error


def mask_files(folder):
    return {path.stem: path for path in (folder / "SegmentationClassAug").iterdir()}


def read_png(path):
    with Image.open(path) as image:
        assert image.mode == "P"
        return np.array(image)


def read_ids(folder, name):
    return (folder / "ImageSets" / "Segmentation" / f"{name}.txt").read_text().splitlines()


def snapshot(folder):
    """All there is below a folder: content, and when it was written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): (path.read_bytes(), path.lstat().st_mtime_ns, path.lstat().st_ino) for path in files}


def fates(written=0, kept=0, left=0, copied=0):
    """How many files met each fate, those that none met left out."""
    counts = {Fate.WRITTEN: written, Fate.KEPT: kept, Fate.LEFT: left, Fate.COPIED: copied}
    return {fate: count for fate, count in counts.items() if count}


def damage(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_every_mask_has_the_values_of_voc_where_voc_has_one_and_of_sbd_otherwise(voc, sbd):
    report = prepare_pascal(voc, sbd)
    files = mask_files(voc)
    assert files.keys() == EXPECTED.keys()
    for name, path in files.items():
        np.testing.assert_array_equal(read_png(path), EXPECTED[name], strict=True)
    assert (report.voc_masks, report.sbd_masks) == (len(VOC_VALUES), len(ONLY_SBD))
    assert (report.masks, report.left) == (fates(written=len(EXPECTED)), {})


def test_masks_are_written_in_vocs_colours(voc, sbd):
    prepare_pascal(voc, sbd)
    with Image.open(mask_files(voc)["2008_000008"]) as image:
        palette = image.getpalette()
    assert palette[:9] == [0, 0, 0, 128, 0, 0, 0, 128, 0]
    assert palette[-3:] == [224, 224, 192]


def test_the_lists_are_those_of_the_protocol(voc, sbd):
    report = prepare_pascal(voc, sbd)
    assert read_ids(voc, "train") == list(TRAIN)
    assert read_ids(voc, "val") == list(VAL)
    assert read_ids(voc, "train_aug_5953") == BUNDLED
    union = {*TRAIN, *SBD_TRAIN, *SBD_VAL} - set(VAL)
    assert read_ids(voc, "train_aug") == sorted(union)
    assert {name: size for name, (size, _) in report.lists.items()} == {
        "train": 2,
        "val": 2,
        "train_aug_5953": 3,
        "train_aug": len(union),
    }
    assert {name: fate for name, (_, fate) in report.lists.items()} == {
        "train": Fate.KEPT,
        "val": Fate.KEPT,
        "train_aug_5953": Fate.WRITTEN,
        "train_aug": Fate.WRITTEN,
    }


def test_the_bundled_list_begins_with_the_train_noval_whose_checksum_torchvision_knows():
    names = bundled_list()
    noval = "".join(f"{name}\n" for name in names[:5_623])
    expected = compat.torchvision().datasets.SBDataset.voc_split_md5
    assert hashlib.md5(noval.encode()).hexdigest() == expected
    assert len(names) == len(set(names)) == module.OFFICIAL["train_aug_5953"]


def test_a_complete_folder_has_no_problems_and_counts_images_nobody_labelled(voc, sbd):
    report = prepare_pascal(voc, sbd)
    assert report.problems == {}
    assert (report.images, report.unlabelled) == (len(EXPECTED) + 1, 1)
    assert report.links == {}


@pytest.mark.parametrize("above", [".", "..", "../.."], ids=["itself", "one above", "two above"])
def test_the_folders_are_found_from_above(above, voc, sbd):
    report = prepare_pascal(voc / above, sbd / above)
    assert report.output.samefile(voc)
    assert mask_files(voc).keys() == EXPECTED.keys()


def test_a_second_run_writes_nothing(voc, sbd):
    prepare_pascal(voc, sbd)
    before = snapshot(voc)
    report = prepare_pascal(voc, sbd)
    assert snapshot(voc) == before
    assert report.masks == fates(kept=len(EXPECTED))
    assert {fate for _, fate in report.lists.values()} == {Fate.KEPT}


def test_a_run_that_was_stopped_is_taken_up(voc, sbd, monkeypatch):
    calls = iter(range(len(EXPECTED)))

    def stop_at_the_third(path, values):
        if next(calls) >= 2:
            raise KeyboardInterrupt
        write_values(path, values)

    monkeypatch.setattr(pascal_masks, "write_values", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        prepare_pascal(voc, sbd)
    assert len(mask_files(voc)) == 2
    monkeypatch.setattr(pascal_masks, "write_values", write_values)
    report = prepare_pascal(voc, sbd)
    assert report.problems == {}
    assert report.masks == fates(len(EXPECTED) - 2, 2)
    assert mask_files(voc).keys() == EXPECTED.keys()


def test_a_mask_with_the_same_values_in_another_kind_of_png_is_kept(voc, sbd):
    path = voc / "SegmentationClassAug" / "2008_000008.png"
    path.parent.mkdir()
    save_png(path, EXPECTED["2008_000008"], mode="L")
    before = path.read_bytes()
    report = prepare_pascal(voc, sbd)
    assert report.masks == fates(len(EXPECTED) - 1, 1)
    assert path.read_bytes() == before


@pytest.mark.parametrize("theirs", ["other values", "other size", "no picture"])
def test_a_mask_that_differs_is_left_and_named_unless_forced(theirs, voc, sbd):
    path = voc / "SegmentationClassAug" / "2007_000032.png"
    path.parent.mkdir()
    if theirs == "no picture":
        path.write_text("mine")
    else:
        save_png(path, np.zeros((HEIGHT, WIDTH if theirs == "other values" else 3), np.uint8))
    before = path.read_bytes()
    report = prepare_pascal(voc, sbd)
    assert path.read_bytes() == before
    assert (report.masks, report.left) == (fates(len(EXPECTED) - 1, left=1), {"masks": ["2007_000032"]})
    assert report.problems == {}

    report = prepare_pascal(voc, sbd, force=True)
    assert (report.masks, report.left) == (fates(1, len(EXPECTED) - 1), {})
    np.testing.assert_array_equal(read_png(path), EXPECTED["2007_000032"])


@pytest.mark.parametrize("theirs", [["2007_000032"], BUNDLED[::-1], []], ids=["other ids", "other order", "empty"])
def test_a_list_that_differs_is_left_and_named_unless_forced(theirs, voc, sbd):
    path = voc / "ImageSets" / "Segmentation" / "train_aug_5953.txt"
    save_list(path, theirs)
    size, fate = prepare_pascal(voc, sbd).lists["train_aug_5953"]
    assert (fate, size, path.read_text().split()) == (Fate.LEFT, len(theirs), theirs)
    size, fate = prepare_pascal(voc, sbd, force=True).lists["train_aug_5953"]
    assert (fate, size, path.read_text().split()) == (Fate.WRITTEN, len(BUNDLED), BUNDLED)


def test_force_replaces_nothing_that_is_as_it_should_be(voc, sbd):
    prepare_pascal(voc, sbd)
    before = snapshot(voc)
    assert prepare_pascal(voc, sbd, force=True).masks == fates(kept=len(EXPECTED))
    assert snapshot(voc) == before


def test_the_sources_are_never_changed(voc, sbd, tmp_path):
    before = snapshot(voc), snapshot(sbd)
    prepare_pascal(voc, sbd, tmp_path / "out", force=True)
    assert (snapshot(voc), snapshot(sbd)) == before


def test_elsewhere_the_images_are_links(voc, sbd, tmp_path):
    output = tmp_path / "deep" / "out"
    report = prepare_pascal(voc, sbd, output)
    links = sorted((output / "JPEGImages").iterdir())
    assert [path.stem for path in links] == sorted(EXPECTED)
    assert all(path.is_symlink() and path.samefile(voc / "JPEGImages" / path.name) for path in links)
    assert report.links == fates(written=len(EXPECTED))
    assert {path.stem for path in (output / "ImageSets" / "Segmentation").iterdir()} == EVERY_LIST
    assert mask_files(output).keys() == EXPECTED.keys()
    assert not (voc / "SegmentationClassAug").exists()

    before = snapshot(output)
    assert prepare_pascal(voc, sbd, output).links == fates(kept=len(EXPECTED))
    assert snapshot(output) == before


def test_where_links_cannot_be_made_the_images_are_copied(voc, sbd, tmp_path, monkeypatch):
    def refuse(self, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    report = prepare_pascal(voc, sbd, tmp_path / "out")
    assert report.links == fates(copied=len(EXPECTED))
    for path in (tmp_path / "out" / "JPEGImages").iterdir():
        assert not path.is_symlink()
        assert path.read_bytes() == (voc / "JPEGImages" / path.name).read_bytes()
    assert prepare_pascal(voc, sbd, tmp_path / "out").links == fates(kept=len(EXPECTED))


def test_an_image_that_differs_is_left_and_named_unless_forced(voc, sbd, tmp_path):
    images = tmp_path / "out" / "JPEGImages"
    images.mkdir(parents=True)
    (images / "2007_000032.jpg").write_text("mine")
    (images / "2007_000039.jpg").symlink_to(tmp_path / "gone.jpg")
    report = prepare_pascal(voc, sbd, tmp_path / "out")
    assert report.links == fates(len(EXPECTED) - 2, left=2)
    assert report.left == {"images": ["2007_000032", "2007_000039"]}
    assert (images / "2007_000032.jpg").read_text() == "mine"
    assert prepare_pascal(voc, sbd, tmp_path / "out", force=True).links == fates(2, len(EXPECTED) - 2)
    assert (images / "2007_000032.jpg").samefile(voc / "JPEGImages" / "2007_000032.jpg")
    assert (images / "2007_000039.jpg").samefile(voc / "JPEGImages" / "2007_000039.jpg")


def test_an_image_that_is_there_in_another_format_gets_no_second_file(voc, sbd, tmp_path):
    images = tmp_path / "out" / "JPEGImages"
    images.mkdir(parents=True)
    Image.new("RGB", (WIDTH, HEIGHT)).save(images / "2007_000032.png")
    assert prepare_pascal(voc, sbd, tmp_path / "out").links == fates(len(EXPECTED) - 1, 1)
    assert [path.name for path in images.glob("2007_000032.*")] == ["2007_000032.png"]


def test_vocs_own_folder_as_output_gains_no_links(voc, sbd):
    report = prepare_pascal(voc, sbd, voc.parent / "VOC2012" / ".." / "VOC2012")
    assert report.links == {}
    assert not any(path.is_symlink() for path in (voc / "JPEGImages").iterdir())


def test_files_that_cannot_be_read_are_named_and_the_rest_is_done(voc, sbd):
    damage(sbd / "cls" / "2008_000008.mat")
    savemat(sbd / "cls" / "2008_000015.mat", {"GTinst": np.zeros(3)})
    damage(voc / "SegmentationClass" / "2007_000032.png")
    report = prepare_pascal(voc, sbd)
    first, *rest = report.problems[UNREADABLE]
    assert first.startswith("2007_000032 (")
    assert all(line.startswith(f"{name} ({sbd / 'cls' / name}.mat: ") for name, line in zip(ONLY_SBD, rest, strict=True))
    assert report.problems[NO_MASK] == ["2007_000032", *ONLY_SBD]
    assert mask_files(voc).keys() == EXPECTED.keys() - {"2007_000032", *ONLY_SBD}


def test_an_image_that_cannot_be_read_is_named(voc, sbd):
    (voc / "JPEGImages" / "2008_000008.jpg").write_text("no picture")
    report = prepare_pascal(voc, sbd)
    (line,) = report.problems[UNREADABLE]
    assert line.startswith(f"2008_000008 ({voc / 'JPEGImages' / '2008_000008.jpg'}: ")


@pytest.mark.parametrize("shape", [(WIDTH, HEIGHT), (HEIGHT, WIDTH + 1)], ids=["turned", "wider"])
def test_a_mask_of_another_size_than_its_image_is_named_and_not_written(shape, voc, sbd):
    save_mat(sbd / "cls" / "2008_000008.mat", np.ones(shape, np.uint8))
    report = prepare_pascal(voc, sbd)
    size = f"mask is {shape[0]} x {shape[1]}, image is {HEIGHT} x {WIDTH}, height x width"
    assert report.problems["masks of another size than the image"] == [f"2008_000008 ({size})"]
    assert "2008_000008" not in mask_files(voc)


def test_values_that_mean_nothing_are_named_and_not_written(voc, sbd):
    strange = EXPECTED["2008_000008"].copy()
    strange[2, 3], strange[4, 4] = 21, 254
    save_mat(sbd / "cls" / "2008_000008.mat", strange)
    report = prepare_pascal(voc, sbd)
    assert report.problems["masks with strange values"] == ["2008_000008 (21, 254; expected 0 to 20, and 255)"]
    assert "2008_000008" not in mask_files(voc)


def test_ids_without_image_or_mask_are_named(voc, sbd):
    (voc / "JPEGImages" / "2008_000015.jpg").unlink()
    (sbd / "cls" / "2008_000008.mat").unlink()
    report = prepare_pascal(voc, sbd)
    assert report.problems == {NO_IMAGE: ["2008_000015"], NO_MASK: ["2008_000008"]}
    assert "2008_000015" in mask_files(voc)


def test_a_mask_of_sbd_in_the_place_of_vocs_is_named(voc, sbd):
    (voc / "SegmentationClass" / "2007_000042.png").unlink()
    report = prepare_pascal(voc, sbd)
    assert report.problems == {FROM_SBD: ["2007_000042"]}
    np.testing.assert_array_equal(read_png(mask_files(voc)["2007_000042"]), SBD_VALUES["2007_000042"])


def test_a_mask_of_voc_from_an_earlier_run_is_not_taken_for_sbds(voc, sbd):
    prepare_pascal(voc, sbd)
    (voc / "SegmentationClass" / "2007_000042.png").unlink()
    report = prepare_pascal(voc, sbd)
    assert (report.problems, report.left) == ({}, {"masks": ["2007_000042"]})
    np.testing.assert_array_equal(read_png(mask_files(voc)["2007_000042"]), VOC_VALUES["2007_000042"])


def test_without_sbds_lists_all_but_train_aug_is_made(voc, sbd):
    (sbd / "val.txt").unlink()
    report = prepare_pascal(voc, sbd)
    assert report.problems == {"lists missing, so train_aug was not made": [str(sbd / "val.txt")]}
    assert report.lists["train_aug"] == (0, Fate.MISSING)
    assert {path.stem for path in (voc / "ImageSets" / "Segmentation").iterdir()} == EVERY_LIST - {"train_aug"} | {"trainval"}
    assert mask_files(voc).keys() == EXPECTED.keys()


def test_progress_is_told_up_to_the_end(voc, sbd):
    calls = []
    prepare_pascal(voc, sbd, progress=lambda *call: calls.append(call))
    assert calls[-1] == ("masks", len(EXPECTED), len(EXPECTED))


def test_a_macs_shadow_files_are_no_masks(voc, sbd):
    (voc / "SegmentationClass" / "._2007_000032.png").write_text("of a Mac")
    (sbd / "cls" / "._2008_000008.mat").write_text("of a Mac")
    assert prepare_pascal(voc, sbd).problems == {}
    assert mask_files(voc).keys() == EXPECTED.keys()


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint16], ids=lambda kind: kind.__name__)
def test_whole_numbers_of_any_kind_are_read_from_a_mat_file(kind, tmp_path):
    from scipy.io import loadmat

    values = values_of(5, border=True)
    save_mat(tmp_path / "a.mat", values.astype(kind))
    np.testing.assert_array_equal(read_sbd_mask(tmp_path / "a.mat", loadmat), values, strict=True)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.full((2, 2), 0.5), "float64"),
        (np.zeros((2, 2, 3), np.uint8), r"\(2, 2, 3\)"),
        (np.full((2, 2), 300, np.uint16), "300, expected 0 to 255"),
        (np.full((2, 2), -1, np.int16), "from -1"),
    ],
    ids=["fractions", "colours", "too high", "negative"],
)
def test_a_mat_file_with_something_else_in_it_is_refused(values, words, tmp_path):
    from scipy.io import loadmat

    savemat(tmp_path / "a.mat", {"GTcls": {"Segmentation": values}})
    with pytest.raises(DataError, match=words):
        read_sbd_mask(tmp_path / "a.mat", loadmat)


def test_a_mask_of_sbd_that_may_fill_the_memory_once_unpacked_is_refused(tmp_path):
    (tmp_path / "a.mat").write_bytes(bytes(2**19 + 1))
    with pytest.raises(DataError, match="holds 524,289 bytes; expected a mask of SBD of at most 524,288"):
        read_sbd_mask(tmp_path / "a.mat", pascal_masks.mat_reader())


def test_the_command_prints_what_it_found_and_made(run, voc, sbd):
    code, output, error = run("--voc", voc, "--sbd", sbd)
    assert (code, error) == (0, "")
    assert f"PASCAL-5^i in {voc}" in output
    assert "4 of VOC, 2 more of SBD; 6 written, 0 already there" in output
    assert "7 of VOC, 1 of them without mask" in output
    assert "train.txt: 2 images (official: 1,464), already there" in output
    assert "val.txt: 2 images (official: 1,449), already there" in output
    assert "train_aug_5953.txt: 3 images (official: 5,953), written" in output
    assert "train_aug.txt: 4 images (official: 10,582), written" in output
    assert "0 written, 6 already there" in run("--voc", voc, "--sbd", sbd)[1]


def test_the_command_names_what_it_left_and_replaces_it_when_forced(run, voc, sbd):
    run("--voc", voc, "--sbd", sbd)
    save_png(mask_files(voc)["2007_000032"], np.zeros((HEIGHT, WIDTH), np.uint8))
    save_list(voc / "ImageSets" / "Segmentation" / "train_aug.txt", TRAIN)
    code, output, error = run("--voc", voc, "--sbd", sbd)
    assert (code, error) == (0, "")
    assert "already there, which were left (--force replaces them): 1\n    2007_000032\n" in output
    assert "train_aug.txt: 2 images (official: 10,582), left as it was, though it differs (--force replaces it)" in output
    assert "1 written, 5 already there" in run("--voc", voc, "--sbd", sbd, "--force")[1]


def test_the_command_ends_with_one_line_and_code_2_when_something_is_missing(run, voc, sbd):
    for path in (voc / "JPEGImages").iterdir():
        path.unlink()
    damage(sbd / "cls" / "2008_000008.mat")
    result = run("--voc", voc, "--sbd", sbd)
    words = "ids in the lists without image: 6", "ids in the lists without mask: 1", "ids with an unreadable file: 1"
    assert_one_line(result, f"{voc}: not complete", *words, "run again")
    named = "".join(f"    {name}\n" for name in sorted(EXPECTED)[:5])
    assert f"  ids in the lists without image: 6\n{named}    and 1 more\n" in result[1]
    assert f"    2008_000008 ({sbd / 'cls' / '2008_000008.mat'}: cannot be read" in result[1]


def test_the_command_writes_elsewhere(run, voc, sbd, tmp_path):
    code, output, error = run("--voc", voc, "--sbd", sbd, "--output", tmp_path / "out")
    assert (code, error) == (0, "")
    assert "6 linked, 0 copied, 0 already there" in output


@pytest.mark.parametrize("missing", ["voc", "sbd"])
def test_a_folder_that_is_not_there_is_one_line(missing, run, voc, sbd, tmp_path):
    folders = {"voc": voc, "sbd": sbd} | {missing: tmp_path / "nowhere"}
    result = run("--voc", folders["voc"], "--sbd", folders["sbd"])
    looked_for = {"voc": ("JPEGImages", "SegmentationClass", "VOC2012"), "sbd": ("cls", "benchmark_RELEASE/dataset")}[missing]
    assert_one_line(result, tmp_path / "nowhere", *looked_for, "--download")
    assert not (tmp_path / "nowhere").exists()


def test_a_list_of_voc_that_is_missing_is_one_line_before_anything_is_written(run, voc, sbd):
    path = voc / "ImageSets" / "Segmentation" / "val.txt"
    path.unlink()
    assert_one_line(run("--voc", voc, "--sbd", sbd), path, "no such file")
    assert not (voc / "SegmentationClassAug").exists()


def test_without_scipy_one_line_says_how_to_get_it(run, voc, sbd, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    assert_one_line(run("--voc", voc, "--sbd", sbd), "scipy", "pip install scipy")


@pytest.mark.parametrize("name", ["SegmentationClassAug", "JPEGImages", "ImageSets"])
def test_a_place_that_cannot_be_written_is_one_line(name, run, voc, sbd, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    assert_one_line(run("--voc", voc, "--sbd", sbd, "--output", tmp_path / "out"), tmp_path / "out", "choose another")
    assert (tmp_path / "out" / name).read_text() == "mine"


def pack(archive, folder, inside, compression):
    with tarfile.open(archive, f"w:{compression}") as tar:
        tar.add(folder, inside)
    return archive


def publish(monkeypatch, which, archive, url=None):
    """Makes an archive the official one of VOC or SBD."""
    datasets = compat.torchvision().datasets
    entry = {"url": url or archive.as_uri(), "md5": hashlib.md5(archive.read_bytes()).hexdigest()}
    if which == "voc":
        voc_module = importlib.import_module("torchvision.datasets.voc")
        known = voc_module.DATASET_YEAR_DICT["2012"]
        monkeypatch.setitem(voc_module.DATASET_YEAR_DICT, "2012", known | entry)
    else:
        for name, value in entry.items():
            monkeypatch.setattr(datasets.SBDataset, name, value)


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """The official archives, small and on this disk."""
    shelf = tmp_path / "shelf"
    make_voc(shelf / "voc")
    make_sbd(shelf / "sbd" / "dataset")
    found = {
        "voc": pack(shelf / "VOCtrainval_11-May-2012.tar", shelf / "voc", "VOCdevkit/VOC2012", ""),
        "sbd": pack(shelf / "benchmark.tgz", shelf / "sbd", "benchmark_RELEASE", "gz"),
    }
    for which, archive in found.items():
        publish(monkeypatch, which, archive)
    return found


def test_download_fetches_both_archives_and_leaves_only_their_content(archives, tmp_path):
    calls = []
    folders = tmp_path / "new" / "voc", tmp_path / "new" / "sbd"
    report = prepare_pascal(*folders, download=True, progress=lambda *call: calls.append(call))
    assert report.problems == {}
    assert report.output == folders[0] / "VOCdevkit" / "VOC2012"
    assert {name: read_png(path).tolist() for name, path in mask_files(report.output).items()} == {
        name: values.tolist() for name, values in EXPECTED.items()
    }
    assert [path.name for folder in folders for path in folder.iterdir()] == ["VOCdevkit", "benchmark_RELEASE"]
    for archive in archives.values():
        size = archive.stat().st_size
        assert (f"fetching {archive.name}", size, size) in calls
        assert any(step == f"unpacking {archive.name}" and 0 < done <= total == size for step, done, total in calls)


def test_download_leaves_alone_what_is_there(archives, voc, sbd, tmp_path):
    for archive in archives.values():
        archive.unlink()
    assert prepare_pascal(voc, sbd, download=True).problems == {}
    assert not list(tmp_path.rglob("fetching-*"))


def test_an_archive_fetched_by_hand_is_used_and_left(archives, sbd, tmp_path):
    folder = tmp_path / "voc"
    folder.mkdir()
    kept = archives["voc"].rename(folder / archives["voc"].name)
    assert prepare_pascal(folder, sbd, download=True).problems == {}
    assert sorted(path.name for path in folder.iterdir()) == ["VOCdevkit", kept.name]


def test_an_archive_fetched_by_hand_that_is_damaged_is_one_line(run, archives, sbd, tmp_path):
    folder = tmp_path / "voc"
    folder.mkdir()
    kept = archives["voc"].rename(folder / archives["voc"].name)
    damage(kept)
    before = kept.read_bytes()
    assert_one_line(run("--voc", folder, "--sbd", sbd, "--download"), kept, "md5", "remove it and run again")
    assert [path.name for path in folder.iterdir()] == [kept.name]
    assert kept.read_bytes() == before


@pytest.mark.parametrize("which", ["voc", "sbd"])
def test_an_archive_that_cannot_be_fetched_is_one_line_with_the_remedy(which, run, archives, tmp_path):
    url = archives[which].as_uri()
    archives[which].unlink()
    result = run("--voc", tmp_path / "voc", "--sbd", tmp_path / "sbd", "--download")
    assert_one_line(result, archives[which].name, "cannot be fetched", url, f"put it into {tmp_path / which}")
    assert list((tmp_path / which).iterdir()) == []


@pytest.mark.parametrize("which", ["voc", "sbd"])
def test_an_archive_that_arrives_changed_is_refused_and_leaves_nothing(which, run, archives, tmp_path):
    damage(archives[which])
    result = run("--voc", tmp_path / "voc", "--sbd", tmp_path / "sbd", "--download")
    assert_one_line(result, "md5", "incomplete", archives[which].as_uri(), f"put it into {tmp_path / which}")
    assert list((tmp_path / which).iterdir()) == []


@contextlib.contextmanager
def server(status, content, promised):
    """A server on this machine that promises so many bytes and sends the content."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Length", str(promised))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as host:
        thread = threading.Thread(target=host.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{host.server_port}/archive"
        finally:
            host.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "cut", "words"),
    [(200, False, ()), (200, True, ("bytes arrived", "try again")), (403, False, ("cannot be fetched (Forbidden)",))],
    ids=["whole", "cut short", "forbidden"],
)
def test_what_a_server_does_is_told_in_one_line(status, cut, words, run, archives, sbd, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    content = archives["voc"].read_bytes()
    with server(status, content[: len(content) // 2] if cut else content, len(content)) as url:
        publish(monkeypatch, "voc", archives["voc"], url)
        result = run("--voc", tmp_path / "voc", "--sbd", sbd, "--download")
    if words:
        assert_one_line(result, *words, url)
        assert list((tmp_path / "voc").iterdir()) == []
    else:
        assert result[0] == 0 and result[2] == ""


def test_a_server_that_is_not_there_is_one_line(run, archives, sbd, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with server(200, b"", 0) as url:
        pass
    publish(monkeypatch, "voc", archives["voc"], url)
    assert_one_line(run("--voc", tmp_path / "voc", "--sbd", sbd, "--download"), "cannot be fetched", "refused", url)


def test_an_interrupted_download_leaves_nothing(archives, sbd, tmp_path):
    for interrupted in ("fetching", "unpacking"):

        def stop(step, done, total, interrupted=interrupted):
            if step.startswith(interrupted):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare_pascal(tmp_path / "voc", sbd, download=True, progress=stop)
        there = [path.name for path in (tmp_path / "voc").iterdir()]
        assert there == ([] if interrupted == "fetching" else [archives["voc"].name])  # whole and checked by then
    assert prepare_pascal(tmp_path / "voc", sbd, download=True).problems == {}


def test_a_half_unpacked_folder_is_not_written_into(run, archives, sbd, tmp_path):
    half = tmp_path / "voc" / "VOCdevkit" / "VOC2012"
    (half / "JPEGImages").mkdir(parents=True)
    assert_one_line(run("--voc", tmp_path / "voc", "--sbd", sbd, "--download"), half, "not complete", "move it away")
    assert os.listdir(half) == ["JPEGImages"]


def test_an_archive_with_something_else_in_it_is_refused(run, archives, sbd, tmp_path, monkeypatch):
    publish(monkeypatch, "voc", archives["sbd"])
    result = run("--voc", tmp_path / "voc", "--sbd", sbd, "--download")
    assert_one_line(result, "VOCtrainval_11-May-2012.tar", f"unpacks to no {Path('VOCdevkit', 'VOC2012')}")
    assert not (tmp_path / "voc" / "VOCdevkit").exists()


def test_an_official_archive_that_is_no_archive_is_one_line(run, archives, sbd, tmp_path, monkeypatch):
    archives["voc"].write_text("no archive")
    publish(monkeypatch, "voc", archives["voc"])
    assert_one_line(run("--voc", tmp_path / "voc", "--sbd", sbd, "--download"), "cannot be unpacked", "remove it")


def test_a_folder_that_cannot_be_made_for_a_download_is_one_line(run, archives, sbd, tmp_path):
    (tmp_path / "file").write_text("mine")
    result = run("--voc", tmp_path / "file" / "voc", "--sbd", sbd, "--download")
    assert_one_line(result, tmp_path / "file", "cannot be written")


def test_the_help_names_the_options(run):
    code, output, _ = run("--help")
    assert code == 0
    assert all(option in output for option in ("--voc", "--sbd", "--output", "--download", "--force"))
