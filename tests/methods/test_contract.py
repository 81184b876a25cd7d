"""What every method keeps: those of the table, the references, and the example of the documentation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from making import answered, encoded, episode, features, losses
from own_method import nearest

from cyctr.backbones.backbone import Backbone
from cyctr.checkpoint import load_checkpoint, save_checkpoint
from cyctr.config import BackboneConfig, Recipe
from cyctr.datasets.synthetic import SyntheticEpisodes
from cyctr.evaluation.metrics import Counts, count
from cyctr.inference.predictor import Predictor
from cyctr.methods.base import Method, moved
from cyctr.methods.recipes import recipes_of
from cyctr.methods.references import NearestPrototype, PriorThreshold
from cyctr.methods.table import METHODS, find_method, name_of
from cyctr.types import Episode

CPU = torch.device("cpu")
STEPS = 24  # of the short training
nearest()  # so that it can be named


class Case(NamedTuple):
    """A method on the tiny backbone, as small as its config allows."""

    config: Recipe
    kind: type[Method[Any]]

    def build(self, seed: int = 1) -> Method[Any]:
        torch.manual_seed(seed)
        return self.kind.build(self.config, Backbone(self.config.model.backbone)).eval()


def small(name: str) -> Case:
    """The usual config of a method, with few channels where it has any."""
    recipes = recipes_of(name)
    model = recipes.preset().model
    fewer = {"dim": 32, "familiar": 0, "reduction_dropout": 0.0} if hasattr(model, "familiar") else {}
    own = model.backbone
    backbone = replace(own, name="tiny", weights=None, tuned=False, offset=None)
    model = replace(model, backbone=backbone, **fewer)
    return Case(replace(recipes.preset(), model=model), find_method(name))


def plain(kind: type[Method[Any]]) -> Case:
    config = kind.Config()
    return Case(replace(config, model=replace(config.model, backbone=BackboneConfig("tiny"))), kind)


CASES: dict[str, Callable[[], Case]] = {
    **{name: lambda name=name: small(name) for name in METHODS},
    "nearest": lambda: small("nearest:Nearest"),
    "pyramid": lambda: small("own_method:Pyramid"),
    "prior": lambda: plain(PriorThreshold),
    "prototype": lambda: plain(NearestPrototype),
}
LEARN = [*METHODS, "nearest", "pyramid"]
EVERY = pytest.mark.parametrize("name", CASES)
LEARNING = pytest.mark.parametrize("name", LEARN)


@EVERY
@pytest.mark.parametrize("shots", [1, 5])
def test_a_method_segments_at_the_query_s_size(name, shots):
    given = episode(batch=2, shots=shots, size=65, query_size=73)
    with torch.inference_mode():
        prediction = CASES[name]().build()(given)
    assert prediction.logits.shape == (2, 2, 73, 73)
    assert prediction.logits.dtype == torch.float32
    assert prediction.logits.isfinite().all()


@EVERY
def test_encoding_once_equals_the_whole_forward(name):
    model, given = CASES[name]().build(), episode(batch=2, shots=3)
    with torch.inference_mode():
        support = encoded(model, given.support_images, given.support_labels)
        expected = model(given).logits
        torch.testing.assert_close(answered(model, given.query_images, support).logits, expected)
        prepared = model.prepare(features(model, given.query_images))
        torch.testing.assert_close(model.predict(prepared, support, (65, 65)).logits, expected)


@EVERY
def test_one_support_serves_several_queries(name):
    model, given, many = CASES[name]().build(), episode(batch=1, shots=2), episode(batch=3).query_images
    with torch.inference_mode():
        support = encoded(model, given.support_images, given.support_labels)
        together = answered(model, many, support).logits
        apart = torch.cat([answered(model, query[None], support).logits for query in many])
    torch.testing.assert_close(together, apart, atol=1e-4, rtol=1e-4)


@EVERY
def test_the_order_of_the_shots_changes_nothing(name):
    model, given = CASES[name]().build(), episode(batch=1, shots=5)
    order = torch.tensor([2, 4, 0, 1, 3])
    turned = Episode(given.support_images[:, order], given.support_labels[:, order], given.query_images)
    with torch.inference_mode():
        torch.testing.assert_close(model(given).logits, model(turned).logits, atol=1e-4, rtol=1e-4)


@EVERY
@pytest.mark.parametrize("kind", ["one pixel", "full", "mostly ignored", "empty"])
def test_extreme_masks_give_finite_answers(name, kind):
    labels = torch.full((1, 1, 65, 65), {"full": 1, "mostly ignored": 255}.get(kind, 0), dtype=torch.uint8)
    if kind == "one pixel":
        labels[..., 3, 3] = 1
    elif kind == "mostly ignored":
        labels[..., 20:40, 20:40] = 1
    base = episode(batch=1)
    given = Episode(base.support_images, labels, base.query_images, base.query_labels, trusted=True)
    model = CASES[name]().build()
    with torch.inference_mode():
        assert model(given).logits.isfinite().all()
    if name in LEARN:
        found = losses(model.train(), given)
        found.total.backward()
        assert found.total.isfinite()
        assert all(value.grad.isfinite().all() for value in model.parameters() if value.grad is not None)


@EVERY
def test_undecided_pixels_of_the_query_do_not_change_the_answer(name):
    model, given = CASES[name]().build(), episode(batch=1)
    with torch.inference_mode():
        assert torch.equal(model(given).logits, model(replace(given, query_labels=None)).logits)


@LEARNING
def test_gradients_reach_every_trained_parameter_and_no_frozen_one(name):
    model = CASES[name]().build().train()
    losses(model, episode(batch=2, shots=2)).total.backward()
    for own, value in model.named_parameters():
        if value.requires_grad:
            assert value.grad is not None and value.grad.abs().sum() > 0, own
        else:
            assert value.grad is None, own


@LEARNING
def test_the_loss_of_an_episode_does_not_depend_on_its_neighbours(name):
    model, given = CASES[name]().build(), episode(batch=3, shots=2)
    seeds = torch.arange(3)
    with torch.no_grad():
        together = losses(model, given, seeds).each
        one = Episode(given.support_images[1:2], given.support_labels[1:2], given.query_images[1:2], given.query_labels[1:2])
        torch.testing.assert_close(losses(model, one, seeds[1:2]).each, together[1:2], atol=1e-4, rtol=1e-4)
    assert together.shape == (3,)


@EVERY
def test_every_trained_parameter_is_in_one_group(name):
    model = CASES[name]().build()
    grouped = [id(value) for values in model.parameter_groups().values() for value in values]
    trained = [id(value) for value in model.parameters() if value.requires_grad]
    assert sorted(grouped) == sorted(trained)


@EVERY
def test_a_support_moves_between_devices_whatever_it_is_made_of(name):
    model, given = CASES[name]().build(), episode(batch=1)
    with torch.inference_mode():
        support = encoded(model, given.support_images, given.support_labels)
        there = moved(moved(support, torch.device("meta")), torch.device("meta"))
        assert type(there) is type(support)
        again = moved(support, CPU)
        assert torch.equal(answered(model, given.query_images, again).logits, model(given).logits)


@EVERY
def test_a_checkpoint_gives_the_same_answers(name, tmp_path):
    case, given = CASES[name](), episode(batch=1)
    model = case.build()
    save_checkpoint(tmp_path / "model.safetensors", model, case.config)
    again, config = load_checkpoint(tmp_path / "model.safetensors")
    assert type(again) is case.kind and config == case.config
    assert find_method(name_of(case.kind)) is case.kind
    with torch.inference_mode():
        assert torch.equal(again(given).logits, model(given).logits)


@EVERY
def test_acceleration_keeps_the_answer_and_ends_training(name):
    model, given = CASES[name]().build(), episode(batch=1)
    with torch.inference_mode():
        before = model(given).logits
        after = model.accelerate()(given).logits
    assert (before - after).abs().max() < 1e-3 * before.abs().max()
    with pytest.raises(Exception, match="cannot train"):
        model.train()


@EVERY
def test_inference_answers_with_a_confidence_of_its_own(name):
    predictor = Predictor(CASES[name]().build(), 65, CPU, "float32")
    images, labels = episode(batch=1, shots=2).support_images[0], episode(batch=1, shots=2).support_labels[0]
    own, mean, kind = predictor.encode((255 * images).byte(), labels, 0)
    assert mean.shape == (1, predictor.model.backbone.channels[-1])
    assert own is not None
    assert kind is None  # the tiny backbone has no classifier that says what kind of thing it is


@EVERY
def test_a_method_exports_as_one_program(name):
    model = CASES[name]().build()
    made, other = (replace(episode(batch=1, shots=2, seed=seed), query_labels=None, trusted=True) for seed in (0, 1))
    program = torch.export.export(model, (made,))
    torch.testing.assert_close(program.module()(other).logits, model(other).logits, atol=1e-4, rtol=1e-4)


@LEARNING
def test_a_short_training_beats_the_untrained_method(name):
    seen, unseen = (
        SyntheticEpisodes(classes, size=65, seed=seed) for classes, seed in ((range(100), 1), (range(1000, 1050), 2))
    )
    model = CASES[name]().build()
    before = overlap(model, unseen)
    rates = {"backbone": 2e-4}  # it begins with weights that are worth something
    groups = [{"params": values, "lr": rates.get(kind, 2e-3)} for kind, values in model.parameter_groups().items()]
    optimizer = torch.optim.AdamW(groups)
    model.train()
    for step in range(STEPS):
        given = seen.batch(4 * step, 4)
        optimizer.zero_grad()
        losses(model, given, torch.arange(4 * step, 4 * step + 4), model.draw(0, step, given.shots)).total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert overlap(model.eval(), unseen) > before + 0.01


@torch.inference_mode()
def overlap(model: Method[Any], source: SyntheticEpisodes) -> float:
    given = source.batch(0, 24)
    pairs = zip(model(given).mask, given.query_labels, strict=True)
    return sum((count(mask, labels) for mask, labels in pairs), start=Counts()).iou
