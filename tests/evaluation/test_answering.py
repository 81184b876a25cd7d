import pytest
import torch
from making import episode

from cyctr.backbones.weights import CATALOGUE
from cyctr.checkpoint import describe_checkpoint
from cyctr.config import BackboneConfig
from cyctr.datasets.pascal import CLASSES
from cyctr.evaluation.answering import NetworkMethod, check_method, input_size
from cyctr.images.edges import BENCHMARK_RADIUS, follow_edges
from cyctr.methods.backbone_choice import with_weights
from cyctr.methods.cyctr.config import BEST, PAPER, RELEASED, EncoderConfig, ModelConfig
from cyctr.methods.cyctr.network import build
from cyctr.pretrained import NAMES, find
from cyctr.types import Episode

CPU = torch.device("cpu")
NETWORK = build(ModelConfig(dim=16, backbone=BackboneConfig("tiny"), encoder=EncoderConfig(heads=2, points=2))).eval()


def mirrored(given: Episode) -> Episode:
    return Episode(given.support_images.flip(-1), given.support_labels.flip(-1), given.query_images.flip(-1))


@torch.inference_mode()
def test_an_answer_with_flips_is_the_mean_of_both_and_mirrors_with_the_episode():
    given = episode(batch=2, shots=2)
    plain, flipping = NetworkMethod(NETWORK, CPU, half=False), NetworkMethod(NETWORK, CPU, half=False, flip=True)
    own, other = plain(given).logits, plain(mirrored(given)).logits.flip(-1)
    torch.testing.assert_close(flipping(given).logits, (own + other) / 2)
    torch.testing.assert_close(flipping(mirrored(given)).logits.flip(-1), flipping(given).logits)
    assert not torch.allclose(own, other)


@torch.inference_mode()
@pytest.mark.parametrize("flip", [False, True])
def test_both_steps_give_what_one_gives(flip):
    given = episode(batch=2, shots=2)
    method = NetworkMethod(NETWORK, CPU, half=False, flip=flip)
    query, support = method.encode(given.query_images), method.encode(given.support_images.flatten(0, 1))
    torch.testing.assert_close(method.match(query, support, given).logits, method(given).logits)
    assert method.encodes


@torch.inference_mode()
@pytest.mark.parametrize("flip", [False, True])
def test_answers_with_edges_are_those_without_that_follow_the_query(flip):
    given = episode(batch=2, shots=2)
    plain, edged = (NetworkMethod(NETWORK, CPU, half=False, flip=flip, edges=edges) for edges in (False, True))
    expected = follow_edges(given.query_images, plain(given).probability, radius=BENCHMARK_RADIUS)
    torch.testing.assert_close(edged(given).probability, expected.clamp(1e-4, 1 - 1e-4))
    features = edged.encode(given.query_images), edged.encode(given.support_images.flatten(0, 1))
    torch.testing.assert_close(edged.match(*features, given).logits, edged(given).logits, atol=1e-4, rtol=1e-4)


def test_a_recipe_on_the_backbone_that_it_has_is_the_recipe():
    assert with_weights(BEST, "resnet50-keras") == BEST


@pytest.mark.parametrize(
    ("config", "weights", "expected"),
    [
        (BEST, "efficientnet-lite0", BackboneConfig("tf_efficientnet_lite0", "efficientnet-lite0", offset=-4, tuned=True)),
        (BEST, "mobilenetv2", BackboneConfig("mobilenetv2_100", "mobilenetv2", tuned=True)),
        (PAPER, "efficientnet-lite0", BackboneConfig("tf_efficientnet_lite0", "efficientnet-lite0")),
        (RELEASED, "resnet50-keras", BackboneConfig("resnet50", "resnet50-keras")),
        (RELEASED, "tiny", BackboneConfig("tiny")),
        (PAPER, "resnet50-keras", BackboneConfig("resnet50", "resnet50-keras")),
    ],
)
def test_on_another_backbone_a_recipe_keeps_what_that_can_have(config, weights, expected):
    moved = with_weights(config, weights)
    assert moved.model.backbone == expected
    assert (moved.optimizer, moved.training, moved.loss) == (config.optimizer, config.training, config.loss)


def test_the_offset_of_the_best_recipe_is_that_of_its_weights():
    assert BEST.model.backbone.offset == CATALOGUE[BEST.model.backbone.weights].offset


@pytest.mark.parametrize("name", NAMES)
def test_a_network_that_comes_with_the_package_is_known_by_its_name(name):
    check_method(name, "tiny", "cpu", "auto")
    config, data = describe_checkpoint(find(name))
    assert input_size(name) == config.training.augmentation.size
    assert data["train"] == list(CLASSES)  # so that whoever scores it on PASCAL is told
    assert find(name).stat().st_size < 11e6
