import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from miniature import VARIED, box, picture, varied_folder, write

from cyctr.config import AugmentationConfig, TrainingConfig
from cyctr.datasets.own_folder import open_folder
from cyctr.episodes.augmentation import FILL, blur
from cyctr.episodes.image_store import Pictures, open_store
from cyctr.episodes.sampler import Sampler
from cyctr.episodes.training_batches import TrainingEpisodes, augment
from cyctr.errors import ConfigError, DataError
from cyctr.types import Episode

CPU = torch.device("cpu")
STEMS = tuple(VARIED)
STILL = AugmentationConfig(size=16, scale=(1.0, 1.0), rotation=0.0, blur=0.0, flip=0.0)
WILD = AugmentationConfig(size=24, scale=(0.6, 1.5), rotation=90.0)
SIX = {1: 12, 2: 18, 3: 24}  # batches in which turns of K + 1 make six groups


@pytest.fixture
def dataset(tmp_path):
    return open_folder(varied_folder(tmp_path / "data"))


def training(dataset, shots=1, rotate=False, batch=6, augmentation=WILD, seed=0, resident=True, **sampling):
    """Six groups a step, unless the batch says otherwise."""
    config = TrainingConfig(batch=batch, shots=shots, rotate=rotate, augmentation=augmentation)
    pool = dataset.pool("test")
    index = pool.index()
    sampler = Sampler(dataset, index, shots=shots, seed=seed, **sampling)
    store = open_store(pool, index, sampler.pairs, CPU, augmentation.longest, resident, workers=2)
    return TrainingEpisodes(store, sampler, config, CPU)


def six(dataset, shots, rotate, **options):
    return training(dataset, shots, rotate, SIX[shots] if rotate else 6, **options)


