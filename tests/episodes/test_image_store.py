import itertools
import threading

import numpy as np
import pytest
import torch
from miniature import CLASSES, VARIED, box, class_mask_folder, picture, truncate, varied_folder, write

from cyctr.config import InputConfig
from cyctr.datasets.own_folder import open_folder
from cyctr.episodes import image_store as pictures
from cyctr.episodes.image_store import ANCHORS, Pictures, ResidentStore, StreamingStore, open_store, spread
from cyctr.errors import DataError
from cyctr.images.geometry import content_size, fit_image, fit_label, planes

CPU = torch.device("cpu")
STEMS = tuple(VARIED)
BOTH = pytest.mark.parametrize("resident", [True, False], ids=["resident", "streaming"])


@pytest.fixture
def pool(tmp_path):
    return open_folder(varied_folder(tmp_path / "data")).pool("test")


def pairs_of(pool):
    index = pool.index()
    return list(zip(index.image.tolist(), index.number.tolist(), strict=True))


def opened(pool, resident, pairs=None, **options):
    pairs = pairs_of(pool) if pairs is None else pairs
    return open_store(pool, pool.index(), pairs, CPU, resident=resident, **{"workers": 2, **options})


def one(store, pair):
    """A single picture of a store, without its axis."""
    (found,) = store.stream([[pair]])
    return Pictures(found.images[0], found.labels[0], found.sizes[0], found.anchors[0])


