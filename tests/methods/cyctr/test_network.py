from dataclasses import replace

import pytest
import torch
from making import answered, encoded, episode, explained, features, losses, one, tiny

from cyctr.config import BackboneConfig
from cyctr.errors import ConfigError, DataError
from cyctr.methods.base import TokenState
from cyctr.methods.cyctr.config import ABLATIONS, PAPER, RELEASED, EncoderConfig, ModelConfig, SamplingConfig
from cyctr.methods.cyctr.network import build
from cyctr.methods.cyctr.state import Levels
from cyctr.types import Episode

VARIANTS = {name: ABLATIONS[name] for name in ABLATIONS if not name.startswith("dim")}  # all are narrow here
VARIANTS |= {"paper": PAPER.model, "released": RELEASED.model}
SMALL = ModelConfig(dim=32, encoder=EncoderConfig(heads=4, points=3), sampling=SamplingConfig(tokens_per_shot=40))


def narrow(config: ModelConfig) -> ModelConfig:
    """The same network with few channels: every structural choice stays."""
    return replace(config, dim=32, encoder=replace(config.encoder, points=3), sampling=SMALL.sampling)


def shallow(config: ModelConfig) -> ModelConfig:
    """The same with one encoder, for compilers, whose work grows with each."""
    return replace(narrow(config), encoder=replace(narrow(config).encoder, layers=1))


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_segments_at_the_query_s_size(name, shots):
    model = tiny(narrow(VARIANTS[name]))
    given = episode(batch=2, shots=shots, size=65, query_size=73)
    prediction = model(given)
    assert prediction.logits.shape == (2, 2, 73, 73)
    assert prediction.logits.dtype == torch.float32
    assert prediction.logits.isfinite().all()
    assert prediction.mask.dtype == torch.bool
    assert torch.equal(prediction.mask, prediction.probability > 0.5)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_reach_every_trainable_parameter_and_no_frozen_one(name):
    model = tiny(narrow(VARIANTS[name])).train()
    given = episode(batch=2, shots=2)
    losses(model, given).total.backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.startswith("backbone."):
            assert parameter.grad is None, parameter_name
        else:
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", VARIANTS)
def test_encoding_the_support_once_equals_the_joint_forward(name):
    model = tiny(narrow(VARIANTS[name]))
    given = episode(batch=2, shots=3)
    with torch.inference_mode():
        support = encoded(model, given.support_images, given.support_labels)
        torch.testing.assert_close(answered(model, given.query_images, support).logits, model(given).logits)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_batch_of_episodes_equals_the_episodes_alone(name):
    model = tiny(narrow(VARIANTS[name]))
    given = episode(batch=3, shots=2)
    with torch.inference_mode():
        together = model(given).logits
        apart = torch.cat([model(one(given, i)).logits for i in range(3)])
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_order_of_the_shots_changes_nothing(name):
    model = tiny(narrow(VARIANTS[name]))
    given = episode(batch=1, shots=5)
    order = torch.tensor([2, 4, 0, 1, 3])
    permuted = Episode(given.support_images[:, order], given.support_labels[:, order], given.query_images)
    with torch.inference_mode():
        torch.testing.assert_close(model(given).logits, model(permuted).logits, atol=1e-5, rtol=1e-4)


def test_one_support_serves_any_number_of_queries():
    model = tiny(SMALL)
    given, many = episode(batch=1, shots=2), episode(batch=4).query_images
    with torch.inference_mode():
        support = encoded(model, given.support_images, given.support_labels)
        together = answered(model, many, support).logits
        apart = torch.cat([answered(model, query[None], support).logits for query in many])
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-4)


def test_two_supports_for_three_queries_are_refused():
    model = tiny(SMALL)
    given = episode(batch=2)
    support = encoded(model, given.support_images, given.support_labels)
    with pytest.raises(DataError, match="support holds 2 episodes, the query batch 3"):
        answered(model, episode(batch=3).query_images, support)


def test_the_answer_depends_on_the_seed_alone():
    model = tiny(replace(SMALL, sampling=SamplingConfig(tokens_per_shot=20)))
    given = episode(batch=2, shots=2)
    with torch.inference_mode():
        seven = torch.tensor([7, 7])
        assert torch.equal(model(given, seven).logits, model(given, seven).logits)
        assert not torch.equal(model(given, seven).logits, model(given, seven + 1).logits)
        assert torch.equal(model(given).logits, model(given, torch.tensor([0, 0])).logits)


def test_the_support_matters():
    model = tiny(SMALL)
    given = episode(batch=1)
    inverted = Episode(given.support_images, 1 - given.support_labels, given.query_images)
    with torch.inference_mode():
        assert not torch.allclose(model(given).logits, model(inverted).logits, atol=1e-3)


