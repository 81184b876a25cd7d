import json
import math
import typing
from dataclasses import FrozenInstanceError, replace

import pytest

from cyctr import config
from cyctr.config import (
    PROTOCOLS,
    AugmentationConfig,
    InputConfig,
    OptimizerConfig,
    ProtocolConfig,
    TrainingConfig,
    parse,
    shown,
)
from cyctr.errors import ConfigError
from cyctr.methods.cyctr.config import (
    ABLATIONS,
    BEST,
    PAPER,
    PRESETS,
    RELEASED,
    Config,
    EncoderConfig,
    Level,
    LossConfig,
    ModelConfig,
    PriorConfig,
    SamplingConfig,
    preset,
)


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
    assert departures == announced("release:")
    assert RELEASED.model.backbone.architecture == "resnet50s"
    assert not departures & announced("ours:")


def announced(word):
    return {name for name, _, help_text in config.settings(Config) if help_text.startswith(word)}


def test_what_is_ours_is_off_where_the_paper_and_its_release_are_followed():
    words = {"optimizer.convolutions", "optimizer.decay", "model.encoder.matching"}
    on = {"model.prior.temperature", "training.latent_share", "optimizer.backbone_rate"} | words  # of what is off
    for followed in (PAPER, RELEASED):
        assert not any(leaves(followed)[name] for name in announced("ours:") - on)
        assert (followed.optimizer.convolutions, followed.optimizer.decay) == ("sgd", "poly")
        assert followed.model.encoder.matching == "dot"


def test_nothing_of_the_release_is_in_our_best():
    plain, best = leaves(PAPER), leaves(BEST)
    assert {name: best[name] for name in announced("release:")} == {name: plain[name] for name in announced("release:")}


