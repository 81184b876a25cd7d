import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from miniature import VARIED, truncate, varied_folder
from PIL import Image

from cyctr.config import InputConfig
from cyctr.datasets.own_folder import open_folder
from cyctr.datasets.synthetic_pool import SyntheticPool, open_synthetic
from cyctr.episodes.loading import Memo, TestEpisodes
from cyctr.episodes.sampler import Sampler
from cyctr.errors import DataError
from cyctr.images.geometry import content_size
from cyctr.types import Episode

STEMS = tuple(VARIED)
INPUT = InputConfig(size=33)


@pytest.fixture
def dataset(tmp_path):
    return open_folder(varied_folder(tmp_path / "data"))


def episodes(dataset, config=INPUT, memo=None, **settings):
    pool = dataset.pool("test")
    return TestEpisodes(pool, Sampler(dataset, pool.index(), **settings), config, memo)


def by_hand(root, stem, value, config):
    """Image, label, where that is beyond doubt, and truth: Pillow's resizing, the nearest pixels, and padding."""
    with Image.open(root / "images" / f"{stem}.png") as opened:
        image = opened.convert("RGB")
    with Image.open(root / "masks" / f"{stem}.png") as opened:
        values = np.array(opened)
    truth = np.where(values == 255, 255, values == value).astype(np.uint8)
    height, width = content_size(truth.shape, config)
    pixels = np.full((config.size, config.size, 3), config.fill, np.uint8)
    pixels[:height, :width] = np.array(image.resize((width, height), Image.Resampling.BILINEAR))
    label = np.full((config.size, config.size), 255, np.uint8)
    rows = ((np.arange(height) + 0.5) * truth.shape[0] / height).astype(int)
    columns = ((np.arange(width) + 0.5) * truth.shape[1] / width).astype(int)
    label[:height, :width] = truth[rows][:, columns]
    clear = np.ones((config.size, config.size), bool)  # not between two pixels
    clear[:height][(2 * np.arange(height) + 1) * truth.shape[0] % (2 * height) == 0] = False
    clear[:, :width][:, (2 * np.arange(width) + 1) * truth.shape[1] % (2 * width) == 0] = False
    return pixels.transpose(2, 0, 1), label, clear, truth


@pytest.mark.parametrize(
    "config", [INPUT, InputConfig(size=47, fit="squash"), InputConfig(size=65, fill=9)], ids=["pad", "squash", "fill"]
)
def test_loaded_episodes_equal_a_slow_reading_by_hand(dataset, config):
    source = episodes(dataset, config, shots=2)
    batch = source.load([3, 0, 11])
    assert [draw.number for draw in batch.draws] == [3, 0, 11]
    assert batch.episode.support_images.shape == (3, 2, 3, config.size, config.size)
    for place, draw in enumerate(batch.draws):
        assert draw == source.sampler(draw.number)
        given = batch.episode
        found = [(given.query_images[place], given.query_labels[place])]
        found += list(zip(given.support_images[place], given.support_labels[place], strict=True))
        for i, (image, label) in zip((draw.query, *draw.supports), found, strict=True):
            pixels, marks, clear, truth = by_hand(source.pool.root, STEMS[i], draw.category + 1, config)
            assert np.abs(image.numpy().astype(int) - pixels).max() <= 1
            np.testing.assert_array_equal(label.numpy()[clear], marks[clear])
            assert {0, 1, 255} == set(label.unique().tolist())
            if i == draw.query:
                np.testing.assert_array_equal(batch.truths[place].numpy(), truth)


def test_loaded_episodes_pass_the_checks_that_trusted_ones_skip(dataset):
    given = episodes(dataset, shots=2).load(range(8)).episode
    checked = Episode(given.support_images, given.support_labels, given.query_images, given.query_labels)
    assert checked.shots == 2


