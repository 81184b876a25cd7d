import errno
import json
import os
import re
from dataclasses import replace
from itertools import islice

import pytest
import torch
from learning import (
    QUIET,
    SMALL,
    assert_close,
    begun,
    changed,
    go,
    photos,
    prepared,
    resumed,
    same_bits,
    state_of,
    textures,
    timeless,
    trained,
    without_dropout,
)
from miniature import state
from PIL import Image
from safetensors.torch import load_file

from cyctr.backbones.weights import load_backbone
from cyctr.checkpoint import load_checkpoint
from cyctr.config import BackboneConfig
from cyctr.datasets.joined import learn_from_everything
from cyctr.datasets.own_folder import open_folder
from cyctr.datasets.synthetic_pool import SyntheticPool, open_synthetic
from cyctr.episodes.image_store import ResidentStore, StreamingStore
from cyctr.errors import CheckpointError, ConfigError, DataError, TrainingError
from cyctr.methods.cyctr.config import BEST, RELEASED, Config
from cyctr.methods.cyctr.loss import Losses
from cyctr.training import loop as session
from cyctr.training.options import kept_options
from cyctr.training.run_folder import BEST as BEST_FILE
from cyctr.training.run_folder import CURVES, LAST, STATE, RunFolder
from cyctr.training.state import Standing

STEPS = SMALL.training.steps
HELD_OUT = changed(SMALL, training={"hold_out": 2})
VARIANTS = {
    "dropout": SMALL,
    "the paper's optimizers": changed(SMALL, optimizer={"convolutions": "sgd", "average": 0.0}),
    "the release": Config(
        model=replace(
            RELEASED.model,
            dim=16,
            backbone=SMALL.model.backbone,
            encoder=replace(RELEASED.model.encoder, layers=1, heads=2, points=2),
            sampling=replace(RELEASED.model.sampling, tokens_per_shot=40),
        ),
        loss=RELEASED.loss,
        optimizer=replace(RELEASED.optimizer, rate_multiplier=1.0),
        training=SMALL.training,
    ),
    "tuned": changed(SMALL, model={"backbone": BackboneConfig("tiny", tuned=True)}),
    "recognising, tuned": changed(SMALL, model={"backbone": BackboneConfig("tiny", tuned=True), "familiar": 8}),
    "rotated": changed(SMALL, training={"rotate": True}),
    "two shots": changed(SMALL, training={"shots": 2}),
    "two shots, rotated": changed(SMALL, training={"shots": 2, "rotate": True, "batch": 3, "episodes": 18}),
}


DRAW = session.draw_curves


@pytest.fixture(autouse=True, scope="module")
def _every_step():
    """A line of the metrics for each step, so that lines do not depend on when a run was interrupted.

    And no curves, as where matplotlib is not installed: they take longer than the runs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_LOG_STEPS", 1)
        patch.setattr(session, "draw_curves", lambda records: None)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run in one go; made once for each config and options."""
    known = {}

    def path(config=SMALL, options=QUIET):
        if (config, options) not in known:
            known[config, options] = tmp_path_factory.mktemp("whole") / "run"
            trained(known[config, options], config, options)
        return known[config, options]

    return path


def spied(trainer):
    """The groups that the trainer's network sees, while it trains."""
    seen, losses = [], trainer.losses
    trainer.losses = lambda groups, tokens: seen.append((groups, tokens)) or losses(groups, tokens)
    return seen


def gradients_of(trainer):
    """The gradients of every step, while it trains."""
    found, step = [], trainer.optimization.step

    def spy(number):
        found.append({name: value.grad.clone() for name, value in trainer.optimization.weights.items()})
        step(number)

    trainer.optimization.step = spy
    return found


def assert_same_run(one, other):
    """Checkpoints, the state and the metrics are equal to the bit."""
    networks = [{path.name: path.read_bytes() for path in folder.glob("*.safetensors")} for folder in (one, other)]
    assert networks[0].keys() == networks[1].keys()
    for name in networks[0]:
        assert networks[0][name] == networks[1][name], name
    assert timeless(one) == timeless(other)


def test_a_short_training_lowers_the_loss_and_beats_the_untrained_network_on_classes_it_has_never_seen(tmp_path):
    config = changed(
        SMALL,
        model={"dim": 32, "prior": BEST.model.prior},
        optimizer={"convolution_rate": 3e-3, "transformer_rate": 3e-3},
        training={"hold_out": 8, "rotate": True, "batch": 8, "episodes": 480, "seed": 1},
    )
    dataset = open_synthetic(SyntheticPool(24, 4, 65))
    trainer = begun(tmp_path / "run", config, replace(QUIET, validation_episodes=60), dataset=dataset)
    untrained = trainer.validate()
    go(trainer)
    first, *_, last, validation = timeless(tmp_path / "run")
    assert last["main"] < 0.95 * first["main"]
    assert last["auxiliary"] < 0.95 * first["auxiliary"]
    assert validation["validation"]["classes"].keys() == untrained["classes"].keys()
    assert validation["validation"]["miou"] > 1.5 * untrained["miou"]
    assert validation["validation"]["fb_iou"] > untrained["fb_iou"]


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_the_same_seed_trains_the_same_network_and_another_seed_another(config, tmp_path, whole):
    torch.manual_seed(77)
    trained(tmp_path / "same", config)
    assert_same_run(tmp_path / "same", whole(config))
    trained(tmp_path / "other", changed(config, training={"seed": 1}))
    one, other = state_of(tmp_path / "same"), state_of(tmp_path / "other")
    assert one.keys() == other.keys()
    assert not any(torch.equal(one[name], other[name]) for name in one if name.startswith("weights."))


