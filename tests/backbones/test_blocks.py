import pytest
import torch
import torch.nn.functional as F

from cyctr.backbones.backbone import Backbone
from cyctr.config import BackboneConfig
from cyctr.errors import ConfigError
from cyctr.methods.cyctr.config import ModelConfig
from cyctr.methods.cyctr.network import build

EVERY = tuple(range(-13, 0))  # the blocks of the last three stages of a ResNet-50
DEPTHS = {"resnet50": (3, 4, 6, 3), "tf_efficientnet_lite0": (1, 2, 2, 3, 3, 4, 1)}
STRIDES = (8,) * 4 + (16,) * 6 + (32,) * 3


@pytest.fixture(scope="module")
def images():
    return torch.rand(1, 3, 65, 81, generator=torch.Generator().manual_seed(0))


def built(like=None, **changes):
    """A backbone whose blocks all add something, with the weights of another one."""
    torch.manual_seed(0)
    made = Backbone(BackboneConfig(**changes))
    for layer in made.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(layer.weight)  # timm begins with zeros
    if like is not None:
        made.load(like.body.state_dict())
    return made


def test_maps_at_their_own_strides_are_those_of_the_undilated_network(images):
    apart = built(name="resnet18", own_strides=True)
    assert [grid.stride for grid in apart.grids] == [8, 16, 32]
    assert [maps.shape[-2:] for maps in apart(images).maps] == [(9, 11), (5, 6), (3, 3)]
    together = built(apart, name="resnet18")
    assert together.grids == (together.grid,) * 3
    assert torch.equal(together(images).maps[0], apart(images).maps[0])  # nothing is dilated up to stride 8


@pytest.mark.parametrize("name", ["tiny", "resnet18", "vgg16", "convnext_atto"])
def test_labels_find_the_cells_of_each_map(name, images):
    backbone = Backbone(BackboneConfig(name, taps=(-4, -3, -2, -1), own_strides=True))
    labels = torch.ones(1, *images.shape[-2:], dtype=torch.uint8)
    for maps, grid, channels in zip(backbone(images).maps, backbone.grids, backbone.channels, strict=True):
        assert maps.shape[1] == channels
        assert grid.cells(labels, maps.shape[-2:]).shape == (1, *maps.shape[-2:])
        assert grid.upsample(maps, images.shape[-2:]).shape[-2:] == images.shape[-2:]
    assert len({grid.stride for grid in backbone.grids}) == 4


@pytest.mark.parametrize("name", DEPTHS)
def test_the_last_block_of_a_stage_is_what_the_stage_gives(name, images):
    blocks = built(name=name, blocks=True, own_strides=True, taps=tuple(range(sum(DEPTHS[name]))))
    stages = built(blocks, name=name, own_strides=True, taps=(-3, -2, -1))
    each = blocks(images).maps
    for maps in stages(images).maps:
        assert any(torch.equal(maps, other) for other in each if other.shape == maps.shape)
    assert torch.equal(each[-1], stages(images).maps[-1])


def test_blocks_are_given_as_they_are_before_their_last_relu(images):
    whole = built(name="resnet50", blocks=True, own_strides=True, taps=EVERY)
    bare = built(whole, name="resnet50", blocks=True, own_strides=True, taps=EVERY, last_relu=False)
    assert tuple(grid.stride for grid in bare.grids) == STRIDES
    for one, other in zip(whole(images).maps, bare(images).maps, strict=True):
        assert (other < 0).any()
        assert torch.equal(one, other.relu())


def test_acceleration_keeps_every_block(images):
    backbone = built(name="resnet18", blocks=True, own_strides=True, taps=(-6, -4, -1), last_relu=False)
    before = backbone(images).maps
    for one, other in zip(before, backbone.accelerate()(images).maps, strict=True):
        assert F.mse_loss(one, other).sqrt() <= 1e-3 * one.abs().max()


def test_blocks_learn_from_the_last_one_on(images):
    backbone = Backbone(BackboneConfig("resnet18", blocks=True, trained=2))
    assert {name.rpartition(".conv")[0] for name in backbone.learned if ".conv" in name} == {"body.layer4.0", "body.layer4.1"}


@pytest.mark.parametrize("name", ["tiny", "vgg16", "densenet121"])
def test_a_network_without_a_chain_of_blocks_is_refused(name):
    with pytest.raises(ConfigError, match=f"backbone.blocks is true for {name}, which is no chain of blocks; choose a ResNet"):
        Backbone(BackboneConfig(name, blocks=True))


def test_cyctr_refuses_maps_that_it_cannot_join():
    with pytest.raises(ConfigError, match=r"model\.backbone\.own_strides is True; expected false, because CyCTR joins maps"):
        build(ModelConfig(backbone=BackboneConfig("tiny", own_strides=True)))
