"""The authors' release, number by number: what it computes from made-up weights and episodes, stage by stage.

`names.json` and `expected-*.npz` were made with the release's own code on a CPU, in float32; `release_oracle.py` makes the
weights and episodes that it was given. Stored are every 4th cell and every 16th channel of maps, every 32nd token and every
8th pixel of logits. "released" is the release as it is, "mended" with the labels of tokens read rightly.
"""

import json
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import release_oracle as oracle
import torch
from torch import nn

from cyctr.methods.base import Step, TokenState
from cyctr.methods.cyctr.config import RELEASED
from cyctr.methods.cyctr.released import ReleasedSampler
from cyctr.methods.cyctr.sampling import Sample
from cyctr.release_checkpoint import UNUSED, from_release, name_in_release
from cyctr.training.optimiser import Optimization
from cyctr.types import Episode

FOLDER = Path(__file__).parent
NAMES = json.loads((FOLDER / "names.json").read_text())
episode = cache(oracle.episode)


@pytest.fixture(scope="module")
def state():
    """A state dict as the release saves it."""
    return {name: torch.from_numpy(oracle.tensor(name, tuple(shape))) for name, shape in NAMES["tensors"].items()}


def episode_of(letter):
    found = {name: torch.from_numpy(value)[None] for name, value in episode(letter).items()}
    return Episode(
        found["support_images"].permute(0, 1, 4, 2, 3),
        found["support_labels"],
        found["query_image"].permute(0, 3, 1, 2),
        found["query_label"],
        found["query_padding"] == 255,
    )


def in_training_without_dropout(model):
    for module in model.train().modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.p = 0.0
    for encoder in model.mixer.encoders:
        encoder.cross_attention.dropout = encoder.cross_attention.flag_dropout = 0.0
    model.mixer.config = replace(model.mixer.config, value_dropout=0.0)
    return model


def stages_of(model):
    """What modules give, by the names of the expected arrays, filled when the model is called."""
    found = {}

    def keep(name, module, cut):
        module.register_forward_hook(lambda _, __, given: found.__setitem__(name, cut(given).detach().numpy()))

    def maps(given):
        return given[:, ::16, ::4, ::4]

    def tokens(given):  # (1, 3600, 256)
        return maps(given.transpose(1, 2).unflatten(2, (60, 60)))[0]

    keep("reduced_query", model.reduce_query, lambda given: maps(given)[0])
    keep("reduced_support", model.reduce_support, maps)
    keep("merged_query", model.merge_query, lambda given: maps(given)[0])
    keep("merged_tokens", model.merge_support, lambda given: given[0, ::16, ::4, 0].T)
    for layer, encoder in enumerate(model.mixer.encoders, 1):
        keep(f"self{layer}", encoder.self_attention, tokens)
        keep(f"after_self{layer}", encoder.self_mix, tokens)
        keep(f"cross{layer}", encoder.cross_attention, lambda given: tokens(given[0]))
        keep(f"after_cross{layer}", encoder.cross_mix, tokens)
    keep("scores", model.classifier, lambda given: given[0])
    return found


@contextmanager
def explained(model):
    """The predictions of a model with their explanations, also those that it makes to learn; filled when it is called."""
    kept, decode = [], model._decode

    def decode_and_keep(query, support, size, padding, _=False):
        found = decode(query, support, size, padding, True)
        kept.append(found[0])
        return found

    model._decode = decode_and_keep
    yield kept
    del model._decode  # which would keep the model and all that it computed


def close(found, expected, tolerance):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("letter", "ABCD")
def test_every_stage_is_the_release_s(letter, state):
    expected, given = np.load(FOLDER / f"expected-{letter}.npz"), episode_of(letter)
    drawn = torch.from_numpy(expected["tokens"].astype(np.int64))[None]
    features = None
    for variant in ("released", "mended"):
        model, _ = from_release(state, letter, mend_labels=variant == "mended")
        in_training_without_dropout(model)
        wanted = {name.removesuffix(f"_{variant}"): expected[name] for name in expected.files}

        def draw(kinds, count, seeds):
            assert count == drawn.shape[1]
            return Sample(drawn, kinds.flatten(1).gather(1, drawn) == 1, torch.ones_like(drawn, dtype=torch.bool))

        model.sampler.draw = draw
        if features is None:  # the same for both
            levels = []
            model.backbone.body.register_forward_hook(lambda _, __, given, kept=levels: kept.append(given))
            model.backbone.to(memory_format=torch.channels_last)  # faster on a CPU
            features = model.backbone(given.query_images), model.backbone(given.support_images.flatten(0, 1))
            for level, name in zip(levels[0][2:], ("layer2", "layer3", "layer4"), strict=True):
                close(level[0, ::64, ::4, ::4].numpy(), wanted[name], 1e-4)
        found = stages_of(model)
        query, shown = features
        with explained(model) as predictions:
            losses = model.learn(given, query, shown, Step(torch.zeros(1, dtype=torch.int64)))
        (prediction,) = predictions
        if given.shots == 1:  # what is called at test gives the same as what is called in training
            encoded = model.encode_support(shown, given.support_labels)
            size = (given.query_images.shape[-2], given.query_images.shape[-1])
            assert model.predict(query, encoded, size, given.query_padding).logits.equal(prediction.logits)

        for name, value in found.items():
            close(value, wanted[name], 1e-4)
        explanation = prediction.extras.explanation
        close(explanation.prior[0].numpy(), wanted["prior"], 1e-4)
        close(prediction.logits[0, :, ::8, ::8].detach().numpy(), wanted["logits"], 2e-4)

        hidden = wanted["hidden"] == 1
        assert (explanation.valid[0].numpy() == ~hidden).all()
        for trace, comes_home in zip(explanation.cross, wanted["cycle"], strict=True):
            flags = trace.state[0].numpy() >= TokenState.CONSISTENT_BACKGROUND
            assert (flags == comes_home)[:, ~hidden].all()
            foreground = (trace.state[0] == TokenState.CONSISTENT_FOREGROUND).numpy()
            assert (foreground == (comes_home & (wanted["labels"] == 1)))[:, ~hidden].all()

        close(torch.stack([losses.parts["main"], losses.parts["auxiliary"]]).detach().numpy(), wanted["losses"], 1e-5)
        if given.shots > 1 and variant == "mended":
            continue  # five shots take long, and the gradients of one variant show the same
        losses.total.backward()
        of_release = {name_in_release(name): value for name, value in model.named_parameters() if value.requires_grad}
        norms = {name: float(value.grad.norm()) for name, value in of_release.items()}
        assert set(norms) == {name.removeprefix("module.") for name in wanted["grad_names"]}
        for name, norm in zip(wanted["grad_names"], wanted["grad_norms"], strict=True):
            assert norms[name.removeprefix("module.")] == pytest.approx(float(norm), rel=2e-3, abs=1e-6), name


