"""Names of methods, and what is said of a name or a class that is no method."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from making import tiny
from own_method import NoMethod, Pyramid, PyramidConfig, PyramidRecipe, nearest

import cyctr
from cyctr.backbones.backbone import Backbone
from cyctr.checkpoint import load_checkpoint, load_model, pack, save_checkpoint, unpack
from cyctr.config import BackboneConfig, Recipe
from cyctr.datasets.synthetic_pool import SyntheticPool, open_synthetic
from cyctr.errors import CheckpointError, ConfigError
from cyctr.methods.base import Method
from cyctr.methods.cyctr.config import Config
from cyctr.methods.cyctr.network import CyCTR
from cyctr.methods.recipes import recipes_of
from cyctr.methods.table import METHODS, USUAL, check_method, find_method, method_name, name_of

nearest()  # so that it can be named


def own(**changes):
    """The example of the documentation on the tiny backbone, and its recipe."""
    module = nearest()
    config = module.NearestRecipe(model=module.NearestConfig(BackboneConfig("tiny", taps=(-1,)), **changes))
    torch.manual_seed(0)
    return module.Nearest.build(config, Backbone(config.model.backbone)).eval(), config


def saved(path):
    model, config = own()
    save_checkpoint(path, model, config)
    return path


def rewritten(path, **changes):
    """The checkpoint with something else in what it says of itself."""
    tensors, about = unpack(path)
    path.write_bytes(pack(tensors, {**about, **changes}))
    return path


@pytest.mark.parametrize("name", METHODS)
def test_a_name_of_the_table_finds_its_class_and_its_recipes(name):
    kind, recipes = find_method(name), recipes_of(name)
    assert name_of(kind) == kind.name == name
    assert recipes.kind is kind.Config
    assert recipes.usual in recipes.presets
    assert all(isinstance(recipes.preset(preset), recipes.kind) for preset in recipes.presets)


def test_a_class_of_ones_own_is_found_by_module_and_class():
    assert find_method("nearest:Nearest") is nearest().Nearest
    assert name_of(nearest().Nearest) == method_name(nearest().Nearest) == "nearest:Nearest"
    assert recipes_of("nearest:Nearest").preset() == nearest().NearestRecipe()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cyclops", f"method is 'cyclops'; expected one of {', '.join(METHODS)}, or package.module:Class of your own"),
        ("", "expected one of cyctr"),
        ("nowhere.at.all:Method", "nowhere.at.all cannot be imported .*; install it, or check the name"),
        ("antigravity:Method", "antigravity is a module of Python itself; expected one of your own"),
        ("nearest:Farthest", "nearest has no class Farthest; check the name"),
        ("own_method:NoMethod", "NoMethod is no method; expected a class that derives from"),
        ("own_method:PAGE", "is no method"),
    ],
)
def test_what_is_no_method_gets_one_line(name, words):
    with pytest.raises(ConfigError, match=words) as refusal:
        find_method(name)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class Mine(", r"SyntaxError when it is imported \('\(' was never closed \(mine.py, line 1\)\); run python -c"),
        ("width = breadth", "NameError when it is imported"),
        ("raise SystemExit(0)", "SystemExit when it is imported"),
    ],
)
def test_a_module_that_fails_gets_one_line(text, words, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(ConfigError, match=words) as refusal:
        find_method("mine:Mine")
    assert "\n" not in str(refusal.value)


def test_a_class_that_lacks_a_part_is_told_which():
    class Half(Method):
        def predict(self, query, support, size, padding=None, explain=False):
            raise NotImplementedError

    with pytest.raises(ConfigError, match=r"Half does not fulfil the contract.*lacks build, encode_support, name; add"):
        check_method(Half)
    with pytest.raises(ConfigError, match=r"Odd.Config is no recipe; expected a dataclass that derives from"):
        check_method(type("Odd", (CyCTR,), {"Config": dict}))
    with pytest.raises(ConfigError, match="NoMethod is no method"):
        check_method(NoMethod)


def test_a_checkpoint_finds_its_method_again(tmp_path):
    path = saved(tmp_path / "own.safetensors")
    assert type(load_checkpoint(path)[0]) is nearest().Nearest
    assert json.loads(json.dumps(unpack(path)[1]))["method"] == "nearest:Nearest"


def test_a_checkpoint_without_the_name_of_a_method_is_cyctrs(tmp_path):
    model = tiny()
    save_checkpoint(tmp_path / "old.safetensors", model, Config(model=model.config))
    tensors, about = unpack(tmp_path / "old.safetensors")
    assert about.pop("method") == USUAL
    (tmp_path / "old.safetensors").write_bytes(pack(tensors, about))
    again, _ = load_checkpoint(tmp_path / "old.safetensors")
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_checkpoint_of_a_method_that_is_not_installed_says_so(tmp_path):
    path = rewritten(saved(tmp_path / "own.safetensors"), method="far.away:Method")
    with pytest.raises(CheckpointError, match=r"is of a method that is not here .*far.away cannot be imported"):
        load_checkpoint(path)


def test_a_config_of_another_method_names_the_foreign_fields(tmp_path):
    path = rewritten(saved(tmp_path / "own.safetensors"), method="cyctr")
    with pytest.raises(
        CheckpointError, match=r"model.channels is not a setting of this version; expected one of backbone, dim"
    ):
        load_checkpoint(path)
    with pytest.raises(ConfigError, match="config is Config; expected NearestRecipe, that of nearest:Nearest"):
        load_model(Config(), nearest().Nearest)
    with pytest.raises(ConfigError, match="config is Recipe; expected Config, that of cyctr"):
        cyctr.train("synthetic", tmp_path / "run", config=Recipe())


def test_a_run_of_another_method_is_not_resumed(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"method": "panet", "config": {}}))
    with pytest.raises(ConfigError, match=r"is a run of panet, not of nearest:Nearest; leave method out, or choose another"):
        cyctr.train(textures(), tmp_path, method=nearest().Nearest, resume=True)


def test_parameter_groups_that_forget_a_weight_are_refused():
    from cyctr.training.optimiser import Optimization

    model, config = own()
    model.parameter_groups = lambda: {"convolutions": [model.project.weight]}
    with pytest.raises(ConfigError, match=r"Nearest.parameter_groups does not hold project.bias once; expected every trained"):
        Optimization(model, config.optimizer, 10)


def textures():
    return open_synthetic(SyntheticPool(8, 4, 65))


def at_several_strides():
    """A method whose maps have strides of their own, and its recipe on the tiny backbone."""
    backbone = BackboneConfig("tiny", taps=(-4, -2, -1), own_strides=True)
    return Pyramid, PyramidRecipe(model=PyramidConfig(backbone))


@pytest.mark.parametrize("made", [lambda: (nearest().Nearest, own()[1]), at_several_strides], ids=["nearest", "pyramid"])
def test_a_method_of_ones_own_trains_resumes_is_measured_and_segments(made, tmp_path):
    kind, config = made()
    augmentation = replace(config.training.augmentation, size=65)
    config = replace(config, training=replace(config.training, episodes=16, batch=4, augmentation=augmentation))
    given = {"method": kind, "config": config, "validation_episodes": 2, "tensorboard": False}
    whole = cyctr.train(textures(), tmp_path / "whole", **given)
    cyctr.train(textures(), tmp_path / "parts", **given, max_minutes=0)
    again = cyctr.train(textures(), tmp_path / "parts", resume=True, tensorboard=False)
    one, other = (unpack(path)[0] for path in (whole, again))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)

    by_file = cyctr.evaluate(textures(), whole, folds=[0], episodes=3)
    by_value = cyctr.evaluate(textures(), load_checkpoint(whole)[0], folds=[0], episodes=3, size=65)
    assert by_file.summary()[0]["mean"] == by_value.summary()[0]["mean"]

    segmenter = cyctr.Segmenter.from_pretrained(whole, device="cpu")
    pool = textures().pool("train")
    support = segmenter.encode_support(pool.image(0), pool.label(0, 0))
    found = segmenter.segment(pool.image(1), support)
    segmenter.remember_features(tmp_path / "features")
    kept, again = (segmenter.segment(pool.image(1), support) for _ in range(2))
    assert segmenter.network.cache.hits > 0
    assert np.array_equal(kept.probability, again.probability)
    np.testing.assert_allclose(kept.probability, found.probability, atol=0.02)  # 16 bits are kept
    assert found.mask.shape == pool.image(1).shape[:2]
    assert 0 <= found.confidence <= 1
