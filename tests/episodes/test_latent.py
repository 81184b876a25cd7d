import threading
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from measuring import NAMES, album
from measuring import dataset as albums
from miniature import CLASSES, VARIED, varied_folder

from cyctr.config import AugmentationConfig, TrainingConfig
from cyctr.datasets.own_folder import open_folder
from cyctr.episodes import latent
from cyctr.episodes.image_store import ANCHORS, Pictures, open_store
from cyctr.episodes.latent import LARGEST, SMALLEST, UNDECIDED, LatentStore, MixedSampler, Regions, latent_names, latent_sampler
from cyctr.episodes.sampler import Sampler
from cyctr.episodes.training_batches import TrainingEpisodes

CPU = torch.device("cpu")
BOTH = pytest.mark.parametrize("resident", [True, False], ids=["resident", "streaming"])
KINDS = 3  # of regions in random maps
CELL = 4  # pixels of the network's input from one cell to the next
INPUT = 65


def any_of_them(random, shape):
    """What a map may have: no region, each kind, undecided."""
    return random.choice([*range(KINDS + 1), UNDECIDED], shape)


def map_of(random, size, network):
    """(s, s) patches of no region, of each kind and undecided, as beyond an image of this size; and the step between cells."""
    side, ratio = -(-network // CELL), max(size) / network
    coarse = any_of_them(random, (side // 3 + 1, side // 3 + 1))
    cells = coarse.repeat(3, 0).repeat(3, 1)[:side, :side].copy()
    middles = (CELL * np.arange(side) + 0.5) * ratio
    cells[middles >= size[0]] = UNDECIDED
    cells[:, middles >= size[1]] = UNDECIDED
    return cells, CELL * ratio


def regions_of(maps, steps, sizes, images=None, count=KINDS):
    images = list(range(len(maps))) if images is None else images
    cells = torch.from_numpy(np.stack(maps)).byte()
    return Regions(images, cells, torch.tensor(steps, dtype=torch.float64), torch.tensor(sizes), count)


def random_regions(sizes, network=INPUT, images=None, seed=0):
    random = np.random.default_rng(seed)
    maps, steps = zip(*(map_of(random, size, network) for size in sizes), strict=True)
    return regions_of(maps, steps, sizes, images)


def every(regions):
    """Each row of the regions with each of its kinds that some pixel shows."""
    rows, kinds = (
        part.flatten() for part in torch.meshgrid(torch.arange(len(regions.maps)), torch.arange(KINDS), indexing="ij")
    )
    shown = (regions.label(rows, kinds, *regions.sizes.amax(0).tolist()) == 1).flatten(1).any(1)
    return rows[shown], kinds[shown]


@pytest.mark.parametrize("step", [1.0, 3.0, 5.0, 1.37, 4.229, 7.77])
def test_a_label_has_the_kind_of_the_cell_that_is_nearest_to_each_pixel_or_its_doubt(step):
    """A slow twin: all cells are looked at for each pixel, and no image is wider than its cells reach."""
    random = np.random.default_rng(int(10 * step))
    sizes = [(int(5 * step) + 1, int(7 * step)), (int(6.4 * step), int(2 * step) + 1)]
    regions = regions_of(any_of_them(random, (2, 8, 8)), [step, step], sizes)
    height, width = int(7 * step) + 3, int(8 * step) + 2  # of the canvas
    rows, kinds = torch.tensor([0, 1, 1, 0, 0]), torch.tensor([2, 0, 1, 0, 1])
    found = regions.label(rows, kinds, height, width)
    assert found.shape == (5, height, width) and found.dtype == torch.uint8
    expected = torch.zeros(5, height, width, dtype=torch.uint8)
    for place, (row, kind) in enumerate(zip(rows.tolist(), kinds.tolist(), strict=True)):
        for y in range(sizes[row][0]):
            for x in range(sizes[row][1]):
                i, j = (min(range(8), key=lambda cell, pixel=pixel: abs(cell * step - pixel)) for pixel in (y, x))
                cell = regions.maps[row, i, j]
                expected[place, y, x] = 255 if cell == UNDECIDED else cell == kind + 1
    assert torch.equal(found, expected)


@pytest.mark.parametrize("size", [(30, 41), (41, 30), (1, 41), (41, 41)])
@pytest.mark.parametrize(("cell", "pixel"), [(1, 1), (UNDECIDED, 255)])
def test_a_label_is_zero_beyond_the_image(size, cell, pixel):
    regions = regions_of([np.full((11, 11), cell)], [4.1], [size], count=1)
    (label,) = regions.label(torch.tensor([0]), torch.tensor([0]), 60, 50)
    assert (label[: size[0], : size[1]] == pixel).all()
    assert (label != 0).sum() == size[0] * size[1]


def test_kinds_do_not_overlap_and_leave_what_is_in_no_region_or_undecided_by_all():
    regions = random_regions([(60, 44), (33, 64)])
    for row, (height, width) in enumerate(regions.sizes.tolist()):
        labels = regions.label(torch.full((KINDS,), row), torch.arange(KINDS), height, width)
        rest, doubt = (
            replace(regions, maps=(regions.maps == value).byte(), count=1).label(
                torch.tensor([row]), torch.tensor([0]), height, width
            )[0]
            for value in (0, UNDECIDED)
        )
        assert (((labels == 1).sum(0) + rest + doubt) == 1).all()
        assert torch.equal(labels == 255, doubt.bool().expand_as(labels))
        assert rest.any() and doubt.any() and (labels == 1).flatten(1).any(1).all()


def test_a_share_is_that_of_the_marked_pixels_of_the_label():
    """Exactly, where the step is odd and no region touches the rim."""
    random = np.random.default_rng(0)
    maps, sizes, steps = np.zeros((4, 12, 12)), [(55, 52), (33, 36), (77, 84), (60, 57)], [5, 3, 7, 5]
    maps[:, 1:8, 1:8] = any_of_them(random, (4, 7, 7))
    regions = regions_of(maps, steps, sizes)
    assert regions.shares.shape == (4, KINDS) and regions.shares.dtype == torch.float64
    for row, (height, width) in enumerate(sizes):
        labels = regions.label(torch.full((KINDS,), row), torch.arange(KINDS), height, width)
        expected = (labels == 1).flatten(1).sum(1).double() / (height * width)
        torch.testing.assert_close(regions.shares[row], expected, rtol=1e-12, atol=0)


def anchored(low, high, count=60):
    """Regions of images whose longest side is so many times as long as the network's input."""
    random = np.random.default_rng(1)
    for number in range(count):
        network = int(random.integers(33, 130))
        longest = round(network * random.uniform(low, high))
        other = int(random.integers(max(2, longest // 5), longest + 1))
        yield random_regions([(longest, other), (other, longest), (longest, longest)], network, seed=number)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.4, 0.6), (0.6, 1.0), (1.0, 1.0), (1.0, 1.5), (1.5, 4.0), (0.15, 0.4)],
)
def test_every_anchor_is_the_middle_of_a_pixel_that_the_label_marks(low, high):
    for regions in anchored(low, high):
        rows, kinds = every(regions)
        anchors = regions.anchors(rows, kinds)
        height, width = regions.sizes.amax(0).tolist()
        labels = regions.label(rows, kinds, height, width)
        assert anchors.shape == (len(rows), ANCHORS, 2) and anchors.dtype == torch.float64
        x, y = (anchors - 0.5).long().unbind(-1)
        assert torch.equal(anchors, torch.stack([x, y], -1) + 0.5)
        assert (labels[torch.arange(len(rows))[:, None], y, x] == 1).all()


def test_anchors_are_spread_over_the_whole_region():
    """A quarter of them in each quarter of a square, and in each of two squares half of them."""
    maps = np.zeros((2, 17, 17))
    maps[0, 4:12, 4:12] = 1
    maps[1, :4, :4] = maps[1, 12:16, 12:16] = 1
    regions = regions_of(maps, [4.0, 4.0], [(65, 65)] * 2, count=1)
    one, two = regions.anchors(torch.tensor([0, 1]), torch.tensor([0, 0]))
    quarters = Counter((x < 31, y < 31) for x, y in one.tolist())
    assert len(quarters) == 4 and max(quarters.values()) - min(quarters.values()) <= 2
    assert Counter((x < 31, y < 31) for x, y in two.tolist()) == {(True, True): ANCHORS // 2, (False, False): ANCHORS // 2}


@pytest.fixture
def pool(tmp_path):
    return open_folder(varied_folder(tmp_path / "data")).pool("test")


FIRST = len(CLASSES)
SOME = [7, 2, 5, 0, 8]  # images with regions, in no order


def labelled_pairs(pool):
    index = pool.index()
    return list(zip(index.image.tolist(), index.number.tolist(), strict=True))


def opened(pool, resident=True, longest=None, seed=0):
    """A store with regions in some of its images, those regions, and the store without."""
    pairs = labelled_pairs(pool)
    bare = open_store(pool, pool.index(), pairs, CPU, longest, resident, workers=2)
    (all_of_them,) = bare.stream([pairs])
    size_of = {image: tuple(size) for (image, _), size in zip(pairs, all_of_them.sizes.tolist(), strict=True)}
    regions = random_regions([size_of[image] for image in SOME], 49, SOME, seed)
    return LatentStore(bare, regions, pairs, FIRST), regions, bare


def taken(store, *plan):
    (found,) = store.stream([plan])
    return found


def parts(pictures):
    return pictures.images, pictures.labels, pictures.sizes, pictures.anchors


def same(one, other):
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(parts(one), parts(other), strict=True))


def picture(pictures, place):
    return Pictures(*(part[place : place + 1] for part in parts(pictures)))


def plans_of(pairs, count=12):
    """Pairs in any order and number, some of them more than once."""
    random = np.random.default_rng(0)
    return [[pairs[i] for i in random.integers(0, len(pairs), size)] for size in random.integers(1, 9, count)]


@BOTH
def test_labelled_pairs_come_through_as_they_are(pool, resident):
    store, _, bare = opened(pool, resident)
    asked = plans_of(labelled_pairs(pool))
    for found, expected in zip(store.stream(asked), bare.stream(asked), strict=True):
        assert same(found, expected)


@BOTH
@pytest.mark.parametrize("longest", [None, 40])
def test_a_latent_pair_is_the_image_with_the_label_of_its_region(pool, resident, longest):
    store, regions, bare = opened(pool, resident, longest)
    assert len(store.pairs) > 8
    for image, number in store.pairs:
        found, host = taken(store, (image, number)), taken(bare, (image, 0))
        assert torch.equal(found.images, host.images) and torch.equal(found.sizes, host.sizes)
        row, kind = torch.tensor([SOME.index(image)]), torch.tensor([number - FIRST])
        assert torch.equal(found.labels, regions.label(row, kind, *host.labels.shape[1:]))
        assert torch.equal(found.anchors, regions.anchors(row, kind))
        x, y = found.anchors[0].long().unbind(-1)
        assert (found.labels[0, y, x] == 1).all()
        if longest is None:
            height, width = list(VARIED.values())[image]
            assert np.array_equal(found.images[0, :, :height, :width].permute(1, 2, 0), pool.image(image))


@BOTH
def test_a_mixed_plan_is_answered_in_its_own_order(pool, resident):
    store, _, _ = opened(pool, resident)
    alone = {pair: taken(store, pair) for pair in (*labelled_pairs(pool), *store.pairs)}
    asked = plans_of(list(alone))
    assert any(len({number >= FIRST for _, number in plan}) == 2 for plan in asked)
    for plan, found in zip(asked, store.stream(asked), strict=True):
        assert len(found.images) == len(plan)
        for place, pair in enumerate(plan):
            assert same(picture(found, place), alone[pair])


def test_latent_pairs_are_the_same_read_ahead_or_from_memory(pool):
    (resident, _, _), (streaming, _, _) = (opened(pool, kind) for kind in (True, False))
    assert resident.pairs == streaming.pairs
    asked = plans_of([*labelled_pairs(pool), *resident.pairs])
    for one, other in zip(resident.stream(asked), streaming.stream(asked), strict=True):
        assert same(one, other)


def test_a_stream_that_is_closed_early_leaves_no_thread_behind(pool):
    store, _, _ = opened(pool, False)
    before = set(threading.enumerate())
    stream = store.stream([[pair] for pair in store.pairs * 20])
    assert len(list(islice(stream, 2))) == 2
    assert set(threading.enumerate()) > before
    stream.close()
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("together", [1, 4, 1000])
def test_anchors_do_not_depend_on_how_many_are_found_together(pool, together, monkeypatch):
    expected, _, _ = opened(pool)
    monkeypatch.setattr(latent, "_TOGETHER", together)
    found, _, _ = opened(pool)
    assert same(taken(found, *found.pairs), taken(expected, *expected.pairs))


def test_regions_that_are_too_small_or_too_large_are_no_pairs(pool):
    """Of 100 cells that fill a square image, one more or less than the limits."""
    pairs = labelled_pairs(pool)
    bare = open_store(pool, pool.index(), pairs, CPU, resident=True)
    least, most = round(100 * SMALLEST), round(100 * LARGEST)
    maps = np.zeros((2, 100))
    for row, counts in enumerate([(least - 1, least + 1, most - 1), (most + 1, least + 1, least - 1)]):
        maps[row, : sum(counts)] = np.repeat([1, 2, 3], counts)
    regions = regions_of(maps.reshape(2, 10, 10), [6.4, 3.3], [VARIED["f"], VARIED["c"]], [5, 2])
    assert LatentStore(bare, regions, pairs, FIRST).pairs == [(5, FIRST + 1), (5, FIRST + 2), (2, FIRST + 1)]


def test_a_region_between_the_pixels_of_an_enlarged_image_is_no_pair(pool):
    """Of an image of 4 x 4 pixels and 40 x 40 cells, kind 2 lies where no pixel looks."""
    pairs = labelled_pairs(pool)
    maps = np.zeros((1, 40, 40))
    maps[0, :12, :12] = 1
    maps[0, 13:18, :40] = 2
    regions = regions_of(maps, [0.1], [(4, 4)], [5], count=2)
    both = torch.tensor([0, 0]), torch.tensor([0, 1])
    assert (regions.shares > SMALLEST).all()
    assert regions.shown(*both).tolist() == (regions.label(*both, 4, 4) == 1).flatten(1).any(1).tolist() == [True, False]
    bare = open_store(pool, pool.index(), pairs, CPU, resident=True)
    assert LatentStore(bare, regions, pairs, FIRST).pairs == [(5, FIRST)]


@pytest.mark.parametrize("count", [0, KINDS])
@pytest.mark.parametrize("value", [0, UNDECIDED])
def test_where_no_region_is_worth_an_episode_there_are_no_pairs_and_labelled_ones_still_come_through(pool, count, value):
    _, regions, bare = opened(pool)
    none = replace(regions, maps=torch.full_like(regions.maps, value), count=count)
    store = LatentStore(bare, none, labelled_pairs(pool), FIRST)
    assert store.pairs == []
    assert same(taken(store, (3, 0), (1, 1)), taken(bare, (3, 0), (1, 1)))


HELD = {0: 24, 1: 10, 2: 9, 3: 0, 4: 11}  # kind of region -> images that have it


def crowd(shots=1, seed=0, fold=1, resident=True):
    """Twenty-four images of four classes, most with regions: a dataset, its sampler and the store of both."""
    dataset = albums(album(6))
    values = dataset.pool("train").values
    random = np.random.default_rng(0)
    maps = np.zeros((24, 17, 17))
    for kind, count in HELD.items():
        for image in random.choice(24, count, replace=False):
            top, left = 4 * (kind % 2), 3 * (kind // 2)
            maps[image, top : top + 4, left : left + 3] = kind + 1  # within the lowest and the narrowest image
    sizes = [value.shape for value in values]
    regions = regions_of(maps, [4 * max(size) / INPUT for size in sizes], sizes, count=len(HELD))
    pool = dataset.pool("train")
    index = pool.index()
    sampler = Sampler(dataset, index, fold, "train", shots, seed, "shuffled")
    pairs = labelled_pairs(pool)
    store = LatentStore(open_store(pool, index, pairs, CPU, resident=resident), regions, pairs, len(NAMES))
    return dataset, sampler, store


@pytest.mark.parametrize("fold", [0, 1])
def test_latent_episodes_are_of_the_kinds_that_enough_images_have_each_as_often_as_the_others(fold):
    dataset, labelled, store = crowd(fold=fold)
    assert Counter(number - len(NAMES) for _, number in store.pairs) == Counter(HELD)
    sampler = latent_sampler(labelled, dataset, fold, store, len(HELD), seed=0)
    common = {len(NAMES) + kind for kind, count in HELD.items() if count >= 10}
    assert len(common) == 3
    found = [sampler(number) for number in range(300)]
    assert all({draw.category for draw in found[lap : lap + 3]} == common for lap in range(0, 300, 3))
    for category in common:
        used = Counter(draw.query for draw in found if draw.category == category)
        assert set(used) == {image for image, number in store.pairs if number == category}


@pytest.mark.parametrize("shots", [1, 2, 5])
def test_latent_episodes_have_as_many_other_images_of_the_kind_as_labelled_ones(shots):
    dataset, labelled, store = crowd(shots)
    sampler = latent_sampler(labelled, dataset, 1, store, len(HELD), seed=0)
    for draw in map(sampler, range(100)):
        assert len({draw.query, *draw.supports}) == 1 + shots == 1 + len(draw.supports)
        assert all((image, draw.category) in store.pairs for image in (draw.query, *draw.supports))


def test_a_kind_that_gives_no_episode_of_so_many_shots_is_not_drawn():
    dataset, labelled, store = crowd(4)
    labelled.shots = 10
    sampler = latent_sampler(labelled, dataset, 1, store, len(HELD), seed=0)
    assert {draw.category - len(NAMES) for draw in map(sampler, range(50))} == {0, 4}  # not the one of ten images


def test_where_no_kind_is_in_enough_images_there_are_no_latent_episodes():
    dataset, labelled, store = crowd()
    store.pairs = [(image, number) for image, number in store.pairs if image < 8]
    assert latent_sampler(labelled, dataset, 1, store, len(HELD), seed=0) is None
    store.pairs = []
    assert latent_sampler(labelled, dataset, 1, store, len(HELD), seed=0) is None


def test_latent_episodes_are_a_function_of_the_seed_and_their_number():
    dataset, labelled, store = crowd()
    one, again, other = (latent_sampler(labelled, dataset, 1, store, len(HELD), seed) for seed in (0, 0, 1))
    expected = [one(number) for number in range(60)]
    assert [again(number) for number in reversed(range(60))][::-1] == expected
    assert [other(number) for number in range(60)] != expected


def test_latent_classes_are_named_behind_the_others():
    assert latent_names(albums(), 3) == (*NAMES, "latent-00", "latent-01", "latent-02")


def mixed(share, **options):
    dataset, labelled, store = crowd(**options)
    hidden = latent_sampler(labelled, dataset, 1, store, len(HELD), seed=options.get("seed", 0))
    return MixedSampler(labelled, hidden, share), labelled, hidden, store


@pytest.mark.parametrize("share", [0.1, 0.3, 0.75])
def test_a_mixture_has_about_the_share_of_latent_episodes_that_was_asked_for(share):
    sampler, labelled, hidden, _ = mixed(share)
    found = [sampler(number) for number in range(2000)]
    chosen = [draw.category >= len(NAMES) for draw in found]
    assert abs(sum(chosen) - 2000 * share) < 4 * (2000 * share * (1 - share)) ** 0.5
    assert found == [(hidden if is_latent else labelled)(number) for number, is_latent in enumerate(chosen)]
    quarters = [sum(chosen[start : start + 500]) for start in range(0, 2000, 500)]
    assert min(quarters) > 0.6 * 500 * share  # at all times


def test_a_mixture_is_a_function_of_the_number_alone():
    numbers = np.random.default_rng(0).permutation(300).tolist()
    one, other = mixed(0.4)[0], mixed(0.4)[0]
    expected = {number: one(number) for number in range(300)}
    assert all(other(number) == expected[number] for number in numbers)
    seeded = mixed(0.4, seed=1)[0]
    assert [seeded(number).category >= len(NAMES) for number in range(300)] != [
        draw.category >= len(NAMES) for draw in expected.values()
    ]


def test_a_larger_share_keeps_the_latent_episodes_of_a_smaller_one():
    few, many = ({n for n in range(500) if mixture(n).category >= len(NAMES)} for mixture in (mixed(0.2)[0], mixed(0.5)[0]))
    assert few < many


def test_a_share_of_nothing_gives_labelled_episodes_alone_and_of_everything_latent_ones():
    none, labelled, hidden, _ = mixed(0.0)
    assert [none(number) for number in range(200)] == [labelled(number) for number in range(200)]
    assert {none(number).category for number in range(200)} == set(albums().fold(1).train)
    everything = mixed(1.0)[0]
    assert [everything(number) for number in range(200)] == [hidden(number) for number in range(200)]


def test_a_mixture_has_the_key_and_the_images_of_the_labelled_episodes():
    sampler, labelled, _, _ = mixed(0.5, shots=2)
    assert (sampler.key, sampler.images) == (labelled.key, labelled.images)


@pytest.mark.parametrize("scale", [(0.9, 1.1), (0.3, 0.5), (2.0, 4.0)])
def test_every_image_of_a_latent_episode_shows_some_of_its_region_whatever_is_cut_away(scale):
    changes = AugmentationConfig(size=24, scale=scale, rotation=90.0)
    made = []
    for resident in (True, False):
        sampler, _, _, store = mixed(0.5, shots=2, resident=resident)
        config = TrainingConfig(batch=60, shots=2, augmentation=changes)
        made.append(next(TrainingEpisodes(store, sampler, config, CPU).steps([1])))
    one, other = made
    assert len({draw.category for draw in one.draws}) == 5  # two labelled classes, three latent ones
    assert (one.labels == 1).flatten(1).any(1).all()
    assert one.draws == other.draws
    assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)
