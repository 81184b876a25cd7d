import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from learning import (
    CPU,
    QUIET,
    SIZE,
    SMALL,
    begun,
    changed,
    go,
    prepared,
    resumed,
    same_bits,
    state_of,
    textures,
    timeless,
    trained,
)
from measuring import Album

from cyctr.backbones.backbone import Backbone
from cyctr.checkpoint import load_checkpoint
from cyctr.config import AugmentationConfig, BackboneConfig
from cyctr.datasets.synthetic_pool import SyntheticPool, open_synthetic
from cyctr.episodes.image_store import ResidentStore, StreamingStore, open_store
from cyctr.episodes.latent import UNDECIDED
from cyctr.images.geometry import planes
from cyctr.training import find_latent as latent
from cyctr.training import latent_classes as train
from cyctr.training import loop as session
from cyctr.training.find_latent import group, mine
from cyctr.training.run_folder import LAST

INPUT, CELL = 129, 4  # pixels of the network's input, and from one cell of a map to the next
SQUARE = [(INPUT, INPUT)] * 6
VARIED = [(129, 129), (100, 140), (150, 90), (61, 70), (205, 262), (129, 97), (97, 131)]


def bundles(count, each=30, channels=12, spread=0.03):
    """(count * each, C) vectors of unit length around `count` directions that are at right angles, in turn."""
    directions = torch.linalg.qr(torch.randn(channels, channels)).Q[:count]
    return F.normalize(directions.repeat(each, 1) + spread * torch.randn(count * each, channels), dim=1)


def nearest(vectors, centres):
    return (vectors @ centres.T).argmax(1)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_obvious_groups_are_found(count):
    """With more centres than bundles, so that none goes without: no centre stands for two of them."""
    vectors = bundles(count)
    found = nearest(vectors, group(vectors, 4 * count)).view(-1, count)
    owners = [set(found[:, bundle].tolist()) for bundle in range(count)]
    assert sum(map(len, owners)) == len(set.union(*owners))


def test_two_obvious_groups_have_their_means_as_centres():
    vectors = bundles(2)
    centres = group(vectors, 2)
    means = F.normalize(torch.stack([vectors[0::2].mean(0), vectors[1::2].mean(0)]), dim=1)
    order = nearest(means, centres)
    assert sorted(order.tolist()) == [0, 1]
    torch.testing.assert_close(centres[order], means)


def test_every_centre_is_of_unit_length_and_the_mean_direction_of_the_vectors_nearest_to_it():
    vectors = bundles(4)
    centres = group(vectors, 7)
    assert centres.shape == (7, 12)
    torch.testing.assert_close(centres.norm(dim=1), torch.ones(7))
    found = nearest(vectors, centres)
    for number, centre in enumerate(centres):
        own = vectors[found == number]
        assert len(own)
        torch.testing.assert_close(centre, F.normalize(own.sum(0), dim=0))


def test_the_groups_are_the_same_each_time_whatever_was_drawn_before():
    vectors = F.normalize(torch.randn(200, 8), dim=1)
    first = group(vectors, 6)
    torch.manual_seed(99)
    assert torch.equal(group(vectors.clone(), 6), first)


def test_fewer_vectors_than_groups_are_each_a_group():
    vectors = F.normalize(torch.randn(3, 8), dim=1)
    centres = group(vectors, 5)
    assert centres.shape == (3, 8)
    assert sorted(nearest(vectors, centres).tolist()) == [0, 1, 2]
    torch.testing.assert_close((vectors @ centres.T).amax(1), torch.ones(3))


def test_a_group_that_nobody_is_in_keeps_its_centre():
    """All vectors are equal, so the first centre has all of them."""
    vector = F.normalize(torch.randn(8), dim=0)
    centres = group(vector.repeat(20, 1), 4)
    torch.testing.assert_close(centres, vector.expand(4, 8))


MIRRORED = (1, 4)


