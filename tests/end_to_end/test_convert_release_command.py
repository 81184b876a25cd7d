"""`cyctr convert-release`: from a file of the release's to masks."""

import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from making import assert_one_line
from PIL import Image

from cyctr.backbones.weights import load_backbone
from cyctr.checkpoint import load_checkpoint, save_checkpoint
from cyctr.config import BackboneConfig
from cyctr.errors import WeightsError
from cyctr.evaluation.results import Results
from cyctr.methods.cyctr.config import RELEASED
from cyctr.methods.cyctr.network import build
from cyctr.release_checkpoint import UNUSED, name_in_release
from cyctr.seeding import Stream

pytestmark = pytest.mark.filterwarnings("ignore:.*confidence.*")


@pytest.fixture(scope="module")
def published():
    """A state dict with the names of the release, and the network that it should become."""
    torch.manual_seed(0)
    model = build(RELEASED.model).eval()
    state = {}
    for name, value in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            if name == "merge_query.convolution.weight":  # the prior comes last in the release
                value = torch.cat([value[:, :256], value[:, 257:], value[:, 256:257]], 1)
            state[f"module.{name_in_release(name)}"] = value.clone()
    return state | {f"module.{name}": torch.zeros(256, 256, 1, 1) for name in UNUSED}, model


@pytest.fixture
def saved(published, tmp_path):
    path = tmp_path / "train_epoch_200.pth"
    torch.save({"epoch": 200, "state_dict": published[0], "optimizer": {"state": {}, "param_groups": []}}, path)
    return path


def photo(path, marked):
    stream = Stream("photo", marked)
    pixels = torch.randint(0, 255, (80, 96, 3), generator=torch.Generator().manual_seed(stream.below(100)), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(path)


def smaller(path):
    """The same network, for images of another size: ResNet-50 takes long at 473 pixels."""
    network, config = load_checkpoint(path)
    training = replace(config.training, augmentation=replace(config.training.augmentation, size=129))
    save_checkpoint(path.with_name("small.safetensors"), network, replace(config, training=training))
    return path.with_name("small.safetensors")


@pytest.mark.usefixtures("few_textures")
def test_a_checkpoint_of_the_release_becomes_one_of_ours(run, saved, published, tmp_path):
    output = tmp_path / "released.safetensors"
    code, text, error = run("convert-release", str(saved), "--output", str(output))
    assert (code, error) == (0, "") and str(output) in text and "--protocol released" in text
    network, config = load_checkpoint(output)
    assert config.model.sampling.release_labels and config.optimizer == RELEASED.optimizer
    for name, value in published[1].state_dict().items():
        assert network.state_dict()[name].equal(value), name
    code, _, _ = run("convert-release", str(saved), "--output", str(output), "--mend-labels", "--force")
    assert code == 0 and not load_checkpoint(output)[1].model.sampling.release_labels

    supports, photos = tmp_path / "supports", tmp_path / "photos"
    for folder in (supports / "images", supports / "masks", photos):
        folder.mkdir(parents=True)
    photo(supports / "images" / "one.png", 1)
    photo(photos / "two.png", 2)
    mask = torch.zeros(80, 96, dtype=torch.uint8)
    mask[20:60, 30:70] = 255
    Image.fromarray(mask.numpy()).save(supports / "masks" / "one.png")
    output = smaller(output)
    given = ("--support", str(supports), "--model", str(output))
    code, _, error = run("segment", *given, "--query", str(photos), "--output", str(tmp_path / "masks"))
    assert code == 0, error
    assert list((tmp_path / "masks").rglob("*.png"))
    code, _, error = run("explain", *given, "--query", str(photos / "two.png"), "--output", str(tmp_path / "why.png"))
    assert code == 0, error
    options = ("--method", str(output), "--protocol", "released", "--folds", "0", "--episodes", "1", "--size", "65")
    code, _, error = run("evaluate", "--data", "synthetic", *options, "--output", str(tmp_path / "scores"), "--pictures", "0")
    assert code == 0, error
    measured = Results.load(tmp_path / "scores" / "results.json").conditions["protocol"]["input"]
    assert (measured["multiple"], measured["register"], measured["fill"]) == (8, False, 0)


def altered(state, change):
    found = dict(state)
    change(found)
    return found


def spoil(name):
    def change(state):
        state[name] = state[name][:, :-1]

    return change


BAD = {
    "lacks": (lambda state: state.pop("module.cls.3.bias"), "lacks 'cls.3.bias'"),
    "holds more": (lambda state: state.update({"module.extra.weight": torch.zeros(1)}), "also holds 'extra.weight'"),
    "other shape": (spoil("module.qry_merge_feat.0.weight"), "'qry_merge_feat.0.weight' is (256, 512, 1, 1)"),
    "other shape of what nothing reads": (spoil(f"module.{UNUSED[0]}"), f"{UNUSED[0]!r} is (256, 255, 1, 1)"),
    "not finite": (lambda state: state.update({"module.cls.3.bias": torch.tensor([0.0, math.nan])}), "'cls.3.bias'"),
    "too large": (
        lambda state: state.update({"module.cls.3.bias": torch.full((2,), 1e300, dtype=torch.float64)}),
        "'cls.3.bias' (torch.float64) holds",
    ),
    "complex": (lambda state: state.update({"module.cls.3.bias": torch.zeros(2) * 1j}), "'cls.3.bias' (torch.complex64) holds"),
    "two of a name": (lambda state: state.update({"cls.3.bias": torch.zeros(2)}), "holds 'cls.3.bias' twice"),
    "another network": (lambda state: (state.clear(), state.update({"fc.weight": torch.zeros(3, 3)})), "lacks"),
}


@pytest.mark.parametrize(("change", "words"), BAD.values(), ids=BAD)
def test_another_file_is_refused_in_a_line_and_nothing_is_written(run, published, tmp_path, change, words):
    path, output = tmp_path / "other.pth", tmp_path / "out.safetensors"
    torch.save({"state_dict": altered(published[0], change)}, path)
    assert_one_line(run("convert-release", str(path), "--output", str(output)), str(path), words)
    assert not output.exists()


class Harmful:
    def __reduce__(self):
        return Path.touch, (Path("harm"),)


def test_a_file_with_code_is_refused_and_the_code_does_not_run(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Harmful()}, "code.pth")
    (tmp_path / "bare.pth").write_bytes(pickle.dumps(Harmful()))
    (tmp_path / "text.pth").write_text("no weights")
    for name in ("code.pth", "bare.pth", "text.pth"):
        assert_one_line(run("convert-release", name, "--output", "out.safetensors"), name, "cannot be read as plain tensors")
    assert not (tmp_path / "harm").exists() and not (tmp_path / "out.safetensors").exists()


def test_what_would_be_lost_or_cannot_be_written_is_said_first(run, tmp_path):
    (tmp_path / "here.safetensors").write_text("mine")
    there = ("convert-release", str(tmp_path / "no.pth"), "--output")
    assert_one_line(run(*there, str(tmp_path / "here.safetensors")), "is there already", "--force")
    assert_one_line(run(*there, str(tmp_path / "out.pth")), "ends in .safetensors")
    assert_one_line(run(*there, str(tmp_path / "out.safetensors")), "no such file")
    assert (tmp_path / "here.safetensors").read_text() == "mine"


def test_a_backbone_that_is_inside_a_checkpoint_cannot_be_asked_for_by_name():
    with pytest.raises(WeightsError, match=r"backbone\.weights is 'inside'"):
        load_backbone(BackboneConfig("resnet50s", weights="inside"))
