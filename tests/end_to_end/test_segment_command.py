import errno
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
from labelled_folders import LAYOUTS
from making import assert_one_line
from PIL import Image
from segmenting import MODEL, checkpoint, files, labelled, photo, photos, scene
from typer.testing import CliRunner

from cyctr import cli
from cyctr.formats import FORMATS
from cyctr.images.imaging import read_image
from cyctr.inference import Segmenter
from cyctr.inference.folder.ledger import Ledger
from cyctr.storage import locked

pytestmark = pytest.mark.filterwarnings("always::UserWarning")  # notes are warnings


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("model") / "tiny.safetensors")


@pytest.fixture(scope="module")
def disc(tmp_path_factory):
    return labelled(tmp_path_factory.mktemp("supports") / "disc")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Supports of two classes."""
    folder = tmp_path_factory.mktemp("supports") / "both"
    labelled(folder / "disc")
    labelled(folder / "other", seed=50)
    return folder


@pytest.fixture
def queries(tmp_path):
    return photos(tmp_path / "queries", 5)


@pytest.fixture
def segment(run, model, disc, tmp_path):
    """Runs `cyctr segment` on the queries."""

    def main(*options, support=disc, query=tmp_path / "queries", output=tmp_path / "out", model=model):
        given = [text for path in (query if isinstance(query, list) else [query]) for text in ("--query", path)]
        return run("segment", "--model", model, "--support", support, *given, "--output", output, "--device", "cpu", *options)

    return main


def well(result):
    """What was said, where all went well."""
    code, output, error = result
    assert (code, error) == (0, ""), result
    return output


def predictions(folder):
    return json.loads((folder / "predictions.json").read_text(encoding="utf-8"))


def keys(folder):
    return [image["key"] for image in predictions(folder)["images"]]


def mask(folder, key):
    with Image.open(folder / "masks" / f"{key}.png") as image:
        return np.asarray(image)


def size_of(path):
    with Image.open(path) as image:
        return image.size


def results(folder):
    """Everything but the ledger, which is in the order of the work."""
    return {name: content for name, content in files(folder).items() if name != ".predictions.jsonl"}


def computed(monkeypatch):
    """The keys of images as they are done."""
    done = []
    monkeypatch.setattr(Ledger, "add", lambda self, key, *rest, add=Ledger.add: (add(self, key, *rest), done.append(key)))
    return done


def stop_after(monkeypatch, count, failure):
    """Lets something happen once so many images are done; returns how to undo it."""
    add, done = Ledger.add, []

    def stopping(self, key, *rest):
        if len(done) == count:
            raise failure
        done.append(key)
        add(self, key, *rest)

    monkeypatch.setattr(Ledger, "add", stopping)
    return lambda: monkeypatch.setattr(Ledger, "add", add)


# what it writes


def test_folders_files_and_subfolders_are_segmented_at_their_own_size(segment, tmp_path, queries):
    photo(queries / "room" / "deep" / "a.JPG", 1, (90, 30))
    photo(tmp_path / "alone.png", 2, (33, 44))
    output = well(segment(query=[queries, tmp_path / "alone.png", queries / "0.jpg"]))
    assert re.search(r"disc +[0-9]+ +[0-9]+ ", output) and str(tmp_path / "out") in output
    out = tmp_path / "out"
    assert keys(out) == sorted(["0", "1", "2", "3", "4", "alone", "room/deep/a"])
    for image in predictions(out)["images"]:
        size = read_image(Path(image["image"])).shape[:2]
        found = mask(out, image["key"])
        assert found.shape == size == (image["height"], image["width"])
        assert set(np.unique(found)) <= {0, 255}
        one = image["classes"]["disc"]
        assert image["files"] == [f"masks/{image['key']}.png"] and one["pixels"] == (found > 0).sum()
        assert one["present"] == (one["confidence"] >= 0.5)
        rows, columns = np.nonzero(found)
        box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] if len(rows) else None
        assert one["box"] == box
        assert size_of(out / "overlays" / f"{image['key']}.jpg") == size[::-1]
    assert predictions(out)["problems"] == {}
    assert not (out / "index.html").exists() and not (out / "review").exists()


def test_classes_are_chosen_and_ordered(segment, tmp_path, queries):
    (tmp_path / "things").mkdir()
    LAYOUTS["labelme"](tmp_path / "things")
    well(segment("--no-overlays", support=tmp_path / "things"))
    assert list(predictions(tmp_path / "out")["images"][0]["classes"]) == ["cup", "plate"]
    assert (tmp_path / "out" / "classes.txt").read_text() == "cup\nplate\n"
    assert set(np.unique(mask(tmp_path / "out", "0"))) <= {0, 1, 2}
    assert not (tmp_path / "out" / "overlays").exists()
    well(segment("--classes", "plate,cup", support=tmp_path / "things", output=tmp_path / "turned"))
    assert (tmp_path / "turned" / "classes.txt").read_text() == "plate\ncup\n"
    well(segment("--classes", "plate", support=tmp_path / "things", output=tmp_path / "one"))
    assert list(predictions(tmp_path / "one")["images"][0]["classes"]) == ["plate"]


def test_several_supports_are_several_classes_and_one_class_twice_is_refused(segment, run, tmp_path, queries, disc, both):
    other = both / "other"
    well(segment("--support", other))
    assert (tmp_path / "out" / "classes.txt").read_text() == "disc\nother\n"
    assert_one_line(segment("--support", both, output=tmp_path / "b"), "class 'disc' comes from two supports")
    assert_one_line(segment("--classes", "cat", output=tmp_path / "b"), "no class 'cat'", "show disc")
    assert_one_line(segment("--classes", " , ", output=tmp_path / "b"), "--classes is ' , '")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_written_resumed_and_replaced(form, segment, tmp_path, queries, both, monkeypatch):
    out, whole = tmp_path / "out", tmp_path / "whole"
    well(segment("--format", form, support=both, output=whole))
    undo = stop_after(monkeypatch, 2, KeyboardInterrupt())
    assert segment("--format", form, support=both)[0] == 130
    undo()
    assert "2 of 5 images done before" in well(segment("--format", form, support=both))
    assert {k: v for k, v in results(out).items() if k != ".coco.jsonl"} == {
        k: v for k, v in results(whole).items() if k != ".coco.jsonl"
    }
    (queries / "0.jpg").unlink()
    well(segment("--format", form, "--force", support=both))
    assert keys(out) == ["1", "2", "3", "4"]
    if form == "coco":
        assert [one["file_name"] for one in json.loads((out / "annotations.json").read_text())["images"]] == [
            "1.jpg",
            "2.jpg",
            "3.jpg",
            "4.jpg",
        ]
    else:
        assert {Path(name).stem for name in files(out) if "/" in name} == {"1", "2", "3", "4"}


def test_masks_of_several_classes_may_overlap_where_that_is_asked_for(segment, tmp_path, queries, both):
    well(segment("--overlapping", "--threshold", "0.2", support=both))
    assert mask(tmp_path / "out", "0.disc").shape == mask(tmp_path / "out", "0.other").shape
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == {"disc": "disc", "other": "other"}


def test_outlines_and_parts_are_written_where_the_format_has_them(segment, tmp_path, queries):
    well(segment("--format", "coco", "--polygons", "--instances", "--threshold", "0.3"))
    document = json.loads((tmp_path / "out" / "annotations.json").read_text())
    assert document["annotations"] and all(isinstance(one["segmentation"], list) for one in document["annotations"])
    assert_one_line(segment("--polygons", output=tmp_path / "other"), "png", "polygons")
    assert not (tmp_path / "other").exists()
    well(segment(output=tmp_path / "other"))


# going on


def test_what_was_stopped_goes_on_and_ends_as_if_it_had_not(segment, tmp_path, queries, monkeypatch):
    well(segment("--review", output=tmp_path / "whole"))
    # in the middle of a batch
    undo = stop_after(monkeypatch, 1, KeyboardInterrupt())
    code, output, error = segment("--review")
    assert (code, error) == (130, "") and "stopped; 4 images left: the same command goes on" in output
    undo()
    done = computed(monkeypatch)
    assert "1 of 5 images done before" in well(segment("--review"))
    assert done == ["1", "2", "3", "4"]
    assert results(tmp_path / "out") == results(tmp_path / "whole")
    well(segment("--review"))
    assert done == ["1", "2", "3", "4"]
    assert results(tmp_path / "out") == results(tmp_path / "whole")


def test_images_that_come_later_or_change_are_done_by_the_same_command(segment, tmp_path, queries, monkeypatch):
    well(segment())
    first = mask(tmp_path / "out", "0")
    done = computed(monkeypatch)
    photo(queries / "new" / "7.png", 7)
    photo(queries / "0.png", 8, (64, 31))  # its mask must not take the place of that of 0.jpg
    photo(queries / "1.jpg", 55, (50, 70))
    well(segment())
    assert sorted(done) == ["0.png", "1", "new/7"]
    assert np.array_equal(mask(tmp_path / "out", "0"), first)
    assert mask(tmp_path / "out", "0.png").shape == (64, 31) and mask(tmp_path / "out", "1").shape == (50, 70)
    done.clear()
    (tmp_path / "out" / "masks" / "2.png").unlink()
    (tmp_path / "out" / "overlays" / "3.jpg").unlink()
    well(segment())
    assert done == ["2"] and (tmp_path / "out" / "overlays" / "3.jpg").exists()
    (queries / "4.jpg").write_bytes(b"gone wrong")
    assert segment()[0] == 1
    assert "4" not in keys(tmp_path / "out") and "4" in predictions(tmp_path / "out")["problems"]


def test_other_queries_are_added_to_the_folder_and_take_nobodys_place(segment, tmp_path, queries):
    well(segment())
    before = files(tmp_path / "out" / "masks")
    photos(tmp_path / "more", 2, start=1)
    well(segment(query=tmp_path / "more"))
    assert keys(tmp_path / "out") == ["0", "1", "1-2", "2", "2-2", "3", "4"]
    assert before.items() <= files(tmp_path / "out" / "masks").items()


def test_a_folder_that_moved_with_its_images_goes_on(segment, tmp_path, queries, monkeypatch):
    well(segment())
    done = computed(monkeypatch)
    (tmp_path / "moved").mkdir()
    for name in ("queries", "out"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    well(segment(query=tmp_path / "moved" / "queries", output=tmp_path / "moved" / "out"))
    assert done == []


def test_thumbnails_that_were_not_asked_for_at_first_are_made(segment, tmp_path, queries):
    well(segment())
    well(segment("--review"))
    assert sorted(files(tmp_path / "out" / "review")) == [f"{number}.jpg" for number in range(5)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--threshold", "0.4"), "threshold 0.5 / 0.4"),
        (("--smallest", "5", "--flip"), "flip false / true, smallest 0 / 5"),
        (("--scales", "1,1.5"), "scales [1.0] / [1.0, 1.5]"),
        (("--format", "npz"), 'format "png" / "npz"'),
        (("--precision", "bfloat16"), 'precision "float32" / "bfloat16"'),
        (("--overlapping",), "overlapping false / true"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused_and_named(options, words, segment, tmp_path, queries):
    well(segment())
    before = files(tmp_path / "out")
    assert_one_line(segment(*options), "another run", f"(there / here: {words})", "--force")
    assert files(tmp_path / "out") == before
    well(segment(*options, "--force"))


def test_another_network_and_other_supports_in_the_same_folder_are_refused(segment, tmp_path, queries, both):
    well(segment())
    other = checkpoint(tmp_path / "other.safetensors", MODEL, size=73)
    assert_one_line(segment(model=other), "another run", "model")
    labelled(tmp_path / "again" / "disc", seed=9)
    assert_one_line(segment(support=tmp_path / "again" / "disc"), 'support of disc "')
    assert_one_line(segment(support=both), 'classes ["disc"] / ["disc", "other"]', "support of other null /")
    well(segment(support=both, output=tmp_path / "both"))
    turned = segment("--classes", "other,disc", support=both, output=tmp_path / "both")
    assert_one_line(turned, 'classes ["disc", "other"] / ["other", "disc"]')


def test_force_removes_what_the_earlier_run_wrote_and_nothing_else(segment, tmp_path, queries, both):
    out = tmp_path / "out"
    photo(queries / "room" / "a.png")
    well(segment("--review", support=both))
    (out / "masks" / "mine.txt").write_text("mine")
    (out / "notes.txt").write_text("mine")
    for path in queries.glob("*.jpg"):
        path.unlink()
    assert_one_line(segment("--force", "--instances"), "png", "instances")
    assert len(keys(out)) == 6 and (out / "masks" / "0.png").exists()
    well(segment("--force", "--format", "yolo", "--no-overlays"))
    assert sorted(name for name in files(out) if not name.startswith(".")) == sorted(
        ["data.yaml", "labels/room/a.txt", "masks/mine.txt", "notes.txt", "predictions.json", "run.json"]
    )
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["labels", "masks"]


def test_a_wrong_setting_leaves_nothing_that_is_in_the_way_of_the_right_one(segment, tmp_path, queries):
    for options, words in (
        (("--threshold", "2"), "threshold is 2"),
        (("--tile", "3"), "tile is 3"),
        (("--votes", "nan"), "votes is nan"),
        (("--scales", "1,x"), "--scales is '1,x'"),
        (("--format", "gif"), "--format is 'gif'; expected one of png, coco"),
        (("--batch", "0"), "--batch"),
        (("--device", "tpu"), "tpu"),
        (("--precision", "int8"), "precision is 'int8'"),
        (("--model", "nonsense"), "model is 'nonsense'"),
    ):
        assert_one_line(segment(*options), words)
        assert not (tmp_path / "out").exists()
    well(segment())


def test_a_run_that_has_written_nothing_is_in_nobodys_way(segment, tmp_path, queries, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cyctr.inference.segmenter.look", stop)
        assert segment()[0] == 130
    well(segment("--threshold", "0.4"))
    (tmp_path / "out" / ".predictions.jsonl").unlink()
    assert_one_line(segment(), "threshold 0.4 / 0.5")


def test_a_folder_of_somebody_else_is_refused_even_with_force(segment, tmp_path, queries):
    (tmp_path / "out" / "masks").mkdir(parents=True)
    (tmp_path / "out" / "masks" / "0.png").write_bytes(b"by hand")
    for options in ((), ("--force",)):
        assert_one_line(segment(*options), "holds masks, but no results of ours", "--output")
    (tmp_path / "out" / "run.json").write_text('{"seed": 1}')
    for options in ((), ("--force",)):
        assert_one_line(segment(*options), "run.json: is not of `cyctr segment`")
    assert files(tmp_path / "out") == {"masks/0.png": b"by hand", "run.json": b'{"seed": 1}'}


def test_hidden_files_of_the_system_do_not_fill_a_folder(segment, tmp_path, queries):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".DS_Store").write_bytes(b"x")
    well(segment())
    found = files(tmp_path / "out")
    assert found[".DS_Store"] == b"x" and any(name.startswith("masks/") for name in found)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_a_damaged_run_file_is_one_clear_line_and_force_goes_on(content, segment, tmp_path, queries):
    well(segment())
    (tmp_path / "out" / "run.json").write_bytes(content)
    assert_one_line(segment(), "run.json", "--output")
    if content != b"[1]":
        well(segment("--force"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [*lines[:3], lines[3][:40]],
        lambda lines: [lines[0], b"\0\xff\n", *lines[2:]],
        lambda lines: [b"5\n", b'["a", 5, 5]\n', b"{}\n", b'["../x", {"files": [], "classes": {}}, ["x", 1, 1]]\n', *lines[1:]],
        lambda lines: [*lines[:4], lines[4].rstrip(b"\n")],
    ],
    ids=["cut off", "garbage", "other things", "no end"],
)
def test_a_damaged_ledger_costs_only_what_is_damaged(damage, segment, tmp_path, queries, monkeypatch):
    well(segment(output=tmp_path / "whole"))
    well(segment())
    ledger = tmp_path / "out" / ".predictions.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    damaged = damage(lines)
    ledger.write_bytes(b"".join(damaged))
    done = computed(monkeypatch)
    code, _, error = segment()
    assert code == 0 and error.startswith("cyctr: note: ") and "cut off or damaged" in error and error.count("\n") == 1
    assert len(done) == len(set(lines) - set(damaged))
    assert results(tmp_path / "out") == results(tmp_path / "whole")
    done.clear()
    well(segment())
    assert done == []


# whose files they are


def test_labels_that_were_mended_by_hand_stay_when_pictures_are_drawn_later(segment, tmp_path, queries):
    out = tmp_path / "out"
    well(segment("--format", "labelme", "--no-overlays"))
    mended = out / "labels" / "1.json"
    mended.write_text(mended.read_text().replace('"flags": {}', '"flags": {"mended": true}', 1))
    labels, before = files(out / "labels"), predictions(out)
    well(segment("--format", "labelme", "--review"))
    assert files(out / "labels") == labels and predictions(out) == before
    assert len(files(out / "overlays")) == len(files(out / "review")) == 5 and (out / "index.html").exists()


@pytest.mark.parametrize("cause", ["a new image", "a file that is gone"])
def test_a_mask_that_was_mended_by_hand_stays_and_a_note_says_so_until_force(segment, tmp_path, queries, both, cause):
    out, usual = tmp_path / "out", ("--overlapping", "--no-overlays")
    well(segment(*usual, support=both))
    mended, other = (out / "masks" / f"1.{name}.png" for name in ("disc", "other"))
    Image.fromarray(np.zeros((7, 7), np.uint8)).save(mended)
    if cause == "a new image":
        photo(queries / "1.jpg", 77, (50, 70))
    else:
        other.unlink()
    content = mended.read_bytes()
    code, output, error = segment(*usual, support=both)
    assert code == 0 and "5 of 5 images done before" in output
    assert re.search(
        r"^cyctr: note: not done again: 1 image, since .*1\.disc\.png was changed by hand; force replaces such files",
        error,
        re.M,
    ), error
    assert mended.read_bytes() == content
    code, output, error = segment(*usual, "--force", support=both)
    assert code == 0 and re.search(r"^cyctr: note: .*replaced-1: has the masks that were changed by hand", error, re.M), error
    assert mended.read_bytes() != content and other.exists()
    assert (out / "replaced-1" / "masks" / "1.disc.png").read_bytes() == content


@pytest.mark.parametrize("name", ["annotations.json", "data.yaml", "classes.txt", "index.html"])
def test_files_that_a_user_put_among_the_results_survive_force(segment, tmp_path, queries, name):
    out = tmp_path / "out"
    well(segment("--no-overlays"))
    (out / name).write_text("mine")
    well(segment("--no-overlays", "--force"))
    well(segment("--no-overlays"))
    assert (out / name).read_text() == "mine"


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_page_of_somebody_else_is_not_replaced_by_a_review(segment, tmp_path, queries, force, monkeypatch):
    well(segment())
    (tmp_path / "out" / "index.html").write_text("mine")
    done = computed(monkeypatch)
    assert_one_line(segment("--review", *force), "index.html: is not of an earlier run, and would be replaced; move it away")
    assert done == [] and (tmp_path / "out" / "index.html").read_text() == "mine"


def test_what_belongs_to_all_images_is_not_replaced_once_it_was_changed(segment, tmp_path, queries):
    out, usual = tmp_path / "out", ("--format", "coco", "--review", "--no-overlays")
    well(segment(*usual))
    well(segment(*usual))
    whole = results(out)
    for name in ("annotations.json", "index.html", "predictions.json"):
        (out / name).write_bytes(whole[name] + b" ")
        assert_one_line(segment(*usual), f"{name}: was changed since a run wrote it, and would be replaced", "--force")
        (out / name).write_bytes(whole[name])
        well(segment(*usual))
    assert results(out) == whole
    (out / "annotations.json").write_text("mended")
    well(segment(*usual, "--force"))
    assert results(out) == whole


def test_results_of_earlier_runs_below_the_queries_are_no_queries(segment, tmp_path, queries):
    well(segment(output=queries / "first"))
    code, _, error = segment(output=queries / "second")
    assert code == 0
    assert (
        error
        == f"cyctr: note: left out: {queries / 'first'}, results of an earlier run; give it by its own name to segment it too\n"
    )
    assert keys(queries / "first") == keys(queries / "second") == ["0", "1", "2", "3", "4"]
    well(segment(query=queries / "first" / "overlays", output=tmp_path / "out"))
    assert_one_line(segment(query=[queries / "none"], output=tmp_path / "out"), "no such file")
    (tmp_path / "bare").mkdir()
    (queries / "first").rename(tmp_path / "bare" / "first")
    assert_one_line(
        segment(query=tmp_path / "bare", output=tmp_path / "o"), "no images to segment, but results of an earlier run"
    )


# what stops it


def in_a_process(model, disc, queries, out, *options):
    command = [sys.executable, "-m", "cyctr", "segment", "--model", model, "--support", disc, "--query", queries]
    command += ["--output", out, "--device", "cpu", "--precision", "float32", "--batch", "1", "--no-overlays", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would this
    try:
        process = subprocess.Popen(list(map(str, command)), env=environment, **pipes)
    finally:
        signal.signal(signal.SIGINT, before)
    ledger = out / ".predictions.jsonl"
    until = time.monotonic() + 300
    while not (ledger.exists() and ledger.read_bytes().count(b"\n") >= 3):
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGSTOP)
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_stopped_or_killed_goes_on(how, segment, tmp_path, model, disc, queries, monkeypatch):
    for number in range(40):
        os.link(queries / f"{number % 5}.jpg", queries / f"link{number}.jpg")
    process = in_a_process(model, disc, queries, tmp_path / "out")
    usual = ("--batch", "1", "--no-overlays")
    if how == signal.SIGINT:
        assert_one_line(segment(*usual), "another process is writing it")
    process.send_signal(how)
    process.send_signal(signal.SIGCONT)
    output, error = process.communicate(timeout=300)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), (output, error)
    left = 45 - (tmp_path / "out" / ".predictions.jsonl").read_bytes().count(b"\n")
    assert left > 0
    if how == signal.SIGINT:
        assert error == "" and f"stopped; {left} images left" in output
    done = computed(monkeypatch)
    code, said, _ = segment(*usual)
    assert code == 0 and f"{45 - left} of 45 images done before" in said and len(done) == left
    well(segment(*usual, output=tmp_path / "whole"))
    leavings = re.compile(r"\.[^/]*\.\d+\.\d+$|\.cyctr\.lock$")  # of what was being written
    found = {name: content for name, content in results(tmp_path / "out").items() if not leavings.search(name)}
    assert found == results(tmp_path / "whole")


def test_a_second_process_is_refused_and_damages_nothing(segment, tmp_path, queries):
    well(segment())
    before = files(tmp_path / "out")
    with locked(tmp_path / "out" / ".cyctr.lock"):
        assert_one_line(segment("--force"), "out: another process is writing it")
    assert files(tmp_path / "out") == before


@pytest.mark.parametrize("what", ["masks", "overlays", ".predictions.jsonl", ".shared.json", "predictions.json", "run.json"])
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(what, segment, tmp_path, queries, monkeypatch):
    well(segment(output=tmp_path / "whole"))
    full = OSError(errno.ENOSPC, "No space left on device")
    seen = []

    def fails(path):
        part = Path(path).relative_to(tmp_path / "out").parts[0] if Path(path).is_relative_to(tmp_path / "out") else ""
        seen.append(part)
        return part == what and (seen.count(part) > 2 or what.endswith(".json"))

    def write(path, content, real=sys.modules["cyctr.storage"].write_atomically):
        if fails(path):
            raise full
        real(path, content)

    def opened(path, mode="r", *rest, real=Path.open, **more):
        if mode == "a" and path.name == what and fails(path):
            raise full
        return real(path, mode, *rest, **more)

    with monkeypatch.context() as patch:
        for name in ("images.imaging", "formats.writing", "inference.folder.ledger"):
            patch.setattr(sys.modules[f"cyctr.{name}"], "write_atomically", write)
        patch.setattr(Path, "open", opened)
        result = segment()
    assert_one_line(result, "cannot be written (No space left on device)", "make room" if what != "overlays" else "")
    if not what.endswith(".json"):
        assert "3 images left: the same command goes on" in result[1]
        assert (tmp_path / "out" / ".predictions.jsonl").read_bytes().count(b"\n") == 2
    done = computed(monkeypatch)
    well(segment())
    before = {"run.json": 0, ".shared.json": 0, "predictions.json": 5}.get(what, 2)
    assert done == ["0", "1", "2", "3", "4"][before:]
    assert results(tmp_path / "out") == results(tmp_path / "whole")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_result_that_may_not_be_read_again_is_one_line(segment, tmp_path, queries):
    well(segment())
    (tmp_path / "out" / "predictions.json").chmod(0)
    assert_one_line(segment(), "predictions.json: cannot be read (Permission denied)")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_one_line(segment, tmp_path, queries):
    (tmp_path / "out").mkdir(mode=0o500)
    assert_one_line(segment(), "out: cannot be written (Permission denied)")


def test_a_folder_that_cannot_be_made_is_one_line(segment, tmp_path, queries, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert_one_line(segment(), "out: cannot be written (Read-only file system)")


# images that are odd


def bomb():
    """A PNG of a few bytes that claims to be huge."""
    parts = {b"IHDR": struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0), b"IDAT": zlib.compress(bytes(99)), b"IEND": b""}
    chunks = [
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in parts.items()
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_images_that_cannot_be_read_are_left_out_and_named_and_the_rest_is_done(segment, tmp_path, queries):
    whole = (queries / "0.jpg").read_bytes()
    bad = {
        "corrupt.jpg": whole[:200] + bytes(300) + b"\xff" * 50,
        "cut.jpg": whole[: len(whole) // 2],
        "empty.png": b"",
        "text.jpg": b"not a picture",
        "bomb.png": bomb(),
        "line\nbreak.jpg": b"x",
    }
    for name, content in bad.items():
        (queries / name).write_bytes(content)
    photo(queries / "dot.png", size=(1, 1))
    (queries / "nowhere.jpg").symlink_to("nothing.jpg")
    (queries / "itself.jpg").symlink_to("itself.jpg")
    if hasattr(os, "mkfifo"):
        os.mkfifo(queries / "pipe.jpg")
    code, output, error = segment()
    assert (code, error) == (1, "")
    assert keys(tmp_path / "out") == ["0", "1", "2", "3", "4"]
    problems = predictions(tmp_path / "out")["problems"]
    named = {*bad, "dot.png", "nowhere.jpg", "itself.jpg", "pipe.jpg"}
    assert set(problems) == {name.rpartition(".")[0] for name in named}
    for problem in problems.values():
        assert any(line.startswith("left out: ") and problem.replace("\n", "\\n") in line for line in output.splitlines())
    words = {
        "empty": "0 bytes",
        "bomb": "60000 x 60000",
        "dot": "too small (1 x 1",
        "text": "is not a JPEG",
        "cut": "cut short",
    }
    assert [key for key, word in words.items() if word not in problems[key]] == [], problems
    for path in queries.glob("[0-9].jpg"):
        path.unlink()
    result = segment(output=tmp_path / "none")
    assert_one_line(result, f"none of {len(named)} images could be segmented")
    assert result[1].count("left out: ") == len(named)


def test_of_many_problems_the_first_are_shown(segment, tmp_path, queries):
    for number in range(30):
        (queries / f"bad{number}.jpg").write_bytes(b"x")
    code, output, _ = segment()
    assert code == 1 and output.count("left out: ") == 21 and "left out: 10 more, see" in output
    assert len(predictions(tmp_path / "out")["problems"]) == 30


def test_odd_images_are_segmented_as_they_are_seen(segment, tmp_path):
    folder = tmp_path / "queries"
    photo(folder / "plain.png", 3, (40, 60))
    image = Image.open(folder / "plain.png")
    other = Image.fromarray(scene((40, 60), 9)[0])
    animated = {"save_all": True, "append_images": [other]}
    image.save(tmp_path / "moving.gif", **animated)
    image.save(folder / "moving.webp", lossless=True, **animated)
    image.save(folder / "apng.png", **animated)
    grey = image.convert("L")
    Image.fromarray(np.asarray(grey).astype(np.uint16) * 257).save(folder / "deep.png")
    image.convert("CMYK").save(folder / "cmyk.jpg")
    exif = Image.Exif()
    exif[274] = 6
    image.save(folder / "turned.jpg", exif=exif)
    palette = image.quantize(16)
    palette.save(folder / "palette.png", transparency=0)
    photo(folder / "slim.png", size=(8, 700))
    os.link(tmp_path / "moving.gif", folder / "really-a-gif.png")
    well(segment(query=[folder, tmp_path / "moving.gif"]))
    out = tmp_path / "out"
    assert len(keys(out)) == 10
    assert mask(out, "turned").shape == (60, 40) == read_image(folder / "turned.jpg").shape[:2]
    assert mask(out, "slim").shape == (8, 700)
    for key in ("moving.gif", "moving.webp", "apng", "deep", "cmyk", "palette", "really-a-gif"):
        assert mask(out, key).shape == (40, 60)
    assert np.array_equal(mask(out, "apng"), mask(out, "plain"))  # the first frame


NAMES = [
    "two words.jpg",
    "é.jpg",
    "e\u0301.jpg",
    "日本.png",
    "new\nline.jpg",
    "-rf.jpg",
    "--force.png",
    'it\'s "quoted".jpg',
    "50%41.jpg",
    "<b>&amp;.jpg",
    "a#b?c.jpg",
    "x" * 251 + ".jpg",
    "日" * 83 + ".png",
    "BIG.JPG",
    "same.jpg",
    "same.png",
    "case.jpg",
    "CASE.jpg",
    "Case.png",
    "dots.in.name.jpg",
    os.fsdecode(b"b\xff\xfe.jpg"),
]


@pytest.mark.parametrize("form", FORMATS)
def test_whatever_images_are_called_they_are_done_once_and_apart(form, segment, tmp_path, both, monkeypatch):
    folder = tmp_path / "queries"
    for number, name in enumerate(NAMES):
        photo(folder / name, number, (20, 24 + number))
    options = ("--format", form, "--review", *(["--overlapping"] if form == "png" else []))
    well(segment(*options, support=both))
    out = tmp_path / "out"
    found = predictions(out)["images"]
    assert sorted(Path(image["image"]).name for image in found) == sorted(NAMES)
    assert len({image["key"].casefold() for image in found}) == len(NAMES)
    for image in found:
        assert image["width"] == 24 + NAMES.index(Path(image["image"]).name)
        assert all((out / name).is_file() for name in image["files"])
        assert (out / "review" / f"{image['key']}.jpg").is_file()
    done = computed(monkeypatch)
    well(segment(*options, support=both))
    assert done == []


def test_a_name_with_a_dash_is_taken_as_a_query(segment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photo("-x.jpg")
    well(segment(query="-x.jpg"))
    assert keys(tmp_path / "out") == ["-x"]


def test_an_image_beside_a_folder_called_like_its_mask_is_segmented_too(segment, tmp_path, queries):
    photo(queries / "0.png" / "inside.jpg")  # masks/0.png cannot be a file and a folder
    well(segment())
    assert keys(tmp_path / "out") == ["0.jpg", "0.png/inside", "1", "2", "3", "4"]
    assert mask(tmp_path / "out", "0.jpg").shape == size_of(queries / "0.jpg")[::-1]


def test_an_image_that_cannot_be_written_for_its_name_is_left_out(segment, tmp_path, queries):
    (tmp_path / "out" / "masks" / "0.png").mkdir(parents=True)
    (tmp_path / "out" / "run.json").write_text('{"made by": "cyctr segment"}')
    code, output, error = segment("--no-overlays", "--force")
    assert (code, error) == (1, "") and output.count("left out: ") == 1
    assert len(keys(tmp_path / "out")) == 4


# supports that are odd


def test_queries_may_be_as_many_files_as_a_shell_names(run, tmp_path, queries, disc, model):
    usual = ("--support", disc, "--model", model, "--device", "cpu", "--output", tmp_path / "out")
    well(run("segment", *usual, "--query", queries / "0.jpg", queries / "1.jpg", queries / "2.jpg"))
    assert keys(tmp_path / "out") == ["0", "1", "2"]


def test_labelled_images_that_are_all_there_is_are_said_to_be_no_queries(segment, tmp_path, disc):
    assert_one_line(segment(query=disc), "disc: no images to segment, but", "of the supports or the results; give others")
    first = next(disc.glob("*0.png"))
    assert_one_line(segment(query=first), f"{first.name}: no images to segment, but 1 image of the supports")


def test_with_drop_absent_nothing_is_marked_where_a_class_is_probably_not_there(segment, tmp_path, queries):
    well(segment("--no-overlays"))
    well(segment("--no-overlays", "--drop-absent", output=tmp_path / "dropped"))
    for one, other in zip(predictions(tmp_path / "out")["images"], predictions(tmp_path / "dropped")["images"], strict=True):
        before, after = one["classes"]["disc"], other["classes"]["disc"]
        assert after["confidence"] == before["confidence"]
        assert after["pixels"] == (before["pixels"] if before["present"] else 0)


def test_images_without_the_class_are_given_as_negatives_and_are_no_queries(segment, run, model, disc, tmp_path, queries):
    without = photos(tmp_path / "without", 2)
    photos(tmp_path / "queries" / "without", 1)
    well(segment("--no-overlays", "--negative", without))
    well(segment("--no-overlays", "--negative", tmp_path / "queries" / "without", output=tmp_path / "inner"))
    assert len(keys(tmp_path / "inner")) == len(keys(tmp_path / "out")) - 1
    kept = tmp_path / "disc.cyctr"
    assert "2 without it" in well(run("support", "save", disc, "--output", kept, "--model", model, "--negative", without))
    assert "the last 2 without it" in well(run("support", "info", kept))
    assert_one_line(segment("--negative", without, support=kept), "is a finished support, to which no negatives are added")
    assert_one_line(segment("--negative", disc), "_mask.png: marks something; a negative shows nothing of the class")
    assert_one_line(segment("--negative", tmp_path / "missing"), "missing: no such folder; expected a folder of images")


def test_supports_that_cannot_be_used_are_left_out_with_a_note(segment, tmp_path, queries):
    folder = labelled(tmp_path / "disc", 6)
    Image.fromarray(np.zeros((60, 80), np.uint8)).save(folder / "shot0_mask.png")
    Image.fromarray(np.full((60, 80), 255, np.uint8)).save(folder / "shot1_mask.png")
    Image.fromarray(np.full((31, 80), 255, np.uint8)).save(folder / "shot2_mask.png")
    (folder / "shot3.png").write_bytes(b"no picture")
    (folder / "shot4_mask.png").write_bytes((folder / "shot4_mask.png").read_bytes()[:60])
    code, _, error = segment(support=folder)
    assert code == 0
    notes = error.splitlines()
    assert "'disc': mask 1 of 2 leaves no background" in notes.pop(0)
    assert all(note.startswith("cyctr: note: left out: ") for note in notes) and len(notes) == 4, error
    for name in ("shot0_mask.png: marks nothing", "shot2_mask.png", "shot3.png: is not a JPEG", "shot4_mask.png"):
        assert error.count(name) == 1
    for number in (1, 5):
        (folder / f"shot{number}.png").unlink()
    assert_one_line(segment("--force", support=folder), "disc: no labelled image is left", "more problem")
    assert len(keys(tmp_path / "out")) == 5


# places


def test_photos_of_kinds_that_are_not_read_are_noted(segment, tmp_path, queries):
    for name in ("b.HEIC", "deep/a.heic", ".hidden.heic", "notes.txt"):
        (queries / name).parent.mkdir(exist_ok=True)
        (queries / name).write_bytes(b"x")
    photo(queries / "drawn.gif", 3)
    code, _, error = segment()
    assert code == 0 and "drawn" in keys(tmp_path / "out") and error.count("\n") == 1
    assert f"note: left out: 2 photos of kinds that are not read ({queries / 'b.HEIC'} first); convert" in error
    only = (queries / "deep",)
    assert_one_line(segment(query=list(only), output=tmp_path / "b"), "no images", "1 photo of other kinds (a.heic)", "convert")


def test_results_and_supports_among_the_queries_are_no_queries(segment, tmp_path, queries):
    labelled(queries / "marked" / "disc")
    out = queries / "results"
    for _ in range(2):
        well(segment("--review", support=queries / "marked" / "disc", output=out))
        assert keys(out) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("place", [".", "room/.."])
def test_labelled_images_among_the_queries_are_no_queries_and_the_others_need_no_mask(place, segment, tmp_path, queries):
    labelled(queries)
    (queries / "broken.jpg").write_bytes(b"no picture")
    Image.fromarray(np.full((9, 9), 255, np.uint8)).save(queries / "broken_mask.png")
    photo(queries / "room" / "a.png")
    for _ in range(2):
        code, output, error = segment(support=queries / place, output=queries / "out")
        assert code == 1 and output.count("left out") == 1 and "broken.jpg" in output
        assert error.count("\n") == 1 and "note: left out" in error and "broken.jpg" in error
        assert keys(queries / "out") == ["0", "1", "2", "3", "4", "room/a"]


def test_links_that_lead_round_in_a_circle_are_safe_and_others_are_followed(segment, tmp_path, queries):
    photo(tmp_path / "elsewhere" / "far.png")
    (queries / "round").symlink_to(queries, target_is_directory=True)
    (queries / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (queries / "itself").symlink_to("itself")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "elsewhere" / "up").symlink_to(queries, target_is_directory=True)
    well(segment(output=tmp_path / "away" / "out"))
    found = keys(tmp_path / "away" / "out")
    assert [key for key in found if "back" not in key] == ["0", "1", "2", "3", "4", "linked/far"]
    assert_one_line(segment(query=queries / "itself"), "--query", "itself: no such file or folder")


def test_results_do_not_go_among_the_images_nor_into_a_file(segment, tmp_path, queries, disc):
    before = files(tmp_path)
    assert_one_line(segment(output=queries), f"--output is {queries}, where --query {queries} lies")
    assert_one_line(segment(query=queries / "0.jpg", output=queries), "where --query")
    assert_one_line(segment(output=disc), "where --support")
    assert_one_line(segment(output=queries / "0.jpg"), "0.jpg, a file; choose a folder")
    assert_one_line(segment(output=queries / "0.jpg" / "deep"), "0.jpg/deep: cannot be written")
    assert_one_line(segment(query=tmp_path / "missing"), "--query", "missing: no such file or folder")
    assert_one_line(segment(support=tmp_path / "a\nb"), "--support", "a\\nb: no such file or folder")
    (tmp_path / "nothing").mkdir()
    assert_one_line(segment(query=tmp_path / "nothing"), "no images to segment; expected .jpg")
    assert files(tmp_path) == before


# the page


@pytest.mark.parametrize("classes", ["disc", "disc,other"])
def test_the_page_shows_every_image_and_opens_from_disk(classes, segment, tmp_path, both):
    names = [
        "two words.jpg",
        "50%41.jpg",
        "<b>&amp;.jpg",
        "日本.png",
        "new\nline.jpg",
        os.fsdecode(b"b\xff.jpg"),
        "sub/a#?.png",
    ]
    for number, name in enumerate(names):
        photo(tmp_path / "queries" / name, number)
    out = tmp_path / "out"
    assert f"look at {out / 'index.html'}" in well(segment("--review", "--classes", classes, support=both))
    page = (out / "index.html").read_text(encoding="utf-8")
    sources = re.findall(r'src="([^"]*)"', page)
    assert len(sources) == len(names)
    assert all(os.path.isfile(os.path.join(os.fsencode(out), unquote_to_bytes(source))) for source in sources)
    assert "http" not in page and "file:" not in page and 'href="' not in page and "<b>" not in page


# other commands


@pytest.fixture
def saved(run, model, disc, tmp_path):
    well(run("support", "save", disc, "--output", tmp_path / "disc.cyctr", "--model", model))
    return tmp_path / "disc.cyctr"


def test_a_saved_support_is_as_good_as_its_folder(segment, tmp_path, queries, saved):
    well(segment(output=tmp_path / "whole"))
    well(segment(support=saved))
    assert results(tmp_path / "out") == results(tmp_path / "whole")


def test_a_saved_support_is_described_and_pictured_and_nothing_is_replaced(run, tmp_path, saved, disc, model):
    output = well(run("support", "info", saved, "--picture", tmp_path / "disc.png"))
    assert output.startswith("disc: 2 labelled, 65 pixels a side\n") and size_of(tmp_path / "disc.png") == (488, 240)
    assert_one_line(run("support", "info", saved, "--picture", tmp_path / "disc.png"), "disc.png: is there already")
    assert_one_line(run("support", "info", saved, "--picture", tmp_path / "disc.gif"), "disc.gif", "end the name in .png")
    before = saved.read_bytes()
    again = ("support", "save", disc, "--output", saved, "--model", model)
    assert_one_line(run(*again), "disc.cyctr: is there already", "--force")
    well(run(*again, "--force"))
    assert saved.read_bytes() == before
    cut = tmp_path / "cut.cyctr"
    assert (
        "cut in windows of 64 pixels"
        in [
            well(run("support", "save", disc, "--output", cut, "--model", model, "--tile", "64")),
            well(run("support", "info", cut)),
        ][1].splitlines()[0]
    )


def test_a_support_that_was_cut_for_other_tiles_is_noted(run, segment, tmp_path, queries, saved, disc, model):
    cut = tmp_path / "cut.cyctr"
    well(run("support", "save", disc, "--output", cut, "--model", model, "--tile", "64"))
    well(segment("--tile", "64", support=cut))
    for number, options, support, words in ((0, (), cut, "use tile 64"), (1, ("--tile", "70"), saved, "use no tile")):
        code, _, error = segment(*options, support=support, output=tmp_path / str(number))
        assert code == 0 and error.startswith("cyctr: note: support 'disc'") and words in error and error.count("\n") == 1


def test_labelled_images_are_never_replaced_and_other_files_are_no_supports(run, segment, tmp_path, queries, model):
    folder = labelled(tmp_path / "mine")
    before = files(folder)
    inside = ("--output", folder / "shot0_mask.png", "--model", model, "--force")
    assert_one_line(run("support", "save", folder, *inside), "shot0_mask.png, a file among the labelled images; choose")
    shown = ("explain", "--support", folder, "--query", queries / "0.jpg")
    assert_one_line(run(*shown, *inside), "shot0_mask.png, a file among the labelled images; choose another name")
    assert files(folder) == before
    for _ in range(2):
        well(run("support", "save", folder, "--output", folder / "mine.cyctr", "--model", model, "--force"))
    assert_one_line(
        segment(support=folder / "shot0.png"), "shot0.png: is an image; give a folder of labelled images, or a file"
    )
    assert_one_line(run("support", "info", folder), "mine: is a folder; expected a file that `cyctr support save` wrote")


def test_one_class_is_saved_of_several(run, tmp_path, both, model):
    command = ("support", "save", both, "--output", tmp_path / "a.cyctr", "--model", model)
    assert_one_line(run(*command), "shows disc, other; choose one with --class")
    assert_one_line(run(*command, "--class", "cat"), "no class 'cat'", "disc, other")
    assert well(run(*command, "--class", "other")).startswith(f"{tmp_path / 'a.cyctr'}: other, 2 labelled")


def test_supports_that_do_not_fit_or_are_damaged_are_one_line(run, segment, tmp_path, queries, saved, disc):
    larger = checkpoint(tmp_path / "larger.safetensors", MODEL, size=73)
    assert_one_line(segment(support=saved, model=larger), "made for inputs of 65 pixels, this network takes 73")
    whole = saved.read_bytes()
    for content in (b"", b"text", whole[:500], whole[:-30], whole.replace(b"IHDR", b"IHDX")):
        saved.write_bytes(content)
        assert_one_line(run("support", "info", saved), "disc.cyctr: is no support of ours, or damaged")
        assert_one_line(segment(support=saved), "disc.cyctr: is no support of ours, or damaged")
    assert_one_line(run("support", "info", tmp_path / "none"), "none: no such file")
    assert_one_line(run("support", "info", tmp_path), "is a folder; expected a file")
    assert_one_line(run("support", "save", saved, "--output", tmp_path / "x"), "disc.cyctr: no such folder")
    assert not (tmp_path / "out").exists()


def test_the_help_says_what_is_needed_first_and_breaks_no_sentence(monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    output = CliRunner().invoke(cli.app, ["segment", "--help"], terminal_width=150).output
    places = [output.index(word) for word in ("--support", "--query", "--output", "--classes", "--model", "Masks", "--format")]
    assert places == sorted(places)
    assert "list[Path]" not in output
    for sentence in (
        "Interrupt it with Ctrl-C at any time: the same command goes on where it stopped",
        "Images that cannot be read are left out and named at the end; the exit code is 1 then.",
    ):
        assert sentence in output


# what is large, damaged or changed


def test_an_image_that_is_longer_than_a_jpeg_may_be_is_segmented_and_drawn_smaller(segment, tmp_path, queries):
    Image.fromarray(np.full((9, 70_000, 3), 90, np.uint8)).save(queries / "long.png")
    well(segment("--review"))
    assert mask(tmp_path / "out", "long").shape == (9, 70_000)
    assert size_of(tmp_path / "out" / "overlays" / "long.jpg") == (35_000, 5)
    assert len(keys(tmp_path / "out")) == 6


def test_an_image_that_is_longer_than_any_may_be_is_left_out_and_the_others_are_done(segment, tmp_path, queries):
    Image.fromarray(np.full((8, 2**17 + 1), 90, np.uint8)).save(queries / "long.png")
    code, output, error = segment()
    assert (code, error) == (1, "") and "left out: " in output and "expected sides of at most 131072" in output
    assert len(keys(tmp_path / "out")) == 5


def test_large_images_are_read_one_at_a_time(segment, tmp_path, queries, monkeypatch):
    monkeypatch.setattr(sys.modules["cyctr.inference.reading_ahead"], "_MOST_PIXELS", 100)
    held, most = [], []
    to_image = sys.modules["cyctr.inference.reading_ahead"].to_image

    def counted(*given):
        held.append(1)
        most.append(len(held))
        try:
            return to_image(*given)
        finally:
            held.pop()

    monkeypatch.setattr(sys.modules["cyctr.inference.reading_ahead"], "to_image", counted)
    well(segment("--batch", 3))
    assert max(most) == 1 and len(keys(tmp_path / "out")) == 5


@pytest.mark.parametrize("change", ["a part less", "another number", "another file", "a name that leads out"])
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "of an earlier version"])
def test_an_altered_line_of_the_ledger_counts_as_damaged_and_is_done_again(change, sealed, segment, tmp_path, queries):
    well(segment())
    whole, path = results(tmp_path / "out"), tmp_path / "out" / ".predictions.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    key, record, stamp, digests, seal = json.loads(first)
    match change:
        case "a part less":
            del record["height"]
        case "another number":
            record["classes"]["disc"]["pixels"] = "many" if not sealed else 1
        case "another file":
            record["files"] = ["mine.txt", "."]
        case "a name that leads out":
            key = "../0"
    path.write_bytes(json.dumps([key, record, stamp, digests, *([seal] if sealed else [])]).encode() + b"\n" + b"".join(rest))
    (tmp_path / "out" / "mine.txt").write_text("mine")
    code, output, error = segment()
    assert code == 0 and "1 line cut off or damaged" in error and "4 of 5 images done before" in output
    assert {name: content for name, content in results(tmp_path / "out").items() if name != "mine.txt"} == whole
    well(segment("--force"))
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"


def test_a_ledger_of_an_earlier_version_has_no_checksums_and_its_run_goes_on(segment, tmp_path, queries):
    well(segment())
    path = tmp_path / "out" / ".predictions.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    path.write_text("".join(json.dumps(line[:4]) + "\n" for line in lines))
    assert "5 of 5 images done before" in well(segment())


@pytest.mark.parametrize("name", ["run.json", ".shared.json", ".predictions.jsonl"])
@pytest.mark.parametrize("force", [True, False])
def test_notes_that_are_nested_too_deep_are_no_traceback(name, force, segment, tmp_path, queries):
    well(segment())
    (tmp_path / "out" / name).write_bytes(b"[" * 50_000 + b"\n")
    code, _, error = segment(*(["--force"] if force else []))
    assert code in (0, 2) and all(line.startswith("cyctr: ") for line in error.splitlines())


def test_a_foreign_file_called_like_our_notes_below_the_queries_is_passed_over(segment, tmp_path, queries):
    photo(queries / "inner" / "a.jpg")
    (queries / "inner" / "run.json").write_bytes(b"[" * 50_000)
    well(segment())
    assert "inner/a" in keys(tmp_path / "out")


def test_a_stop_before_the_first_image_is_told(segment, tmp_path, queries, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Segmenter, "from_pretrained", stop)
    code, output, error = segment()
    assert (code, error) == (130, "") and "stopped before the first image: the same command begins again" in output


def test_refining_without_its_weights_is_refused_before_anything_is_written(segment, tmp_path, monkeypatch):
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("cyctr.inference.clicker._loaded", {})
    assert_one_line(segment("--refine", "sam", output=tmp_path / "refined"), "sam2-tiny", "cyctr weights get sam2-tiny")
    assert not (tmp_path / "refined").exists()
    assert_one_line(segment("--refine", "sum", output=tmp_path / "refined"), "refine is 'sum'", "'sam'")
