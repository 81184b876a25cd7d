from dataclasses import replace

import pytest
import torch
from making import encoded, episode
from making import features as backbone_features

from cyctr.checkpoint import load_checkpoint, save_checkpoint
from cyctr.config import BackboneConfig
from cyctr.errors import ConfigError
from cyctr.methods.cyctr.config import Config, EncoderConfig, ModelConfig
from cyctr.methods.cyctr.extras.known_classes import Familiar
from cyctr.methods.cyctr.network import build
from cyctr.methods.cyctr.state import Levels

CONFIG = ModelConfig(dim=32, backbone=BackboneConfig("tiny"), encoder=EncoderConfig(heads=4, points=3), familiar=5)


def network(seed=3, config=CONFIG):
    """A network that recognises something in noise."""
    torch.manual_seed(1)
    model = build(config).eval()
    if model.familiar is not None:
        model.familiar.weight.copy_(3 * torch.randn(model.familiar.weight.shape, generator=torch.Generator().manual_seed(seed)))
    return model


def features(batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Levels(torch.randn(batch, 4, 6, 7, generator=generator), torch.randn(batch, 3, 6, 7, generator=generator))


def test_a_score_is_the_product_of_a_row_and_the_features_of_a_cell():
    familiar, given = Familiar(3, 7), features()
    familiar.weight.copy_(torch.randn(3, 8))
    scores = familiar.scores(given)
    cell = torch.cat([torch.ones(1), given.mid[1, :, 4, 5], given.high[1, :, 4, 5]])
    assert torch.allclose(scores[1, :, 4, 5], familiar.weight @ cell, atol=1e-5)


def test_what_a_support_shows_is_the_mean_over_its_foreground():
    familiar, given = Familiar(3, 7), features(batch=2)
    familiar.weight.copy_(torch.randn(3, 8))
    foreground = torch.zeros(1, 2, 6, 7, dtype=torch.bool)
    foreground[0, 0, 2:4, 3:6] = foreground[0, 1, 0, 0] = True
    scores = familiar.scores(given)
    expected = (scores[0, :, 2:4, 3:6].mean((1, 2)) + scores[1, :, 0, 0]) / 2
    assert torch.allclose(familiar.shown(given, foreground)[0], expected, atol=1e-5)


def test_nothing_speaks_for_a_class_and_nothing_against_what_the_support_shows_as_much():
    familiar = Familiar(4, 7)
    scores = torch.rand(2, 4, 6, 7)
    assert familiar.against(scores, torch.zeros(2, 4)).min() >= 0
    assert familiar.against(scores, torch.zeros(2, 4)).max() > 0
    assert familiar.against(scores, scores.amax((2, 3))).max() == 0


def test_the_surest_class_counts_and_those_that_are_shown_do_not():
    familiar = Familiar(2, 7)
    scores = torch.zeros(1, 2, 6, 7)
    scores[0, 0, 1, 1], scores[0, 1, 2, 2] = 0.8, 0.9
    against = familiar.against(scores, torch.tensor([[0.0, 0.9]]))
    assert against[0, 1, 1] > 0
    assert against.count_nonzero() == 1
    assert torch.equal(familiar.against(scores, torch.zeros(1, 2)) > 0, scores.amax(1) > 0)


def test_what_the_support_shows_less_than_nothing_of_is_not_held_against_the_rest():
    assert not Familiar(2, 7).against(torch.zeros(1, 2, 6, 7), torch.tensor([[-0.6, 0.0]])).any()


def test_rows_of_zeros_change_nothing():
    plain, zeros = network(config=replace(CONFIG, familiar=0)), network()
    zeros.familiar.weight.zero_()
    assert torch.equal(plain(episode()).logits, zeros(episode()).logits)


def test_places_of_other_classes_lose_and_no_place_gains():
    given = episode()
    before = network(config=replace(CONFIG, familiar=0))(given).probability
    after = network()(given).probability
    assert (after <= before + 1e-6).all()
    assert (before - after).max() > 0.1


def test_in_training_nothing_is_recognised():
    given = episode()
    for made in (network(), network(config=replace(CONFIG, familiar=0))):
        made.train()
        torch.manual_seed(0)
        logits = made(given).logits
        if made.familiar is not None:
            expected = logits
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("shots", [1, 3])
def test_encoded_once_or_each_time_the_answers_are_equal(shots):
    model, given = network(), episode(batch=2, shots=shots)
    support = encoded(model, given.support_images, given.support_labels)
    query, size = model.prepare(backbone_features(model, given.query_images)), (65, 65)
    assert support.familiar.shape == (2, 5)
    assert torch.allclose(model.predict(query, support, size).logits, model(given).logits, atol=1e-5)
    alone = encoded(model, given.support_images[1:], given.support_labels[1:])
    assert torch.allclose(model.predict(query.one(1), alone, size).logits, model(given).logits[1:], atol=1e-4)
    both = model.predict(query, alone, size)  # one support for all queries
    assert torch.allclose(both.logits[1:], model(given).logits[1:], atol=1e-4)


def test_a_checkpoint_keeps_what_is_recognised(tmp_path):
    model = network()
    save_checkpoint(tmp_path / "model.safetensors", model, Config(model=CONFIG))
    again, _ = load_checkpoint(tmp_path / "model.safetensors")
    assert torch.equal(again(episode()).logits, model(episode()).logits)


@pytest.mark.parametrize("count", [-1, 251])
def test_a_number_of_classes_that_cannot_be_is_refused(count):
    with pytest.raises(ConfigError, match=f"model.familiar is {count}; expected 0 to 250 classes"):
        ModelConfig(familiar=count)
