import re
from pathlib import Path

import pytest
from learning import QUIET, SMALL, changed, photos, same_bits, state_of, textures, trained
from miniature import state

import cyctr
from cyctr.checkpoint import describe_checkpoint
from cyctr.errors import ConfigError, DataError
from cyctr.storage import locked
from cyctr.training.run_folder import LAST

SHORT = {"validation_episodes": QUIET.validation_episodes, "tensorboard": False}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "cache"))


def test_one_call_trains_the_network_that_a_trainer_does(tmp_path):
    told = []
    path = cyctr.train(textures(), tmp_path / "one", config=SMALL, device="cpu", on_record=told.append, **SHORT)
    assert path == tmp_path / "one" / LAST
    trained(tmp_path / "other")
    assert same_bits(state_of(tmp_path / "one"), state_of(tmp_path / "other"))
    assert told[-1]["validation"]["split"] == "test"


def test_classes_of_a_folder_may_be_left_for_the_test(tmp_path):
    data = photos(tmp_path / "things", classes=3, each=2)
    path = cyctr.train(data, tmp_path / "run", config=SMALL, device="cpu", test_classes=["thing1"], **SHORT)
    config, found = describe_checkpoint(path)
    assert config == SMALL
    assert (found["train"], found["test"]) == (["thing0", "thing2"], ["thing1"])
    everything = cyctr.train(str(data), tmp_path / "all", config=SMALL, device="cpu", **SHORT)
    assert describe_checkpoint(everything)[1]["train"] == ["thing0", "thing1", "thing2"]


def test_a_run_is_resumed_with_its_own_config(tmp_path):
    config = changed(SMALL, training={"seed": 3})
    cyctr.train(textures(), tmp_path / "run", config=config, device="cpu", max_minutes=0, **SHORT)
    cyctr.train(textures(), tmp_path / "run", device="cpu", resume=True, **SHORT)
    trained(tmp_path / "whole", config)
    assert same_bits(state_of(tmp_path / "run"), state_of(tmp_path / "whole"))


def test_what_cannot_be_trained_is_refused_and_nothing_is_written(tmp_path):
    def refused(words, data=None, kind=ConfigError, **given):
        with pytest.raises(kind, match=words):
            cyctr.train(data or textures(), tmp_path / "run", **{"config": SMALL, "device": "cpu", **given})
        assert not (tmp_path / "run").exists()

    refused("max_hours is no option of a training run; expected one of half, compile", max_hours=2)
    refused("fold is 'first'; expected a number from 0 to 3, or all", fold="first")
    refused("fold is 9; synthetic has folds 0 to 3", kind=DataError, fold=9)
    refused("leave one of them out", fold="all", test_classes=["thing1"])
    refused("give them to open_dataset", test_classes=["thing1"])
    refused("weights is 'resnet51'; expected a name", weights="resnet51")
    refused("no such folder", data=tmp_path / "nowhere", kind=DataError)
    refused("no run to resume", config=None, resume=True)
    refused("a 9-shot episode needs 10", kind=DataError, config=changed(SMALL, training={"shots": 9}))


def test_a_run_that_is_there_or_that_another_process_writes_is_left_alone(tmp_path):
    with locked(tmp_path / "run" / ".run.lock"), pytest.raises(ConfigError, match="another process is writing it"):
        cyctr.train(textures(), tmp_path / "run", config=SMALL, device="cpu", **SHORT)
    cyctr.train(textures(), tmp_path / "run", config=SMALL, device="cpu", max_minutes=0, **SHORT)
    with pytest.raises(ConfigError, match=r"holds a run already; resume it, replace it"):
        cyctr.train(textures(), tmp_path / "run", config=SMALL, device="cpu")


def test_a_run_that_is_there_is_replaced_where_that_is_asked_for(tmp_path):
    cyctr.train(textures(), tmp_path / "run", config=changed(SMALL, training={"seed": 1}), device="cpu", **SHORT)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    cyctr.train(textures(), tmp_path / "run", config=SMALL, device="cpu", force=True, **SHORT)
    trained(tmp_path / "whole")
    assert same_bits(state_of(tmp_path / "run"), state_of(tmp_path / "whole"))
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    with pytest.raises(ConfigError, match="give one of them"):
        cyctr.train(textures(), tmp_path / "run", device="cpu", force=True, resume=True, **SHORT)


def test_nothing_is_replaced_before_everything_is_checked(tmp_path):
    cyctr.train(textures(), tmp_path / "run", config=SMALL, device="cpu", max_minutes=0, **SHORT)
    before = state(tmp_path / "run")
    with pytest.raises(DataError, match="a 9-shot episode needs 10"):
        cyctr.train(
            textures(), tmp_path / "run", config=changed(SMALL, training={"shots": 9}), device="cpu", force=True, **SHORT
        )
    assert state(tmp_path / "run") == before


@pytest.mark.parametrize("fold", [2, "all"])
def test_a_run_is_resumed_on_its_own_fold(fold, tmp_path):
    for path in (tmp_path / "run", tmp_path / "whole"):
        minutes = {"max_minutes": 0} if path.name == "run" else {}
        cyctr.train(textures(), path, config=SMALL, device="cpu", fold=fold, **minutes, **SHORT)
    cyctr.train(textures(), tmp_path / "run", device="cpu", resume=True, **SHORT)
    assert same_bits(state_of(tmp_path / "run"), state_of(tmp_path / "whole"))


def test_no_message_of_the_library_names_a_flag_of_the_command_line():
    sources = sorted((Path(cyctr.__file__).parent / "training").glob("*.py"))
    assert len(sources) > 10
    for path in sources:
        assert not re.findall(r"--[a-z]", path.read_text()), path.name
