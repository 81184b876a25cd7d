import pytest
import torch
from making import episode, losses

from cyctr.backbones.backbone import Backbone
from cyctr.checkpoint import load_checkpoint, load_model, save_checkpoint, weights_digest
from cyctr.config import BackboneConfig
from cyctr.errors import CheckpointError, ConfigError
from cyctr.methods.cyctr.config import Config, EncoderConfig, ModelConfig

IMAGES = torch.rand(2, 3, 65, 65, generator=torch.Generator().manual_seed(0))


def learned(**settings):
    return {name for name, value in Backbone(BackboneConfig(**settings)).body.named_parameters() if value.requires_grad}


def test_the_last_levels_of_a_network_learn_but_for_their_batchnorms():
    assert learned(name="tiny", trained=1) == {"blocks.4.weight", "blocks.4.bias"}
    assert learned(name="tiny", trained=2) == {f"blocks.{i}.{part}" for i in (3, 4) for part in ("weight", "bias")}
    deepest = learned(name="resnet18", trained=1)
    assert deepest and all(name.startswith("layer4.") for name in deepest)
    assert not any(".bn" in name or name.startswith("layer4.0.downsample.1") for name in deepest)
    assert {name.partition(".")[0] for name in learned(name="resnet18", trained=2)} == {"layer3", "layer4"}
    of_blocks = {".".join(name.split(".")[:2]) for name in learned(name="efficientnet_lite0", trained=2)}
    assert of_blocks == {f"blocks.{i}" for i in (3, 4, 5, 6)}  # two strides apart, two levels


def test_all_of_a_network_learns_where_it_has_no_more_levels():
    convolutions = {
        f"{name}.weight" for name, layer in Backbone(BackboneConfig("resnet18")).body.named_modules()
        if isinstance(layer, torch.nn.Conv2d)
    }  # fmt: skip
    assert learned(name="resnet18", trained=9) == convolutions


def test_levels_behind_the_deepest_one_that_is_given_do_not_learn():
    assert learned(name="tiny", taps=(1, 2), trained=1) == {"blocks.2.weight", "blocks.2.bias"}


def test_what_learns_does_not_depend_on_where_the_network_is_built():
    with torch.inference_mode():
        assert learned(name="resnet18", trained=1) == learned(name="resnet18", trained=1)


def test_a_backbone_learns_in_one_way():
    with pytest.raises(ConfigError, match=r"backbone\.trained is 1 and backbone\.tuned is true; a backbone learns in one way"):
        Backbone(BackboneConfig("tiny", trained=1, tuned=True))
    with pytest.raises(ConfigError, match=r"model\.backbone\.trained is 10; expected 0 to 9"):
        BackboneConfig("tiny", trained=10)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg16"])
def test_without_its_last_relu_a_network_gives_what_that_relu_was_given(name):
    torch.manual_seed(0)
    whole = Backbone(BackboneConfig(name, taps=(-2, -1)))
    for layer in whole.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(layer.weight)  # timm begins with zeros, and then no block adds anything
    bare = Backbone(BackboneConfig(name, taps=(-2, -1), last_relu=False))
    bare.body.load_state_dict(whole.body.state_dict())
    before, after = whole(IMAGES).maps, bare(IMAGES).maps
    assert torch.equal(before[0], after[0])  # the level before ends as it did
    assert (after[1] < 0).any()
    assert torch.equal(after[1].relu(), before[1])


def test_a_network_that_ends_with_no_relu_stays_as_it_is():
    torch.manual_seed(0)
    whole = Backbone(BackboneConfig("efficientnet_lite0"))
    bare = Backbone(BackboneConfig("efficientnet_lite0", last_relu=False))
    bare.body.load_state_dict(whole.body.state_dict())
    assert torch.equal(bare(IMAGES).maps[-1], whole(IMAGES).maps[-1])


@pytest.fixture
def network():
    """CyCTR on a backbone whose deepest level has learned."""
    backbone = BackboneConfig("tiny", trained=1)
    model = load_model(Config(model=ModelConfig(dim=16, backbone=backbone, encoder=EncoderConfig(heads=2, points=2))))
    with torch.no_grad():
        for value in model.backbone.parameters():
            if value.requires_grad:
                value.mul_(1.5)
    return model


def test_cyctr_learns_on_such_a_backbone_too(network):
    assert {id(value) for value in network.parameter_groups()["backbone"]} == {
        id(value) for value in network.backbone.parameters() if value.requires_grad
    }
    losses(network.train(), episode()).total.backward()
    for name, value in network.backbone.named_parameters():
        assert (value.grad is not None and bool(value.grad.any())) == value.requires_grad, name


def test_a_checkpoint_holds_what_has_learned_and_knows_what_has_not(network, tmp_path):
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, network, Config(model=network.config))
    again, _ = load_checkpoint(path)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in network.state_dict().items())
    assert weights_digest(again.backbone) == weights_digest(Backbone(network.config.backbone))
    with torch.no_grad():
        network.backbone.body.blocks[0].weight.mul_(2)
    save_checkpoint(path, network, Config(model=network.config))
    with pytest.raises(CheckpointError, match="was trained on other backbone weights"):
        load_checkpoint(path)


def test_acceleration_keeps_what_has_learned(network):
    with torch.inference_mode():
        before = network.backbone(IMAGES).maps
        after = network.backbone.accelerate()(IMAGES).maps
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert not any(value.requires_grad for value in network.backbone.parameters())