class Scenes(Album):
    """Fine stripes on the left, coarse checks on the right, or the other way round; what is marked is noise."""

    def image(self, i):
        height, width = self.values[i].shape
        scale = max(height, width) / INPUT
        y, x = np.mgrid[0:height, 0:width] / scale
        striped = (x < width / scale / 2) != (i in MIRRORED)
        light = np.where(striped, np.where(x % 4 < 2, 220, 30), np.where((x // 6 + y // 6) % 2, 180, 90))
        image = light[..., None] + np.random.default_rng(i).normal(0, 5, (height, width, 3))
        marked = self.values[i] != 0
        image[marked] = np.random.default_rng(i).integers(0, 256, (int(marked.sum()), 3))
        return image.clip(0, 255).astype(np.uint8)


def scenes(sizes):
    """An object in every image, one of another class beside it in every second, undecided pixels in both and below."""
    values = []
    for i, (height, width) in enumerate(sizes):
        value = np.zeros((height, width), np.uint8)
        value[height // 8 : height // 3, width // 6 : width // 2] = 1
        if i % 2:
            value[height // 3 : height * 3 // 4, width // 3 : width * 4 // 5] = 2
        value[height // 5 : height // 4] = 255
        value[height - height // 10 :] = 255
        values.append(value)
    return Scenes(values)


def pairs_of(pool):
    index = pool.index()
    return list(zip(index.image.tolist(), index.number.tolist(), strict=True))


@pytest.fixture(scope="module")
def backbone():
    return Backbone(BackboneConfig("tiny"))


def mined(pool, backbone, count=4, unsure=0.0, images=None, resident=True, pairs=None, progress=None, size=INPUT):
    store = open_store(pool, pool.index(), pairs_of(pool), CPU, resident=resident, workers=2)
    images = list(range(len(pool.keys))) if images is None else images
    return mine(store, pairs or pairs_of(pool), images, backbone, count, size, unsure, progress)


def in_regions(maps):
    return (maps != 0) & (maps != UNDECIDED)


def agree(cells, values):
    """Whether a map says what its values do: regions where they are 0, none where they name a class, else undecided."""
    labelled = (values > 0) & (values < 255)
    return np.array_equal(in_regions(cells), values == 0) and np.array_equal(cells == 0, labelled)


def under_cells(values):
    """(s, s) the value of the pixel under each cell, -1 beyond the image; and where rounding does not choose the pixel."""
    ratio = max(values.shape) / INPUT
    places = (np.arange(0, INPUT, CELL) + 0.5) * ratio
    padded = np.full((max(values.shape) + 1,) * 2, -1)
    padded[: values.shape[0], : values.shape[1]] = values
    clear = np.abs(places - places.round()) > 1e-3
    return padded[places.astype(int)][:, places.astype(int)], clear[:, None] & clear


def test_regions_are_all_that_is_not_labelled_and_undecided_is_what_the_labels_leave_so_or_beyond_the_image(backbone):
    pool = scenes(VARIED)
    regions = mined(pool, backbone)
    assert regions.maps.shape == (7, 33, 33) and regions.maps.dtype == torch.uint8
    assert set(regions.maps.unique().tolist()) <= {*range(regions.count + 1), UNDECIDED} and regions.count == 4
    assert regions.images == list(range(7))
    assert regions.sizes.tolist() == [list(size) for size in VARIED]
    torch.testing.assert_close(regions.steps, torch.tensor([CELL * max(s) / INPUT for s in VARIED], dtype=torch.float64))
    for values, cells in zip(pool.values, regions.maps.numpy(), strict=True):
        expected, clear = under_cells(values)
        assert set(np.unique(expected)) >= {0, 1, 255} and clear.mean() > 0.8
        assert agree(cells[clear], expected[clear])


def test_a_label_of_a_region_marks_neither_labelled_nor_undecided_pixels_but_for_half_a_step_around_them(backbone):
    pool = scenes(VARIED)
    regions = mined(pool, backbone)
    for row, values in enumerate(pool.values):
        height, width = values.shape
        every = torch.full((regions.count,), row)
        labels = regions.label(every, torch.arange(regions.count), height, width)
        reach = math.ceil(float(regions.steps[row]) / 2) + 1

        def amid(wanted, reach=reach):
            """Where all pixels around are of what is wanted."""
            others = torch.from_numpy((~wanted).astype(np.float32))[None]
            return F.max_pool2d(others, 2 * reach + 1, 1, reach)[0] == 0

        free, undecided, unmarked = amid(values == 0), amid(values == 255), amid(values != 0)
        assert free.any() and ((labels == 1).sum(0)[free] == 1).all() and not (labels == 255)[:, free].any()
        assert unmarked.any() and not (labels == 1)[:, unmarked].any()
        assert (labels == 255)[:, undecided].all()
        assert not labels[:, amid((values == 1) | (values == 2))].any()


def test_what_is_labelled_with_a_class_that_is_not_among_the_pairs_is_background(backbone):
    """As for the classes of the test: nobody may know them."""
    pool = scenes(SQUARE)
    known = [(image, number) for image, number in pairs_of(pool) if number == 0]
    regions = mined(pool, backbone, pairs=known)
    for values, cells in zip(pool.values, regions.maps.numpy(), strict=True):
        under = values[::CELL, ::CELL]
        assert agree(cells, np.where(under == 2, 0, under))


@pytest.mark.parametrize("count", [2, 5])
def test_two_textures_of_the_background_end_in_different_groups_in_every_image(backbone, count):
    pool = scenes(SQUARE)
    regions = mined(pool, backbone, count)
    assert regions.count == count
    maps = torch.stack([cells.flip(1) if i in MIRRORED else cells for i, cells in enumerate(regions.maps)])
    stripes, checks = (
        torch.bincount(maps[:, 1:28, columns].flatten().long(), minlength=256)[1 : count + 1].double()
        for columns in (slice(0, 4), slice(29, 33))
    )
    shared = torch.minimum(stripes / stripes.sum(), checks / checks.sum()).sum()
    assert shared < (0.2 if count > 2 else 1e-9)  # of more groups one may hold what is like both


@pytest.mark.parametrize("unsure", [0.1, 0.5, 0.9])
def test_so_much_of_the_background_is_undecided_and_the_rest_stays_as_it_is(backbone, unsure):
    pool = scenes(VARIED)
    decided, found = mined(pool, backbone).maps, mined(pool, backbone, unsure=unsure).maps
    background = in_regions(decided)
    given_up = background & (found == UNDECIDED)
    most = int(unsure * background.sum())
    assert 0.98 * most <= given_up.sum() <= most  # of places that are equally sure, all stay
    assert torch.equal(found[~given_up], decided[~given_up])


def test_more_doubt_leaves_more_places_undecided(backbone):
    pool = scenes(VARIED)
    few, some, many = (mined(pool, backbone, unsure=unsure).maps == UNDECIDED for unsure in (0.2, 0.4, 0.6))
    assert (few <= some).all() and (some <= many).all()
    assert few.sum() < some.sum() < many.sum()


def test_what_is_undecided_is_less_sure_than_all_that_is_decided_in_any_image(backbone, monkeypatch):
    """A twin: how much more like its own centre a place is than like any other."""
    pool, centres = scenes(SQUARE), []
    monkeypatch.setattr(latent, "group", lambda *given: centres.append(group(*given)) or centres[0])
    maps = mined(pool, backbone, unsure=0.5).maps
    pixels = torch.stack([planes(pool.image(image)) for image in range(len(SQUARE))])
    cells = F.normalize(backbone(pixels).maps[-1], dim=1)
    alike = torch.stack([(cells * centre[:, None, None]).sum(1) for centre in centres[0]], 1)  # (6, 4, 17, 17)
    alike = backbone.grid.upsample(F.avg_pool2d(alike, 3, 1, 1), (INPUT, INPUT))[..., ::CELL, ::CELL]
    first, second = alike.sort(dim=1, descending=True).values[:, :2].unbind(1)
    margin = first - second
    background = torch.from_numpy(np.stack(pool.values))[:, ::CELL, ::CELL] == 0
    undecided = maps == UNDECIDED
    assert margin[background & undecided].max() <= margin[background & ~undecided].min() + 1e-4
    shares = [float(undecided[image][own].float().mean()) for image, own in enumerate(background)]
    assert max(shares) - min(shares) > 0.02  # of all images together, not of each


def test_a_place_between_two_textures_is_undecided_and_one_amid_a_texture_is_not(backbone, monkeypatch):
    """With a centre in the middle of each, and rows away from the rim, of which features speak beside it."""
    pool = Scenes([np.zeros((INPUT, INPUT), np.uint8) for _ in SQUARE])
    for values in pool.values:
        values[:2, :2] = 1  # an object, so that there is an episode
    cells = F.normalize(backbone(planes(pool.image(0))[None]).maps[-1][0], dim=0)  # (C, 17, 17)
    stripes, checks = (F.normalize(cells[:, 4:-4, columns].mean((1, 2)), dim=0) for columns in (slice(3, 6), slice(11, 14)))
    monkeypatch.setattr(latent, "group", lambda vectors, count: torch.stack([stripes, checks]))
    maps = mined(pool, backbone, count=2, unsure=0.1).maps
    rows = torch.stack([cells.flip(1) if i in MIRRORED else cells for i, cells in enumerate(maps)])[:, 4:-4]
    assert (rows[..., :12] == 1).all() and (rows[..., 22:] == 2).all()
    assert (rows[..., 12:22] == UNDECIDED).any(-1).all()


def test_one_group_alone_leaves_no_doubt(backbone):
    pool = scenes(SQUARE)
    regions = mined(pool, backbone, count=1, unsure=0.9)
    for values, cells in zip(pool.values, regions.maps.numpy(), strict=True):
        assert agree(cells, values[::CELL, ::CELL])


def test_what_is_undecided_is_ignored_in_the_labels_of_every_class_and_has_no_share(backbone):
    pool = scenes(SQUARE)
    sure, regions = mined(pool, backbone), mined(pool, backbone, unsure=0.5)
    rows = torch.arange(len(SQUARE))
    for kind in range(4):
        label = regions.label(rows, torch.full_like(rows, kind), INPUT, INPUT)[:, ::CELL, ::CELL]
        assert torch.equal(label == 255, regions.maps == UNDECIDED)
        assert torch.equal(label == 1, (sure.maps == kind + 1) & (regions.maps != UNDECIDED))
        expected = (label == 1).flatten(1).sum(1) * CELL**2 / INPUT**2
        torch.testing.assert_close(regions.shares[:, kind], expected.double(), rtol=1e-6, atol=0)


def test_what_is_grouped_are_background_cells_that_neither_touch_the_rim_nor_undecided_pixels(backbone, monkeypatch):
    """Two cells from them at least; as many of each image as it has, or a fixed number of different ones."""
    pool, given = scenes(SQUARE), []
    pool.values[2][40:] = 255  # hardly any is left of this one
    monkeypatch.setattr(latent, "group", lambda vectors, count: given.append(vectors) or group(vectors, count))
    mined(pool, backbone)
    (vectors,) = given
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)))
    places = []
    for image, values in enumerate(pool.values):
        high = backbone(planes(pool.image(image))[None]).maps[-1][0]
        cells = values[::8, ::8]
        for row in range(2, 15):
            for column in range(2, 15):
                around = cells[row - 2 : row + 3, column - 2 : column + 3]
                if cells[row, column] == 0 and not (around == 255).any():
                    places.append((image, F.normalize(high[:, row, column], dim=0)))
    distance, found = torch.cdist(vectors, torch.stack([vector for _, vector in places])).min(1)
    assert distance.max() < 1e-2  # a square root of rounding
    assert len(found.unique()) == len(found)
    taken = Counter(places[place][0] for place in found.tolist())
    there = Counter(image for image, _ in places)
    assert taken == {image: min(count, 32) for image, count in there.items()}
    assert min(there.values()) < 32 < max(there.values())


@pytest.mark.parametrize("rest", ["nothing", "rim"])
def test_where_nothing_is_left_to_be_grouped_no_region_is_found(backbone, rest):
    """Of an input of 25 pixels every cell touches the rim."""
    pool = scenes(SQUARE[:2])
    if rest == "nothing":
        for values in pool.values:
            values[values == 0] = 1
    regions = mined(pool, backbone, size=INPUT if rest == "nothing" else 25)
    assert regions.count == 0 and not in_regions(regions.maps).any()


def test_the_regions_are_the_same_read_ahead_or_from_memory_and_each_time(backbone):
    pool = scenes(VARIED)
    one, other, again = (mined(pool, backbone, resident=resident) for resident in (True, False, True))
    for found in (other, again):
        assert found.images == one.images and found.count == one.count
        for name in ("maps", "steps", "sizes"):
            assert torch.equal(getattr(found, name), getattr(one, name))


def test_only_the_images_that_are_named_are_looked_at_in_their_order(backbone):
    pool, chosen = scenes(VARIED), [5, 1, 2]
    regions = mined(pool, backbone, images=chosen)
    assert regions.images == chosen
    assert regions.sizes.tolist() == [list(VARIED[image]) for image in chosen]
    for image, cells in zip(chosen, regions.maps.numpy(), strict=True):
        expected, clear = under_cells(pool.values[image])
        assert agree(cells[clear], expected[clear])


def test_progress_counts_every_image_twice(backbone):
    told = []
    mined(scenes(VARIED), backbone, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (14, 14)
    assert told == sorted(told) and {total for _, total in told} == {14}


LATENT = changed(SMALL, training={"latent_classes": 4, "latent_share": 0.5, "latent_unsure": 0.3, "hold_out": 2})


@pytest.fixture(autouse=True, scope="module")
def _every_step():
    """A line of the metrics for each step, and no curves, which take longer than the runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_LOG_STEPS", 1)
        patch.setattr(session, "draw_curves", lambda records: None)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run with latent classes in one go, and the draws of its steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CYCTR_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        path = tmp_path_factory.mktemp("latent") / "run"
        trainer = begun(path, LATENT)
        drawn, losses = [], trainer.losses
        trainer.losses = lambda groups, tokens: drawn.append(groups) or losses(groups, tokens)
        assert go(trainer) == "finished"
    return path, drawn, trainer.dataset


def test_a_run_in_half_precision_finds_latent_classes_too(tmp_path, monkeypatch):
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "cache"))
    trainer = begun(tmp_path / "run", LATENT, replace(QUIET, half=True))
    assert go(trainer, until=1) == "stopped"


def test_a_run_with_latent_classes_trains_to_its_end(whole):
    path, _, _ = whole
    *steps, last = timeless(path)
    assert [line["step"] for line in steps] == list(range(1, LATENT.training.steps + 1))
    assert all(math.isfinite(line["loss"]) for line in steps)
    assert last["validation"]["split"] == "validation"
    assert load_checkpoint(path / LAST)[1] == LATENT


def test_labelled_episodes_are_of_the_training_classes_and_latent_ones_beside_them(whole):
    _, drawn, dataset = whole
    draws = [draw for groups in drawn for draw in groups.draws]
    assert len(draws) == LATENT.training.episodes
    sides = dataset.fold(0)
    labelled = [draw for draw in draws if draw.category < 8]
    assert {draw.category for draw in labelled} <= set(sides.train)
    assert 0.25 * len(draws) < len(labelled) < 0.75 * len(draws)
    assert {dataset.classes[draw.category] for draw in draws if draw not in labelled} <= {f"latent-0{c}" for c in range(4)}
    assert len({draw.query for draw in draws if draw not in labelled}) > 4
    images = {image for draw in draws for image in (draw.query, *draw.supports)}
    assert {image // 4 for image in images} <= set(sides.train)  # each image shows one class: none of the others is seen


def test_validation_knows_the_held_out_classes_alone(whole):
    path, _, dataset = whole
    held_out = {dataset.classes[number] for number in dataset.fold(0).validation}
    assert len(held_out) == 2
    assert set(timeless(path)[-1]["validation"]["classes"]) <= held_out
    about = json.loads((path / "config.json").read_text())["data"]
    assert set(about["validation"]) == held_out
    assert not any(name.startswith("latent") for side in ("train", "validation", "test") for name in about[side])


def test_every_image_of_an_episode_shows_some_of_its_class(whole):
    _, drawn, _ = whole
    assert all((groups.labels == 1).flatten(1).any(1).all() for groups in drawn)


def test_a_run_with_latent_classes_is_resumed_to_the_same_bits(whole, tmp_path):
    path, _, _ = whole
    go(begun(tmp_path / "parts", LATENT), until=1)
    go(resumed(tmp_path / "parts", LATENT), until=4)
    go(resumed(tmp_path / "parts", LATENT))
    assert same_bits(state_of(tmp_path / "parts"), state_of(path))
    assert timeless(tmp_path / "parts") == timeless(path)


@pytest.fixture
def mining(monkeypatch):
    """How often latent classes are looked for."""
    calls = []
    monkeypatch.setattr(train, "mine", lambda *given: calls.append(given) or mine(*given))
    return calls


def test_a_resumed_run_learns_from_the_regions_that_were_found_first(mining, tmp_path):
    """Even where it would find others now."""
    path = tmp_path / "run"
    go(begun(path, LATENT), until=1)
    assert len(mining) == 1
    (kept,) = path.glob("regions-*.safetensors")
    before = kept.read_bytes()
    trainer = resumed(path, LATENT, replace(QUIET, half=True))
    assert len(mining) == 1
    assert kept.read_bytes() == before
    assert trainer.dataset.classes[-1] == "latent-03"


def test_regions_are_kept_under_another_name_where_a_setting_that_they_depend_on_is_another(tmp_path):
    def name(**settings):
        path = tmp_path / repr(settings)
        go(begun(path, changed(LATENT, training=settings)), until=1)
        (kept,) = path.glob("regions-*.safetensors")
        return kept.name

    usual = name()
    assert name(latent_share=0.4, episodes=16) == usual
    others = [name(latent_unsure=0.0), name(latent_classes=3), name(augmentation=AugmentationConfig(size=81))]
    assert len({usual, *others}) == 4


def test_the_share_that_is_left_undecided_is_the_one_of_the_settings(mining, tmp_path):
    prepared(tmp_path / "run", LATENT)
    *_, unsure, _ = mining[0]
    assert unsure == LATENT.training.latent_unsure > 0


def test_damaged_regions_are_looked_for_anew_on_resuming(whole, mining, tmp_path):
    path = tmp_path / "run"
    go(begun(path, LATENT), until=1)
    (kept,) = path.glob("regions-*.safetensors")
    content = kept.read_bytes()
    kept.write_bytes(content[:100])
    with pytest.warns(UserWarning, match="latent classes are looked for anew"):
        trainer = resumed(path, LATENT)
    assert len(mining) == 2
    assert kept.read_bytes() == content
    go(trainer)
    assert same_bits(state_of(path), state_of(whole[0]))


def test_a_run_that_begins_looks_for_latent_classes_whatever_lies_in_its_folder(mining, tmp_path):
    for _ in range(2):
        begun(tmp_path / "run", LATENT)
    assert len(mining) == 2


def test_looking_for_latent_classes_is_told_apart_from_reading(tmp_path):
    read, looked = [], []
    progress, mining = (lambda done, total, told=told: told.append((done, total)) for told in (read, looked))
    trainer = prepared(tmp_path / "run", LATENT, progress=progress, mining=mining)
    images = len(trainer.episodes.sampler.images)
    assert looked[-1] == (2 * images, 2 * images)
    assert looked[-1] not in read


def test_a_run_with_latent_classes_is_the_same_read_ahead_or_from_memory(whole, tmp_path, monkeypatch):
    path, _, _ = whole
    kinds = []
    monkeypatch.setattr(
        "cyctr.training.run.open_store", lambda *given: kinds.append(type(store := open_store(*given))) or store
    )
    trained(tmp_path / "streamed", LATENT, replace(QUIET, resident=False))
    assert kinds == [StreamingStore]
    assert prepared(tmp_path / "resident", LATENT, replace(QUIET, resident=True)).resident
    assert kinds == [StreamingStore, ResidentStore]
    assert same_bits(state_of(tmp_path / "streamed"), state_of(path))


def test_a_share_of_nothing_learns_what_is_learned_without_latent_classes(whole, tmp_path):
    path, _, _ = whole
    without = changed(LATENT, training={"latent_classes": 0})
    assert same_bits(
        state_of(trained(tmp_path / "none", without).folder.path),
        state_of(trained(tmp_path / "zero", changed(LATENT, training={"latent_share": 0.0})).folder.path),
    )
    assert not same_bits(state_of(tmp_path / "none"), state_of(path))


def test_where_the_images_are_too_few_for_latent_classes_it_is_learned_without(tmp_path):
    few = open_synthetic(SyntheticPool(4, 3, SIZE))  # nine to learn from
    without = changed(SMALL, training={"latent_classes": 0})
    with_some = changed(SMALL, training={"latent_classes": 4, "latent_share": 0.5})
    for path, config in ((tmp_path / "none", without), (tmp_path / "some", with_some)):
        assert trained(path, config, dataset=few).dataset.classes == few.classes
    assert same_bits(state_of(tmp_path / "none"), state_of(tmp_path / "some"))


def test_where_nothing_can_be_grouped_it_is_learned_without(tmp_path):
    """Of an input of 25 pixels every cell touches the rim."""
    tiny = changed(SMALL, training={"augmentation": AugmentationConfig(size=25), "episodes": 8})
    with_some = changed(tiny, training={"latent_classes": 4, "latent_share": 0.5})
    for path, config in ((tmp_path / "none", tiny), (tmp_path / "some", with_some)):
        trained(path, config)
    assert same_bits(state_of(tmp_path / "none"), state_of(tmp_path / "some"))


def test_of_many_images_some_are_looked_at_always_the_same_ones_under_a_seed(tmp_path, monkeypatch):
    looked = []

    def spy(*given):
        looked.append(given[2])
        return mine(*given)

    monkeypatch.setattr(train, "_LATENT_IMAGES", 11)
    monkeypatch.setattr(train, "mine", spy)
    for seed in (0, 0, 1):
        torch.manual_seed(len(looked))
        trainer = prepared(tmp_path / "run", changed(LATENT, training={"seed": seed}))
    one, again, other = looked
    assert one == again == sorted(set(one)) and len(one) == 11
    assert other != one
    assert set(one) | set(other) <= set(trainer.episodes.sampler.images)


def test_latent_classes_leave_the_dataset_that_was_given_as_it_was(tmp_path):
    given = textures()
    trainer = prepared(tmp_path / "run", LATENT, dataset=given)
    assert trainer.dataset.classes == (*given.classes, "latent-00", "latent-01", "latent-02", "latent-03")
    assert len(given.classes) == 8 and given.fold(0).validation == ()