@pytest.mark.parametrize("kind", ["one pixel", "full", "border only", "mostly ignored"])
@pytest.mark.parametrize("name", ["full", "cycle_foreground", "vanilla", "predicted"])
def test_extreme_masks_give_finite_answers_and_gradients(name, kind):
    labels = torch.zeros(1, 1, 65, 65, dtype=torch.uint8)
    if kind == "one pixel":
        labels[..., 3, 3] = 1
    elif kind == "full":
        labels[:] = 1
    elif kind == "border only":
        labels[..., :, 0] = 1
    else:
        labels[:] = 255
        labels[..., 20:40, 20:40] = 1
    model = tiny(narrow(ABLATIONS[name])).train()
    base = episode(batch=1)
    given = Episode(base.support_images, labels, base.query_images, base.query_labels)
    found = losses(model, given)
    found.total.backward()
    assert found.total.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("size", [(8, 8), (33, 70), (64, 96), (65, 121)])
def test_any_size_is_taken(size):
    model = tiny(SMALL)
    labels = torch.zeros(1, 1, *size, dtype=torch.uint8)
    labels[..., 2:5, 2:5] = 1
    prediction = model(Episode(torch.rand(1, 1, 3, *size), labels, torch.rand(1, 3, *size)))
    assert prediction.logits.shape[-2:] == size


def test_ignored_support_pixels_have_no_influence_on_the_labels():
    model = tiny(SMALL)
    given = episode(batch=1)
    labels = given.support_labels.clone()
    labels[labels == 0] = 255
    support = encoded(model, given.support_images, labels)
    assert support.is_foreground[support.valid].all()
    assert int(support.valid.sum()) < support.valid.numel()


def test_the_prototype_comes_from_the_marked_cells_alone():
    model = tiny(SMALL)
    given = episode(batch=1)
    changed = torch.where(given.support_labels[:, :, None] == 1, given.support_images, 0.5)
    kept = encoded(model, given.support_images, given.support_labels).prototype
    other = encoded(model, changed, given.support_labels).prototype
    assert not torch.equal(kept, other)  # receptive fields overlap the background
    reduced = model.reduce_support(Levels.of(features(model, given.support_images)).mid)
    cells = model.backbone.grid.cells(given.support_labels[0], reduced.shape[-2:])
    torch.testing.assert_close(kept[0], reduced[0, :, cells[0] == 1].mean(1))


def test_the_explanation_shows_the_prior_the_cycles_and_the_attention():
    model = tiny(SMALL)
    given = episode(batch=2, shots=2)
    plain, prediction = model(given), model(given, explain=True)
    assert torch.equal(plain.logits, prediction.logits)
    explanation = prediction.extras.explanation
    assert explanation.prior.shape == (2, 9, 9)
    assert explanation.prior.min() >= 0
    assert explanation.prior.max() <= 1
    assert len(explanation.cross) == 2
    state = explanation.cross[0].state
    assert state.shape == (2, 4, 80)
    assert set(state.unique().tolist()) <= set(TokenState)
    assert torch.equal(state == TokenState.UNUSED, ~explanation.valid[:, None].expand(-1, 4, -1))
    attention = explanation.attention(4, 5)
    torch.testing.assert_close(attention.sum(-1), torch.ones(2, 4))
    hidden = (explanation.cross[-1].state <= TokenState.INCONSISTENT).nonzero()
    assert all(attention[tuple(place)] == 0 for place in hidden)


def test_attention_outside_the_grid_or_without_a_cross_block_is_refused():
    given = episode(batch=1)
    explanation = explained(tiny(SMALL), given)
    with pytest.raises(DataError, match=r"cell \(9, 0\) is outside the query's 9 x 9"):
        explanation.attention(9, 0)
    without = explained(tiny(replace(SMALL, encoder=replace(SMALL.encoder, cross="none"))), given)
    with pytest.raises(DataError, match="no attention over support tokens"):
        without.attention(0, 0)


def test_the_number_of_tokens_can_be_set_for_one_call():
    model = tiny(SMALL)
    given = episode(batch=1, shots=2)
    shown = features(model, given.support_images)
    assert model.encode_support(shown, given.support_labels, None, 10).index.shape == (1, 20)
    assert model.encode_support(shown, given.support_labels, None, 1000).index.shape == (1, 2 * 81)


def test_a_support_can_be_kept_as_small_as_that_of_fewer_shots():
    model = tiny(SMALL)
    given = episode(batch=1, shots=4)
    small = model.encode_within(features(model, given.support_images), given.support_labels, 2)
    assert small.index.shape == (1, 2 * SMALL.sampling.tokens_per_shot)


def test_the_auxiliary_loss_is_there_where_the_network_predicts_support_masks():
    given = episode(batch=2, shots=3)
    assert losses(tiny(SMALL).train(), given).parts["auxiliary"] > 0
    assert losses(tiny(replace(SMALL, auxiliary=False)).train(), given).parts["auxiliary"] == 0