def test_our_best_departs_where_a_field_says_so_or_a_rate_or_the_schedule_does():
    paper, best = leaves(PAPER), leaves(BEST)
    departures = {name for name in paper if paper[name] != best[name]}
    assert len(departures & announced("ours:")) > 5
    schedule = ("training.episodes", "training.batch", "training.order", "augmentation.longest")
    tuned = ("backbone.", "_rate", "convolution_decay", *schedule)
    assert all(any(part in name for part in tuned) for name in departures - announced("ours:"))


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
        ([], r"config is \[\]; expected the fields of Config"),
        ({"modle": {}}, "modle is not a setting of this version; expected one of model, loss, optimizer, training"),
        ({"model": {"dim": "wide"}}, "model.dim is 'wide'; expected int"),
        ({"model": {"dim": True}}, "model.dim is True; expected int"),
        ({"model": 3}, "model is 3; expected the fields of ModelConfig"),
        ({"model": {"encoder": {"cross": "cyclic"}}}, "model.encoder.cross is 'cyclic'; expected one of 'none', 'vanilla', "),
        (
            {"model": {"sampling": {"training_scale": [1.0]}}},
            r"model.sampling.training_scale is \[1.0\]; expected tuple\[float, float\]",
        ),
        ({"training": {"augmentation": {"longest": "x"}}}, r"training.augmentation.longest is 'x'; expected int \| None"),
    ],
)
def test_a_foreign_config_is_refused_with_the_name_of_the_field(values, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        config.from_dict(Config, values)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelConfig(dim=30), "model.dim is 30; expected a positive multiple of 4"),
        (lambda: ModelConfig(dim=36), "model.dim is 36 and model.encoder.heads is 8; heads must divide dim"),
        (lambda: ModelConfig(mixer="conv"), "model.mixer is 'conv'; expected one of 'transformer', 'residual'"),
        (lambda: EncoderConfig(layers=0), "encoder.layers is 0; expected at least 1"),
        (
            lambda: EncoderConfig(dropout=1.0),
            "model.encoder.dropout is 1.0; expected a number from 0 up to, but not including, 1",
        ),
        (lambda: EncoderConfig(cross="both"), "encoder.cross is 'both'; expected one of 'none', 'vanilla'"),
        (lambda: SamplingConfig(tokens_per_shot=1), "sampling.tokens_per_shot is 1; expected at least 2"),
        (lambda: SamplingConfig(training_scale=(2.0, 1.0)), "sampling.training_scale is .* LOW <= HIGH"),
        (lambda: SamplingConfig(training_scale=(1.0, math.inf)), r"sampling.training_scale is \(1.0, inf\)"),
        (lambda: SamplingConfig(training_scale_many=(math.nan, 1.0)), r"sampling.training_scale_many is \(nan, 1.0\)"),
        (lambda: EncoderConfig(mlp_ratio=math.inf), "encoder.mlp_ratio is inf; expected a positive number"),
        (lambda: EncoderConfig(mlp_ratio=math.nan), "encoder.mlp_ratio is nan"),
        (lambda: config.BackboneConfig(taps=(3, 2, 4)), "backbone.taps is .* increasing feature levels"),
        (lambda: config.BackboneConfig(taps=()), "backbone.taps is .* increasing feature levels"),
        (lambda: config.BackboneConfig(taps=(-1, 2)), "backbone.taps is .* increasing feature levels"),
        (
            lambda: ModelConfig(backbone=config.BackboneConfig(taps=(3, 4))),
            "model.backbone.taps is .*; expected three, of which CyCTR joins the first two",
        ),
        (lambda: LossConfig(auxiliary_weight=-1), "loss.auxiliary_weight is -1"),
        (lambda: preset("papers"), "preset is 'papers'; expected one of paper, released, best"),
        (lambda: PriorConfig(votes=("low",)), "prior.votes is 'low'; expected one of 'mid', 'high'"),
        (
            lambda: PriorConfig(votes=("mid", "high", "mid")),
            r"prior.votes is \('mid', 'high', 'mid'\); expected each level once",
        ),
        (lambda: PriorConfig(temperature=0.0), "prior.temperature is 0.0; expected a positive number"),
        (lambda: PriorConfig(temperature=math.inf), "prior.temperature is inf"),
        (lambda: OptimizerConfig(convolution_rate=-1.0), "optimizer.convolution_rate is -1.0; expected 0 to 1,000,000"),
        (lambda: OptimizerConfig(clip=math.nan), "optimizer.clip is nan; expected 0 to 1,000,000"),
        (lambda: OptimizerConfig(convolutions="adam"), "optimizer.convolutions is 'adam'; expected one of 'sgd', 'adamw'"),
        (lambda: OptimizerConfig(decay="step"), "optimizer.decay is 'step'; expected one of 'poly', 'cosine'"),
        (lambda: OptimizerConfig(warm_up=1.0), "optimizer.warm_up is 1.0; expected"),
        (lambda: OptimizerConfig(average=1.5), "optimizer.average is 1.5; expected"),
        (lambda: OptimizerConfig(momentum=1.0), "optimizer.momentum is 1.0; expected"),
        (lambda: TrainingConfig(episodes=0), "training.episodes is 0; expected 1 to 1,000,000,000,000"),
        (lambda: TrainingConfig(batch=0), "training.batch is 0; expected 1 to 65,536"),
        (lambda: TrainingConfig(shots=0), "training.shots is 0; expected 1 to 65,536"),
        (lambda: TrainingConfig(hold_out=-1), "training.hold_out is -1; expected 0 to 2,147,483,647"),
        (lambda: TrainingConfig(seed=-1), "training.seed is -1; expected 0 to 2,147,483,647"),
        (lambda: TrainingConfig(seed=2**31), "training.seed is 2147483648"),
        (lambda: TrainingConfig(latent_unsure=1.0), "training.latent_unsure is 1.0; expected a share from 0 up to"),
        (lambda: TrainingConfig(latent_unsure=-0.1), "training.latent_unsure is -0.1"),
        (lambda: TrainingConfig(latent_classes=255), "training.latent_classes is 255; expected 0 to 254"),  # 255 is undecided
        (lambda: TrainingConfig(order="random"), "training.order is 'random'; expected one of 'images', 'shuffled'"),
        (
            lambda: TrainingConfig(batch=4, shots=2, rotate=True).groups,
            "training.batch is 4 and training.rotate makes 3 episodes at a time; expected a multiple of 3, such as 6",
        ),
        (lambda: InputConfig(size=7), "input.size is 7; expected at least 8 pixels"),
        (lambda: InputConfig(multiple=0), "input.multiple is 0; expected from 1 to input.size"),
        (lambda: InputConfig(size=16, multiple=17), "input.multiple is 17"),
        (lambda: InputConfig(fill=256), "input.fill is 256; expected a grey value from 0 to 255"),
        (lambda: InputConfig(fill=-1), "input.fill is -1"),
        (lambda: InputConfig(fit="crop"), "input.fit is 'crop'; expected one of 'pad', 'squash'"),
        (lambda: AugmentationConfig(size=0), "training.augmentation.size is 0; expected 8 to 4,096 pixels"),
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
        (lambda: ProtocolConfig(order="random"), "protocol.order is 'random'; expected one of 'images', 'shuffled'"),
        (lambda: ProtocolConfig(score="both"), "protocol.score is 'both'; expected one of 'original', 'input'"),
        (lambda: ProtocolConfig(smallest=0), "protocol.smallest is 0; expected at least 1 pixel"),
        (lambda: ProtocolConfig(seeds=()), r"protocol.seeds is \(\); expected at least one seed, each once"),
        (lambda: ProtocolConfig(seeds=(3, 4, 3)), r"protocol.seeds is \(3, 4, 3\)"),
        (lambda: config.protocol("bam"), "protocol is 'bam'; expected one of cyctr, released, pfenet, hsnet"),
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
    assert (usual.episodes, usual.order, usual.drop_novel) == (1000, "images", False)
    assert (usual.score, usual.smallest, usual.seeds) == ("original", None, (0,))
    assert (usual.input.size, usual.input.fit, usual.input.multiple, usual.input.register) == (473, "pad", 1, True)


