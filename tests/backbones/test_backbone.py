import pytest
import torch

from cyctr import compat
from cyctr.backbones.backbone import Backbone
from cyctr.config import BackboneConfig
from cyctr.errors import ConfigError, WeightsError

NAMES = [
    "tiny",
    "resnet50",
    "resnet101",
    "vgg16",
    "tf_efficientnet_lite0",
    "tf_efficientnet_lite1",
    "tf_efficientnet_lite2",
    "mobilenetv2_100",
    "convnext_atto",  # patches, four levels
    "regnety_002",
    "densenet121",  # no dilation in timm: coarse taps are enlarged
]


@pytest.fixture(scope="module")
def images():
    return torch.rand(2, 3, 65, 81, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", params=NAMES)
def backbone(request):
    torch.manual_seed(0)
    made = Backbone(BackboneConfig(request.param))
    for module in made.modules():  # statistics that a fold must carry over
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return made


def test_every_backbone_keeps_the_contract(backbone, images):
    features = backbone(images)
    assert backbone.grid.stride == 8
    cells = (9, 11) if backbone.grid.alignment == "corner" else (8, 10)
    assert [maps.shape for maps in features.maps] == [(2, channels, *cells) for channels in backbone.channels]
    assert features.maps[0].isfinite().all()


def test_every_backbone_is_frozen_and_stays_in_evaluation_mode(backbone, images):
    before = backbone(images).maps[-1]
    backbone.train()
    assert not any(module.training for module in backbone.modules())
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    after = backbone(images.clone().requires_grad_()).maps[-1]
    assert torch.equal(before, after)  # no BatchNorm moved
    assert not after.requires_grad


def test_every_backbone_reads_bytes_and_floats_alike(backbone):
    pixels = torch.randint(0, 256, (1, 3, 65, 65), dtype=torch.uint8)
    torch.testing.assert_close(backbone(pixels).maps[1], backbone(pixels.float() / 255).maps[1], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["tiny", "resnet50", "vgg16", "tf_efficientnet_lite0", "mobilenetv2_100", "convnext_atto"])
def test_acceleration_leaves_the_features_as_they_were(name, images):
    backbone = Backbone(BackboneConfig(name))
    for module in backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    before, after = backbone(images), backbone.accelerate()(images)
    for one, other in (*zip(before.maps, after.maps, strict=True),):
        assert (one - other).abs().max() <= 1e-3 * one.abs().max()
    if name != "convnext_atto":
        assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in backbone.modules())


def test_the_middle_taps_of_a_resnet_are_blocks_three_and_four_and_the_high_one_block_five():
    backbone = Backbone(BackboneConfig("resnet50"))
    assert backbone.channels == (512, 1024, 2048)
    other = Backbone(BackboneConfig("resnet50", taps=(1, 2, 3)))
    assert other.channels == (256, 512, 1024)


def test_vgg_at_stride_8_computes_what_vgg_computes_and_more():
    dense = Backbone(BackboneConfig("vgg16"))
    sparse = compat.timm().create_model("vgg16", features_only=True).eval()
    sparse.load_state_dict(dense.body.state_dict())
    image = torch.randn(1, 3, 128, 128)
    with torch.no_grad():
        fifth_block = sparse(image)[4]  # stride 16
        ours = dense.body(image)[4]  # stride 8
    inside = slice(2, -2)  # padding differs at the rim
    torch.testing.assert_close(ours[..., ::2, ::2][..., inside, inside], fifth_block[..., inside, inside])


def test_strides_of_original_resnets_sit_in_the_first_convolution():
    usual, original = Backbone(BackboneConfig("resnet50")), Backbone(BackboneConfig("resnet50", stride_in_1x1=True))
    for backbone, expected in ((usual, [(1, 1), (2, 2)]), (original, [(2, 2), (1, 1)])):
        block = backbone.body.layer2[0]
        assert [block.conv1.stride, block.conv2.stride] == expected
    assert original.grid == usual.grid


