import gc
import json
import os
import sys
import tracemalloc
import weakref
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from segmenting import files, photo, photos

from cyctr import json_files
from cyctr.errors import ConfigError, DataError
from cyctr.formats import open_writer
from cyctr.inference.folder import bulk
from cyctr.inference.folder import ledger as ledger_module
from cyctr.inference.folder.bulk import segment_folder
from cyctr.inference.folder.ledger import OVERLAYS, REVIEW, Ledger
from cyctr.inference.folder.queries import QueryFile, find_queries
from cyctr.inference.result import ImageResult, Segmentation


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def keys(queries):
    return [query.key for query in queries]


def nothing(problem):
    raise AssertionError(problem)


def opened(folder, about=None, force=False, complain=nothing):
    return Ledger.open(folder, about or {"threshold": 0.5}, force, complain)


class Stub:
    """A segmenter that marks the same in every image, and counts which results are alive."""

    def __init__(self, size=(20, 30)):
        self.alive, self.most = weakref.WeakSet(), 0
        self.size = size

    def segment_many(self, paths, supports, *, batch, complain, **settings):
        for place, path in enumerate(paths):
            mask = np.zeros(self.size, bool)
            mask[3:7, 5:9] = True
            found = Segmentation(mask.astype(np.float32), mask, 0.75, np.zeros((*self.size, 3), np.uint8))
            result = ImageResult(path, place, dict.fromkeys(supports, found))
            self.alive.add(result)
            self.most = max(self.most, len(self.alive))
            yield result
            del result, found


def segmented(folder, queries, ledger=None, pictures=(OVERLAYS,), stub=None, form="png", **more):
    """Runs all that is left with a stub."""
    ledger = ledger or opened(folder)
    writer = open_writer(form, folder, ["cup"])
    todo = ledger.remaining(ledger.named(queries), writer, pictures)
    problems = segment_folder(stub or Stub(), {"cup": None}, todo, ledger, writer, pictures=pictures, **more)
    writer.finish()
    ledger.finish(problems)
    return todo


# which images


def test_folders_give_all_below_them_in_order_and_files_are_taken_as_they_are(tmp_path):
    touch(tmp_path / "q", "b.jpg", "a.PNG", "notes.txt", ".hidden.jpg", ".git/x.png", "room/z.tiff", "room/deep/y.webp")
    touch(tmp_path, "odd.name")
    found = find_queries([tmp_path / "q", tmp_path / "odd.name"])
    assert keys(found) == ["a", "b", "room/z", "room/deep/y", "odd"]
    assert found[0].path == tmp_path / "q" / "a.PNG"


def test_an_image_that_is_named_twice_is_there_once(tmp_path, monkeypatch):
    touch(tmp_path / "q", "a.jpg", "in/b.jpg")
    monkeypatch.chdir(tmp_path)
    given = [Path("q"), tmp_path / "q", Path("q/../q/a.jpg"), tmp_path / "q" / "in" / "b.jpg"]
    assert keys(find_queries(given)) == ["a", "in/b"]


def test_names_that_are_alike_are_kept_apart_whatever_their_order(tmp_path):
    names = ["a.jpg", "A.jpg", "a.jpg-2.png", "b.jpg"]
    for order in permutations(names):
        given = [touch(tmp_path / str(place), name) / name for place, name in enumerate(order)]
        found = keys(find_queries(given))
        assert len({key.casefold() for key in found}) == len(names)
        assert found[order.index("b.jpg")] == "b"
    twice = [touch(tmp_path / place, "same.jpg") for place in ("x", "y", "z")]
    assert keys(find_queries(twice)) == ["same.jpg", "same.jpg-2", "same.jpg-3"]


def test_accents_written_in_two_ways_and_capitals_are_kept_apart(tmp_path):
    touch(tmp_path, "é.jpg", "e\u0301.jpg", "Ä.png", "ä.png")
    found = keys(find_queries([tmp_path]))
    assert len(set(found)) == 4 and sum(key.endswith("-2") for key in found) == 2


def test_long_names_are_cut_and_kept_apart(tmp_path):
    touch(tmp_path, "x" * 251 + ".jpg", "x" * 250 + "y.jpg", "日" * 83 + ".png", "z" * 160 + ".jpg")
    found = keys(find_queries([tmp_path]))
    assert len(set(found)) == 4 and "z" * 160 in found
    assert all(len(os.fsencode(key)) <= 160 for key in found)


