from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from making import episode, one

from cyctr.backbones.backbone import Backbone
from cyctr.config import BackboneConfig
from cyctr.errors import ConfigError, WeightsError
from cyctr.methods.references import (
    PRIOR_THRESHOLD,
    PROTOTYPE_LEVEL,
    REFERENCES,
    Constant,
    NearestPrototype,
    PriorConfig,
    PriorThreshold,
    PrototypeConfig,
    reference,
)
from cyctr.types import Episode

CPU = torch.device("cpu")
TINY = BackboneConfig("tiny")
STRIDE = 8  # cell i of the tiny backbone sits on pixel 8 i


def given(shots=1, batch=2, size=65, query_size=None):
    """Episodes with a band of ignored pixels across every support: over cells of the object, and of the rest."""
    made = episode(batch, shots, size, query_size)
    labels = made.support_labels.clone()
    labels[..., 40:49, 40:57] = 1  # some foreground is left in any case
    labels[..., 16:25, :] = 255
    return replace(made, support_labels=labels)


def at(features, level):
    return features.maps[-1] if level == "high" else torch.cat(features.maps[:-1], 1)


def cells(label):
    return label[::STRIDE, ::STRIDE]


def enlarged(maps, size):
    """(C, h, w) -> (C, H, W), each value where its cell sits; sizes are 8 n + 1."""
    return F.interpolate(maps[None], (size, size), mode="bilinear", align_corners=True)[0]


def slow_prior(backbone, many, i):
    """(h, w) the prior map of one episode, by loops over shots and query cells."""
    query = backbone(many.query_images[i : i + 1]).maps[-1][0]  # (C, h, w)
    total = torch.zeros(query.shape[1:])
    for image, label in zip(many.support_images[i], many.support_labels[i], strict=True):
        support = backbone(image[None]).maps[-1][0]
        marked = [support[:, r, c] for r, c in (cells(label) == 1).nonzero().tolist()]
        best = torch.zeros(query.shape[1:])
        for r in range(query.shape[1]):
            for c in range(query.shape[2]):
                best[r, c] = max(float(F.cosine_similarity(query[:, r, c], vector, dim=0)) for vector in marked)
        total += (best - best.min()) / (best.max() - best.min())
    return total / len(many.support_images[i])


def slow_cosines(backbone, level, many, i):
    """(2, h, w) cosines of every query cell to the mean background and the mean foreground of one episode, by loops."""
    query = at(backbone(many.query_images[i : i + 1]), level)[0]
    cosine = torch.zeros(2, *query.shape[1:])
    for kind in (0, 1):
        means = []
        for image, label in zip(many.support_images[i], many.support_labels[i], strict=True):
            support = at(backbone(image[None]), level)[0]
            own = [support[:, r, c] for r, c in (cells(label) == kind).nonzero().tolist()]
            means.append(torch.stack(own).mean(0))
        prototype = torch.stack(means).mean(0)
        for r in range(query.shape[1]):
            for c in range(query.shape[2]):
                cosine[kind, r, c] = F.cosine_similarity(query[:, r, c], prototype, dim=0)
    return cosine


def assert_same_decisions(prediction, expected):
    """Equal up to rounding, and the same mask wherever rounding does not decide."""
    torch.testing.assert_close(prediction.logits, expected, atol=1e-5, rtol=1e-4)
    sure = (expected[:, 1] - expected[:, 0]).abs() > 1e-4
    assert sure.float().mean() > 0.9
    assert torch.equal(prediction.mask[sure], (expected[:, 1] > expected[:, 0])[sure])
    assert prediction.mask.any() and not prediction.mask.all()


@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("threshold", [0.4, 0.7])
def test_the_prior_reference_is_the_prior_map_above_a_threshold(shots, threshold):
    many = given(shots, query_size=49)
    backbone = Backbone(TINY)
    priors = torch.stack([enlarged(slow_prior(backbone, many, i)[None], 49)[0] for i in range(2)])
    prediction = PriorThreshold(PriorConfig(TINY, threshold), backbone)(many)
    assert_same_decisions(prediction, torch.stack([torch.full_like(priors, threshold), priors], 1))


@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("level", ["mid", "high"])
def test_the_nearest_prototype_is_what_loops_over_cells_find(shots, level):
    many = given(shots, query_size=49)
    backbone = Backbone(TINY)
    expected = torch.stack([enlarged(slow_cosines(backbone, level, many, i), 49) for i in range(2)])
    assert_same_decisions(NearestPrototype(PrototypeConfig(TINY, level), backbone)(many), expected)


