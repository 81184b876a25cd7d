import numpy as np
import pytest
import torch
from learning import CPU, SIZE, SMALL, begun, changed, go, same_bits, state_of, textures, trained

from cyctr.backbones.backbone import Backbone
from cyctr.checkpoint import load_checkpoint, unpack
from cyctr.config import BackboneConfig
from cyctr.episodes.image_store import open_store
from cyctr.episodes.sampler import Sampler
from cyctr.methods.cyctr.extras.known_classes import Familiar
from cyctr.methods.cyctr.state import Levels
from cyctr.training import fit_known_classes as module
from cyctr.training.fit_known_classes import choose_images, fit_familiar
from cyctr.training.run_folder import LAST
from cyctr.training.whole_images import _union, whole_images
from cyctr.types import IGNORE

RECOGNISING = changed(SMALL, model={"familiar": 9})


@pytest.fixture(scope="module")
def backbone():
    return Backbone(BackboneConfig("tiny"))


@pytest.fixture(scope="module")
def sampler():
    dataset = textures()
    return Sampler(dataset, dataset.pool("train").index(), 0, "train")


@pytest.fixture(scope="module")
def store(sampler):
    pool = textures().pool("train")
    return open_store(pool, pool.index(), sampler.pairs, CPU, None)


def fitted(store, sampler, backbone, images=None, classes=None):
    return fit_familiar(store, sampler.pairs, images or sampler.images, classes or sampler.classes, backbone, SIZE)


def cells_of(store, sampler, backbone, images, classes):
    """(n, 1 + C) of all decided cells, and (n,) which class they are of, -1 for background."""
    rows = {number: place for place, number in enumerate(classes)}
    inputs, truth = [], []
    for pixels, labels, _ in whole_images(store, sampler.pairs, images, SIZE, 1, lambda number: 2 + rows[number]):
        made = backbone(pixels)
        size = (made.maps[0].shape[-2], made.maps[0].shape[-1])
        own = backbone.grid.cells(labels, size).flatten()
        maps = torch.cat([torch.ones(1, 1, *size), *made.maps], 1)[0].flatten(1).T
        inputs.append(maps[own != IGNORE])
        truth.append(own[own != IGNORE].long() - 2)
    return torch.cat(inputs), torch.cat(truth).clamp_min(-1)


def test_it_is_the_ridge_regression_of_the_labels(store, sampler, backbone):
    inputs, truth = cells_of(store, sampler, backbone, sampler.images, sampler.classes)
    inputs, wanted = inputs.double().numpy(), np.stack([truth.numpy() == row for row in range(len(sampler.classes))], 1)
    ridge = 0.1 * np.mean(inputs**2, 0).sum() / inputs.shape[1] * len(inputs)
    augmented = np.concatenate([inputs, np.sqrt(ridge) * np.eye(inputs.shape[1])])
    target = np.concatenate([wanted.astype(float), np.zeros((inputs.shape[1], wanted.shape[1]))])
    expected = np.linalg.lstsq(augmented, target, rcond=None)[0].T
    np.testing.assert_allclose(fitted(store, sampler, backbone).numpy(), expected, atol=2e-4)


def test_classes_are_recognised_where_they_are_in_images_it_has_not_seen(store, sampler, backbone):
    unseen = [sampler.holders[number][-1] for number in sampler.classes]
    seen = [image for image in sampler.images if image not in unseen]
    weight = fitted(store, sampler, backbone, seen)
    inputs, truth = cells_of(store, sampler, backbone, sorted(unseen), sampler.classes)
    scores = inputs @ weight.T
    for row in range(len(sampler.classes)):
        assert scores[truth == row, row].mean() > scores[truth != row, row].mean() + 0.03


def test_a_class_that_is_left_out_is_background(store, sampler, backbone):
    """Columns of a ridge regression do not depend on each other: a row is the same whatever other classes there are."""
    some = list(sampler.classes[:2])
    every = fitted(store, sampler, backbone)
    assert torch.allclose(fitted(store, sampler, backbone, sampler.images, sampler.classes[::-1]).flip(0), every, atol=1e-4)
    images = sorted(sampler.holders[some[0]])
    both, one = fitted(store, sampler, backbone, images, some), fitted(store, sampler, backbone, images, some[:1])
    assert torch.allclose(one[0], both[0], atol=1e-4)


def test_cells_and_images_are_chosen_without_chance(store, sampler, backbone, monkeypatch):
    monkeypatch.setattr(module, "_CELLS", 20)
    one, other = (fitted(store, sampler, backbone) for _ in range(2))
    assert torch.equal(one, other)
    monkeypatch.setattr(module, "_CELLS", 10_000)
    assert not torch.allclose(one, fitted(store, sampler, backbone), atol=1e-4)