def sampled(letter, sampling, drawn=None):
    """The tokens of an episode, and the cells that they are drawn from; with given tokens, their labels alone are found out."""
    labels, kept = torch.from_numpy(episode(letter)["support_labels"])[None], {}
    sampler = ReleasedSampler(sampling)
    draw = sampler.draw

    def draw_or_take(kinds, count, seeds):
        kept["kinds"] = kinds
        if drawn is None:
            return draw(kinds, count, seeds)
        return Sample(drawn, kinds.flatten(1).gather(1, drawn) == 1, torch.ones_like(drawn, dtype=torch.bool))

    sampler.draw = draw_or_take
    cells = torch.zeros(1, labels.shape[1], 60, 60, dtype=torch.uint8)
    return sampler(cells, labels, 600 * labels.shape[1], torch.tensor([3])), kept["kinds"]


@pytest.mark.parametrize("letter", "ABCD")
def test_labels_are_read_where_the_release_reads_them(letter):
    expected = np.load(FOLDER / f"expected-{letter}.npz")
    drawn = torch.from_numpy(expected["tokens"].astype(np.int64))[None]
    for variant in ("released", "mended"):
        sampling = replace(RELEASED.model.sampling, release_labels=variant == "released")
        sample, kinds = sampled(letter, sampling, drawn)
        assert (sample.is_foreground[0].numpy() == expected[f"labels_{variant}"]).all()
        assert (sample.hidden[0].numpy() == expected[f"hidden_{variant}"]).all()
        assert (kinds[0].numpy() == (expected["cell_labels"] == 1)).all()


@pytest.mark.parametrize("letter", "ABCD")
def test_a_draw_takes_as_many_of_each_class_as_the_release_s(letter):
    expected = np.load(FOLDER / f"expected-{letter}.npz")
    count = len(expected["tokens"])
    sample, _ = sampled(letter, replace(RELEASED.model.sampling, release_labels=False))
    theirs = expected["cell_labels"].flatten()[expected["tokens"]] == 1
    assert (
        abs(int((sample.is_foreground & sample.valid).sum()) - theirs.sum()) < 0.01 * count
    )  # equal luck is left out together
    assert len(set(sample.index[sample.valid].tolist())) == int(sample.valid.sum()) > 0.99 * count


def test_every_name_of_a_published_checkpoint_is_used_and_none_is_invented(state):
    model, _ = from_release(state, "names")
    ours = [name for name in model.state_dict() if not name.endswith("num_batches_tracked")]
    assert sorted([*map(name_in_release, ours), *UNUSED]) == sorted(name.removeprefix("module.") for name in NAMES["tensors"])
    assert set(NAMES["unused"]) == {f"module.{name}" for name in UNUSED}
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert {name_in_release(name) for name in trained} | set(UNUSED) == {
        name.removeprefix("module.") for name in NAMES["trained"]
    }
    unused = sum(state[name].numel() for name in NAMES["unused"])
    count = model.parameter_count()
    assert (count.trained + unused, count.used_at_test) == (7_456_692, 5_359_026)
    for name, value in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            theirs = state[f"module.{name_in_release(name)}"]
            if name == "merge_query.convolution.weight":  # its input channels come in another order
                value, theirs = value.sort(dim=1).values, theirs.sort(dim=1).values
            assert value.equal(theirs), name


def test_a_step_moves_each_tensor_by_the_rate_and_decay_of_its_group(state):
    model, config = from_release(state, "step")
    model.train()
    optimization = Optimization(model, config.optimizer, steps=100)
    before = {name: value.detach().clone() for name, value in optimization.weights.items()}
    for value in optimization.weights.values():
        value.grad = torch.full_like(value, 2.0)
    optimization.step(0)
    for name, value in optimization.weights.items():
        if name_in_release(name).startswith("transformer."):  # AdamW: the first step is as long as the rate
            decay = 0.0 if name.endswith(".bias") else 1e-2
            moved = before[name] * (1 - 1e-4 * decay) - 1e-4
        else:  # SGD, whose rate the schedule multiplies by 15
            moved = before[name] - 15 * 2.5e-3 * (2.0 + 1e-4 * before[name])
        torch.testing.assert_close(value.detach(), moved, rtol=0, atol=1e-6, msg=name)
    rates = optimization.rates(50)
    assert rates["convolutions"] == pytest.approx(15 * 2.5e-3 * 0.5**0.9) and rates["transformer"] == 1e-4
