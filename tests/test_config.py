import json
import math
from dataclasses import FrozenInstanceError, replace

import pytest

from cyctr import config
from cyctr.config import (
    ABLATIONS,
    PAPER,
    PRESETS,
    PROTOCOLS,
    RELEASED,
    AugmentationConfig,
    Config,
    EncoderConfig,
    InputConfig,
    ModelConfig,
    ProtocolConfig,
    SamplingConfig,
)
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
        (lambda: InputConfig(size=7), "input.size is 7; expected at least 8 pixels"),
        (lambda: InputConfig(multiple=0), "input.multiple is 0; expected from 1 to input.size"),
        (lambda: InputConfig(size=16, multiple=17), "input.multiple is 17"),
        (lambda: InputConfig(fill=256), "input.fill is 256; expected a grey value from 0 to 255"),
        (lambda: InputConfig(fill=-1), "input.fill is -1"),
        (lambda: InputConfig(fit="crop"), "input.fit is 'crop'; expected one of 'pad', 'squash'"),
        (lambda: AugmentationConfig(size=0), "augmentation.size is 0; expected at least 8 pixels"),
        (lambda: AugmentationConfig(scale=(1.1, 0.9)), r"augmentation.scale is \(1.1, 0.9\); expected a range LOW <= HIGH"),
        (lambda: AugmentationConfig(scale=(0.0, 1.0)), r"augmentation.scale is \(0.0, 1.0\)"),
        (lambda: AugmentationConfig(scale=(math.nan, 1.0)), r"augmentation.scale is \(nan, 1.0\)"),
        (lambda: AugmentationConfig(scale=(1.0, math.inf)), r"augmentation.scale is \(1.0, inf\)"),
        (lambda: AugmentationConfig(rotation=181), "augmentation.rotation is 181; expected 0 to 180 degrees"),
        (lambda: AugmentationConfig(rotation=-1), "augmentation.rotation is -1"),
        (lambda: AugmentationConfig(blur=1.5), "augmentation.blur is 1.5; expected a probability"),
        (lambda: AugmentationConfig(flip=-0.1), "augmentation.flip is -0.1; expected a probability"),
        (lambda: AugmentationConfig(longest=7), "augmentation.longest is 7; expected at least 8 pixels, or none"),
        (lambda: ProtocolConfig(episodes=0), "protocol.episodes is 0; expected at least 1"),
        (lambda: ProtocolConfig(episodes_coco=0), "protocol.episodes_coco is 0"),
        (lambda: ProtocolConfig(episodes_fss=-1), "protocol.episodes_fss is -1"),
        (lambda: ProtocolConfig(order="random"), "protocol.order is 'random'; expected one of 'images', 'shuffled'"),
        (lambda: ProtocolConfig(score="both"), "protocol.score is 'both'; expected one of 'original', 'input'"),
        (lambda: ProtocolConfig(smallest=0), "protocol.smallest is 0; expected at least 1 pixel"),
        (lambda: ProtocolConfig(seeds=()), r"protocol.seeds is \(\); expected at least one seed, each once"),
        (lambda: ProtocolConfig(seeds=(3, 4, 3)), r"protocol.seeds is \(3, 4, 3\)"),
        (lambda: config.protocol("bam"), "protocol is 'bam'; expected one of cyctr, pfenet, hsnet"),
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


@pytest.mark.parametrize("kind", [Config, ProtocolConfig, InputConfig, AugmentationConfig])
def test_every_setting_has_a_help_text(kind):
    assert all(len(help_text) > 5 for _, _, help_text in config.settings(kind))


def test_a_probability_may_be_certain_and_a_range_one_number():
    sure = AugmentationConfig(scale=(1.0, 1.0), rotation=0.0, blur=1.0, flip=1.0, longest=8)
    assert config.from_dict(AugmentationConfig, config.to_dict(sure)) == sure


def test_the_usual_protocol_measures_as_the_paper_s_numbers_were_made():
    usual = config.protocol("cyctr")
    assert usual == ProtocolConfig()
    assert (usual.episodes, usual.episodes_coco, usual.order, usual.drop_novel) == (1000, 5000, "images", False)
    assert (usual.score, usual.smallest, usual.seeds) == ("original", None, (0,))
    assert (usual.input.size, usual.input.fit, usual.input.multiple, usual.input.register) == (473, "pad", 1, True)


def test_the_other_protocols_measure_as_their_repositories_do():
    pfenet, hsnet = config.protocol("pfenet"), config.protocol("hsnet")
    assert (pfenet.episodes, pfenet.episodes_coco, pfenet.input.size) == (5000, 20000, 473)
    assert (pfenet.input.multiple, pfenet.input.register, pfenet.input.fit) == (8, False, "pad")
    assert (hsnet.episodes, hsnet.input.size, hsnet.input.fit, hsnet.score) == (1000, 400, "squash", "input")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_survives_json(name):
    original = replace(PROTOCOLS[name], seeds=(5, 0, 123), smallest=7)
    text = json.dumps(config.to_dict(original))
    assert config.from_dict(ProtocolConfig, json.loads(text)) == original


@pytest.mark.parametrize("seeds", [(0,), (1, 2), tuple(range(9))])
def test_a_tuple_of_any_length_is_read_from_a_list(seeds):
    assert config.from_dict(ProtocolConfig, {"seeds": list(seeds)}).seeds == seeds


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seeds": 3}, "protocol.seeds is 3; expected tuple"),
        ({"seeds": "012"}, "protocol.seeds is '012'; expected tuple"),
        ({"seeds": [0, "1"]}, r"protocol.seeds\[1\] is '1'; expected int"),
        ({"seeds": [True]}, r"protocol.seeds\[0\] is True; expected int"),
        ({"seeds": []}, r"protocol.seeds is \(\); expected at least one"),
        ({"smallest": "all"}, "protocol.smallest is 'all'"),
        ({"input": {"size": 473.5}}, "protocol.input.size is 473.5; expected int"),
        ({"input": {"sizes": 473}}, "protocol.input.sizes is not a setting of this version"),
    ],
)
def test_a_foreign_protocol_is_refused_with_the_name_of_the_field(values, message):
    with pytest.raises(ConfigError, match=message):
        config.from_dict(ProtocolConfig, values, "protocol")


def test_a_pair_is_still_a_pair():
    with pytest.raises(ConfigError, match=r"augmentation.scale is \[1.0, 1.0, 1.0\]"):
        config.from_dict(AugmentationConfig, {"scale": [1.0, 1.0, 1.0]}, "augmentation")
