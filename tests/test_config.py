import json
from dataclasses import FrozenInstanceError

import pytest

from cyctr import config
from cyctr.config import ABLATIONS, PAPER, PRESETS, RELEASED, Config, EncoderConfig, ModelConfig, SamplingConfig
from cyctr.errors import ConfigError


def leaves(value):
    return {name: _at(value, name) for name, _, _ in config.settings(type(value))}


def _at(value, dotted):
    for part in dotted.split("."):
        value = getattr(value, part)
    return value


def test_the_paper_preset_holds_the_numbers_of_section_4_2():
    model = PAPER.model
    assert (model.dim, model.encoder.layers, model.encoder.heads, model.encoder.points) == (256, 2, 8, 9)
    assert (model.encoder.mlp_ratio * model.dim, model.sampling.tokens_per_shot, model.encoder.dropout) == (3 * 256, 600, 0.1)
    optimizer = PAPER.optimizer
    assert (optimizer.convolution_rate, optimizer.momentum, optimizer.convolution_decay) == (2.5e-3, 0.9, 1e-4)
    assert (optimizer.transformer_rate, optimizer.transformer_decay) == (1e-4, 1e-2)


def test_the_released_preset_departs_in_exactly_the_fields_that_say_so():
    paper, released = leaves(PAPER), leaves(RELEASED)
    departures = {name for name in paper if paper[name] != released[name]}
    announced = {name for name, _, help_text in config.settings(Config) if help_text.startswith("release:")}
    assert departures == announced


def test_every_row_of_the_paper_s_ablations_is_a_different_config():
    rows = list(ABLATIONS.values())
    assert all(one != other for i, one in enumerate(rows) for other in rows[:i])
    crosses = {ABLATIONS[name].encoder.cross for name in ("self", "vanilla", "predicted", "cycle_foreground", "full")}
    assert len(crosses) == 5
    assert {ABLATIONS[name].encoder.layers for name in ("layers_1", "full", "layers_3")} == {1, 2, 3}
    assert {ABLATIONS[name].dim for name in ("full", "dim_256", "dim_384")} == {128, 256, 384}


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_survives_json(name):
    original = PRESETS[name]
    assert config.from_dict(Config, json.loads(json.dumps(config.to_dict(original)))) == original


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modle": {}}, "config.modle is not a setting of this version"),
        ({"model": {"dim": "wide"}}, "config.model.dim is 'wide'; expected int"),
        ({"model": {"dim": True}}, "config.model.dim is True; expected int"),
        ({"model": 3}, "config.model is 3; expected the fields of ModelConfig"),
        ({"model": {"encoder": {"cross": "cyclic"}}}, "config.model.encoder.cross is 'cyclic'"),
        ({"model": {"sampling": {"training_scale": [1.0]}}}, "config.model.sampling.training_scale is"),
    ],
)
def test_a_foreign_config_is_refused_with_the_name_of_the_field(values, message):
    with pytest.raises(ConfigError, match=message):
        config.from_dict(Config, values)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelConfig(dim=30), "model.dim is 30; expected a positive multiple of 4"),
        (lambda: ModelConfig(dim=36), "model.dim is 36 and encoder.heads is 8; heads must divide dim"),
        (lambda: ModelConfig(mixer="conv"), "model.mixer is 'conv'; expected one of 'transformer', 'residual'"),
        (lambda: EncoderConfig(layers=0), "encoder.layers is 0; expected at least 1"),
        (lambda: EncoderConfig(dropout=1.0), "encoder.dropout is 1.0; expected a probability"),
        (lambda: EncoderConfig(cross="both"), "encoder.cross is 'both'; expected one of 'none', 'vanilla'"),
        (lambda: SamplingConfig(tokens_per_shot=1), "sampling.tokens_per_shot is 1; expected at least 2"),
        (lambda: SamplingConfig(training_scale=(2.0, 1.0)), "sampling.training_scale is .* LOW <= HIGH"),
        (lambda: config.BackboneConfig(taps=(3, 2, 4)), "backbone.taps is .* three increasing"),
        (lambda: config.LossConfig(auxiliary_weight=-1), "loss.auxiliary_weight is -1"),
        (lambda: config.preset("papers"), "preset is 'papers'; expected one of paper, released"),
    ],
)
def test_a_setting_outside_its_range_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_config_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        PAPER.model.dim = 3


def test_token_counts_in_training_span_the_configured_range_in_few_sizes():
    sampling = RELEASED.model.sampling
    counts = {sampling.training_tokens(i / 1000) for i in range(1001)}
    assert all(count % 64 == 0 for count in counts)
    assert abs(min(counts) - 0.6 * 600) <= 32
    assert abs(max(counts) - 4.0 * 600) <= 32
    assert PAPER.model.sampling.training_tokens(0.7) == 600


def test_every_setting_has_a_help_text():
    assert all(len(help_text) > 5 for _, _, help_text in config.settings(Config))