@pytest.mark.parametrize("at", range(1, STEPS))
def test_a_run_that_is_stopped_at_any_step_and_resumed_is_the_run_in_one_go(at, tmp_path, whole):
    assert go(begun(tmp_path / "parts"), until=at) == "stopped"
    assert [line["step"] for line in timeless(tmp_path / "parts")] == list(range(1, at + 1))
    again = resumed(tmp_path / "parts")
    assert again.step == at
    assert go(again) == "finished"
    assert_same_run(tmp_path / "parts", whole())


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_every_kind_of_run_is_resumed_to_the_same_bits(config, tmp_path, whole):
    go(begun(tmp_path / "parts", config), until=1)
    go(resumed(tmp_path / "parts", config), until=4)
    go(resumed(tmp_path / "parts", config))
    assert_same_run(tmp_path / "parts", whole(config))


class CrashError(Exception):
    """Somebody pulled the plug."""


def crash(trainer, at):
    def stop():
        if trainer.step == at:
            raise CrashError
        return False

    with pytest.raises(CrashError):
        trainer.run(stop=stop)


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_run_that_crashed_is_resumed_from_its_last_state_to_the_same_bits(at, tmp_path, whole):
    """The state is kept after steps 2 and 4."""
    options = replace(QUIET, keep_every=8)
    crash(begun(tmp_path / "parts", options=options), at)
    again = resumed(tmp_path / "parts", options=options)
    assert again.step == {1: 0, 2: 0, 3: 2, 5: 4}[at]
    go(again)
    assert_same_run(tmp_path / "parts", whole(options=options))
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {path.name for path in whole(options=options).iterdir()}


def test_a_run_keeps_its_state_as_often_as_asked_for(tmp_path, whole):
    for minutes, kept in ((0.0, 3), (100.0, 0)):
        path = tmp_path / str(minutes)
        crash(begun(path, options=replace(QUIET, save_minutes=minutes)), at=4)
        assert (path / STATE).exists() == bool(kept)
        again = resumed(path)
        assert again.step == kept
        go(again)
        assert_same_run(path, whole())


@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_run_that_is_stopped_when_something_is_due_lacks_nothing_after_a_resume(at, tmp_path, whole):
    options = replace(QUIET, validate_every=12, keep_every=8)
    go(begun(tmp_path / "parts", HELD_OUT, options), until=at)
    go(resumed(tmp_path / "parts", HELD_OUT, options))
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {path.name for path in whole(HELD_OUT, options).iterdir()}
    assert_same_run(tmp_path / "parts", whole(HELD_OUT, options))