@pytest.mark.parametrize("most", [1, 7, 12, 1000])
def test_images_of_every_class_are_chosen_in_turn(most, monkeypatch):
    monkeypatch.setattr(module, "_IMAGES", most)
    holders = {0: list(range(3)), 1: list(range(10, 30)), 4: list(range(40, 80))}
    chosen = choose_images(holders, [0, 1, 4], ("a", 0))
    assert chosen == sorted(set(chosen)) == choose_images(holders, [0, 1, 4], ("a", 0))
    assert len(chosen) == min(most, 63)
    each = [len(set(chosen) & set(own)) for own in holders.values()]
    assert each[0] == min(3, -(-most // 3))
    assert max(each[1:]) - min(each[1:]) <= 1 or len(chosen) == 63
    if 1 < most < 63:
        assert choose_images(holders, [0, 1, 4], ("a", 1)) != chosen


def test_pixels_have_the_values_of_their_classes(store, sampler):
    pool = textures().pool("train")
    plain = list(whole_images(store, sampler.pairs, sampler.images, SIZE, 2))
    valued = list(whole_images(store, sampler.pairs, sampler.images, SIZE, 2, lambda number: 5 + number))
    assert torch.equal(torch.cat([pixels for pixels, _, _ in plain]), torch.cat([pixels for pixels, _, _ in valued]))
    maps = torch.cat([values for _, values, _ in valued])
    for image, values in zip(sampler.images, maps, strict=True):
        own = [number for other, number in sampler.pairs if other == image]
        expected = torch.zeros(SIZE, SIZE, dtype=torch.uint8)
        for number in own:
            expected[torch.from_numpy(pool.label(image, number)) == 1] = 5 + number
        assert torch.equal(values, expected)


def test_where_labels_overlap_the_largest_value_wins_and_undecided_pixels_lose_to_all():
    labels = torch.tensor([[[1, 1, 0, 255]], [[1, 0, 0, 1]], [[0, 255, 255, 1]]], dtype=torch.uint8)
    owner = torch.tensor([0, 0, 1])
    assert _union(labels, owner, [7, 3, 9], 2).tolist() == [[[7, 7, 0, 3]], [[0, IGNORE, IGNORE, 9]]]


def test_nothing_that_is_learned_depends_on_it(tmp_path):
    trained(tmp_path / "with", RECOGNISING)
    trained(tmp_path / "without", SMALL)
    assert same_bits(state_of(tmp_path / "with"), state_of(tmp_path / "without"))


def test_the_last_checkpoint_recognises_the_training_classes_and_one_that_is_overwritten_need_not(tmp_path):
    trainer = begun(tmp_path / "run", RECOGNISING)
    go(trainer, until=2)
    rows = load_checkpoint(tmp_path / "run" / LAST)[0].familiar.weight
    assert rows.shape[0] == 9
    assert not rows.any()
    trained(tmp_path / "whole", RECOGNISING)
    rows = load_checkpoint(tmp_path / "whole" / LAST)[0].familiar.weight
    assert rows[:6].any(1).all()  # of six training classes
    assert not rows[6:].any()


def test_it_is_fitted_to_the_weights_to_test(tmp_path):
    tuned = changed(RECOGNISING, model={"backbone": BackboneConfig("tiny", tuned=True)})
    trainer = begun(tmp_path / "run", changed(tuned, optimizer={"backbone_rate": 0.05}))
    go(trainer)
    network = load_checkpoint(tmp_path / "run" / LAST)[0]
    frozen = load_checkpoint(trained(tmp_path / "frozen", RECOGNISING).folder.path / LAST)[0]
    assert not torch.allclose(network.familiar.weight, frozen.familiar.weight, atol=1e-3)
    images = torch.rand(2, 3, SIZE, SIZE)
    with torch.no_grad():
        here = network.familiar.scores(Levels.of(network.backbone(images)))
        there = trainer.method().network
        assert torch.allclose(there.familiar.scores(Levels.of(there.backbone(images))), here, atol=1e-3)


def test_of_more_classes_than_there_are_rows_the_most_frequent_are_recognised(tmp_path):
    trainer = begun(tmp_path / "run", changed(SMALL, model={"familiar": 2}))
    labelled = trainer.parts.labelled
    labelled.holders = {number: held[: 4 if number in (3, 6) else 2] for number, held in labelled.holders.items()}
    images = choose_images(labelled.holders, [3, 6], labelled.key)
    expected = fit_familiar(trainer.parts.store, labelled.pairs, images, [3, 6], trainer.encoder, SIZE)
    assert torch.allclose(trainer.recognised()["familiar.weight"], expected, atol=1e-4)


def test_a_state_file_holds_nothing_of_it(tmp_path):
    trained(tmp_path / "run", RECOGNISING)
    assert not [name for name in state_of(tmp_path / "run") if "familiar" in name]
    assert "familiar.weight" in unpack(tmp_path / "run" / LAST)[0]


def test_scores_are_of_features_of_any_precision():
    familiar = Familiar(2, 5)
    familiar.weight.normal_()
    given = Levels(torch.randn(1, 2, 3, 3), torch.randn(1, 3, 3, 3))
    half = Levels(given.mid.bfloat16(), given.high.bfloat16())
    assert familiar.scores(half).dtype == torch.float32
    assert torch.allclose(familiar.scores(half), familiar.scores(given), atol=0.2)


def test_images_of_any_number_are_looked_at_in_batches(store, sampler, backbone, monkeypatch):
    whole = fitted(store, sampler, backbone)
    monkeypatch.setattr(module, "BATCH", {"cpu": 1})
    assert torch.allclose(fitted(store, sampler, backbone), whole, atol=1e-4)