def calls_to_name(count, place):
    """How many functions are called to find so many queries, half of them namesakes, and to tell them apart."""
    folder, calls = place / "q", 0
    folder.mkdir(parents=True)
    touch(folder, "first.jpg")
    for number in range(count - 1):
        os.link(folder / "first.jpg", folder / f"{number // 2}.{'jpg' if number % 2 else 'png'}")
    ledger, writer = opened(place / "out"), open_writer("png", place / "out", ["cup"])

    def profile(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        found = find_queries([folder], [place / "out"])
        remaining = ledger.remaining(ledger.named(found), writer)
    finally:
        sys.setprofile(None)
    assert len(remaining) == len({*keys(found)}) == count
    return calls


def test_the_work_for_many_names_grows_as_their_number(tmp_path):
    assert calls_to_name(4_000, tmp_path / "many") < 11 * calls_to_name(400, tmp_path / "few")


def test_what_is_passed_over_is_not_found(tmp_path):
    touch(tmp_path / "q", "a.jpg", "b.jpg", "out/c.jpg", "out/deep/d.jpg")
    (tmp_path / "alias").symlink_to(tmp_path / "q" / "out")
    assert keys(find_queries([tmp_path / "q"], [tmp_path / "alias", tmp_path / "q" / "b.jpg"])) == ["a"]
    with pytest.raises(DataError, match=r"q: no images to segment, but 2 images of the supports or the results"):
        find_queries([tmp_path / "q"], [tmp_path / "q" / "out", tmp_path / "q" / "a.jpg", tmp_path / "q" / "b.jpg"])


def test_links_are_followed_once(tmp_path):
    touch(tmp_path / "far", "c.jpg")
    touch(tmp_path / "q", "a.jpg", "in/b.jpg")
    for name, target in (("round", tmp_path / "q"), ("z", tmp_path / "far"), ("again", tmp_path / "far")):
        (tmp_path / "q" / "in" / name).symlink_to(target)
    assert keys(find_queries([tmp_path / "q"])) == ["a", "in/b", "in/again/c"]


# what is remembered


def test_what_is_done_is_not_done_again_and_survives_anything(tmp_path):
    queries = find_queries([photos(tmp_path / "q", 6)])
    stop = RuntimeError("power cut")

    def cut(query, problem):
        if query.key == "3":
            raise stop

    with pytest.raises(RuntimeError):
        segmented(tmp_path / "out", queries, on_image=cut)
    assert not (tmp_path / "out" / "predictions.json").exists()
    assert keys(segmented(tmp_path / "out", queries)) == ["4", "5"]
    assert segmented(tmp_path / "out", queries) == []
    segmented(tmp_path / "whole", queries)
    cut, whole = files(tmp_path / "out"), files(tmp_path / "whole")
    assert cut == whole


def test_the_order_of_the_work_does_not_show(tmp_path):
    queries = find_queries([photos(tmp_path / "q", 4)])
    segmented(tmp_path / "out", queries[2:])
    segmented(tmp_path / "out", queries)
    segmented(tmp_path / "whole", queries)
    assert (tmp_path / "out" / "predictions.json").read_bytes() == (tmp_path / "whole" / "predictions.json").read_bytes()


def test_pictures_are_made_that_an_earlier_run_did_not_make(tmp_path):
    queries = find_queries([photos(tmp_path / "q", 2)])
    segmented(tmp_path / "out", queries, pictures=())
    assert keys(segmented(tmp_path / "out", queries, pictures=(OVERLAYS, REVIEW))) == ["0", "1"]
    assert segmented(tmp_path / "out", queries, pictures=(REVIEW,)) == []
    assert sorted(files(tmp_path / "out" / REVIEW)) == ["0.jpg", "1.jpg"]


def test_a_new_image_never_takes_the_files_of_another(tmp_path):
    photo(tmp_path / "q" / "a.jpg", 1)
    segmented(tmp_path / "out", find_queries([tmp_path / "q"]))
    photo(tmp_path / "other" / "A.jpg", 2)
    assert keys(segmented(tmp_path / "out", find_queries([tmp_path / "other"]))) == ["A-2"]
    photo(tmp_path / "q" / "a.png", 3)
    assert keys(segmented(tmp_path / "out", find_queries([tmp_path / "q"]))) == ["a.png"]
    found = json.loads((tmp_path / "out" / "predictions.json").read_text())["images"]
    assert [image["key"] for image in found] == ["A-2", "a", "a.png"]
    assert [Path(image["image"]).name for image in found] == ["A.jpg", "a.jpg", "a.png"]


def test_an_image_whose_file_vanished_is_a_query_that_cannot_be_read(segmenter, disc, tmp_path):
    queries = find_queries([photos(tmp_path / "q", 2)])
    (tmp_path / "q" / "0.jpg").unlink()
    ledger, writer = opened(tmp_path / "out"), open_writer("png", tmp_path / "out", ["disc"])
    problems = segment_folder(segmenter, {"disc": disc}, ledger.remaining(queries, writer), ledger, writer)
    assert list(problems) == ["0"] and "no such file" in problems["0"] and list(ledger.records) == ["1"]


def test_an_image_that_changes_while_it_is_read_is_done_again(tmp_path):
    queries = find_queries([photos(tmp_path / "q", 2)])

    class Slow(Stub):
        def segment_many(self, paths, supports, **more):
            photo(tmp_path / "q" / "1.jpg", 99, (50, 60))
            yield from super().segment_many(paths, supports, **more)

    segmented(tmp_path / "out", queries, stub=Slow())
    assert keys(segmented(tmp_path / "out", queries)) == ["1"]


def test_names_that_are_no_text_are_written_as_valid_json_and_known_again(tmp_path):
    photo(tmp_path / "q" / os.fsdecode(b"b\xff.jpg"))
    queries = find_queries([tmp_path / "q"])
    segmented(tmp_path / "out", queries)
    (image,) = json.loads((tmp_path / "out" / "predictions.json").read_bytes().decode("utf-8"))["images"]
    assert os.path.exists(image["image"])
    assert segmented(tmp_path / "out", queries) == []


# whose folder it is


def test_a_run_made_in_another_way_is_refused_with_what_differs(tmp_path):
    queries = find_queries([photos(tmp_path / "q", 1)])
    segmented(tmp_path / "out", queries, opened(tmp_path / "out", {"threshold": 0.5, "format": "png", "old": 1}))
    with pytest.raises(
        ConfigError,
        match=r"\(there / here: new null / 2, old 1 / null, threshold 0\.5 / 0\.4\); replace them, or choose another",
    ):
        opened(tmp_path / "out", {"threshold": 0.4, "format": "png", "new": 2})
    long = {"threshold": list(range(100))}
    with pytest.raises(ConfigError, match=r"threshold 0\.5 / \[0, 1.*\.\.\."):
        opened(tmp_path / "out", long)


def test_with_force_the_earlier_files_go_and_those_of_others_stay(tmp_path):
    queries = find_queries([photos(tmp_path / "q" / "room", 2).parent])
    segmented(tmp_path / "out", queries, pictures=(OVERLAYS, REVIEW))
    touch(tmp_path / "out", "masks/room/mine.png", "overlays/mine.jpg", "mine.txt")
    ledger = opened(tmp_path / "out", force=True)
    assert ledger.records == {}
    assert sorted(files(tmp_path / "out")) == ["masks/room/mine.png", "mine.txt", "overlays/mine.jpg", "run.json"]
    assert not (tmp_path / "out" / REVIEW).exists() and not (tmp_path / "out" / OVERLAYS / "room").exists()


def test_a_ledger_that_leads_out_of_its_folder_removes_nothing_there(tmp_path):
    segmented(tmp_path / "out", find_queries([photos(tmp_path / "q", 1)]))
    touch(tmp_path, "precious.txt", "precious.jpg")
    for names in (["../precious.txt"], [str(tmp_path / "precious.txt")]):
        line = json.dumps(["x", {"files": names, "classes": {}}, ["x", 1, 1]]) + "\n"
        (tmp_path / "out" / ".predictions.jsonl").write_text(line)
        told = []
        opened(tmp_path / "out", force=True, complain=told.append)
        assert len(told) == 1 and (tmp_path / "precious.txt").exists()


def test_with_force_a_mask_that_is_not_as_it_was_written_is_put_aside(tmp_path):
    queries = find_queries([photos(tmp_path / "q", 2)])
    for _ in range(2):
        segmented(tmp_path / "out", queries)
        (tmp_path / "out" / "masks" / "0.png").write_text("mended")
        told = []
        opened(tmp_path / "out", force=True, complain=told.append)
    assert len(told) == 1 and "replaced-2: has the masks that were changed by hand" in told[0]
    assert [(tmp_path / "out" / f"replaced-{n}" / "masks" / "0.png").read_text() for n in (1, 2)] == ["mended"] * 2
    assert not (tmp_path / "out" / "masks").exists()


def test_forged_notes_cannot_remove_a_mask_of_the_user(tmp_path):
    segmented(tmp_path / "out", find_queries([photos(tmp_path / "q", 1)]))
    (tmp_path / "out" / "masks" / "mine.png").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.png").write_text("mine")
    (tmp_path / "out" / "labels").symlink_to(tmp_path / "elsewhere")
    for line in (tmp_path / "out" / ".predictions.jsonl").read_bytes().splitlines():
        key, record, stamp, digests, _ = json.loads(line)
        record["files"] += ["masks/mine.png", "labels/mine.png"]
        digests |= {"labels/mine.png": ledger_module._digest(tmp_path / "elsewhere" / "mine.png")}
        (tmp_path / "out" / ".predictions.jsonl").write_bytes(json_files.sealed([key, record, stamp, digests]))
    opened(tmp_path / "out", force=True, complain=[].append)
    assert (tmp_path / "out" / "replaced-1" / "masks" / "mine.png").read_text() == "mine"
    assert (tmp_path / "elsewhere" / "mine.png").read_text() == "mine"


# how much it takes


def test_a_damaged_ledger_of_any_length_is_not_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "NOTES_BYTES", 2**16)
    segmented(tmp_path / "out", find_queries([photos(tmp_path / "q", 1)]))
    with (tmp_path / "out" / ".predictions.jsonl").open("ab") as file:
        file.write(bytes(10**7))
    told = []
    tracemalloc.start()
    ledger = opened(tmp_path / "out", complain=told.append)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(told) == len(ledger.records) == 1 and peak < 2**20