@pytest.mark.parametrize("name", ["prior", "prototype"])
def test_ignored_support_pixels_are_neither_foreground_nor_background(name):
    many = given(shots=2)
    method = reference(name, TINY)
    usual = method(many).logits
    for value in (0, 1):
        decided = many.support_labels.masked_fill(many.support_labels == 255, value)
        other = method(replace(many, support_labels=decided)).logits
        if name == "prior" and value == 0:  # the prior map never looks at the background
            assert torch.equal(other, usual)
        else:
            assert not torch.allclose(other, usual, atol=1e-4)


@pytest.mark.parametrize("name", REFERENCES)
def test_the_order_of_the_shots_does_not_matter(name):
    many = given(shots=3)
    order = [2, 0, 1]
    shuffled = replace(many, support_images=many.support_images[:, order], support_labels=many.support_labels[:, order])
    method = reference(name, TINY)
    torch.testing.assert_close(method(shuffled).logits, method(many).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", REFERENCES)
def test_an_episode_is_answered_the_same_alone_and_in_a_batch(name):
    many = given(shots=2, batch=3)
    method = reference(name, TINY)
    alone = torch.cat([method(one(many, i)).logits for i in range(3)])
    torch.testing.assert_close(alone, method(many).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("size", [(64, 70), (33, 47)])
def test_an_answer_has_the_size_of_the_query_whatever_that_is(name, size):
    support = given(batch=1)
    query = Episode(support.support_images, support.support_labels, torch.rand(1, 3, *size))
    assert reference(name, TINY)(query).logits.shape == (1, 2, *size)


@pytest.mark.parametrize("marked", ["everything", "one pixel"])
@pytest.mark.parametrize("name", ["prior", "prototype"])
def test_supports_without_background_or_with_hardly_any_foreground_are_answered_with_numbers(name, marked):
    many = episode()
    labels = torch.full_like(many.support_labels, marked == "everything")
    labels[..., 13, 21] = 1  # between the pixels that cells sit on
    prediction = reference(name, TINY)(replace(many, support_labels=labels))
    assert prediction.logits.isfinite().all()


@pytest.mark.parametrize("name", REFERENCES)
def test_the_query_s_own_labels_are_never_looked_at(name):
    many = given()
    method = reference(name, TINY)
    assert torch.equal(method(replace(many, query_labels=None)).logits, method(many).logits)


@pytest.mark.parametrize(("name", "share"), [("background", 0), ("foreground", 1)])
def test_the_constants_say_the_same_of_every_pixel_and_need_no_weights(name, share):
    method = reference(name, BackboneConfig("resnet50", "resnet50-keras"))
    assert isinstance(method, Constant)
    assert not list(method.parameters())
    mask = method(given(query_size=33)).mask
    assert mask.shape == (2, 33, 33)
    assert mask.float().mean() == share


def test_a_name_chooses_the_reference_and_its_variant():
    assert reference("prior", TINY).threshold == PRIOR_THRESHOLD
    assert reference("prior:0.6", TINY).threshold == 0.6
    assert reference("prior:1", TINY).threshold == 1
    assert reference("prototype", TINY).level == PROTOTYPE_LEVEL
    assert reference("prototype:mid", TINY).level == "mid"
    assert reference("prototype:high", TINY).level == "high"
    assert isinstance(reference("prior", TINY), PriorThreshold)
    assert isinstance(reference("prototype", TINY), NearestPrototype)


def test_a_higher_threshold_marks_less():
    shares = [reference(f"prior:{threshold}", TINY)(given()).mask.float().mean() for threshold in (0, 0.3, 0.6, 0.9, 1)]
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 5
    assert shares[-1] == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("prior:", "threshold from 0 to 1"),
        ("prior:much", "threshold from 0 to 1"),
        ("prior:1.5", "threshold from 0 to 1"),
        ("prior:-0.1", "threshold from 0 to 1"),
        ("prior:nan", "threshold from 0 to 1"),
        ("prototype:", "prototype:mid or prototype:high"),
        ("prototype:low", "prototype:mid or prototype:high"),
        ("foreground:0.5", "one of prior, prototype"),
        ("background:", "one of prior, prototype"),
        ("nearest", "one of prior, prototype"),
        ("", "one of prior, prototype"),
    ],
)
def test_another_name_is_refused_with_what_was_expected(name, words):
    with pytest.raises(ConfigError, match=words) as refusal:
        reference(name, TINY)
    assert str(refusal.value).startswith(f"method is {name!r}; expected ")


def test_a_backbone_whose_weights_are_not_here_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match="cyctr weights get mobilenetv2"):
        reference("prior", BackboneConfig("mobilenetv2_100", "mobilenetv2"))
