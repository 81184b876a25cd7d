"""Kinship: whether what was found is the kind of thing that the support shows."""

import json
from pathlib import Path

import pytest
import torch

from cyctr import compat
from cyctr.backbones.backbone import Backbone
from cyctr.backbones.recognition import Recogniser, load_recogniser
from cyctr.config import BackboneConfig
from cyctr.inference.confidence import OF_KINSHIP, Calibration
from cyctr.inference.kinship import excited, kind_of_support, kinship


@pytest.fixture
def recogniser():
    """Its classes are the directions of the features."""
    return Recogniser(torch.eye(40), torch.zeros(40))


def things(*kinds, size=6):
    """(B, 40, size, size) features of faint noise, with a block in the corner that shows a kind of thing."""
    high = 0.1 * torch.rand(len(kinds), 40, size, size, generator=torch.Generator().manual_seed(0))
    for number, kind in enumerate(kinds):
        high[number, kind : kind + 3, :3, :3] += 5
    return high


def corner(count, size=6):
    inside = torch.zeros(count, size, size)
    inside[:, :3, :3] = 0.9
    return inside


def test_the_same_kind_of_thing_is_kin_and_another_is_not(recogniser):
    kind = kind_of_support(recogniser, things(4), corner(1) > 0)
    same, near, other = kinship(recogniser, things(4, 5, 20), corner(3), kind)
    assert same > 0.9 and other < 0.2 and other < near < same


def test_only_what_was_found_is_asked_about(recogniser):
    kind = kind_of_support(recogniser, things(4), corner(1) > 0)
    changed = things(4)
    changed[:, :, 3:, 3:] = 7 * torch.rand(40, 3, 3)
    assert kinship(recogniser, changed, corner(1), kind) == kinship(recogniser, things(4), corner(1), kind)


def test_the_scale_of_the_answer_and_a_shift_of_all_scores_change_nothing(recogniser):
    kind = kind_of_support(recogniser, things(4), corner(1) > 0)
    found = kinship(recogniser, things(5), corner(1), kind)
    torch.testing.assert_close(kinship(recogniser, things(5), corner(1) / 9, kind), found)
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(excited(scores + 4), excited(scores), atol=1e-5, rtol=1e-4)


def test_shots_count_the_same_and_those_without_the_class_not_at_all(recogniser):
    two = kind_of_support(recogniser, things(4, 4), corner(2) > 0)
    marked = torch.cat([corner(2), torch.zeros(1, 6, 6)]) > 0
    torch.testing.assert_close(kind_of_support(recogniser, things(4, 4, 30), marked), two)


@pytest.mark.parametrize("level", [0.0, 1e-20, float("nan")])
def test_answers_that_mark_nothing_give_a_number(recogniser, level):
    kind = kind_of_support(recogniser, things(4), corner(1) > 0)
    found = kinship(recogniser, things(4), torch.full((1, 6, 6), level), kind)
    assert 0 <= float(found) <= 1


@pytest.mark.parametrize(("name", "last", "scale"), [("tf_efficientnet_lite0", "blocks", 0.4), ("resnet18", "layer4", 1.0)])
def test_a_classifier_reads_the_features_as_the_whole_network_does(name, last, scale):
    whole = compat.timm().create_model(name).eval()
    for layer in whole.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(layer.running_mean, -0.3, 0.3)
    seen = []
    whole.get_submodule(last).register_forward_hook(lambda module, given, features: seen.append(features))
    with torch.no_grad():
        expected = whole(torch.rand(1, 3, 64, 64))
        cells = scale * seen[0].flatten(2).transpose(1, 2)
        found = Recogniser.of_state(whole.state_dict(), scale)
        torch.testing.assert_close(found.scores(found.describe(cells).mean(1)), expected, atol=1e-4, rtol=1e-3)


def test_a_backbone_of_random_weights_recognises_nothing():
    assert load_recogniser(Backbone(BackboneConfig("tiny"))) is None


def test_the_numbers_are_those_that_were_measured(monkeypatch):
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(root / "experiments")
    import presence

    rows = json.loads((root / "results" / "presence" / "lite0.json").read_text())["rows"]
    bias, slope = presence.weighed(*(presence.values(rows[which]) for which in ("coco-1", "coco-absent")))
    assert OF_KINSHIP["efficientnet-lite0"] == Calibration(bias, slope, 0.0)