def test_an_original_resnet_computes_at_every_fourth_cell_what_it_computes_undilated():
    exact = Backbone(BackboneConfig("resnet50", stride_in_1x1=True))
    for stage in (exact.body.layer1, exact.body.layer2, exact.body.layer3, exact.body.layer4):
        for block in stage:
            torch.nn.init.constant_(block.bn3.weight, 0.3)  # untrained blocks have zero here, and no effect
    sparse = compat.timm().create_model("resnet50", features_only=True).eval()
    sparse.load_state_dict(exact.body.state_dict())
    for stage in (sparse.layer2, sparse.layer3, sparse.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    timms = Backbone(BackboneConfig("resnet50", stride_in_1x1=True, dilate_first=False))
    timms.body.load_state_dict(exact.body.state_dict())
    image = torch.rand(1, 3, 129, 129, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, ours, without = sparse(image), exact.body(image), timms.body(image)
    for level, step in ((2, 1), (3, 2), (4, 4)):
        torch.testing.assert_close(ours[level][..., ::step, ::step], expected[level], rtol=1e-4, atol=1e-5)
    assert (without[4][..., ::4, ::4] - expected[4]).abs().max() > 0.01 * expected[4].abs().max()  # so it is needed


def test_a_deep_stem_is_three_small_convolutions_in_place_of_one():
    usual, deep = (Backbone(BackboneConfig("resnet50", deep_stem=deep)).body for deep in (False, True))
    sizes = [layer.kernel_size for layer in deep.conv1 if isinstance(layer, torch.nn.Conv2d)]
    assert usual.conv1.kernel_size == (7, 7) and sizes == [(3, 3)] * 3
    assert {name for name, _ in usual.layer4.named_parameters()} == {name for name, _ in deep.layer4.named_parameters()}


@pytest.mark.parametrize("name", ["tiny", "vgg16_bn", "efficientnet_lite0"])
def test_a_network_without_a_deep_stem_is_refused_by_its_own_name(name):
    message = f"backbone.deep_stem is true and backbone.name is '{name}', which has no such form; set deep_stem to false"
    with pytest.raises(ConfigError, match=message):
        Backbone(BackboneConfig(name, deep_stem=True))


@pytest.mark.parametrize("name", ["resnet50", "resnet50s"])
def test_a_later_resnet_computes_at_every_fourth_cell_what_it_computes_undilated(name):
    exact, other = Backbone(BackboneConfig(name)), Backbone(BackboneConfig(name, dilate_first=True))
    for stage in (exact.body.layer1, exact.body.layer2, exact.body.layer3, exact.body.layer4):
        for block in stage:
            torch.nn.init.constant_(block.bn3.weight, 0.3)
    sparse = compat.timm().create_model(name, features_only=True).eval()
    for network in (sparse, other.body):
        network.load_state_dict(exact.body.state_dict())
    image = torch.rand(1, 3, 129, 129, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, ours, all_dilated = sparse(image), exact.body(image), other.body(image)
    for level, step in ((2, 1), (3, 2), (4, 4)):
        torch.testing.assert_close(ours[level][..., ::step, ::step], expected[level], rtol=1e-4, atol=1e-5)
    assert (all_dilated[4][..., ::4, ::4] - expected[4]).abs().max() > 0.01 * expected[4].abs().max()


@pytest.mark.parametrize("setting", ["stride_in_1x1", "dilate_first"])
def test_blocks_cannot_change_in_a_network_that_is_no_resnet(setting):
    with pytest.raises(ConfigError, match=f"backbone.{setting}.*only ResNets with bottleneck blocks"):
        Backbone(BackboneConfig("mobilenetv2_100", **{setting: True}))


def test_the_mean_image_is_normalised_to_zero():
    backbone = Backbone(BackboneConfig("tiny", mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0)))
    image = torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1).expand(1, 3, 65, 65)
    assert backbone(image).maps[1].abs().max() < 1e-6  # the tiny network has no bias


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(ConfigError, match=r"'resnet5o'; expected 'tiny' or .* did you mean .*resnet50"):
        Backbone(BackboneConfig("resnet5o"))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "convmixer_768_32"])
