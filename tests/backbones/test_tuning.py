from dataclasses import replace

import pytest
import torch
from making import episode, losses
from torch import nn

from cyctr.backbones.backbone import Backbone
from cyctr.backbones.tuning import SPECTRUM, SpectralConv2d, settle, tune
from cyctr.checkpoint import load_checkpoint, save_checkpoint, weights_digest
from cyctr.config import BackboneConfig
from cyctr.methods.cyctr.config import BEST, Config, EncoderConfig, ModelConfig
from cyctr.methods.cyctr.network import build
from cyctr.speed.fast_depthwise import DepthwiseConv2d

LAYERS = {
    "wide": lambda: nn.Conv2d(24, 7, 1, bias=False),
    "tall": lambda: nn.Conv2d(5, 60, 3, stride=2, padding=1),
    "dilated": lambda: nn.Conv2d(6, 8, 3, padding=2, dilation=2),
}


@pytest.fixture(params=LAYERS.values(), ids=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return request.param().requires_grad_(False)


@pytest.fixture
def maps(layer):
    return torch.randn(2, layer.in_channels, 9, 11)


def moved(network, by=0.3):
    """With spectra that have learned something."""
    with torch.no_grad():
        for name, value in network.named_parameters():
            if name.endswith("spectrum"):
                value += by * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(value)))
    return network


def tuned_network():
    torch.manual_seed(1)
    config = ModelConfig(dim=32, backbone=BackboneConfig("tiny", tuned=True), encoder=EncoderConfig(heads=4, points=3))
    return build(config).eval()


def test_at_first_nothing_changes_to_the_bit(layer, maps):
    assert torch.equal(SpectralConv2d(layer)(maps), layer(maps))


def test_the_factors_scale_the_singular_values_and_leave_the_vectors(layer):
    made = moved(SpectralConv2d(layer))
    flat, learned = layer.weight.flatten(1), made.learned().flatten(1)
    left, values, right = torch.linalg.svd(flat, full_matrices=False)
    inside = left.T @ learned @ right.T  # diagonal where the vectors stayed
    assert torch.allclose(inside, torch.diag(inside.diagonal()), atol=1e-5)
    assert torch.allclose(left @ inside @ right, learned, atol=1e-5)
    factors = (inside.diagonal() / values).sort().values
    assert torch.allclose(factors, made.spectrum.detach().sort().values, atol=1e-3)


def test_a_factor_of_zero_takes_its_direction_away(layer):
    made = SpectralConv2d(layer)
    with torch.no_grad():
        made.spectrum[-1] = 0  # of the largest value: they rise
    values = torch.linalg.svdvals(layer.weight.flatten(1))
    assert torch.allclose(torch.linalg.svdvals(made.learned().flatten(1))[:-1], values[1:], atol=1e-5)


def test_the_plain_convolution_computes_the_same(layer, maps):
    made = moved(SpectralConv2d(layer))
    plain = made.plain()
    assert type(plain) is nn.Conv2d
    assert torch.allclose(plain(maps), made(maps), atol=1e-5)
    assert torch.equal(SpectralConv2d(layer).plain()(maps), layer(maps))


def test_gradients_are_those_of_the_singular_values(layer, maps):
    made = moved(SpectralConv2d(layer)).double()
    assert torch.autograd.gradcheck(
        lambda spectrum: torch.func.functional_call(made, {"spectrum": spectrum}, (maps.double(),)), made.spectrum
    )


def test_layers_of_pixels_and_of_single_channels_stay_as_they_are():
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Sequential(nn.Conv2d(8, 4, 1)))
    tune(body)
    assert [type(layer) for layer in (body[0], body[1], body[2][0])] == [nn.Conv2d, nn.Conv2d, SpectralConv2d]
    settle(body)
    assert not any(isinstance(layer, SpectralConv2d) for layer in body.modules())


@pytest.mark.parametrize("name", ["tiny", "test_resnet", "tf_efficientnet_lite0"])
def test_a_backbone_that_is_to_be_tuned_begins_as_the_frozen_one(name):
    torch.manual_seed(0)
    frozen = Backbone(BackboneConfig(name))
    tuned = Backbone(BackboneConfig(name, tuned=True)).load(frozen.body.state_dict())
    images = torch.rand(2, 3, 65, 65)
    for level in range(3):
        assert torch.equal(frozen(images).maps[level], tuned(images).maps[level].detach())
    learning = {name for name, value in tuned.named_parameters() if value.requires_grad}
    assert learning
    assert all(name.endswith(SPECTRUM) for name in learning)
    assert weights_digest(tuned) == weights_digest(frozen)


def test_vectors_are_looked_for_when_they_are_needed_first():
    backbone = Backbone(BackboneConfig("test_resnet", tuned=True))
    assert not [name for name, _ in backbone.named_buffers() if name.endswith("left")]
    backbone(torch.rand(1, 3, 65, 65))
    assert [name for name, _ in backbone.named_buffers() if name.endswith("left")]


def test_a_network_that_has_answered_before_can_still_learn():
    model, given = tuned_network(), episode()
    with torch.inference_mode():
        model(given)
    model.train()
    losses(model, given).total.backward()
    assert all(value.grad is not None for name, value in model.named_parameters() if name.endswith(SPECTRUM))


