import os
import shutil
import threading
import time
import warnings
import zipfile

import numpy as np
import pytest
from miniature import OBJECTS, SIZE, box, labelled, picture, pictures, state, truncate, write
from PIL import Image

from cyctr.datasets import pools
from cyctr.datasets.dataset import refuse
from cyctr.datasets.index import Index, Survey, cached, fingerprint, survey_all
from cyctr.datasets.pools import LabelledPool
from cyctr.errors import DataError


@pytest.fixture
def root(tmp_path):
    pictures(tmp_path / "data" / "images")
    for stem in OBJECTS:
        write(tmp_path / "data" / "masks" / f"{stem}.png", labelled(stem))
    return tmp_path / "data"


@pytest.fixture
def reads(monkeypatch):
    """The masks that were read."""
    names, read = [], pools.read_values

    def remember(path):
        names.append(path.name)
        return read(path)

    monkeypatch.setattr(pools, "read_values", remember)
    return names


def pool_of(root, keys=tuple(OBJECTS), values=(1, 2)):
    images, masks = (tuple(root / folder / f"{key}.png" for key in keys) for folder in ("images", "masks"))
    return LabelledPool(root, tuple(keys), images, masks, values)


def table(index):
    return list(zip(index.image.tolist(), index.number.tolist(), index.pixels.tolist(), strict=True))


def counted(root, keys=tuple(OBJECTS), values=(1, 2)):
    """The index as a list, from a loop over every pixel."""
    rows = []
    for i, key in enumerate(keys):
        with Image.open(root / "masks" / f"{key}.png") as mask:
            pixels = np.array(mask).ravel().tolist()
        rows += [(i, number, pixels.count(value)) for number, value in enumerate(values) if value in pixels]
    return rows


def kept(cache):
    (path,) = (cache / "index").iterdir()
    return path


def test_an_index_equals_a_slow_count(root):
    index = pool_of(root).index()
    assert table(index) == counted(root) and len(table(index)) == 5
    assert index.sizes.tolist() == [list(SIZE)] * 4 and len(index) == 4


def test_an_index_keeps_the_order_of_the_list(root):
    keys = ("d", "b", "a", "c")
    assert table(pool_of(root, keys).index()) == counted(root, keys)


def test_ignored_pixels_belong_to_no_class_and_an_image_may_hold_none(root):
    write(root / "masks" / "a.png", np.full(SIZE, 255))
    write(root / "masks" / "c.png", np.zeros(SIZE))
    index = pool_of(root).index()
    assert set(index.image.tolist()) == {1, 3}
    assert table(index) == counted(root)


def test_pairs_are_those_of_the_classes_with_enough_pixels_in_list_order():
    index = Index.of([Survey((9, 9), {2: 5, 0: 9}), Survey((9, 9), {}), Survey((9, 9), {1: 4, 2: 4})])
    assert [part.tolist() for part in index.pairs([2, 0])] == [[0, 0, 2], [0, 2, 2]]
    assert [part.tolist() for part in index.pairs([0, 1, 2], 5)] == [[0, 0], [0, 2]]
    assert [part.tolist() for part in index.pairs([1], 5)] == [[], []]
    assert [part.tolist() for part in Index.of([]).pairs([0])] == [[], []]


def test_a_class_without_pixels_is_no_pair():
    assert table(Index.of([Survey((9, 9), {0: 0, 1: 3})])) == [(0, 1, 3)]


def test_the_digest_tells_any_two_indices_apart():
    surveys = [Survey((9, 8), {0: 5}), Survey((7, 6), {1: 4})]
    others = [
        surveys[::-1],
        [Survey((8, 9), {0: 5}), surveys[1]],
        [Survey((9, 8), {1: 5}), surveys[1]],
        [Survey((9, 8), {0: 6}), surveys[1]],
        [*surveys, Survey((9, 9), {})],
    ]
    digests = [Index.of(made).digest for made in (surveys, *others)]
    assert len(set(digests)) == 6
    assert Index.of(surveys).digest == digests[0]


def test_the_second_time_no_mask_is_read(root, reads, monkeypatch):
    first = pool_of(root).index()
    assert sorted(reads) == ["a.png", "b.png", "c.png", "d.png"]
    monkeypatch.setattr(pools, "read_values", lambda path: refuse(f"{path} was read again"))
    second = pool_of(root).index()
    assert second.digest == first.digest and table(second) == table(first)
    assert [part.dtype for part in (second.sizes, second.image, second.number, second.pixels)] == [np.int64] * 4