@pytest.mark.parametrize("form", ["png", "npz"])
def test_probabilities_are_gone_before_pictures_are_drawn(form, segmenter, disc, tmp_path, monkeypatch):
    queries, kept, drawn = find_queries([photos(tmp_path / "q", 2)]), [], []
    found = bulk.Found

    def remember(name, mask, probability, confidence):
        if probability is not None:
            kept.append(weakref.ref(probability))
        return found(name, mask, probability, confidence)

    def draw(*arguments):
        drawn.append([one() is None for one in kept])
        return overlay(*arguments)

    overlay = bulk.drawn
    monkeypatch.setattr(bulk, "Found", remember)
    monkeypatch.setattr(bulk, "drawn", draw)
    ledger, writer = opened(tmp_path / "out"), open_writer(form, tmp_path / "out", ["disc"])
    assert segment_folder(segmenter, {"disc": disc}, queries, ledger, writer) == {}
    assert drawn == ([[], []] if form == "png" else [[True], [True, True]])


@pytest.mark.parametrize("form", ["png", "coco"])
def test_memory_does_not_grow_with_the_number_of_images(form, tmp_path):
    queries = [QueryFile(photo(tmp_path / "a.jpg"), f"{number // 100}/{number}") for number in range(200)]
    stub, sizes = Stub(), []

    def measure(query, problem):
        if query.key in ("0/50", "1/199"):
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])

    ledger, writer = opened(tmp_path / "out"), open_writer(form, tmp_path / "out", ["cup"])
    tracemalloc.start()
    try:
        segment_folder(stub, {"cup": None}, queries, ledger, writer, pictures=(), on_image=measure)
    finally:
        tracemalloc.stop()
    assert stub.most <= 2
    assert (sizes[1] - sizes[0]) / 149 < 4_000  # bytes for an image: what is remembered of it, and none of its pixels
    assert len(ledger.records) == 200
