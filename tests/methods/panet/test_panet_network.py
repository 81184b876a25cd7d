import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from making import encoded, episode, features, losses

from cyctr.backbones.backbone import Backbone
from cyctr.checkpoint import load_model
from cyctr.config import BackboneConfig
from cyctr.errors import ConfigError
from cyctr.methods.panet.config import PAPER, Config, LossConfig, ModelConfig
from cyctr.methods.panet.network import PANet
from cyctr.methods.recipes import recipes_of
from cyctr.types import IGNORE, Features

TINY = BackboneConfig("tiny", taps=(-1,), trained=9, last_relu=False)


def network(alignment=1.0, **backbone):
    config = Config(model=ModelConfig(backbone=replace(TINY, **backbone)), loss=LossConfig(alignment))
    return load_model(config, PANet)


def test_the_logits_are_the_temperature_times_cosines_at_pixel_resolution():
    model, given = network(), episode(batch=2, shots=3)
    support = encoded(model, given.support_images, given.support_labels)
    maps = model.backbone(given.query_images).maps[-1]
    cosines = torch.stack([F.cosine_similarity(maps, support[:, kind, :, None, None], dim=1) for kind in (0, 1)], 1)
    expected = model.backbone.grid.upsample(20 * cosines, (65, 65))
    torch.testing.assert_close(model(given).logits, expected, rtol=1e-4, atol=1e-4)