def test_a_network_without_maps_of_any_size_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name}.*choose another"):
        Backbone(BackboneConfig(name))


def test_taps_beyond_the_last_level_are_refused():
    with pytest.raises(ConfigError, match=r"\(2, 3, 7\); tiny has levels 0 to 4"):
        Backbone(BackboneConfig("tiny", taps=(2, 3, 7)))


def test_weights_round_trip_through_load():
    timm = compat.timm()
    full = timm.create_model("resnet18").eval()
    backbone = Backbone(BackboneConfig("resnet18")).load(full.state_dict())
    image = torch.rand(1, 3, 65, 65)
    with torch.no_grad():
        stem = full.act1(full.bn1(full.conv1((image - backbone.mean) / backbone.std)))
        first_tap = full.layer2(full.layer1(full.maxpool(stem)))
    torch.testing.assert_close(backbone(image).maps[0], first_tap)


@pytest.mark.parametrize(
    ("given", "into", "problem"),
    [("resnet34", "resnet18", "also have"), ("resnet18", "resnet34", "lack"), ("resnet50", "resnet26", "also have")],
)
def test_weights_of_another_depth_are_refused(given, into, problem):
    state = compat.timm().create_model(given).state_dict()
    with pytest.raises(WeightsError, match=f"the weights {problem} .* another network than {into}"):
        Backbone(BackboneConfig(into)).load(state)


def test_weights_of_another_width_are_refused():
    state = compat.timm().create_model("wide_resnet50_2").state_dict()
    with pytest.raises(WeightsError, match=r"have another shape for 'layer1\.0\.conv1\.weight'"):
        Backbone(BackboneConfig("resnet50")).load(state)


def test_an_accelerated_backbone_takes_no_weights():
    backbone = Backbone(BackboneConfig("tiny")).accelerate()
    with pytest.raises(WeightsError, match=r"load them before accelerate\(\)"):
        backbone.load({})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_images_of_any_float_type_are_taken(dtype):
    backbone = Backbone(BackboneConfig("tiny"))
    image = torch.rand(1, 3, 65, 65)
    features = backbone(image.to(dtype))
    assert features.maps[1].dtype == torch.float32
    torch.testing.assert_close(features.maps[1], backbone(image).maps[1], atol=0.1, rtol=0.1)


def test_taps_are_scaled_by_their_factors():
    images = torch.rand(1, 3, 65, 65)
    plain, scaled = (Backbone(BackboneConfig("tiny", scale=scale))(images) for scale in (None, (2.0, 3.0, 0.5)))
    torch.testing.assert_close(scaled.maps[-1], 0.5 * plain.maps[-1])
    torch.testing.assert_close(scaled.maps[0], 2 * plain.maps[0])
    torch.testing.assert_close(scaled.maps[1], 3 * plain.maps[1])


def test_a_method_asks_for_as_many_levels_as_it_likes():
    images = torch.rand(1, 3, 65, 65)
    every = Backbone(BackboneConfig("tiny", taps=(0, 1, 2, 3, 4)))
    assert len(every(images).maps) == len(every.channels) == 5
    deepest = Backbone(BackboneConfig("tiny", taps=(-1,)))
    usual = Backbone(BackboneConfig("tiny"))
    assert torch.equal(deepest(images).maps[0], usual(images).maps[-1])
    assert deepest.channels == usual.channels[-1:]


def test_three_factors_are_those_of_the_default_levels_whatever_is_asked_for():
    images, factors = torch.rand(1, 3, 65, 65), (2.0, 3.0, 0.5)
    one = Backbone(BackboneConfig("tiny", taps=(-1,), scale=factors))(images)
    torch.testing.assert_close(one.maps[0], 0.5 * Backbone(BackboneConfig("tiny", taps=(-1,)))(images).maps[0])
    two = Backbone(BackboneConfig("tiny", taps=(1, 2), scale=factors))(images)
    bare = Backbone(BackboneConfig("tiny", taps=(1, 2)))(images)
    assert torch.equal(two.maps[0], bare.maps[0])
    torch.testing.assert_close(two.maps[1], 2.0 * bare.maps[1])