def assert_same(one, other):
    assert one.draws == other.draws
    for name in ("support_images", "support_labels", "query_images", "query_labels"):
        assert torch.equal(getattr(one.episode, name), getattr(other.episode, name))
    assert all(torch.equal(a, b) for a, b in zip(one.truths, other.truths, strict=True))


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_batches_hold_every_episode_in_order_whatever_the_workers_and_the_size(dataset, workers, size):
    numbers = [*range(4, 24), 2, 2]
    alone = episodes(dataset, shots=2)
    found = list(episodes(dataset, shots=2).batches(numbers, size, workers))
    pieces = [numbers[start : start + size] for start in range(0, len(numbers), size)]
    assert [[draw.number for draw in batch.draws] for batch in found] == pieces
    for batch, piece in zip(found, pieces, strict=True):
        assert_same(batch, alone.load(piece))


def test_batches_of_a_memo_that_holds_almost_nothing_are_the_same(dataset):
    found = list(episodes(dataset, memo=Memo(5000)).batches(range(12), 4, 3))
    for batch, expected in zip(found, episodes(dataset).batches(range(12), 4, 1), strict=True):
        assert_same(batch, expected)


def test_no_episodes_are_no_batches(dataset):
    assert list(episodes(dataset).batches([], 4, 2)) == []


def test_nothing_is_read_before_the_first_batch_is_asked_for(dataset, reads):
    source = episodes(dataset)
    reads.clear()
    batches = source.batches(range(9), 2, 2)
    batches.close()
    assert reads == []


def test_every_image_is_read_once_for_all_shots_and_seeds_that_share_a_memo(dataset, reads):
    dataset.pool("test").index()
    reads.clear()
    memo = Memo()
    for shots in (1, 2):
        for seed in (0, 1):
            source = episodes(dataset, memo=memo, shots=shots, seed=seed)
            assert sum(len(batch.draws) for batch in source.batches(range(40), 5, 1)) == 40
    assert sorted(read for read in reads if read.startswith("images")) == [f"images/{stem}" for stem in STEMS]
    masks = [f"masks/{stem}" for number, stem in enumerate(STEMS) for _ in range(2 if number % 3 != 2 else 1)]
    assert sorted(read for read in reads if read.startswith("masks")) == masks  # once for each class


def test_two_inputs_may_share_a_memo(dataset):
    memo = Memo()
    for config in (INPUT, replace(INPUT, fill=200), InputConfig(size=40, fit="squash")):
        assert_same(episodes(dataset, config, memo).load(range(9)), episodes(dataset, config).load(range(9)))


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("folder", ["images", "masks"])
def test_a_file_that_breaks_under_way_is_named(dataset, folder, workers):
    source = episodes(dataset)
    truncate(source.pool.root / folder / "e.png")
    threads = threading.active_count()
    with pytest.raises(DataError, match=rf"{folder}/e.png: damaged or cut short"):
        list(source.batches(range(60), 2, workers))
    assert threading.active_count() == threads


def test_what_came_before_a_broken_file_is_still_given(dataset):
    source = episodes(dataset)
    needs_i = [STEMS.index("i") in (source.sampler(n).query, *source.sampler(n).supports) for n in range(30)]
    numbers = [n for n in range(30) if not needs_i[n]] + [needs_i.index(True)]
    (source.pool.root / "images" / "i.png").unlink()
    batches = source.batches(numbers, 1, 2)
    assert [next(batches).draws[0].number for _ in numbers[:-1]] == numbers[:-1] and len(numbers) > 10
    with pytest.raises(DataError, match=r"images/i.png: no such file"):
        next(batches)


def test_a_broken_file_is_named_without_threads_too(dataset):
    source = episodes(dataset)
    (source.pool.root / "images" / "a.png").unlink()
    with pytest.raises(DataError, match=r"images/a.png: no such file"):
        source.load(range(9))