def test_the_other_protocols_measure_as_their_repositories_do():
    pfenet, hsnet = config.protocol("pfenet"), config.protocol("hsnet")
    assert (pfenet.episodes, pfenet.input.size) == (5000, 473)
    assert (pfenet.input.multiple, pfenet.input.register, pfenet.input.fit) == (8, False, "pad")
    assert (hsnet.episodes, hsnet.input.size, hsnet.input.fit, hsnet.score) == (1000, 400, "squash", "input")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_survives_json(name):
    original = replace(PROTOCOLS[name], seeds=(5, 0, 123), smallest=7)
    text = json.dumps(config.to_dict(original))
    assert config.from_dict(ProtocolConfig, json.loads(text)) == original


def test_what_earlier_versions_said_of_single_datasets_is_ignored():
    assert config.from_dict(ProtocolConfig, {"episodes_coco": 7, "episodes_fss": 9, "order_coco": "pairs"}) == ProtocolConfig()


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


@pytest.mark.parametrize(
    ("batch", "shots", "rotate"), [(1, 1, False), (4, 5, False), (2, 1, True), (12, 1, True), (12, 5, True)]
)
def test_a_step_draws_as_many_groups_as_make_its_batch(batch, shots, rotate):
    training = TrainingConfig(batch=batch, shots=shots, rotate=rotate)
    assert training.images == shots + 1
    assert training.groups * (training.images if rotate else 1) == batch  # each group gives one episode, or one for each image


@pytest.mark.parametrize("batch", [1, 2, 6, 14])
def test_a_schedule_has_as_many_steps_as_its_episodes_fill(batch):
    for episodes in range(1, 50):
        steps = TrainingConfig(episodes=episodes, batch=batch, rotate=batch > 1).steps
        assert steps * batch >= episodes > (steps - 1) * batch


@pytest.mark.parametrize("name", ["paper", "released"])
def test_on_coco_a_preset_has_the_length_and_the_batch_of_coco(name):
    plain, coco = preset(name), preset(name, "coco-2014")
    assert (plain.training.epochs, plain.training.batch) == (200, 4)
    assert (coco.training.epochs, coco.training.batch) == (50, 16)
    assert coco.training.augmentation.scale == (0.8, 1.25)
    assert coco.model.encoder.heads == (1 if name == "paper" else 8)  # the release has 8 everywhere
    assert preset(name, "pascal") == plain and preset("best", "coco-2014") == BEST


def test_a_schedule_is_as_long_as_so_many_rounds_of_the_images():
    training = TrainingConfig(epochs=3)
    with pytest.raises(ConfigError, match=r"training\.episodes is None"):
        assert training.steps
    known = training.with_length(10)
    assert (known.length, known.steps) == (30, 8)
    assert TrainingConfig(episodes=7).with_length(10).length == 7


def test_first_blocks_are_dilated_as_the_place_of_the_strides_wants_unless_told_otherwise():
    for stride_in_1x1 in (True, False):
        assert config.BackboneConfig(stride_in_1x1=stride_in_1x1).dilates_first is stride_in_1x1
        for told in (True, False):
            assert config.BackboneConfig(stride_in_1x1=stride_in_1x1, dilate_first=told).dilates_first is told
    for name in PRESETS:
        assert preset(name).model.backbone.dilate_first is None