def test_the_length_of_the_features_of_query_or_of_one_support_leaves_the_answer():
    model, given = network(), episode(batch=2)
    query, support = features(model, given.query_images), features(model, given.support_images)

    def answer(of_query, of_support):
        return model.predict(of_query, model.encode_support(of_support, given.support_labels), (65, 65)).logits

    plain = answer(query, support)
    torch.testing.assert_close(answer(query.changed(lambda maps: 5 * maps), support), plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(answer(query, support.changed(lambda maps: 5 * maps)), plain, rtol=1e-4, atol=1e-4)


def separable(model, given):
    """Features that say for each cell which class it is of, in two channels."""

    def of(labels):
        cells = model.backbone.grid.cells(labels, (9, 9)) == 1
        return Features((torch.stack([~cells, cells], 1).float(),))

    return of(given.query_labels), of(given.support_labels.flatten(0, 1))


def test_an_episode_whose_features_tell_the_classes_apart_costs_little_and_its_alignment_too():
    model, given = network(), episode(batch=2, shots=2)
    whole = torch.zeros_like(given.support_labels)
    whole[..., 36:] = 1  # a straight border of classes, so that upsampled features are mixed along one line only
    given = replace(given, support_labels=whole, query_labels=whole[:, 0])
    found = model.learn(given, *separable(model, given), None)
    assert found.parts["query"] < 0.1
    assert found.parts["alignment"] < 0.1
    swapped = replace(given, support_labels=1 - whole)
    wrong = model.learn(swapped, *separable(model, given), None)
    assert wrong.parts["query"] > 10 * found.parts["query"]


def slow_alignment(model, query, support, given):
    """The loss of the support's masks by prototypes of the query, with loops."""
    found = model._scores(query, model.encode_support(support, given.support_labels))
    shots, lost = given.shots, []
    for b in range(len(found)):
        mask = found[b, 1] > found[b, 0]
        cells = query.maps[-1][b]
        if not mask.any():
            lost.append(torch.zeros(()))
            continue
        kinds = [cells[:, chosen].sum(1) / (chosen.sum() + 1e-5) for chosen in (~mask, mask)]
        of_shots = []
        for k in range(shots):
            maps = support.maps[-1][b * shots + k]
            cosines = torch.stack([20 * F.cosine_similarity(maps, kind[:, None, None], dim=0) for kind in kinds])
            logits = model.backbone.grid.upsample(cosines[None], (65, 65))
            of_shots.append(F.cross_entropy(logits, given.support_labels[b, k][None].long(), ignore_index=IGNORE))
        lost.append(torch.stack(of_shots).mean())
    return torch.stack(lost)


@pytest.mark.parametrize("shots", [1, 3])
def test_alignment_is_the_mean_over_shots_of_the_loss_of_their_masks(shots):
    model, given = network(alignment=0.5), episode(batch=3, shots=shots)
    labels = given.support_labels.clone()
    labels[..., :5] = IGNORE
    given = replace(given, support_labels=labels)
    query, support = features(model, given.query_images), features(model, given.support_images)
    found = losses(model, given)
    expected = slow_alignment(model, query, support, given)
    torch.testing.assert_close(found.parts["alignment"], expected.mean(), rtol=1e-4, atol=1e-4)
    plain = losses(network(alignment=0.0), given)
    torch.testing.assert_close(found.each, plain.each + 0.5 * expected, rtol=1e-4, atol=1e-4)


def test_alignment_is_left_out_where_nothing_is_found():
    model, given = network(), episode(batch=2)
    query, support = separable(model, given)
    nowhere = Features((torch.stack([torch.ones(2, 9, 9), torch.zeros(2, 9, 9)], 1),))
    found = model.learn(given, nowhere, support, None)
    assert found.parts["alignment"] == 0
    assert model.learn(given, query, support, None).parts["alignment"] > 0


def test_labels_that_nobody_decided_do_not_change_the_loss_of_the_query():
    model, given = network(alignment=0.0), episode()
    labels = given.query_labels.clone()
    labels[:, :20] = IGNORE
    some = losses(model, replace(given, query_labels=labels)).each
    logits = model(given).logits
    expected = F.cross_entropy(logits[:, :, 20:], given.query_labels[:, 20:].long(), reduction="none").flatten(1).mean(1)
    torch.testing.assert_close(some, expected)


def test_the_alignment_trains_features_and_not_the_mask_that_it_begins_with():
    model, given = network(), episode(batch=2)
    query, support = features(model, given.query_images), features(model, given.support_images)
    maps = query.maps[-1].detach().requires_grad_()
    found = model._scores(Features((maps,)), model.encode_support(support, given.support_labels).detach())
    assert (found[:, 1] > found[:, 0]).any()
    model._alignment(maps.detach(), found, support.maps[-1].detach(), given.support_labels).sum()
    loss = model._alignment(maps, found.detach(), support.maps[-1].detach(), given.support_labels).sum()
    (direct,) = torch.autograd.grad(loss, maps)
    loss = model._alignment(maps, found, support.maps[-1].detach(), given.support_labels).sum()
    (through_both,) = torch.autograd.grad(loss, maps)
    assert direct.any()
    assert torch.equal(direct, through_both)


def test_copies_of_a_shot_answer_as_one():
    model, given = network(), episode(batch=2)
    copied = replace(
        given,
        support_images=given.support_images.expand(-1, 3, -1, -1, -1),
        support_labels=given.support_labels.expand(-1, 3, -1, -1),
    )
    torch.testing.assert_close(model(copied).logits, model(given).logits, rtol=1e-4, atol=1e-4)


def test_a_mirrored_episode_has_the_mirrored_answer():
    model, given = network(), episode(batch=2)
    mirrored = replace(
        given,
        support_images=given.support_images.flip(-1),
        support_labels=given.support_labels.flip(-1),
        query_images=given.query_images.flip(-1),
        query_labels=None,
    )
    with torch.no_grad():
        for layer in model.backbone.body.blocks:
            layer.weight.copy_((layer.weight + layer.weight.flip(-1)) / 2)
    torch.testing.assert_close(model(mirrored).logits, model(given).logits.flip(-1), rtol=1e-3, atol=1e-3)


def test_what_learns_is_the_backbone_but_for_its_batchnorms_and_early_levels():
    model = network(name="resnet18", trained=2)
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(layer.weight)  # timm begins with zeros, through which nothing learns at first
    groups = model.parameter_groups()
    assert set(groups) == {"backbone"}
    names = {name for name, value in model.named_parameters() if value.requires_grad}
    assert names == {name for name in names if name.startswith(("backbone.body.layer3.", "backbone.body.layer4."))}
    assert not any(".bn" in name or ".downsample.1" in name for name in names)
    assert any(".downsample.0" in name for name in names) and any("conv2" in name for name in names)
    losses(model.train(), episode()).total.backward()
    for name, value in model.named_parameters():
        assert (value.grad is not None and bool(value.grad.any())) == (name in names), name


def test_the_whole_network_of_the_paper_has_as_many_numbers_as_are_known():
    model = PANet.build(Config(), Backbone(BackboneConfig("vgg16", taps=(-1,), trained=9, last_relu=False)))
    assert model.parameter_count().trained == 14_714_688


@pytest.mark.parametrize(("part", "value", "words"), [
    ("temperature", 0.0, "model.temperature is 0.0; expected a positive number"),
    ("temperature", math.inf, "model.temperature is inf"),
])  # fmt: skip
def test_a_model_that_cannot_be_is_refused(part, value, words):
    with pytest.raises(ConfigError, match=words):
        ModelConfig(**{part: value})
    with pytest.raises(ConfigError, match=r"loss.alignment is -1; expected a number, 0 or more"):
        LossConfig(-1)


def test_its_recipe_is_that_of_the_paper():
    assert recipes_of("panet").preset() == PAPER
    assert (PAPER.optimizer.backbone, PAPER.optimizer.backbone_rate, PAPER.optimizer.momentum) == ("sgd", 1e-3, 0.9)
    assert (PAPER.training.steps, PAPER.training.batch) == (30_000, 1)
    with pytest.raises(ConfigError, match="preset is 'best'; expected one of paper, last"):
        recipes_of("panet").preset("best")