@pytest.mark.parametrize("taken", [1, 4])
def test_stopping_early_leaves_no_thread_behind_and_reads_no_further(taken):
    pool = SyntheticPool(classes=8, each=40, size=16)
    sampler = Sampler(open_synthetic(pool), pool.index(), split="train", order="shuffled", shots=3)
    wanted = {i for number in range(5 * taken) for i in (sampler(number).query, *sampler(number).supports)}
    started, blocked, release = [], threading.Semaphore(0), threading.Event()

    class Blocking(SyntheticPool):
        """Gives what the first batches need; whoever asks for more waits."""

        def image(self, i):
            started.append(i)
            if i not in wanted:
                blocked.release()
                release.wait(100)
            return super().image(i)

    before = set(threading.enumerate())
    batches = TestEpisodes(Blocking(classes=8, each=40, size=16), sampler, INPUT).batches(range(1000), 5, workers=3)
    assert [next(batches).draws[0].number for _ in range(taken)] == [5 * i for i in range(taken)]
    assert all(blocked.acquire(timeout=100) for _ in range(3))
    so_far = len(started)
    timer = threading.Timer(0.3, release.set)
    timer.start()
    batches.close()
    timer.join()
    assert set(threading.enumerate()) == before
    assert len(started) == so_far
    assert list(batches) == []


def tensor(number, size=100):
    return torch.full((size,), number, dtype=torch.uint8)


def test_a_memo_makes_each_tensor_once():
    memo, made = Memo(), []
    for key in (1, 2, 1, 1, 2):
        found = memo(key, lambda key=key: made.append(key) or tensor(key))
        assert torch.equal(found, tensor(key))
    assert made == [1, 2]


def test_a_memo_forgets_what_was_used_longest_ago():
    memo, made = Memo(300), []

    def ask(key):
        return memo(key, lambda: made.append(key) or tensor(key))

    for key in (1, 2, 3, 1, 4):  # 4 puts out 2
        ask(key)
    assert made == [1, 2, 3, 4]
    for key in (1, 3, 4):
        ask(key)
    assert made == [1, 2, 3, 4]
    assert torch.equal(ask(2), tensor(2)) and made == [1, 2, 3, 4, 2]


def test_a_memo_keeps_no_more_bytes_than_it_may():
    memo = Memo(1000)
    alive = weakref.WeakSet()
    for key in range(200):
        made = torch.zeros(1 + key % 5 * 50)
        alive.add(made)
        memo(key, lambda made=made: made)
        del made
        gc.collect(0)
        assert sum(held.nbytes for held in alive) <= 1000 or len(alive) == 1


def test_a_tensor_larger_than_the_memo_is_given_all_the_same():
    memo = Memo(10)
    assert torch.equal(memo("large", lambda: tensor(3)), tensor(3))
    assert torch.equal(memo("next", lambda: tensor(4)), tensor(4))
    assert torch.equal(memo("large", lambda: tensor(5)), tensor(5))  # forgotten, made again


def test_a_failure_to_make_is_not_remembered():
    memo = Memo()

    def fail():
        raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        memo(1, fail)
    assert torch.equal(memo(1, lambda: tensor(1)), tensor(1))


def test_a_tensor_that_threads_make_at_once_is_counted_once():
    memo, together, made = Memo(300), threading.Barrier(3, timeout=100), []

    def make_together():
        together.wait()
        return tensor(1)

    with ThreadPoolExecutor(3) as workers:
        for found in [workers.submit(memo, 1, make_together) for _ in range(3)]:
            assert torch.equal(found.result(), tensor(1))
    for key in (2, 3, 1, 2, 3):
        memo(key, lambda key=key: made.append(key) or tensor(key))
    assert made == [2, 3]


def test_threads_may_share_a_memo():
    memo = Memo(700)
    alive, lock = weakref.WeakSet(), threading.Lock()

    def ask(step):
        key = step * 7 % 20

        def make():
            made = tensor(key)
            with lock:
                alive.add(made)
            time.sleep(0.0002)
            return made

        return bool((memo(key, make) == key).all())

    with ThreadPoolExecutor(8) as workers:
        assert all(workers.map(ask, range(3000)))
    gc.collect()
    assert sum(held.nbytes for held in alive) <= 700