def assert_same(one, other):
    assert one.draws == other.draws
    assert one.rotated == other.rotated
    for name in ("images", "labels", "roles", "seeds"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def joined(parts):
    """Several parts as one: the roles of each count from where its images begin."""
    starts = np.cumsum([0, *(len(part.images) for part in parts)])[:-1].tolist()
    return replace(
        parts[0],
        draws=tuple(draw for part in parts for draw in part.draws),
        images=torch.cat([part.images for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        roles=torch.cat([part.roles + start for part, start in zip(parts, starts, strict=True)]),
        seeds=torch.cat([part.seeds for part in parts]),
    )


KINDS = pytest.mark.parametrize(("shots", "rotate"), [(1, False), (1, True), (2, False), (2, True)])


@KINDS
def test_what_a_step_sees_does_not_depend_on_the_steps_before_it(dataset, shots, rotate):
    whole = list(six(dataset, shots, rotate).steps(range(5)))
    source = six(dataset, shots, rotate)
    for start in (3, 1, 4):
        for found, expected in zip(source.steps(range(start, 5)), whole[start:], strict=True):
            assert_same(found, expected)
    for found, step in zip(source.steps([4, 0, 0]), [4, 0, 0], strict=True):
        assert_same(found, whole[step])


@KINDS
@pytest.mark.parametrize(("processes", "pieces"), [(2, 1), (6, 1), (1, 3), (2, 3), (3, 2)])
def test_processes_and_pieces_make_the_whole_step(dataset, shots, rotate, processes, pieces):
    source = six(dataset, shots, rotate)
    steps = [2, 3, 7]
    parts = [list(source.steps(steps, (rank, processes), pieces)) for rank in range(processes)]
    for place, whole in enumerate(source.steps(steps)):
        own = [piece for part in parts for piece in part[place * pieces : (place + 1) * pieces]]
        assert len(own) == processes * pieces and len({len(piece.images) for piece in own}) == 1
        assert_same(joined(own), whole)


@KINDS
def test_the_episodes_are_the_same_read_ahead_or_from_memory(dataset, shots, rotate):
    sources = (six(dataset, shots, rotate, resident=resident).steps(range(4), pieces=2) for resident in (True, False))
    for one, other in zip(*sources, strict=True):
        assert_same(one, other)


def test_a_step_is_the_same_in_threads(dataset):
    source = training(dataset)
    expected = list(source.steps(range(16)))
    with ThreadPoolExecutor(4) as workers:
        for found, step in zip(workers.map(lambda step: next(source.steps([step])), range(16)), expected, strict=True):
            assert_same(found, step)


@KINDS
def test_groups_are_drawn_one_after_the_other(dataset, shots, rotate):
    source = six(dataset, shots, rotate)
    drawn = [draw for groups in source.steps(range(3), pieces=2) for draw in groups.draws]
    assert drawn == [source.sampler(number) for number in range(18)]


@pytest.mark.parametrize("shots", [1, 2, 3])
def test_in_turns_every_image_of_a_group_is_the_query_once_and_the_others_its_supports(dataset, shots):
    (groups,) = six(dataset, shots, True).steps([1])
    images = shots + 1
    assert groups.roles.shape == (6 * images, images) and groups.seeds.shape == (6 * images,)
    assert groups.rotated and groups.roles[:, 0].tolist() == list(range(6 * images))
    for episode, roles in enumerate(groups.roles.tolist()):
        group = episode // images
        assert sorted(roles) == list(range(group * images, (group + 1) * images))


@pytest.mark.parametrize("shots", [1, 2, 3])
def test_without_turns_the_drawn_query_is_the_only_one(dataset, shots):
    (groups,) = six(dataset, shots, False).steps([1])
    images = shots + 1
    assert groups.roles.tolist() == [list(range(group * images, (group + 1) * images)) for group in range(6)]
    assert groups.seeds.shape == (6,) and not groups.rotated


@KINDS
def test_an_episode_has_the_images_and_labels_of_its_roles(dataset, shots, rotate):
    (groups,) = six(dataset, shots, rotate).steps([2])
    given = groups.episode
    for episode, (query, *supports) in enumerate(groups.roles.tolist()):
        assert torch.equal(given.query_images[episode], groups.images[query])
        assert torch.equal(given.query_labels[episode], groups.labels[query])
        for shot, support in enumerate(supports):
            assert torch.equal(given.support_images[episode, shot], groups.images[support])
            assert torch.equal(given.support_labels[episode, shot], groups.labels[support])


@KINDS
def test_training_episodes_pass_the_checks_that_trusted_ones_skip(dataset, shots, rotate):
    (groups,) = six(dataset, shots, rotate).steps([0])
    count = len(groups.roles)
    given = groups.episode
    assert given.support_images.shape == (count, shots, 3, 24, 24) and given.query_labels.shape == (count, 24, 24)
    assert given.query_images.dtype == given.support_labels.dtype == torch.uint8
    checked = Episode(given.support_images, given.support_labels, given.query_images, given.query_labels)
    assert checked.shots == shots


@KINDS
def test_every_episode_of_a_schedule_samples_tokens_of_its_own(dataset, shots, rotate):
    source = six(dataset, shots, rotate)
    seeds = [seed for groups in source.steps(range(5)) for seed in groups.seeds.tolist()]
    assert len(set(seeds)) == len(seeds) == 5 * (SIX[shots] if rotate else 6)
    others = six(dataset, shots, rotate, seed=1)
    assert not set(seeds) & {seed for groups in others.steps(range(5)) for seed in groups.seeds.tolist()}


@pytest.mark.parametrize(
    ("options", "share", "pieces", "message"),
    [
        ({}, (0, 4), 1, "a step has 6 groups of 2 images, which 4 processes times 1 accumulated part do not share equally"),
        ({}, (0, 1), 5, "6 groups of 2 images, which 1 process times 5 accumulated parts"),
        ({"shots": 2}, (1, 2), 2, "6 groups of 3 images, which 2 processes times 2 accumulated parts"),
        ({"rotate": True}, (0, 2), 1, "3 groups of 2 images, which 2 processes times 1 accumulated part"),
        ({"batch": 1}, (0, 2), 1, r"1 groups of 2 images, .*; change training\.batch"),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused_before_anything_is_read(dataset, options, share, pieces, message, reads):
    source = training(dataset, **options, resident=False)
    reads.clear()
    with pytest.raises(ConfigError, match=message):
        source.steps([], share, pieces)
    assert reads == []


def test_a_damaged_mask_stops_the_steps_with_its_own_message(dataset):
    source = training(dataset, resident=False)
    write(dataset.pool("test").root / "masks" / "a.png", np.zeros(VARIED["a"]))
    with pytest.raises(DataError, match="a: marks no pixel of its class any more; was its mask changed"):
        list(source.steps(range(5)))


def test_steps_that_nobody_waits_for_leave_no_thread_behind(dataset):
    threads = set(threading.enumerate())
    steps = training(dataset, resident=False).steps(range(100_000))
    assert len(list(islice(steps, 2))) == 2
    assert set(threading.enumerate()) > threads
    steps.close()
    assert set(threading.enumerate()) == threads


def test_fewer_shots_are_the_first_of_more_in_training(dataset):
    (few,), (many,) = (training(dataset, shots).steps([3]) for shots in (1, 4))
    for one, other in zip(few.draws, many.draws, strict=True):
        assert (one.query, one.category, one.supports) == (other.query, other.category, other.supports[:1])


def queries(groups):
    return groups.images[groups.roles[:, 0]]


def test_pixels_are_moved_in_one_piece_of_compiled_code_as_by_plain_code(dataset, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, fullgraph=True, backend="aot_eager"))
    plain, compiled = (six(dataset, 1, True) for _ in range(2))
    compiled.compile()
    one, other = (next(episodes.steps([3])) for episodes in (plain, compiled))
    assert (one.images.int() - other.images.int()).abs().max() <= 1
    assert (one.labels != other.labels).float().mean() < 1e-4
    assert torch.equal(one.roles, other.roles) and torch.equal(one.seeds, other.seeds)


def test_another_seed_gives_other_crops(dataset):
    """Even of the same image: the queries walk the list under every seed."""
    (one,), (other,) = (training(dataset, batch=9, seed=seed).steps([0]) for seed in (0, 1))
    assert [draw.query for draw in one.draws] == [draw.query for draw in other.draws]
    assert all(not torch.equal(a, b) for a, b in zip(queries(one), queries(other), strict=True))


def test_the_second_time_round_an_image_is_changed_in_another_way(dataset):
    rounds = [queries(groups) for groups in training(dataset, batch=len(STEMS)).steps(range(3))]
    for i in range(len(STEMS)):
        assert len({made[i].numpy().tobytes() for made in rounds}) == 3


def test_query_and_supports_are_changed_each_in_their_own_way(dataset):
    root = dataset.pool("test").root
    for stem in STEMS:  # the same picture everywhere
        picture(root / "images" / f"{stem}.png", (64, 64), seed=5)
        write(root / "masks" / f"{stem}.png", box((10, 10, 50, 50), 1, (64, 64)) + box((50, 10, 60, 50), 2, (64, 64)))
    (groups,) = training(open_folder(root), 3).steps([0])
    assert len({image.numpy().tobytes() for image in groups.images}) == 6 * 4


@pytest.mark.parametrize("longest", [None, 20])
@pytest.mark.parametrize("scale", [(0.9, 1.1), (0.25, 0.5), (2.0, 4.0)])
def test_every_support_and_query_keeps_some_foreground_however_small_the_object(dataset, scale, longest):
    root = dataset.pool("test").root
    for number, (stem, size) in enumerate(VARIED.items()):
        values = np.zeros(size, np.uint8)
        values[number, 2 * number] = 1
        values[-1 - number, -1] = 2
        write(root / "masks" / f"{stem}.png", values)
    changes = AugmentationConfig(size=16, scale=scale, rotation=90.0, longest=longest)
    (groups,) = training(open_folder(root), 2, batch=60, augmentation=changes).steps([0])
    assert (groups.labels == 1).flatten(1).any(-1).all()


def place_of(crop, image):
    """The one (top, left) at which a crop is a piece of an image."""
    size = crop.shape[-1]
    windows = image.unfold(1, size, 1).unfold(2, size, 1)  # (3, tops, lefts, S, S)
    ((top, left),) = (windows == crop[:, None, None]).all(-1).all(-1).all(0).nonzero().tolist()
    return top, left


@pytest.mark.parametrize("rotate", [False, True])
def test_without_chance_a_crop_is_a_piece_of_the_file_with_its_mask(dataset, rotate):
    pool = dataset.pool("test")
    (groups,) = six(dataset, 2, rotate, augmentation=STILL).steps([0])
    pairs = [(i, draw.category) for draw in groups.draws for i in (draw.query, *draw.supports)]
    places = []
    for crop, marks, (i, category) in zip(groups.images, groups.labels, pairs, strict=True):
        top, left = place_of(crop, torch.from_numpy(pool.image(i)).permute(2, 0, 1))
        label = torch.from_numpy(pool.label(i, category))
        assert torch.equal(label[top : top + 16, left : left + 16], marks)
        assert (marks == 1).any()
        places.append((top, left))
    assert len(set(places)) > 10


def test_large_images_are_made_smaller_first(dataset):
    changes = replace(STILL, size=32, longest=20)
    (groups,) = training(dataset, batch=9, augmentation=changes).steps([0])
    for stem, label in zip(STEMS, groups.labels[groups.roles[:, 0]], strict=True):
        seen = (label != 255).nonzero()
        height, width = (seen.amax(0) - seen.amin(0) + 1).tolist()
        full = VARIED[stem]
        assert height == round(full[0] * 20 / max(full))
        assert abs(width - round(full[1] * 20 / max(full))) <= 1  # the border that nobody decided


def taken(source):
    """Pictures of all pairs of a source, and seeds for them."""
    (found,) = source.store.stream([source.sampler.pairs])
    return found, torch.arange(len(found.images)) + 1000


def test_what_happens_to_a_picture_is_a_function_of_its_own_seed(dataset):
    found, seeds = taken(training(dataset))
    images, labels, _ = augment(found, WILD, seeds)
    order = torch.randperm(len(seeds))
    shuffled = Pictures(found.images[order], found.labels[order], found.sizes[order], found.anchors[order])
    again = augment(shuffled, WILD, seeds[order])
    assert torch.equal(again[0], images[order]) and torch.equal(again[1], labels[order])
    other = augment(found, WILD, seeds + 1)[0]
    assert all(not torch.equal(a, b) for a, b in zip(images, other, strict=True))


def same_picture(image, label, anchors, count):
    """A picture `count` times."""
    parts = (image, label, torch.tensor(label.shape), anchors.double())
    return Pictures(*(part.expand(count, *part.shape) for part in parts))


def test_every_part_of_an_object_is_at_some_time_what_a_crop_is_laid_around():
    """Four spots in the corners, too far apart for two of them in one crop."""
    places = torch.tensor([(2, 2), (2, 90), (70, 5), (75, 93)])
    label = torch.zeros(80, 100, dtype=torch.uint8)
    label[places[:, 0], places[:, 1]] = 1
    made = same_picture(torch.zeros(3, 80, 100, dtype=torch.uint8), label, places.flip(-1) + 0.5, 400)
    _, labels, _ = augment(made, STILL, torch.arange(400))
    assert ((labels == 1).flatten(1).sum(1) == 1).all()
    rows, columns = (labels == 1).nonzero()[:, 1:].unbind(-1)
    left_or_top = torch.stack([rows < 8, columns < 8], -1).tolist()
    shares = [left_or_top.count([top, left]) / 400 for top in (True, False) for left in (True, False)]
    assert min(shares) > 0.15


def test_blur_changes_the_image_and_not_the_mask(dataset):
    found, seeds = taken(training(dataset))
    sharp, marks, _ = augment(found, STILL, seeds)
    soft, same, _ = augment(found, replace(STILL, blur=1.0), seeds)
    assert torch.equal(marks, same)
    assert torch.equal(soft, blur(sharp))
    assert soft.float().std() < 0.6 * sharp.float().std()


@pytest.mark.parametrize("share", [0.2, 0.7])
def test_so_many_images_are_blurred_as_the_config_says_and_the_others_not_at_all(share):
    image = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8)
    made = same_picture(image, torch.ones(16, 16, dtype=torch.uint8), torch.full((1, 2), 8.5), 500)
    images, _, _ = augment(made, replace(STILL, blur=share), torch.arange(500))
    soft = (images == blur(image[None])).flatten(1).all(1)
    sharp = (images == image).flatten(1).all(1)
    assert torch.equal(soft, ~sharp)
    assert abs(soft.float().mean() - share) < 0.08


def test_what_lies_beyond_an_image_on_its_canvas_is_never_seen(dataset):
    """The mean colour, not the black of the canvas, fills a crop that is larger than the image."""
    found, seeds = taken(training(dataset))
    images, labels, padding = augment(found, replace(STILL, size=90), seeds)
    beyond = torch.ones(len(images), 90, 90, dtype=torch.bool)
    for place, (height, width) in enumerate(found.sizes.tolist()):
        seen = (images[place] != torch.tensor(FILL).view(3, 1, 1)).any(0).nonzero()
        (top, left), (bottom, right) = seen.amin(0).tolist(), (seen.amax(0) + 1).tolist()
        assert (bottom - top, right - left) == (height, width)
        beyond[place, top:bottom, left:right] = False
    assert (labels[beyond] == 255).all()
    assert padding.equal(beyond)


def test_padding_turns_with_the_image_and_borders_that_nobody_decided_are_none(dataset):
    found, seeds = taken(training(dataset))
    found = replace(found, labels=torch.full_like(found.labels, 255))  # undecided everywhere
    _, labels, padding = augment(found, replace(STILL, size=90, rotation=40.0), seeds)
    assert (labels == 255).all() and padding.any() and not padding.all()
    turned = padding.flatten(1).sum(1)
    _, _, upright = augment(found, replace(STILL, size=90), seeds)
    sides = found.sizes.prod(1)
    assert ((90 * 90 - turned - sides).abs() < 0.02 * sides).all() and (90 * 90 - upright.flatten(1).sum(1) == sides).all()