def test_features_made_before_give_the_same_answer():
    model = tiny(SMALL)
    given = episode(batch=2, shots=2)
    support = encoded(model, given.support_images, given.support_labels)
    prepared = model.prepare(features(model, given.query_images))
    assert torch.equal(model.predict(prepared, support, (65, 65)).logits, model(given).logits)


@pytest.mark.parametrize("name", VARIANTS)
def test_bfloat16_autocast_stays_close_to_float32(name):
    model = tiny(narrow(VARIANTS[name]))
    given = episode(batch=2, shots=2)
    with torch.inference_mode():
        exact = model(given)
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(given)
    assert rough.logits.dtype == torch.float32
    assert (exact.probability - rough.probability).abs().mean() < 0.02


def test_bfloat16_autocast_trains():
    model = tiny(SMALL).train()
    given = episode(batch=2)
    with torch.autocast("cpu", torch.bfloat16):
        loss = losses(model, given).total
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", ["full", "vanilla", "predicted", "baseline"])
@pytest.mark.parametrize("training", [False, True])
def test_the_whole_forward_compiles_without_a_graph_break(name, training):
    model = tiny(shallow(ABLATIONS[name])).train(training)
    if training:  # the same random numbers for both
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if hasattr(module, "dropout") and isinstance(module.dropout, float):
                module.dropout = 0.0
    given = episode(batch=2, shots=2)
    compiled = torch.compile(model, backend="aot_eager" if training else "eager", fullgraph=True)
    torch.testing.assert_close(compiled(given).logits, model(given).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["full", "predicted"])
def test_the_network_exports_as_one_program(name):
    model = tiny(shallow(ABLATIONS[name]))
    made, other = (replace(episode(batch=1, shots=2, seed=seed), query_labels=None, trusted=True) for seed in (0, 1))
    program = torch.export.export(model, (made,))
    torch.testing.assert_close(program.module()(other).logits, model(other).logits, atol=1e-5, rtol=1e-4)


def test_acceleration_leaves_the_answer_as_it_was_and_ends_training():
    config = ModelConfig(dim=128, backbone=BackboneConfig("resnet18"), encoder=EncoderConfig(heads=4, points=3))
    model = build(config).eval()
    given = episode(batch=1)
    with torch.inference_mode():
        before = model(given).logits
        after = model.accelerate()(given).logits
    assert (before - after).abs().max() < 1e-3 * before.abs().max()
    with pytest.raises(ConfigError, match="cannot train; build it again"):
        model.train()


def test_a_network_in_training_mode_keeps_its_backbone_in_evaluation_mode():
    model = tiny(SMALL).train()
    assert model.mixer.training
    assert not any(module.training for module in model.backbone.modules())


def test_the_smallest_image_keeps_its_object():
    model = tiny(SMALL)
    labels = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    labels[..., 2, 2] = 1
    support = encoded(model, torch.rand(1, 1, 3, 8, 8), labels)
    assert support.is_foreground[support.valid].tolist() == [True]


@pytest.mark.parametrize("count", [0, 1, -5])
def test_fewer_than_two_tokens_are_refused(count):
    given = episode(batch=1)
    with pytest.raises(ConfigError, match=f"tokens_per_shot is {count}; expected at least 2"):
        encoded(tiny(SMALL), given.support_images, given.support_labels, None, count)


@pytest.mark.parametrize("name", ["full", "predicted", "baseline"])
def test_a_support_made_under_autocast_serves_outside_it(name):
    model = tiny(narrow(ABLATIONS[name]))
    given = episode(batch=1)
    with torch.inference_mode():
        with torch.autocast("cpu", torch.bfloat16):
            support = encoded(model, given.support_images, given.support_labels)
        rough, exact = answered(model, given.query_images, support), model(given)
    assert (rough.probability - exact.probability).abs().mean() < 0.02


def test_one_support_for_many_queries_compiles_without_a_graph_break():
    model = tiny(shallow(SMALL))
    given, queries = episode(batch=1), episode(batch=3).query_images
    with torch.no_grad():
        support = encoded(model, given.support_images, given.support_labels)
        compiled = torch.compile(answered, backend="eager", fullgraph=True)
        found, expected = compiled(model, queries, support).logits, answered(model, queries, support).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_an_explained_forward_exports_too():
    model = tiny(shallow(SMALL))
    made = replace(episode(batch=1, shots=2), query_labels=None, trusted=True)
    program = torch.export.export(model, (made,), {"explain": True})
    found, expected = program.module()(made, explain=True), model(made, explain=True)
    torch.testing.assert_close(found.extras.explanation.prior, expected.extras.explanation.prior)