def test_an_export_leaves_a_tuned_network_as_it_is():
    backbone = moved(Backbone(BackboneConfig("tiny", tuned=True)))
    images = torch.rand(1, 3, 65, 65)
    exported = torch.export.export(backbone, (images,)).module()(images)
    assert not [name for name, _ in backbone.named_buffers() if name.endswith("left")]
    assert torch.allclose(exported.maps[-1], backbone(images).maps[-1], atol=1e-5)


def test_convolutions_that_pad_in_other_ways_stay_as_they_are():
    body = nn.Sequential(nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect"))
    tune(body)
    assert type(body[0]) is nn.Conv2d


def test_a_half_checkpoint_keeps_the_factors_to_the_bit(tmp_path):
    model = moved(tuned_network(), 0.01)
    save_checkpoint(tmp_path / "half.safetensors", model, Config(model=model.config), half=True)
    again, _ = load_checkpoint(tmp_path / "half.safetensors")
    for name, value in again.named_parameters():
        if name.endswith(SPECTRUM):
            assert torch.equal(value, model.get_parameter(name)), name


def test_weights_that_are_loaded_later_are_factorised_anew():
    images = torch.rand(1, 3, 65, 65)
    torch.manual_seed(0)
    one, other = (Backbone(BackboneConfig("test_resnet")) for _ in range(2))
    tuned = moved(Backbone(BackboneConfig("test_resnet", tuned=True)).load(one.body.state_dict()))
    tuned(images)
    fresh = moved(Backbone(BackboneConfig("test_resnet", tuned=True)).load(other.body.state_dict()))
    assert torch.equal(tuned.load(other.body.state_dict())(images).maps[-1], fresh(images).maps[-1])


@pytest.mark.parametrize("name", ["tiny", "test_resnet"])
def test_acceleration_keeps_what_was_tuned(name):
    torch.manual_seed(0)
    backbone = moved(Backbone(BackboneConfig(name, tuned=True)), 0.05)
    images = torch.rand(2, 3, 65, 65)
    with torch.no_grad():
        before = backbone(images)
        after = backbone.accelerate()(images)
    for level in range(3):
        one, other = before.maps[level], after.maps[level]
        assert (one - other).abs().max() < 1e-3 * one.abs().max()
    assert not [name for name, _ in backbone.named_parameters() if name.endswith(SPECTRUM)]


@pytest.mark.parametrize("name", ["tiny", "test_resnet", "tf_efficientnet_lite0"])
def test_what_learns_in_place_of_a_backbone_computes_the_same_and_moves_its_parameters(name):
    torch.manual_seed(0)
    backbone = moved(Backbone(BackboneConfig(name, tuned=True)), 0.05)
    names, digest = list(backbone.state_dict()), weights_digest(backbone)
    twin = backbone.learning()
    assert any(isinstance(layer, DepthwiseConv2d) for layer in twin.modules()) == name.startswith("tf_efficientnet")
    images = torch.rand(2, 3, 65, 65)
    gradients = []
    for one in (backbone, twin):
        backbone.zero_grad()
        found = one(images)
        sum(maps.square().mean() for maps in found.maps).backward()
        gradients.append({key: value.grad.clone() for key, value in backbone.named_parameters() if value.requires_grad})
    for key, expected in gradients[0].items():
        assert (gradients[1][key] - expected).abs().max() <= 1e-3 * expected.abs().max(), key
    for level in range(3):
        one, other = backbone(images).maps[level], twin(images).maps[level]
        assert (one - other).abs().max() < 1e-3 * one.abs().max()
    moved(backbone)
    assert torch.equal(twin(images).maps[-1], backbone.learning()(images).maps[-1])
    assert list(backbone.state_dict()) == names
    assert weights_digest(backbone) == digest


def test_every_factor_is_reached_by_the_loss_and_no_frozen_weight():
    model = tuned_network().train()
    given = episode()
    losses(model, given).total.backward()
    for name, value in model.backbone.named_parameters():
        assert (value.grad is not None and bool(value.grad.abs().max() > 0)) == name.endswith(SPECTRUM), name


def test_without_gradients_a_tuned_network_keeps_none():
    model = tuned_network()
    with torch.no_grad():
        assert not model(episode()).logits.requires_grad


def test_a_checkpoint_keeps_what_was_tuned_and_nothing_that_is_frozen(tmp_path):
    model = moved(tuned_network())
    path = tmp_path / "tuned.safetensors"
    save_checkpoint(path, model, Config(model=model.config))
    again, config = load_checkpoint(path)
    assert config.model.backbone.tuned
    with torch.no_grad():
        assert torch.equal(again(episode()).logits, model(episode()).logits)
        changed = (model(episode()).logits - tuned_network()(episode()).logits).abs().max()
    assert changed > 1e-3
    frozen = tmp_path / "frozen.safetensors"
    plain = replace(model.config, backbone=BackboneConfig("tiny"))
    save_checkpoint(frozen, build(plain), Config(model=plain))
    few = sum(value.numel() for name, value in model.named_parameters() if name.endswith(SPECTRUM))
    assert 0 < path.stat().st_size - frozen.stat().st_size < 8 * few + 1000


def test_tuned_factors_count_among_what_is_trained():
    model, plain = tuned_network(), build(replace(tuned_network().config, backbone=BackboneConfig("tiny")))
    few = sum(value.numel() for name, value in model.named_parameters() if name.endswith(SPECTRUM))
    assert model.parameter_count().trained == plain.parameter_count().trained + few


def test_the_best_recipe_tunes_its_backbone_and_those_that_follow_the_paper_do_not():
    assert BEST.model.backbone.tuned
    assert not Config().model.backbone.tuned