def test_a_config_of_an_earlier_version_means_what_it_meant():
    stored = config.to_dict(PAPER)
    del stored["model"]["backbone"]["dilate_first"]  # first blocks were dilated like the stage before
    stored["model"]["head"] = {"residual": False, "dropout": 0.0}
    stored["model"]["encoder"]["marks"] = False
    stored["training"]["augmentation"]["colour"] = 0.0
    found = config.from_dict(Config, stored)
    assert found.model.backbone.dilate_first is False
    assert replace(found, model=replace(found.model, backbone=PAPER.model.backbone)) == PAPER
    stored["model"]["head"]["residual"] = True
    with pytest.raises(ConfigError, match=r"model\.head\.residual is True, which this version no longer has"):
        config.from_dict(Config, stored)


def another(value, kind):
    """Some other value that a setting of this kind may have."""
    if kind is bool:
        return not value
    if kind is int:
        return 3 if value == 1 else 2 * value or 8  # 4 images divide every batch
    if kind is float:
        return value / 2 or 0.25
    if typing.get_origin(kind) is typing.Literal:
        return next(choice for choice in typing.get_args(kind) if choice != value)
    if kind == bool | None:
        return not value
    if kind == int | None:
        return 2 * value if value else 16
    kinds = {
        str: "resnet18",
        str | None: "timm:a1_in1k",
        tuple[float, float]: (0.75, 1.5),
        tuple[int, ...] | None: (1, 2, 4),
        tuple[float, ...] | None: (0.5, 0.25, 2.0),
        tuple[float, ...]: (0.25, 0.5),
        tuple[float, float, float] | None: (0.1, 0.25, 0.5),
        tuple[Level, ...]: ("high", "mid") if value != ("high", "mid") else ("high",),
    }
    return kinds[kind]


def kind_of(dotted, owner=Config):
    for part in dotted.split("."):
        owner = typing.get_type_hints(owner)[part]
    return owner


@pytest.mark.parametrize("base", PRESETS)
@pytest.mark.parametrize("name", [name for name, _, _ in config.settings(Config)])
def test_every_setting_can_be_given_as_text_and_is_the_only_one_that_changes(name, base):
    before = leaves(PRESETS[base])
    wanted = another(before[name], kind_of(name))
    assert wanted != before[name]
    changed = parse(Config, PRESETS[base], {name: shown(wanted)})
    assert leaves(changed) == {**before, name: wanted}
    assert type(_at(changed, name)) is type(wanted)
    assert parse(Config, changed, {name: shown(before[name])}) == PRESETS[base]
    assert leaves(PRESETS[base]) == before


@pytest.mark.parametrize("base", PRESETS)
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_can_be_given_as_the_text_of_all_its_settings(name, base):
    text = {setting: shown(value) for setting, value in leaves(PRESETS[name]).items()}
    assert all(isinstance(value, str) for value in text.values())
    assert parse(Config, PRESETS[base], text) == PRESETS[name]


def test_nothing_given_changes_nothing():
    assert parse(Config, BEST, {}) == BEST
    assert parse(ProtocolConfig, PROTOCOLS["hsnet"], {}) == PROTOCOLS["hsnet"]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("training.episodes", "64_000", 64000),
        ("training.episodes", "1e5", 100000),
        ("training.episodes", "2.0", 2),
        ("optimizer.transformer_rate", "3e-4", 3e-4),
        ("optimizer.clip", "1", 1.0),
        ("training.rotate", "yes", True),
        ("training.rotate", "ON", True),
        ("training.rotate", "1", True),
        ("model.auxiliary", "No", False),
        ("model.auxiliary", "off", False),
        ("model.auxiliary", "0", False),
        ("training.augmentation.scale", " 0.8 , 1.25 ", (0.8, 1.25)),
        ("training.augmentation.scale", "1,1", (1.0, 1.0)),
        ("training.augmentation.longest", "None", None),
        ("model.backbone.weights", "none", None),
        ("model.backbone.weights", "a/b, c.pth", "a/b, c.pth"),
        ("model.backbone.taps", "1,2,3", (1, 2, 3)),
        ("model.prior.votes", "mid", ("mid",)),
        ("model.prior.votes", "", ()),
        ("model.prior.votes", "None", ()),
    ],
)
def test_a_text_stands_for_the_value_that_the_kind_of_its_setting_tells(name, text, value):
    found = _at(parse(Config, BEST, {name: text}), name)
    assert found == value and type(found) is type(value)


