"""Photographs through the published weights, where the user's cache has them."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from cyctr.backbones.backbone import Backbone
from cyctr.backbones.weights import cache, find, load_backbone
from cyctr.config import BackboneConfig

PHOTOS = {
    "chelsea.png": {281, 282, 283, 284, 285},  # kinds of cats
    "coffee.png": {967, 968},  # espresso, cup
    "motorcycle_left.png": {665, 670},  # moped, motor scooter
}


@pytest.fixture(params=PHOTOS)
def photo(request):
    """(1, 3, 225, 225): the middle of one of scikit-image's photographs, and the ImageNet classes that name it."""
    package = find_spec("skimage")
    if package is None or package.origin is None:
        pytest.skip("scikit-image, whose photographs these are, is not installed")
    path = Path(package.origin).parent / "data" / request.param
    if not path.exists():
        pytest.skip(f"this scikit-image comes without {request.param}")
    image = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)[None] / 255
    image = F.interpolate(image, scale_factor=256 / min(image.shape[-2:]), mode="bilinear", antialias=True)
    top, left = ((side - 225) // 2 for side in image.shape[-2:])
    return image[..., top : top + 225, left : left + 225].clamp(0, 1), PHOTOS[request.param]


def fetched(name):
    """The entry of that name and its tensors, classifier included."""
    entry = find(name)
    if cache.cached(entry) is None:
        pytest.skip(f"{name} is not in the cache; run: cyctr weights get {name}")
    return entry, cache.load(entry)


def classify_resnet(high, state):
    return high.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


def classify_efficientnet(high, state):
    wide = F.conv2d(high, state["conv_head.weight"])
    norm = [state[f"bn2.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    pooled = F.relu6(F.batch_norm(wide, *norm, eps=1e-3)).mean((2, 3))
    return pooled @ state["classifier.weight"].T + state["classifier.bias"]


@pytest.mark.parametrize(
    ("name", "classify"), [("resnet50-keras", classify_resnet), ("efficientnet-lite0", classify_efficientnet)]
)
def test_a_photograph_is_recognised_through_the_loaded_backbone(name, classify, photo):
    entry, state = fetched(name)
    image, classes = photo
    high = load_backbone(BackboneConfig(entry.architecture, name, scale=(1.0, 1.0, 1.0)))(image).maps[-1]  # as it was trained
    assert classify(high, state).argmax(1).item() in classes


@pytest.mark.parametrize("name", ["resnet50-keras", "efficientnet-lite0"])
def test_acceleration_leaves_the_features_of_a_photograph_as_they_were(name, photo):
    entry, _ = fetched(name)
    backbone = load_backbone(BackboneConfig(entry.architecture, name))
    before, after = backbone(photo[0]), backbone.accelerate()(photo[0])
    for one, other in (*zip(before.maps, after.maps, strict=True),):
        assert (one - other).abs().max() <= 1e-3 * one.abs().max()


def test_the_first_block_of_a_stage_from_keras_strides_in_its_first_convolution():
    entry, state = fetched("resnet50-keras")
    loaded = load_backbone(BackboneConfig(entry.architecture, entry.name))
    block = loaded.body.layer2[0]
    assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
    elsewhere = Backbone(BackboneConfig(entry.architecture)).load(state)
    image = torch.rand(1, 3, 65, 65)
    ours, theirs = loaded(image).maps[1], elsewhere(image).maps[1]
    assert ours.shape == theirs.shape
    assert (ours - theirs).norm() > 0.1 * ours.norm()  # the same kernels, other features