@pytest.mark.parametrize("times", range(1, 6))
def test_a_run_that_is_killed_while_it_saves_is_resumed_to_the_same_bits(times, tmp_path, whole, monkeypatch):
    """It saves its state after steps 2 and 4 and twice after the last, and the best network after a validation."""
    options = replace(QUIET, validate_every=12, keep_every=8)
    trainer = begun(tmp_path / "parts", HELD_OUT, options)
    calls, write = [], RunFolder.write

    def kill(folder, name, content):
        calls.append(name)
        if len([name for name in calls if name in (STATE, BEST_FILE)]) == times:
            raise CrashError
        write(folder, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write", kill)
        with pytest.raises(CrashError):
            go(trainer)
    go(resumed(tmp_path / "parts", HELD_OUT, options))
    assert_same_run(tmp_path / "parts", whole(HELD_OUT, options))


def test_a_run_that_is_killed_before_its_last_validation_is_validated_when_it_is_resumed(tmp_path, whole):
    trainer = begun(tmp_path / "parts", HELD_OUT)

    def kill(stop):
        raise CrashError

    trainer.validate = kill
    with pytest.raises(CrashError):
        go(trainer)
    again = resumed(tmp_path / "parts", HELD_OUT)
    assert (again.step, again.finished) == (STEPS, False)
    assert go(again) == "finished"
    assert_same_run(tmp_path / "parts", whole(HELD_OUT))


@pytest.mark.parametrize("every", [0, 8], ids=["the last", "one on the way"])
def test_a_validation_is_broken_off_where_a_run_shall_stop_and_done_when_it_is_resumed(every, tmp_path):
    options, asked = replace(QUIET, validate_every=every), []
    trainer = begun(tmp_path / "parts", HELD_OUT, options)
    method = trainer.method
    trainer.method = lambda on_batch: asked.append("while it is validated") or method(on_batch)
    assert trainer.run(stop=lambda: bool(asked)) == "stopped"
    done = every // HELD_OUT.training.batch or STEPS
    assert RunFolder(tmp_path / "parts").load_state()[1] == Standing(done, 0, -1.0)
    assert not [line for line in timeless(tmp_path / "parts") if "validation" in line]
    again = resumed(tmp_path / "parts", HELD_OUT, options)
    assert (again.step, again.finished) == (done, False)
    assert go(again) == "finished"
    trained(tmp_path / "whole", HELD_OUT, options)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_a_validation_is_broken_off_before_it_has_learned_to_recognise_classes(tmp_path):
    trainer, looked_at = begun(tmp_path / "run", changed(HELD_OUT, model={"familiar": 4})), []
    trainer.encoder.register_forward_hook(lambda *_: looked_at.append(trainer.step))
    assert trainer.run(stop=lambda: trainer.step == STEPS) == "stopped"
    assert set(looked_at) == set(range(STEPS))  # all steps, and nothing after the last
    assert RunFolder(tmp_path / "run").load_state()[1] == Standing(STEPS, 0, -1.0)


def test_a_session_of_which_nothing_stays_changes_nothing_of_the_run(tmp_path):
    go(begun(tmp_path / "run", options=replace(QUIET, accumulate=2)), until=2)
    before = state(tmp_path / "run")
    trainer = resumed(tmp_path / "run", options=QUIET)
    assert trainer.changed == ["accumulate 2, now 1"]
    assert kept_options(RunFolder(tmp_path / "run").last_session(), trainer.device)["accumulate"] == 2
    after = state(tmp_path / "run")
    assert after[tmp_path / "run" / "config.json"] == before[tmp_path / "run" / "config.json"]
    go(trainer)
    assert kept_options(RunFolder(tmp_path / "run").last_session(), trainer.device)["accumulate"] == 1


def test_numbers_that_half_precision_spoiled_may_be_better_in_float32(tmp_path):
    trainer = begun(tmp_path / "run", options=replace(QUIET, half=True))
    broken(trainer, 1, 0)
    with pytest.raises(TrainingError, match=r"optimizer.clip=1, or in float32$") as found:
        go(trainer)
    assert found.value.options == ("force", "optimizer.clip", "half")
    trainer = begun(tmp_path / "saved", options=replace(QUIET, half=True, save_minutes=0.0))
    broken(trainer, 1, 0)
    with pytest.raises(TrainingError, match="is whole: resume the run in float32, or begin again") as found:
        go(trainer)
    assert found.value.options == ("resume", "force", "optimizer.clip", "half")


def test_a_network_whose_state_is_gone_is_not_trained_over(tmp_path):
    trained(tmp_path / "run")
    (tmp_path / "run" / STATE).unlink()
    before = state(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"state\.safetensors: is gone, and the run cannot go on from last"):
        resumed(tmp_path / "run")
    assert state(tmp_path / "run") == before


def test_a_run_that_is_killed_between_its_first_state_and_its_first_network_goes_on(tmp_path, whole):
    trainer = begun(tmp_path / "parts", options=replace(QUIET, save_minutes=0.0))

    def kill(*_, **__):
        raise CrashError

    trainer.save = kill
    with pytest.raises(CrashError):
        go(trainer)
    assert not (tmp_path / "parts" / LAST).exists()
    again = resumed(tmp_path / "parts")
    assert again.step == 1
    go(again)
    assert_same_run(tmp_path / "parts", whole())


def test_a_state_of_a_network_of_another_width_is_refused(tmp_path):
    go(begun(tmp_path / "run"), until=1)
    config = tmp_path / "run" / "config.json"
    about = json.loads(config.read_text())
    about["config"]["model"]["dim"] = 2 * SMALL.model.dim
    config.write_text(json.dumps(about))
    with pytest.raises(CheckpointError, match=r"the saved 'weights\..*' has another shape \(.* there, .* in this network\)"):
        resumed(tmp_path / "run", changed(SMALL, model={"dim": 2 * SMALL.model.dim}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("accumulate", value) for value in (0, -1, 1.5, True, "2", None)),
        *(("save_minutes", value) for value in (-1, "a", float("nan"))),
        *(("validation_episodes", -1), ("keep_every", -5), ("validate_every", 0.5), ("workers", 0)),
        *(("max_minutes", float("nan")), ("half", "yes"), ("deterministic", None), ("compile", 1)),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(name, value):
    with pytest.raises(ConfigError, match=rf"^{name} is .*; expected (a whole number|a number|True or False)"):
        replace(QUIET, **{name: value})


@pytest.mark.parametrize("config", [SMALL, HELD_OUT], ids=["watched", "validated"])
def test_a_finished_run_is_left_as_it_is_when_it_is_resumed(config, tmp_path):
    options = replace(QUIET, tensorboard=True, validate_every=8, keep_every=8)
    trained(tmp_path / "run", config, options)
    before = state(tmp_path / "run")
    again = resumed(tmp_path / "run", config, options)
    assert again.finished
    assert go(again) == "finished"
    assert state(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("config", "others", "words"),
    [
        (changed(SMALL, training={"seed": 1}), {}, r"config\.training\.seed 0 / 1"),
        (
            changed(SMALL, optimizer={"clip": 0.5}, training={"batch": 2}),
            {},
            r"config\.optimizer\.clip 1\.0 / 0\.5; config\.training\.batch 4 / 2",
        ),
        (SMALL, {"fold": 1}, r"data\.fold 0 / 1; data\.train .*; data\.test"),
        (SMALL, {"dataset": open_synthetic(SyntheticPool(8, 5, 65))}, r"data\.images 32 / 40; images or masks have changed\)"),
    ],
    ids=["seed", "two settings", "fold", "images"],
)
def test_a_run_of_other_settings_is_not_resumed(config, others, words, tmp_path):
    go(begun(tmp_path / "run"), until=1)
    before = state(tmp_path / "run")
    with pytest.raises(
        ConfigError, match=rf"other settings \(there / here: {words}.*give the same options, or choose another output"
    ):
        resumed(tmp_path / "run", config, **others)
    assert state(tmp_path / "run") == before


def test_options_that_change_nothing_of_what_is_learned_may_change_in_a_resume(tmp_path, whole):
    go(begun(tmp_path / "parts"), until=3)
    go(resumed(tmp_path / "parts", options=replace(QUIET, resident=False, workers=2, save_minutes=0.0, tensorboard=True)))
    assert_same_run(tmp_path / "parts", whole())


def test_a_run_from_before_there_was_a_setting_is_resumed(tmp_path, whole):
    go(begun(tmp_path / "parts"), until=2)
    path = tmp_path / "parts" / "config.json"
    told = json.loads(path.read_text())
    del told["config"]["optimizer"]["backbone_rate"], told["config"]["model"]["familiar"]
    path.write_text(json.dumps(told))
    go(resumed(tmp_path / "parts"))
    assert_same_run(tmp_path / "parts", whole())


def test_a_folder_without_a_run_is_not_resumed(tmp_path):
    with pytest.raises(ConfigError, match="no run to resume"):
        resumed(tmp_path / "run")


def test_a_resumed_run_says_how_often_it_was_resumed(tmp_path):
    go(begun(tmp_path / "run"), until=1)
    before = RunFolder(tmp_path / "run").read_config()
    go(resumed(tmp_path / "run", options=replace(QUIET, half=True, accumulate=2)), until=2)
    after = RunFolder(tmp_path / "run").read_config()
    assert after["sessions"][0] == before["sessions"][0]
    how = [[session[name] for name in ("precision", "accumulate", "processes", "compile")] for session in after["sessions"]]
    assert how == [["float32", 1, 1, False], ["bfloat16", 2, 1, False]]
    assert {k: v for k, v in before.items() if k != "sessions"} == {k: v for k, v in after.items() if k != "sessions"}
    assert before["data"]["train"] == [f"texture-{number:03d}" for number in range(2, 8)]
    assert before["data"]["test"] == ["texture-000", "texture-001"]


@pytest.mark.parametrize("config", [VARIANTS[name] for name in ("rotated", "two shots", "tuned")])
def test_a_step_in_parts_has_the_gradients_of_the_whole_step(config, tmp_path):
    found = {}
    for parts in (1, 2):
        trainer = begun(tmp_path / str(parts), without_dropout(config), replace(QUIET, accumulate=parts))
        gradients, seen = gradients_of(trainer), spied(trainer)
        go(trainer, until=2)
        assert len(seen) == 2 * parts
        found[parts] = gradients[0], [draw for groups, _ in seen for draw in groups.draws]
    assert found[1][1] == found[2][1]
    assert any(value.abs().max() > 1e-3 for value in found[1][0].values())
    assert_close(found[1][0], found[2][0], 1e-6)
    lines = [timeless(tmp_path / str(parts))[0] for parts in (1, 2)]
    assert lines[0] == pytest.approx(lines[1], rel=1e-4)


def test_a_step_that_cannot_be_parted_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="4 groups of 2 images, which 1 process times 3 accumulated parts do not share"):
        prepared(tmp_path / "run", options=replace(QUIET, accumulate=3))


def test_images_on_the_device_and_images_read_meanwhile_train_the_same_network(tmp_path):
    root = photos(tmp_path / "photos", classes=3, each=3)
    kinds = {True: ResidentStore, False: StreamingStore}
    for resident, kind in kinds.items():
        dataset = open_folder(root, test_classes=["thing0"])
        trainer = trained(tmp_path / str(resident), options=replace(QUIET, resident=resident, workers=3), dataset=dataset)
        assert isinstance(trainer.episodes.store, kind)
    assert_same_run(tmp_path / "True", tmp_path / "False")


def test_runs_may_share_what_they_have_read(tmp_path):
    first = trained(tmp_path / "first")
    trained(tmp_path / "second", store=first.parts.store, validation=first.validation)
    assert_same_run(tmp_path / "first", tmp_path / "second")


def test_held_out_classes_are_validated_on_and_never_learned_from(tmp_path):
    trainer = begun(tmp_path / "run", HELD_OUT, replace(QUIET, validation_episodes=8))
    seen = spied(trainer)
    go(trainer)
    sides = trainer.dataset.fold(0)
    assert len(sides.validation) == 2
    assert set(sides.validation) <= set(textures().fold(0).train)
    assert sides.test == textures().fold(0).test
    assert sides.train == tuple(c for c in textures().fold(0).train if c not in sides.validation)

    learned = {draw.category for groups, _ in seen for draw in groups.draws}
    assert learned == set(sides.train)
    images = {image for groups, _ in seen for draw in groups.draws for image in (draw.query, *draw.supports)}
    assert {image // 4 for image in images} == set(sides.train)  # each image shows one class
    found = timeless(tmp_path / "run")[-1]["validation"]
    assert found["split"] == "validation"
    assert set(found["classes"]) == {trainer.dataset.classes[number] for number in sides.validation}


def test_without_held_out_classes_the_test_classes_are_watched_and_choose_nothing(tmp_path):
    trained(tmp_path / "run", options=replace(QUIET, validate_every=8))
    found = [line["validation"] for line in timeless(tmp_path / "run") if "validation" in line]
    assert len(found) == 3
    assert {line["split"] for line in found} == {"test"}
    assert {name for line in found for name in line["classes"]} <= {"texture-000", "texture-001"}
    assert not (tmp_path / "run" / BEST_FILE).exists()


def test_where_everything_is_learned_from_nothing_is_validated(tmp_path):
    trainer = begun(tmp_path / "run", dataset=learn_from_everything(textures()))
    seen = spied(trainer)
    go(trainer)
    assert {0, 1} & {draw.category for groups, _ in seen for draw in groups.draws}
    assert not any("validation" in line for line in timeless(tmp_path / "run"))
    assert not (tmp_path / "run" / BEST_FILE).exists()
    assert load_checkpoint(tmp_path / "run" / LAST)[1] == SMALL


@pytest.mark.parametrize(
    ("hold_out", "words"), [(6, "training.hold_out is 6.*6 training classes: expected 0 to 5"), (7, "is 7")]
)
def test_more_classes_than_there_are_cannot_be_held_out(hold_out, words, tmp_path):
    with pytest.raises(DataError, match=words):
        prepared(tmp_path / "run", changed(SMALL, training={"hold_out": hold_out}))


def scripted(trainer, scores):
    """Makes its validations score as given; tells the weights that each of them saw."""
    saw, validate, left = [], trainer.validate, list(scores)

    def spy(stop):
        saw.append({name: value.clone() for name, value in trainer.optimization.tested.items()})
        return validate(stop) | {"miou": left.pop(0)}

    trainer.validate = spy
    return saw


def test_the_best_checkpoint_is_that_of_the_best_validation_also_across_a_resume(tmp_path):
    path, options = tmp_path / "run", replace(QUIET, validate_every=4)
    first = begun(path, HELD_OUT, options)
    saw = scripted(first, [0.2, 0.5, 0.4])
    go(first, until=4)  # before its fourth validation
    assert same_bits(load_file(path / BEST_FILE), saw[1])

    second = resumed(path, HELD_OUT, options)
    assert second.best == 0.5
    saw = scripted(second, [0.5, 0.1, 0.1])
    held = (path / BEST_FILE).read_bytes()
    go(second)
    assert len(saw) == 3
    assert (path / BEST_FILE).read_bytes() == held  # as good is not better

    third = begun(tmp_path / "late", HELD_OUT, options)
    saw = scripted(third, [0.2, 0.1, 0.1, 0.1, 0.1, 0.3])
    go(third)
    assert same_bits(load_file(tmp_path / "late" / BEST_FILE), saw[5])
    assert resumed(tmp_path / "late", HELD_OUT, options).best == 0.3
    network, config = load_checkpoint(tmp_path / "late" / BEST_FILE)
    assert config == HELD_OUT
    assert not network.training


def test_validation_does_not_change_what_is_learned(tmp_path, whole):
    trained(tmp_path / "with", HELD_OUT, replace(QUIET, validate_every=4, validation_episodes=5))
    assert same_bits(state_of(tmp_path / "with"), state_of(whole(HELD_OUT)))
    assert sum("validation" in line for line in timeless(tmp_path / "with")) == STEPS
    assert sum("validation" in line for line in timeless(whole(HELD_OUT))) == 1


def test_validation_scores_the_moving_average(tmp_path):
    trainer = begun(tmp_path / "run", options=replace(QUIET, validation_episodes=6))
    go(trainer, until=4)
    before = trainer.validate()
    with torch.no_grad():
        for value in trainer.optimization.weights.values():
            value.add_(torch.randn_like(value))
    assert trainer.validate() == before
    with torch.no_grad():
        for value in trainer.optimization.tested.values():
            value.add_(torch.randn_like(value))
    assert trainer.validate() != before


def test_when_time_is_up_the_run_ends_after_a_step_with_a_checkpoint_and_a_validation(tmp_path, whole):
    trainer = begun(tmp_path / "run", HELD_OUT, replace(QUIET, max_minutes=0.0))
    assert go(trainer) == "time"
    assert trainer.step == 1
    assert [sorted(line)[-1] for line in timeless(tmp_path / "run")] == ["transformer_rate", "validation"]
    assert load_checkpoint(tmp_path / "run" / LAST)[1] == HELD_OUT
    assert (tmp_path / "run" / BEST_FILE).exists()

    go(resumed(tmp_path / "run", HELD_OUT))
    assert same_bits(state_of(tmp_path / "run"), state_of(whole(HELD_OUT)))


def test_time_is_counted_from_the_resume_on_and_the_metrics_count_all_of_it(tmp_path):
    trainer = begun(tmp_path / "run")
    trainer.seconds = 3600.0  # of work
    go(trainer, until=1)
    assert go(resumed(tmp_path / "run", options=replace(QUIET, max_minutes=10.0))) == "finished"
    seconds = [line["seconds"] for line in RunFolder(tmp_path / "run").records()]
    assert seconds[0] > 3600
    assert seconds == sorted(seconds)


def test_a_stopped_run_is_not_validated(tmp_path):
    go(begun(tmp_path / "run", HELD_OUT), until=2)
    assert not any("validation" in line for line in timeless(tmp_path / "run"))
    assert {LAST, STATE} <= {path.name for path in (tmp_path / "run").iterdir()}
    assert not (tmp_path / "run" / BEST_FILE).exists()


def test_checkpoints_are_kept_for_good_where_that_is_asked_for(tmp_path, whole):
    run = whole(options=replace(QUIET, keep_every=8))
    kept = sorted(path.name for path in run.glob("at-*"))
    assert kept == ["at-000000008.safetensors", "at-000000016.safetensors"]
    for name, step in zip(kept, (2, 4), strict=True):
        go(begun(tmp_path / str(step)), until=step)
        assert same_bits(load_file(run / name), load_file(tmp_path / str(step) / LAST))
    assert load_checkpoint(run / kept[0])[1] == SMALL
    assert not list(whole().glob("at-*"))


def test_the_same_run_writes_the_same_file(tmp_path, whole):
    trainer = prepared(tmp_path / "again")
    trainer.optimization.restore(state_of(whole()))
    for name in map(str, range(4)):
        trainer.save(name)
    assert {path.read_bytes() for path in (tmp_path / "again").iterdir()} == {(whole() / LAST).read_bytes()}


@pytest.mark.parametrize("average", [0.9, 0.0])
def test_the_last_checkpoint_is_the_average_or_without_one_the_last_weights(average, tmp_path):
    config = changed(SMALL, optimizer={"average": average})
    trainer = trained(tmp_path / "run", config)
    network, found = load_checkpoint(tmp_path / "run" / LAST)
    assert found == config
    kept = state_of(tmp_path / "run")
    for part, equal in (("average", bool(average)), ("weights", not average)):
        theirs = {f"{part}.{name}": value for name, value in network.state_dict().items() if not name.startswith("backbone.")}
        assert (theirs.keys() <= kept.keys() and same_bits(theirs, {n: kept[n] for n in theirs})) == equal
    assert same_bits(dict(network.backbone.state_dict()), dict(trainer.model.backbone.state_dict()))


def test_the_backbone_stays_as_it_was_loaded(tmp_path):
    trainer = trained(tmp_path / "run", options=replace(QUIET, validate_every=8))
    assert same_bits(dict(trainer.model.backbone.state_dict()), dict(load_backbone(SMALL.model.backbone).state_dict()))
    assert not any("backbone" in name for name in state_of(tmp_path / "run"))


def broken(trainer, step, place):
    """Makes the loss of one episode of one part of a step infinite."""
    calls, losses = [], trainer.losses

    def spy(groups, tokens):
        calls.append(groups)
        found = losses(groups, tokens)
        if (len(calls) - 1) // trainer.options.accumulate != step:
            return found
        each = found.each.clone()
        each[place] = torch.inf
        return Losses(each, found.parts)

    trainer.losses = spy


@pytest.mark.parametrize(
    ("config", "parts", "place", "number"),
    [
        (SMALL, 1, 0, 4),
        (SMALL, 1, 3, 7),
        (SMALL, 2, 1, 5),
        (VARIANTS["rotated"], 1, 1, 2),
        (VARIANTS["rotated"], 1, 2, 3),
        (VARIANTS["two shots, rotated"], 1, 2, 1),
    ],
    ids=["first", "last", "of a part", "rotated first", "rotated second", "two shots"],
)
def test_a_loss_that_is_no_number_names_its_step_episode_class_and_images(config, parts, place, number, tmp_path):
    trainer = begun(tmp_path / "run", config, replace(QUIET, accumulate=parts))
    draw, keys = trainer.episodes.sampler(number), trainer.dataset.pool("train").keys
    names = ", ".join(keys[image] for image in (draw.query, *draw.supports))
    broken(trainer, 1, place)
    words = f"the loss is inf at step 2, in episode {number} ({trainer.dataset.classes[draw.category]}: {names})"
    with pytest.raises(TrainingError, match=re.escape(words)) as found:
        go(trainer)
    remedy = "nothing was saved yet: begin again, replacing this run, with lower rates or optimizer.clip=1"
    assert str(found.value).endswith(remedy)
    assert found.value.options == ("force", "optimizer.clip")
    assert not (tmp_path / "run" / STATE).exists()


def test_a_poisoned_weight_ends_the_run_before_anything_is_saved(tmp_path):
    go(begun(tmp_path / "run"), until=2)
    before = state(tmp_path / "run")
    trainer = resumed(tmp_path / "run", options=replace(QUIET, save_minutes=0.0))
    with torch.no_grad():
        next(trainer.model.classifier.parameters()).view(-1)[0] = torch.nan
    with pytest.raises(TrainingError, match=r"the loss is nan at step 3, in episode 8 .*what was saved before is whole"):
        go(trainer)
    after = state(tmp_path / "run")
    for name in (STATE, LAST):
        assert after[tmp_path / "run" / name] == before[tmp_path / "run" / name]
    assert [line["step"] for line in timeless(tmp_path / "run")] == [1, 2]
    assert go(resumed(tmp_path / "run")) == "finished"


@pytest.mark.parametrize(
    "often", [{"save_minutes": 0.0}, {"validate_every": 4}, {"keep_every": 4}], ids=lambda often: next(iter(often))
)
def test_weights_that_are_no_numbers_are_not_saved(often, tmp_path):
    trainer = begun(tmp_path / "run", HELD_OUT, replace(QUIET, **often))
    calls = []
    weight = next(iter(trainer.optimization.weights.values()))
    weight.register_hook(lambda gradient: calls.append(1) or (gradient * torch.nan if len(calls) == 3 else gradient))
    before = "nothing was saved yet" if trainer.options.validate_every else "what was saved before is whole"
    with pytest.raises(TrainingError, match=rf"no longer finite; {before}: begin again, .*optimizer\.clip"):
        go(trainer)
    assert trainer.step == 3
    for path in (tmp_path / "run").glob("*.safetensors"):
        assert all(value.isfinite().all() for value in load_file(path).values())
    if not trainer.options.validate_every:  # it saves the best alone
        assert RunFolder(tmp_path / "run").load_state()[1].step == 2


def test_a_backbone_that_nobody_could_load_again_is_refused_before_an_image_is_read(tmp_path):
    config = changed(SMALL, model={"backbone": BackboneConfig("resnet18")})
    with pytest.raises(CheckpointError, match=r"backbone\.weights is None"):
        prepared(tmp_path / "run", config, dataset=unreadable())


def test_a_run_of_other_settings_is_refused_before_an_image_is_read(tmp_path):
    go(begun(tmp_path / "run"), until=1)
    with pytest.raises(ConfigError, match="made with other settings"):
        prepared(tmp_path / "run", changed(SMALL, training={"seed": 1}), resume=True, dataset=unreadable())


class Unreadable(SyntheticPool):
    def image(self, i):
        raise AssertionError("an image was read")


def unreadable():
    return open_synthetic(Unreadable(8, 4, 65))


class Fragile(SyntheticPool):
    """A pool whose images cannot be read any more once it is broken."""

    broken = False

    def image(self, i):
        if self.broken:
            raise DataError(f"{self.keys[i]}: cannot be read")
        return super().image(i)


def test_data_that_fail_in_the_middle_cost_no_step_that_was_done(tmp_path, whole):
    pool = Fragile(8, 4, 65)
    trainer = begun(tmp_path / "run", options=replace(QUIET, resident=False), dataset=open_synthetic(pool))

    def stop_reading(step):
        pool.broken = step >= 2

    with pytest.raises(
        DataError, match=r"cannot be read \(the state after \d+ episodes is saved: mend this, and resume the run"
    ):
        trainer.run(on_step=stop_reading)
    done = RunFolder(tmp_path / "run").load_state()[1].step
    assert done == trainer.step >= 2
    go(resumed(tmp_path / "run"))
    assert_same_run(tmp_path / "run", whole())


def test_nothing_is_told_of_a_step_in_whose_second_part_data_fail(tmp_path):
    trainer = begun(tmp_path / "run", options=replace(QUIET, accumulate=2))
    parts = trainer.episodes.steps

    def failing(*given):
        yield from islice(parts(*given), 5)
        raise DataError("an image: cannot be read")

    trainer.episodes.steps = failing
    with pytest.raises(DataError, match="the state after 8 episodes is saved"):
        go(trainer)
    assert [record["step"] for record in RunFolder(tmp_path / "run").records()] == [1, 2]


def test_data_that_fail_before_the_first_step_is_done_leave_nothing_to_resume(tmp_path):
    pool = Fragile(8, 4, 65)
    trainer = begun(tmp_path / "run", options=replace(QUIET, resident=False), dataset=open_synthetic(pool))
    pool.broken = True
    with pytest.raises(DataError, match=r"cannot be read$"):
        go(trainer)
    assert not RunFolder(tmp_path / "run").saved


def test_shots_that_the_data_cannot_give_are_said_before_a_batch_that_does_not_fit_them(tmp_path):
    config = changed(SMALL, training={"shots": 4, "rotate": True})
    with pytest.raises(DataError, match="a 4-shot episode needs 5"):
        prepared(tmp_path / "run", config, dataset=unreadable())
    config = changed(SMALL, training={"shots": 2, "rotate": True})
    with pytest.raises(ConfigError, match=r"training\.batch is 4 .* expected a multiple of 3"):
        prepared(tmp_path / "run", config, dataset=unreadable())


def _full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_is_full_ends_the_run_and_leaves_the_last_state_and_checkpoint(tmp_path, whole, monkeypatch):
    go(begun(tmp_path / "run"), until=2)
    trainer = resumed(tmp_path / "run", options=replace(QUIET, save_minutes=0.0))
    before = state(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        words = (
            r"last\.safetensors: cannot be written \(No space left on device\); what was saved before is whole.*resume the run"
        )
        with pytest.raises(CheckpointError, match=words) as found:
            go(trainer)
        assert found.value.options == ("resume",)
    after = state(tmp_path / "run")
    assert after.keys() == before.keys()  # and no draft
    assert all(after[path] == before[path] for path in before if path.name != "metrics.jsonl")
    go(resumed(tmp_path / "run"))
    assert_same_run(tmp_path / "run", whole())


def test_metrics_say_where_the_run_stands(tmp_path):
    trainer = trained(tmp_path / "run", HELD_OUT)
    *lines, validation = RunFolder(tmp_path / "run").records()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line in lines:
        rates = trainer.optimization.rates(line["step"] - 1)
        assert set(line) == {
            *("step", "episodes", "loss", "main", "auxiliary", "convolution_rate", "transformer_rate"),
            *("episodes_per_second", "seconds"),
        }
        assert line["episodes"] == 4 * line["step"]
        assert line["loss"] == pytest.approx(line["main"] + line["auxiliary"], rel=1e-5)
        assert (line["convolution_rate"], line["transformer_rate"]) == (rates["convolutions"], rates["transformer"])
        assert line["episodes_per_second"] > 0
    assert set(validation) == {"step", "episodes", "validation", "seconds"}
    assert set(validation["validation"]) == {"split", "miou", "fb_iou", "classes"}
    assert validation["step"] == STEPS
    assert 0 <= validation["validation"]["miou"] <= 1
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)


def test_a_line_of_the_metrics_is_the_mean_of_its_steps(tmp_path, monkeypatch):
    config = changed(SMALL, training={"episodes": 4 * 9})
    trained(tmp_path / "often", config)
    monkeypatch.setattr(session, "_LOG_STEPS", 4)
    trained(tmp_path / "seldom", config)
    often, seldom = timeless(tmp_path / "often")[:-1], timeless(tmp_path / "seldom")[:-1]
    assert [line["step"] for line in seldom] == [4, 8, 9]
    for name in ("loss", "main", "auxiliary"):
        means = [sum(line[name] for line in often[a:b]) / (b - a) for a, b in ((0, 4), (4, 8), (8, 9))]
        assert [line[name] for line in seldom] == pytest.approx(means, rel=1e-5)


def test_whoever_watches_is_told_every_line(tmp_path):
    told = []
    begun(tmp_path / "run", options=replace(QUIET, validate_every=8)).run(told.append)
    assert told == RunFolder(tmp_path / "run").records()


def test_whoever_watches_is_told_of_every_step(tmp_path):
    told = []
    begun(tmp_path / "run").run(on_step=told.append)
    assert told == list(range(1, STEPS + 1))


def events(path):
    """The scalars that TensorBoard shows: by name, (episodes, value)."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(path / "tensorboard"))
    found.Reload()
    return {name: [(one.step, one.value) for one in found.Scalars(name)] for name in found.Tags()["scalars"]}


def of_metrics(path, *names):
    """The same of the metrics."""
    lines = [line for line in timeless(path) if names[0] in line]
    values = []
    for line in lines:
        value = line
        for name in names:
            value = value[name]
        values.append((line["episodes"], pytest.approx(value, rel=1e-6)))
    return values


def assert_shown(path):
    shown = events(path)
    for tag, names in {
        "loss/total": ("loss",),
        "loss/Dice": ("main",),
        "loss/auxiliary": ("auxiliary",),
        "run/convolution_rate": ("convolution_rate",),
        "run/transformer_rate": ("transformer_rate",),
        "validation/miou": ("validation", "miou"),
        "validation/fb_iou": ("validation", "fb_iou"),
    }.items():
        assert shown[tag] == of_metrics(path, *names), tag
    assert len(shown["run/episodes_per_second"]) == len(shown["loss/total"])


def test_tensorboard_shows_the_metrics(tmp_path, whole):
    pytest.importorskip("tensorboard")
    trained(tmp_path / "run", options=replace(QUIET, tensorboard=True, validate_every=8))
    assert_shown(tmp_path / "run")
    assert not (whole() / "tensorboard").exists()


def test_tensorboard_shows_the_metrics_of_a_resumed_run(tmp_path):
    pytest.importorskip("tensorboard")
    options = replace(QUIET, tensorboard=True, keep_every=8)
    crash(begun(tmp_path / "run", options=options), at=5)
    go(resumed(tmp_path / "run", options=options))
    assert_shown(tmp_path / "run")


def test_the_curves_are_a_picture(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(session, "draw_curves", DRAW)
    trained(tmp_path / "run", HELD_OUT)
    with Image.open(tmp_path / "run" / CURVES) as picture:
        assert picture.format == "PNG"
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10


def test_the_number_of_tokens_changes_from_step_to_step_where_the_config_gives_a_range(tmp_path):
    trainer = begun(tmp_path / "run", VARIANTS["the release"])
    seen = spied(trainer)
    go(trainer)
    counts = [tokens for _, tokens in seen]
    assert len(set(counts)) > 1
    assert counts == [prepared(tmp_path / "other", VARIANTS["the release"]).drawn(step) for step in range(STEPS)]
    assert {prepared(tmp_path / "fixed").drawn(step) for step in range(STEPS)} == {32}


def test_training_in_half_precision_keeps_its_weights_in_whole(tmp_path, whole):
    trained(tmp_path / "run", options=replace(QUIET, half=True))
    kept = state_of(tmp_path / "run")
    assert {value.dtype for value in kept.values()} == {torch.float32}
    assert not same_bits(kept, state_of(whole()))
    losses = [[line["loss"] for line in timeless(path) if "loss" in line] for path in (tmp_path / "run", whole())]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_a_run_leaves_torch_as_it_found_it(tmp_path):
    trainer = begun(tmp_path / "run", options=replace(QUIET, deterministic=True))
    before = torch.get_rng_state()
    go(trainer)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_run_is_as_long_as_so_many_rounds_of_the_images_that_it_learns_from(tmp_path):
    config = changed(SMALL, training={"episodes": None, "epochs": 2})
    trainer = trained(tmp_path, config, replace(QUIET, validate_every=None))
    images = len(trainer.episodes.sampler.images)
    assert trainer.config.training.episodes == 2 * images
    assert trainer.options.validate_every == 2 * images // 10
    assert load_checkpoint(tmp_path / LAST)[1].training.episodes == 2 * images
    again = resumed(tmp_path, config)
    assert again.finished


def test_the_release_learns_on_images_that_are_padded(tmp_path):
    released = replace(
        RELEASED.model,
        dim=16,
        backbone=BackboneConfig("tiny"),
        encoder=replace(RELEASED.model.encoder, heads=2, points=2),
        sampling=replace(RELEASED.model.sampling, tokens_per_shot=40),
    )
    config = replace(SMALL, model=released, loss=RELEASED.loss, optimizer=RELEASED.optimizer)
    config = changed(config, training={"augmentation": replace(SMALL.training.augmentation, size=81), "episodes": 12})
    trainer = begun(tmp_path, config)
    groups = next(trainer.episodes.steps([0]))
    assert groups.padding.any() and groups.episode.query_padding.any()
    counts = [trainer.drawn(step) for step in range(20)]
    assert all(len(count) == 2 for count in counts) and {first == second for first, second in counts} == {True, False}
    assert go(trainer) == "finished"
    before = trainer.optimization.state()
    assert same_bits(before, state_of(trained(tmp_path / "again", config).folder.path))