def test_settings_that_only_fit_together_may_be_given_together():
    changed = parse(Config, PAPER, {"training.batch": "9", "training.shots": "2", "training.rotate": "true"})
    assert changed.training.groups == 3
    with pytest.raises(ConfigError, match=r"training\.batch is 9 and training\.rotate makes 2 episodes at a time"):
        parse(Config, PAPER, {"training.batch": "9", "training.rotate": "true"}).training.groups  # noqa: B018


NUMBERS = [name for name, default, _ in config.settings(Config) if type(default) in (int, float)]


@pytest.mark.parametrize("name", sorted(set(NUMBERS) - {"model.sampling.seed"}))  # any will do
def test_a_number_that_cannot_be_is_refused_by_the_name_that_an_option_has(name):
    with pytest.raises(ConfigError, match=f"^{name} is -"):
        parse(Config, PAPER, {name: "-1000000000"})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("optimizer.clip", "one", "optimizer.clip is 'one'; expected a number"),
        ("optimizer.clip", "", "optimizer.clip is ''; expected a number"),
        ("optimizer.clip", "none", "optimizer.clip is 'none'; expected a number"),
        ("optimizer.clip", "-1", "optimizer.clip is -1.0; expected 0 to 1,000,000"),
        ("optimizer.clip", "nan", "optimizer.clip is nan; expected 0 to 1,000,000"),
        ("training.batch", "4.5", "training.batch is '4.5'; expected a whole number"),
        ("training.batch", "nan", "training.batch is 'nan'; expected a whole number"),
        ("training.batch", "inf", "training.batch is 'inf'; expected a whole number"),
        ("training.batch", "0", "training.batch is 0; expected 1 to 65,536"),
        ("training.batch", 5000 * "9", "training.batch is '9+'; expected a number"),
        ("training.batch", "10000000000", "training.batch is 10000000000; expected 1 to 65,536"),
        ("training.seed", "9007199254740993", "training.seed is 9007199254740993; expected 0 to 2,147,483,647"),
        ("optimizer.transformer_rate", "1e38", r"optimizer.transformer_rate is 1e\+38; expected 0 to 1,000,000"),
        ("training.augmentation.longest", "half", "training.augmentation.longest is 'half'; expected a number"),
        ("training.augmentation.scale", "1", "augmentation.scale is '1'; expected 2 values with commas between them"),
        ("training.augmentation.scale", "1,2,3", "augmentation.scale is '1,2,3'; expected 2 values"),
        ("training.augmentation.scale", "1,x", "augmentation.scale is 'x'; expected a number"),
        ("model.backbone.taps", "2,3", "model.backbone.taps is .*; expected three, of which CyCTR joins"),
        ("model.backbone.taps", "2,3,4.5", "model.backbone.taps is '4.5'; expected a whole number"),
        ("training.rotate", "maybe", "training.rotate is 'maybe'; expected true or false"),
        ("training.rotate", "", "training.rotate is ''; expected true or false"),
        ("model.encoder.cross", "cyclic", "^model.encoder.cross is 'cyclic'; expected one of 'none', 'vanilla', 'predicted', "),
        ("optimizer.decay", "Poly", "^optimizer.decay is 'Poly'; expected one of 'poly', 'cosine', 'steps'$"),
        ("model.prior.votes", "mid,low", r"^model.prior.votes\[1\] is 'low'; expected one of 'mid', 'high'$"),
        ("model.encoder.layer", "2", "^model.encoder.layer is not a setting; the nearest one is model.encoder.layers$"),
        ("encoder.layers", "2", "encoder.layers is not a setting; the nearest one is model.encoder.layers"),
        ("model.encoder", "2", "model.encoder is not a setting; the nearest one is model.encoder."),
        ("x", "2", "x is not a setting; the nearest one is "),
        ("model.dim.x", "2", "model.dim.x is not a setting; the nearest one is model.dim"),
        ("model.prior.votes", "mid,mid", r"prior.votes is \('mid', 'mid'\); expected each level once"),
        ("model.dim", "30", "model.dim is 30; expected a positive multiple of 4"),
    ],
)
def test_a_text_that_stands_for_no_value_is_refused_with_the_name_of_its_setting(name, text, message):
    with pytest.raises(ConfigError, match=message) as refusal:
        parse(Config, PAPER, {name: text})
    assert "\n" not in str(refusal.value)
