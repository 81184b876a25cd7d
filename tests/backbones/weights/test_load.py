from dataclasses import replace

import pytest
import torch
from making import episode
from parcels import ARCHITECTURE, entry_of, random_state, renamed, weights_wheel
from safetensors.torch import save_file

from cyctr import compat
from cyctr.backbones.backbone import Backbone
from cyctr.backbones.weights import CATALOGUE, cache, load_backbone
from cyctr.checkpoint import load_model
from cyctr.config import BackboneConfig
from cyctr.errors import WeightsError
from cyctr.methods.cyctr.config import Config, EncoderConfig, ModelConfig

FAMILIES = ("test_resnet", "test_efficientnet", "mobilenetv2_035", "regnetx_002", "test_convnext", "resnext26ts")


def saved_at(path, state):
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return str(path)


def assert_holds(backbone, state):
    """The body's tensors are the first of the state's: both list layers from input to output."""
    body = [value for value in backbone.body.state_dict().values() if value.is_floating_point()]
    assert len(body) > 1
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(body, state.values(), strict=False))


@pytest.fixture
def state():
    return random_state()


@pytest.fixture
def entry(cache_folder, tmp_path, monkeypatch, state):
    """A catalogue entry, in the cache, that asks for a mean and a standard deviation of its own."""
    archive = weights_wheel(tmp_path, renamed(state))
    entry = entry_of(archive, settings={"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)})
    monkeypatch.setitem(CATALOGUE, entry.name, entry)
    cache.get(entry, lambda done: None, archive)
    return entry


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_with_timms_names_is_loaded_by_every_family(family, suffix, tmp_path):
    state = random_state(family)
    assert_holds(load_backbone(BackboneConfig(family, saved_at(tmp_path / f"weights{suffix}", state))), state)


def test_a_file_with_foreign_names_is_loaded_by_order(tmp_path, state):
    assert_holds(load_backbone(BackboneConfig(ARCHITECTURE, saved_at(tmp_path / "foreign.pth", renamed(state)))), state)


def test_a_checkpoint_of_a_parallel_training_is_unwrapped(tmp_path, state):
    wrapped = {"state_dict": {f"module.{name}": value for name, value in state.items()}, "epoch": 90}
    assert_holds(load_backbone(BackboneConfig(ARCHITECTURE, saved_at(tmp_path / "wrapped.pth", wrapped))), state)


def test_weights_in_half_precision_are_widened(tmp_path, state):
    half = {name: value.half() for name, value in state.items()}
    backbone = load_backbone(BackboneConfig(ARCHITECTURE, saved_at(tmp_path / "half.pth", half)))
    assert {value.dtype for value in backbone.parameters()} == {torch.float32}
    assert_holds(backbone, {name: value.float() for name, value in half.items()})


def test_the_tiny_backbone_takes_a_file_of_its_own(tmp_path):
    state = {name: torch.rand_like(value) for name, value in Backbone(BackboneConfig("tiny")).body.state_dict().items()}
    assert_holds(load_backbone(BackboneConfig("tiny", saved_at(tmp_path / "tiny.pth", state))), state)


def test_loaded_backbones_stay_frozen(tmp_path, state):
    backbone = load_backbone(BackboneConfig(ARCHITECTURE, saved_at(tmp_path / "weights.pth", random_state()))).train()
    assert not any(module.training for module in backbone.modules())
    assert not any(value.requires_grad for value in backbone.parameters())


@pytest.mark.parametrize(
    ("given", "wanted", "message"),
    [
        ("resnet18", "resnet34", r"lack 'layer1\.2\.conv1\.weight' and .* more; they were made for another network"),
        (
            "resnet34",
            "resnet18",
            "also have 'layer1.2.conv1.weight' and .* more; they were made for another network than resnet18",
        ),
        ("test_convnext", "test_resnet", r"hold \d+ tensors, test_resnet \d+; .* set backbone\.name to its architecture"),
    ],
    ids=["shallower", "deeper", "another_family"],
)
def test_weights_of_another_architecture_are_refused(given, wanted, message, tmp_path):
    path = saved_at(tmp_path / "other.pth", random_state(given))
    with pytest.raises(WeightsError, match=message):
        load_backbone(BackboneConfig(wanted, path))


def test_names_that_fit_with_shapes_that_do_not_are_refused(tmp_path, state):
    state["conv1.0.weight"] = state["conv1.0.weight"][1:]
    path = saved_at(tmp_path / "narrow.pth", state)
    with pytest.raises(WeightsError, match=f"have another shape for 'conv1.0.weight'; .*another network than {ARCHITECTURE}"):
        load_backbone(BackboneConfig(ARCHITECTURE, path))


def test_foreign_weights_of_a_wider_network_are_refused_by_their_shapes(tmp_path):
    path = saved_at(tmp_path / "wide.pth", renamed(random_state("mobilenetv2_050")))
    with pytest.raises(WeightsError, match=r"the weights' 'layer\d+\.weight' is \(.*\), mobilenetv2_035's .* another network"):
        load_backbone(BackboneConfig("mobilenetv2_035", path))


def test_weights_for_the_tiny_backbone_must_be_its_own(tmp_path, state):
    path = saved_at(tmp_path / "resnet.pth", state)
    with pytest.raises(WeightsError, match=r"lack 'blocks\.0\.weight' and .* more; .*another network than tiny"):
        load_backbone(BackboneConfig("tiny", path))


def test_a_name_of_the_catalogue_is_loaded_from_the_cache_with_its_settings(entry, state):
    backbone = load_backbone(BackboneConfig(ARCHITECTURE, entry.name))
    assert_holds(backbone, state)
    torch.testing.assert_close(backbone.mean.flatten(), torch.tensor(entry.settings["mean"]))
    torch.testing.assert_close(backbone.std.flatten(), torch.tensor(entry.settings["std"]))


def test_a_name_of_the_catalogue_with_another_backbone_is_refused(entry):
    message = f"'small', made for {ARCHITECTURE}, but backbone.name is 'resnet50'; set backbone.name to '{ARCHITECTURE}'"
    with pytest.raises(WeightsError, match=message):
        load_backbone(BackboneConfig("resnet50", entry.name))


def test_a_name_of_the_catalogue_that_was_not_fetched_says_how(cache_folder):
    with pytest.raises(WeightsError, match="run: cyctr weights get mobilenetv2"):
        load_backbone(BackboneConfig("mobilenetv2_100", "mobilenetv2"))


@pytest.mark.parametrize("name", ["resnet50-kerass", "folder/missing.pth"])
def test_weights_of_an_unknown_name_are_refused_with_what_is_known(name):
    with pytest.raises(
        WeightsError, match=rf"backbone\.weights is '{name}'; expected a file, 'timm:TAG' or one of resnet50-keras, "
    ):
        load_backbone(BackboneConfig("tiny", name))


@pytest.mark.parametrize("tag", ["", "resnet18.nobody_trained_this", "no_such_network"])
def test_an_unknown_tag_of_timm_is_refused(tag):
    with pytest.raises(
        WeightsError, match=rf"'timm:{tag}'; timm has no pretrained weights of that name: see timm\.list_pretrained"
    ):
        load_backbone(BackboneConfig(ARCHITECTURE, f"timm:{tag}"))


def test_a_tag_that_cannot_be_fetched_is_one_line_with_a_remedy(monkeypatch):
    def unreachable(name, pretrained=False, **options):
        if pretrained:
            raise OSError("no route to the hub\nand a long explanation")
        return create(name, **options)

    create = compat.timm().create_model
    monkeypatch.setattr(compat.timm(), "create_model", unreachable)
    with pytest.raises(
        WeightsError, match=r"^'timm:resnet18\.a1_in1k' could not be fetched \(no route to the hub\); .*local file$"
    ):
        load_backbone(BackboneConfig("resnet18", "timm:resnet18.a1_in1k"))


def test_a_whole_network_carries_the_loaded_backbone_and_its_own_config(entry, state):
    config = ModelConfig(dim=32, backbone=BackboneConfig(ARCHITECTURE, entry.name), encoder=EncoderConfig(heads=4, points=3))
    model = load_model(Config(model=config)).eval()
    assert model.config == config
    assert_holds(model.backbone, state)
    with torch.inference_mode():
        assert model(episode(batch=1)).logits.isfinite().all()


def test_without_weights_a_network_is_built_without_reading_anything(monkeypatch, tmp_path):
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "nowhere"))
    backbone = load_backbone(replace(BackboneConfig(ARCHITECTURE), weights=None))
    assert backbone.config.weights is None
    assert not (tmp_path / "nowhere").exists()


def test_a_pretrained_tag_of_timm_brings_its_weights_and_its_normalisation(monkeypatch):
    timm = compat.timm()
    tag = next(name for name in timm.list_pretrained("resnet18.*"))
    network = timm.create_model(tag)
    network.load_state_dict(random_state("resnet18"), strict=False)
    network.pretrained_cfg = {**network.pretrained_cfg, "mean": (0.1, 0.2, 0.3), "std": (1.0, 2.0, 3.0)}
    create = timm.create_model
    offline = lambda name, pretrained=False, **options: network if pretrained else create(name, **options)  # noqa: E731
    monkeypatch.setattr(timm, "create_model", offline)
    backbone = load_backbone(BackboneConfig("resnet18", weights=f"timm:{tag}"))
    assert torch.equal(backbone.body.conv1.weight, network.conv1.weight)
    assert torch.equal(backbone.std.flatten(), torch.tensor([1.0, 2.0, 3.0]))