def test_the_cache_survives_a_copy_of_the_pool_but_not_of_the_folder(root, reads, tmp_path):
    pool_of(root).index()
    shutil.copytree(root, tmp_path / "copy")
    copied = pool_of(tmp_path / "copy").index()
    assert len(reads) == 8 and table(copied) == counted(root)
    pool_of(root).index()
    pool_of(tmp_path / "copy").index()
    assert len(reads) == 8


def larger_object(root):
    write(root / "masks" / "a.png", box((0, 0, 9, 9)))


def same_size_of_file(root):
    path = root / "masks" / "a.png"
    length = path.stat().st_size
    write(path, np.full(SIZE, 2))
    path.write_bytes(path.read_bytes().ljust(length, b"\0"))  # what follows a PNG's end is not read
    assert path.stat().st_size == length


def touched(root):
    os.utime(root / "masks" / "c.png", ns=(1, 1))


def same_time_other_length(root):
    path = root / "masks" / "b.png"
    state = path.stat()
    Image.fromarray(labelled("b") % 2).save(path, compress_level=0)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_mtime_ns == state.st_mtime_ns and path.stat().st_size != state.st_size


def other_image(root):
    picture(root / "images" / "d.png", seed=99)


@pytest.mark.parametrize("change", [larger_object, same_size_of_file, touched, same_time_other_length, other_image])
def test_a_changed_file_is_noticed(change, root, reads):
    pool_of(root).index()
    change(root)
    assert table(pool_of(root).index()) == counted(root)
    assert len(reads) == 8
    pool_of(root).index()
    assert len(reads) == 8


@pytest.mark.parametrize("keys", [("a", "b", "c"), ("a", "c", "b", "d"), ("d", "c", "b", "a")])
def test_a_changed_list_is_noticed(keys, root, reads):
    pool_of(root).index()
    assert table(pool_of(root, keys).index()) == counted(root, keys)
    assert len(reads) == 4 + len(keys)


def test_changed_classes_are_noticed(root):
    pool_of(root).index()
    assert table(pool_of(root, values=(2, 1)).index()) == counted(root, values=(2, 1))


def test_a_missing_file_is_named_though_the_index_is_kept(root):
    pool_of(root).index()
    (root / "masks" / "b.png").unlink()
    with pytest.raises(DataError, match=r"masks/b.png: cannot be read \(No such file.*restore the file"):
        pool_of(root).index()