def assert_same(found, expected):
    for name in ("images", "labels", "sizes", "anchors"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype
        assert torch.equal(one, other), name


def plans(pool, count=12):
    """Pairs in any order and number, some of them more than once."""
    random = np.random.default_rng(0)
    pairs = pairs_of(pool)
    return [[pairs[i] for i in random.integers(0, len(pairs), size)] for size in random.integers(1, 7, count)]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("longest", [None, 40])
def test_both_stores_give_the_same_pictures_whatever_the_workers(pool, workers, longest):
    asked = plans(pool)
    resident = opened(pool, True, longest=longest).stream(asked)
    streaming = opened(pool, False, longest=longest, workers=workers).stream(asked)
    for plan, one, other in zip(asked, resident, streaming, strict=True):
        assert_same(one, other)
        assert len(one.images) == len(plan)
    assert one.images.device == other.images.device == CPU


@BOTH
def test_a_plan_is_answered_in_its_own_order(pool, resident):
    store = opened(pool, resident)
    for plan, found in zip(plans(pool), store.stream(plans(pool)), strict=True):
        for place, pair in enumerate(plan):
            alone = one(store, pair)
            assert_same(Pictures(found.images[place], found.labels[place], found.sizes[place], found.anchors[place]), alone)


def test_pictures_that_are_read_sooner_wait_for_those_before_them(pool):
    """The first image is not given before every other one has been asked for."""
    asked = [[(i, 0)] for i in range(4)]
    others = threading.Semaphore(0)

    class FirstIsLast(type(pool)):
        def image(self, i):
            if i:
                others.release()
            else:
                assert all(others.acquire(timeout=100) for _ in range(3))
            return super().image(i)

    slow = FirstIsLast(pool.root, pool.keys, pool.images, pool.masks, pool.values)
    found = list(opened(slow, False, workers=4).stream(asked))
    for made, (pair,) in zip(found, asked, strict=True):
        assert tuple(made.sizes[0].tolist()) == VARIED[STEMS[pair[0]]]


@BOTH
def test_a_picture_is_the_file_in_the_top_left_of_the_canvas(pool, resident):
    store = opened(pool, resident)
    for i, number in pairs_of(pool):
        found = one(store, (i, number))
        height, width = VARIED[STEMS[i]]
        assert found.sizes.tolist() == [height, width]
        assert torch.equal(found.images[:, :height, :width], planes(pool.image(i)))
        assert np.array_equal(found.labels[:height, :width], pool.label(i, number))
        for beyond in (found.images[:, height:], found.images[:, :, width:], found.labels[height:], found.labels[:, width:]):
            assert not beyond.any()


@BOTH
def test_the_canvas_is_as_high_and_as_wide_as_the_images_that_will_be_asked_for(pool, resident):
    for stems in ("ad", "cd", "gh", STEMS):
        chosen = [STEMS.index(stem) for stem in stems]
        sizes = [VARIED[stem] for stem in stems]
        shape = (max(height for height, _ in sizes), max(width for _, width in sizes))
        for longest in (None, 70, 200):  # none is larger than that
            store = opened(pool, resident, [(i, 0) for i in chosen], longest=longest)
            assert one(store, (chosen[0], 0)).images.shape == (3, *shape)


@BOTH
@pytest.mark.parametrize("longest", [25, 45, 64])
def test_larger_images_are_made_smaller_with_their_masks_and_others_are_not(pool, resident, longest):
    store = opened(pool, resident, longest=longest)
    config, sizes = InputConfig(longest), []
    for i, number in pairs_of(pool):
        full = VARIED[STEMS[i]]
        image, label = planes(pool.image(i)), torch.from_numpy(pool.label(i, number))
        if max(full) > longest:
            height, width = content_size(full, config)
            image, label = fit_image(image, config)[:, :height, :width], fit_label(label, config)[:height, :width]
        found = one(store, (i, number))
        height, width = label.shape
        assert found.sizes.tolist() == [height, width]
        assert torch.equal(found.images[:, :height, :width], image)
        assert torch.equal(found.labels[:height, :width], label)
        sizes.append((height, width))
    assert found.labels.shape == tuple(map(max, zip(*sizes, strict=True)))
    assert max(found.labels.shape) <= longest


def lonely(root, image, values):
    """A pool of one image and its mask."""
    write(root / "images" / "a.png", image)
    write(root / "masks" / "a.png", values)
    return open_folder(root).pool("test")


@BOTH
@pytest.mark.parametrize("longest", [100, 64])
def test_a_smaller_picture_keeps_its_aspect_and_the_mask_stays_with_the_image(tmp_path, resident, longest):
    y, x = np.mgrid[0:150, 0:210] + 0.5
    oval = ((x / 210 - 0.6) / 0.36) ** 2 + ((y / 150 - 0.55) / 0.4) ** 2 < 1
    pool = lonely(tmp_path / "oval", np.repeat(255 * oval[..., None], 3, 2), oval)
    found = one(opened(pool, resident, longest=longest), (0, 0))
    assert found.labels.shape == found.images.shape[1:] == (round(150 * longest / 210), longest)
    bright, marked = found.images[0] > 127, found.labels == 1
    assert (bright & marked).sum() > 0.97 * (bright | marked).sum()
    assert set(found.labels.unique().tolist()) == {0, 1}


@BOTH
def test_a_smaller_picture_keeps_a_pixel_of_the_smallest_object(tmp_path, resident):
    noise = np.random.default_rng(0).integers(0, 256, (600, 90, 3))
    pool = lonely(tmp_path / "speck", noise, box((411, 17, 412, 18), 1, (600, 90)))
    found = one(opened(pool, resident, longest=50), (0, 0))
    assert found.labels.shape == found.images.shape[1:] == (50, 8)
    assert (found.labels == 1).nonzero().tolist() == [[411 * 50 // 600, 17 * 8 // 90]]
    assert (found.anchors == torch.tensor([17 * 8 // 90, 411 * 50 // 600]) + 0.5).all()


@BOTH
@pytest.mark.parametrize("longest", [None, 30])
def test_anchors_are_the_middles_of_marked_pixels_from_the_first_to_the_last(pool, resident, longest):
    store = opened(pool, resident, longest=longest)
    for pair in pairs_of(pool):
        found = one(store, pair)
        assert found.anchors.shape == (ANCHORS, 2) and found.anchors.dtype == torch.float64
        columns, rows = (found.anchors - 0.5).long().unbind(-1)
        assert torch.equal(found.anchors, torch.stack([columns, rows], -1) + 0.5)
        assert (found.labels[rows, columns] == 1).all()
        marked = (found.labels == 1).nonzero()  # in reading order
        assert [rows[0].item(), columns[0].item()] == marked[0].tolist()
        assert [rows[-1].item(), columns[-1].item()] == marked[-1].tolist()


@pytest.mark.parametrize("count", [1, 2, 40, ANCHORS, 500])
def test_anchors_are_spread_evenly_over_the_object(tmp_path, count):
    label = np.zeros((30, 40), np.uint8)
    label.flat[100 : 100 + count] = 1
    picture(tmp_path / "images" / "a.png", label.shape)
    write(tmp_path / "masks" / "a.png", label)
    found = one(opened(open_folder(tmp_path).pool("test"), True), (0, 0))
    x, y = (found.anchors - 0.5).unbind(-1)
    places = (y * 40 + x).long() - 100
    shares = torch.bincount(places * min(count, ANCHORS) // count, minlength=min(count, ANCHORS))
    assert shares.min() >= 1 and shares.max() <= -(-ANCHORS // count) + 1


def overlapping(root):
    """A dog that covers a part of the cat, in masks of their own."""
    class_mask_folder(root)
    write(root / "masks" / "cat" / "b.png", box((0, 0, 9, 9), 255))
    return open_folder(root).pool("test")


@BOTH
def test_classes_that_overlap_have_each_their_whole_mask(tmp_path, resident):
    pool = overlapping(tmp_path / "data")
    cat, dog = (one(opened(pool, resident), (pool.keys.index("b"), CLASSES.index(name))) for name in CLASSES)
    assert torch.equal(cat.images, dog.images)
    assert np.array_equal(cat.labels, box((0, 0, 9, 9)))
    assert np.array_equal(dog.labels, box((4, 4, 12, 16)))
    assert (cat.labels & dog.labels).any()


@BOTH
def test_a_mask_that_lost_its_class_since_it_was_indexed_is_named(pool, resident):
    index, pairs = pool.index(), pairs_of(pool)
    write(pool.root / "masks" / "e.png", box((0, 0, 9, 9), 1, VARIED["e"]))  # a cat, the dog is gone
    with pytest.raises(DataError, match=r"^e: marks no pixel of its class any more; was its mask changed\? start again$"):
        list(open_store(pool, index, pairs, CPU, resident=resident).stream([pairs]))


@BOTH
@pytest.mark.parametrize("size", [(64, 71), (71, 64), (64, 63), (40, 64), (20, 20), (128, 128)])
@pytest.mark.parametrize("resized", ["image", "mask", "both"])
def test_a_file_that_has_another_size_than_when_it_was_indexed_is_named(pool, resident, size, resized):
    index, pairs = pool.index(), pairs_of(pool)
    if resized != "mask":
        picture(pool.root / "images" / "f.png", size)
    if resized != "image":
        write(pool.root / "masks" / "f.png", box((0, 0, 9, 9), 1, size))
    message = rf"^f: is {size[0]} x {size[1]} pixels, and was 64 x 64 when it was indexed; was it changed\? start again$"
    with pytest.raises(DataError, match=message):
        list(open_store(pool, index, pairs, CPU, resident=resident).stream([[(5, 0)]]))


@BOTH
@pytest.mark.parametrize("resized", ["image", "mask"])
def test_a_file_of_another_aspect_than_when_it_was_indexed_is_named_where_it_is_made_smaller_too(pool, resident, resized):
    index, pairs = pool.index(), pairs_of(pool)
    if resized == "image":
        picture(pool.root / "images" / "f.png", (64, 128))
    else:
        write(pool.root / "masks" / "f.png", box((0, 0, 9, 9), 1, (64, 128)))
    with pytest.raises(DataError, match=r"^f: is .* when it was indexed; was it changed\?"):
        list(open_store(pool, index, pairs, CPU, 40, resident=resident).stream([[(5, 0)]]))


def rows_of_every_kind():
    """(n, 200) bool: one place, two, a few more or fewer than anchors, at random, and all."""
    random = np.random.default_rng(0)
    marked = np.zeros((40, 200), bool)
    for row, count in zip(marked, [1, 1, 1, 2, 3, ANCHORS - 1, ANCHORS, ANCHORS + 1, 199, *[200] * 3], strict=False):
        row[random.choice(200, count, replace=False)] = True
    marked[12:] = random.random((28, 200)) < random.random((28, 1))
    marked[0] = marked[1] = False
    marked[0, 0] = marked[1, -1] = True
    return marked


def test_places_are_spread_as_evenly_over_the_true_ones_as_whole_numbers_can_be():
    """A slow twin: of the n true places those that np.linspace names, either neighbour where it names the middle of two."""
    marked = rows_of_every_kind()
    found = spread(torch.from_numpy(marked))
    assert found.shape == (len(marked), ANCHORS) and found.dtype == torch.int64
    for row, places in zip(marked, found.numpy(), strict=True):
        true = np.flatnonzero(row)
        which = np.searchsorted(true, places)
        assert np.array_equal(true[which], places)
        assert np.abs(which - np.linspace(0, len(true) - 1, ANCHORS)).max() <= 0.5 + 1e-9


def test_a_single_true_place_is_every_anchor():
    marked = torch.zeros(3, 50, dtype=torch.bool)
    for row, place in enumerate((0, 17, 49)):
        marked[row, place] = True
    assert spread(marked).tolist() == [[0] * ANCHORS, [17] * ANCHORS, [49] * ANCHORS]


def test_where_all_are_true_the_first_and_the_last_are_taken_and_as_many_are_there_all_of_them():
    assert spread(torch.ones(1, ANCHORS, dtype=torch.bool)).tolist() == [list(range(ANCHORS))]
    (places,) = spread(torch.ones(1, 10 * (ANCHORS - 1) + 1, dtype=torch.bool)).tolist()
    assert places == list(range(0, 10 * ANCHORS, 10))


@BOTH
def test_a_damaged_file_is_named_and_leaves_no_thread_behind(pool, resident):
    index, pairs = pool.index(), pairs_of(pool)
    truncate(pool.root / "images" / "h.png")
    threads = set(threading.enumerate())
    with pytest.raises(DataError, match=r"images/h.png: damaged or cut short"):
        list(open_store(pool, index, pairs, CPU, resident=resident, workers=3).stream([[pair] for pair in pairs]))
    assert set(threading.enumerate()) == threads


def test_what_came_before_a_damaged_file_is_still_given(pool):
    index, pairs = pool.index(), pairs_of(pool)
    truncate(pool.root / "images" / "i.png")  # the last
    stream = open_store(pool, index, pairs, CPU, resident=False, workers=2).stream([[(i, 0)] for i in range(9)])
    assert [next(stream).sizes[0].tolist() for _ in range(8)] == [list(VARIED[stem]) for stem in STEMS[:8]]
    with pytest.raises(DataError, match=r"images/i.png"):
        next(stream)


@pytest.mark.parametrize("longest", [None, 32])
def test_pictures_stay_on_the_device_where_they_take_about_half_of_its_memory_at_most(pool, longest, monkeypatch):
    pairs = pairs_of(pool)
    height, width = one(opened(pool, True, longest=longest), pairs[0]).labels.shape
    needed = height * width * (3 * len(STEMS) + len(pairs))  # an image once, a label for each class

    def kind(free, **options):
        monkeypatch.setattr(pictures, "free_memory", lambda device: free)
        return type(opened(pool, options.pop("resident", None), longest=longest, **options))

    assert kind(4 * needed) is ResidentStore
    assert kind(int(1.5 * needed)) is StreamingStore
    assert kind(0) is StreamingStore
    assert kind(0, resident=True) is ResidentStore
    assert kind(4 * needed, resident=False) is StreamingStore


def test_a_resident_store_reads_every_image_once_and_no_file_any_more_once_it_is_open(pool, reads):
    pool.index()
    reads.clear()
    store = opened(pool, True)
    assert sorted(read for read in reads if read.startswith("images")) == [f"images/{stem}" for stem in STEMS]
    assert sum(read.startswith("masks") for read in reads) == len(pairs_of(pool))  # once for each class
    reads.clear()
    assert len(list(store.stream(plans(pool)))) == 12
    assert reads == []


def test_a_streaming_store_reads_nothing_before_it_is_asked_and_then_a_few_plans_ahead(pool, reads):
    pairs, asked = pairs_of(pool), []

    def endless():
        for number in itertools.count():
            asked.append(number)
            yield [pairs[number % len(pairs)]]

    store = opened(pool, False)
    reads.clear()
    stream = store.stream(endless())
    assert reads == asked == []
    for taken in range(1, 20):
        next(stream)
        assert taken < len(asked) <= taken + 4
    stream.close()
    assert len(reads) <= 2 * len(asked)  # image and mask of each


def test_progress_ends_with_all_of_them(pool):
    told = []
    opened(pool, True, progress=lambda done, total: told.append((done, total)))
    images = len({image for image, _ in pairs_of(pool)})
    assert told[-1] == (images, images)


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closing_a_stream_early_leaves_no_thread_behind_and_reads_no_further(pool, taken):
    started, blocked, release = [], threading.Semaphore(0), threading.Event()

    class Blocking(type(pool)):
        """Gives the first images; whoever asks for more waits."""

        def image(self, i):
            started.append(i)
            if i >= taken:
                blocked.release()
                release.wait(100)
            return super().image(i)

    slow = Blocking(pool.root, pool.keys, pool.images, pool.masks, pool.values)
    before = set(threading.enumerate())
    stream = opened(slow, False, workers=2).stream([[(min(i, 8), 0)] for i in range(100)])
    assert [next(stream).sizes[0].tolist() for _ in range(taken)] == [list(VARIED[stem]) for stem in STEMS[:taken]]
    if taken:
        assert all(blocked.acquire(timeout=100) for _ in range(2))
    so_far = len(started)
    timer = threading.Timer(0.2, release.set)
    timer.start()
    stream.close()
    timer.join()
    assert set(threading.enumerate()) == before
    assert len(started) == so_far
    assert list(stream) == []