def test_a_fingerprint_tells_values_and_files_apart(root):
    file, other = root / "masks" / "a.png", root / "masks" / "b.png"
    prints = [
        fingerprint("x", 1, files=[file]),
        fingerprint("x", "1", files=[file]),
        fingerprint("x", 1, files=[other]),
        fingerprint("x", 1, files=[file, other]),
        fingerprint("x", 1, files=[other, file]),
        fingerprint("x", 1),
        fingerprint(("x", 1)),
        fingerprint("x1"),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint("x", 1, files=[file]) == prints[0]


def empty(path):
    path.write_bytes(b"")


def text(path):
    path.write_text("no archive")


def another_array(path):
    with path.open("wb") as file:
        np.save(file, np.arange(3))


def another_archive(path):
    np.savez(path, other=np.arange(3))


def half_a_key(path):
    with np.load(path) as arrays:
        parts = {name: arrays[name] for name in ("key", "sizes", "image")}
    np.savez_compressed(path, **parts)


def folder(path):
    path.unlink()
    (path / "inside").mkdir(parents=True)


@pytest.mark.parametrize("damage", [empty, text, truncate, another_array, another_archive, half_a_key])
def test_a_damaged_cache_is_warned_of_and_built_again(damage, root, cache, reads):
    expected = table(pool_of(root).index())
    damage(kept(cache))
    with pytest.warns(UserWarning, match=r"\.npz: the kept index cannot be read \(damaged\), so it is built again"):
        assert table(pool_of(root).index()) == expected
    assert len(reads) == 8
    assert table(pool_of(root).index()) == expected
    assert len(reads) == 8


def test_a_folder_in_place_of_the_cache_file_is_warned_of_and_does_no_harm(root, cache):
    expected = table(pool_of(root).index())
    folder(kept(cache))
    with pytest.warns(UserWarning, match=r"cannot be read \(Is a directory\)|cannot be kept") as caught:
        assert table(pool_of(root).index()) == expected
    assert len(caught) == 2


def test_no_damaged_byte_of_the_cache_gives_a_wrong_index_or_an_error(cache):
    made = Index.of([Survey((10, 20 + i % 3), {i % 5: i * 7 % 50 + 1, 7: 3}) for i in range(40)])
    assert cached("name", "key", lambda: made).digest == made.digest
    whole = kept(cache).read_bytes()
    warned = 0
    places = range(0, len(whole), 5)
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        kept(cache).write_bytes(damaged)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert cached("name", "key", lambda: made).digest == made.digest
        warned += len(caught)
    assert warned > len(places) / 2  # the rest is dates and the like, which nobody reads


def test_the_cache_holds_nothing_that_runs_when_read(root, cache):
    pool_of(root).index()
    with zipfile.ZipFile(kept(cache)) as archive:
        assert sorted(archive.namelist()) == ["image.npy", "key.npy", "number.npy", "pixels.npy", "sizes.npy"]
        assert not any(b"|O" in archive.read(name)[:128] for name in archive.namelist())


def test_a_cache_that_cannot_be_written_is_warned_of_and_does_no_harm(root, cache, reads):
    cache.write_text("a file in place of the folder")
    for times in (1, 2):
        with pytest.warns(
            UserWarning, match=r"the index cannot be kept \(.*\), so .* built again.*; set CYCTR_CACHE"
        ) as caught:
            assert table(pool_of(root).index()) == counted(root)
        assert len(caught) == 1 and len(reads) == 4 * times
    assert cache.read_text() == "a file in place of the folder"


def test_building_leaves_the_data_as_it_was(root):
    before = state(root)
    pool_of(root).index()
    assert state(root) == before


@pytest.mark.skipif(os.name == "nt", reason="names are text on windows")
def test_a_folder_whose_name_is_not_text_can_be_indexed(root, tmp_path, reads):
    strange = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        root.rename(strange)
    except OSError:
        pytest.skip("this file system takes only text")
    assert table(pool_of(strange).index()) == counted(strange)
    pool_of(strange).index()
    assert len(reads) == 4


def test_a_parallel_survey_equals_a_serial_one():
    def survey(i):
        time.sleep(0.01 if i % 7 == 0 else 0)  # others overtake
        return Survey((i + 1, i + 2), {i % 3: i + 1, 5: 2})

    steps = []
    parallel = survey_all(50, survey, lambda *step: steps.append(step), refuse)
    assert parallel.digest == Index.of(map(survey, range(50))).digest
    assert steps[-1] == (50, 50) and steps == sorted(steps) and {total for _, total in steps} == {50}


def test_a_survey_of_nothing_is_empty():
    index = survey_all(0, lambda i: Survey((1, 1), {}), None, refuse)
    assert len(index) == 0 and table(index) == []


def test_an_unreadable_mask_stops_the_index_and_is_named(root, cache):
    truncate(root / "masks" / "b.png")
    with pytest.raises(DataError, match=r"masks/b.png: damaged or cut short"):
        pool_of(root).index()
    assert not cache.exists()


def test_a_scan_goes_on_after_an_unreadable_mask(root, cache):
    truncate(root / "masks" / "b.png")
    write(root / "masks" / "c.png", box((0, 0, 2, 2), 9))
    problems = []
    index = pool_of(root).index(complain=problems.append)
    assert [problem.partition(": ")[0] for problem in problems] == [str(root / "masks" / f"{stem}.png") for stem in "bc"]
    assert "holds the value 9; expected 1, 2 for the classes" in problems[1]
    assert table(index) == [*counted(root, ("a",)), (3, 0, 42)]
    assert index.sizes.tolist() == [list(SIZE), [0, 0], [0, 0], list(SIZE)]
    assert not cache.exists()


def test_a_mask_of_another_size_than_its_image_is_refused_with_both_sizes(root):
    picture(root / "images" / "a.png", (16, 12))
    with pytest.raises(DataError, match=r"a.png: mask is 12 x 16, image a.png is 16 x 12 \(height x width\); resize one"):
        pool_of(root).index()


def test_the_first_problem_stops_a_survey_long_before_its_end():
    surveyed = []
    halt = threading.Event()

    def survey(i):
        if i == 3:
            raise DataError("broken")
        if i > 3:
            halt.wait(5)  # until somebody has heard of the problem
        surveyed.append(i)
        return Survey((1, 1), {})

    def complain(problem):
        halt.set()
        raise DataError(problem)

    with pytest.raises(DataError, match="broken"):
        survey_all(10_000, survey, None, complain)
    assert len(surveyed) < 9_000


def test_what_is_no_data_error_is_not_taken_for_one():
    def survey(i):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        survey_all(3, survey, None, lambda problem: None)
