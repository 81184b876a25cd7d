import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cyctr.datasets import synthetic
from cyctr.datasets.synthetic import SyntheticEpisodes, appearance, draw_image
from cyctr.errors import DataError

EPISODES = SyntheticEpisodes(range(100), size=65, shots=2, seed=3)


def test_an_episode_is_the_same_in_any_batch():
    together = EPISODES.batch(4, 3)
    alone = EPISODES.batch(5, 1)
    assert torch.equal(together.query_images[1], alone.query_images[0])
    assert torch.equal(together.support_labels[1], alone.support_labels[0])


def test_another_seed_gives_other_images_of_the_same_classes():
    other = SyntheticEpisodes(range(100), size=65, shots=2, seed=4)
    assert not torch.equal(EPISODES.batch(0, 1).query_images, other.batch(0, 1).query_images)
    assert appearance(7) == appearance(7)


@pytest.fixture(scope="module")
def many():
    return SyntheticEpisodes(range(1000), size=97, seed=3).batch(0, 80)


def iou(answers, episodes):
    truths = episodes.query_labels == 1
    return ((answers & truths).sum() / (answers | truths).sum()).item()


def best_iou(scores, episodes):
    """With the threshold that suits these very episodes best: more than any honest answer can reach."""
    hits = (episodes.query_labels == 1).flatten()[scores.flatten().argsort(descending=True, stable=True)].cumsum(0)
    marked = torch.arange(1, len(hits) + 1)
    return (hits / (marked + hits[-1] - hits)).max().item()


def test_answers_that_do_not_look_at_the_query_score_badly(many):
    assert iou(torch.ones_like(many.query_labels, dtype=torch.bool), many) < 0.2
    assert iou(torch.zeros_like(many.query_labels, dtype=torch.bool), many) == 0
    assert iou(many.support_labels[:, 0] == 1, many) < 0.2
    usual_place = (many.query_labels == 1).float().mean(0).expand(many.query_labels.shape)
    assert best_iou(usual_place, many) < 0.25


def balanced(images):
    """Colours relative to the average and the spread of their own image."""
    spread, average = torch.std_mean(images.float(), dim=(-2, -1), keepdim=True)
    return (128 + 64 * (images - average) / spread).clip(0, 255).byte()


def colour_likelihood(support, labels, query):
    """log p(colour | object) / p(colour | rest) of each query pixel, from histograms of 8 x 8 x 8 colours."""
    weights = torch.tensor([64, 8, 1])[:, None, None]
    seen, asked = ((images.long() // 32 * weights).sum(0) for images in (support, query))
    front, rest = (torch.bincount(seen[labels == value], minlength=512) + 0.5 for value in (1, 0))
    return (front / front.sum() / (rest / rest.sum())).log()[asked]


@pytest.mark.parametrize("seen", [lambda images: images, balanced], ids=["as they are", "balanced"])
def test_colour_alone_scores_badly(many, seen):
    support, labels, query = seen(many.support_images)[:, 0], many.support_labels[:, 0], seen(many.query_images)

    def distance(value):
        marked = (labels == value)[:, None]
        average = (support * marked).sum((-2, -1), keepdim=True) / marked.sum((-2, -1), keepdim=True)
        return (query - average).square().sum(1)

    likelihood = torch.stack([colour_likelihood(*each) for each in zip(support, labels, query, strict=True)])
    assert iou(distance(1) < distance(0), many) < 0.25
    assert best_iou(likelihood, many) < 0.25


def describe(images):
    """(..., 12, H, W): how much grey levels differ from those some pixels away, over a neighbourhood."""
    grey = images.float().mean(-3)
    steps = [(step * down, step * right) for step in (2, 4, 7) for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))]
    changes = torch.stack([(grey - grey.roll(step, (-2, -1))).abs() for step in steps], -3)
    return F.avg_pool2d(changes, 13, 1, padding=6, count_include_pad=False) / changes.mean((-3, -2, -1), keepdim=True)


def marked_average(maps, labels):
    return (maps * (labels == 1)[..., None, :, :]).sum((-2, -1)) / (labels == 1).sum((-2, -1))[..., None]


def test_texture_finds_what_colour_does_not(many):
    wanted = marked_average(describe(many.support_images[:, 0]), many.support_labels[:, 0])
    assert best_iou(-(describe(many.query_images) - wanted[..., None, None]).square().sum(1), many) > 0.4


def test_images_of_one_class_are_more_alike_than_images_of_two():
    drawn = [draw_image(number, 97, np.random.default_rng((number, i))) for number in range(80) for i in range(2)]
    images, labels = (torch.from_numpy(np.stack(parts)) for parts in zip(*drawn, strict=True))
    looks = marked_average(describe(images.permute(0, 3, 1, 2)), labels).unflatten(0, (80, 2))
    distances = torch.cdist(looks[:, 0], looks[:, 1])  # of the first image of each class to the second of each
    assert (distances.diagonal()[:, None] <= distances).float().mean() > 0.9


def test_few_classes_can_be_taken_for_each_other():
    looks = [appearance(number) for number in range(200)]
    assert all(look.resembles(look) for look in looks)
    alike = [look.resembles(other) for i, look in enumerate(looks) for other in looks[:i]]
    assert 0 < np.mean(alike) < 0.05


def test_around_the_object_stand_objects_of_other_classes_that_cannot_be_taken_for_it(monkeypatch):
    painted, original = [], synthetic._texture

    def watched(look, x, y, random):
        painted.append(look)
        return original(look, x, y, random)

    monkeypatch.setattr(synthetic, "_texture", watched)
    for number in range(60):
        draw_image(number, 33, np.random.default_rng(number))
        others = [look for look in painted if look != appearance(number)]
        assert (len(painted), len(others)) == (4, 3)
        assert not any(look.resembles(appearance(number)) for look in others)
        painted.clear()


@pytest.mark.parametrize("size", [33, 129])
def test_the_object_can_always_be_seen(size):
    assert min(draw_image(5, size, np.random.default_rng(i))[1].mean() for i in range(200)) > 0.05


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"classes": []}, "classes is empty"),
        ({"classes": [1], "shots": 0}, "shots is 0"),
        ({"classes": [1], "seed": -1}, "seed is -1"),
    ],
)
def test_impossible_requests_are_refused(fields, message):
    with pytest.raises(DataError, match=message):
        SyntheticEpisodes(**fields)


def test_a_negative_class_number_is_refused():
    with pytest.raises(DataError, match="class number is -3"):
        SyntheticEpisodes([-3]).batch(0, 1)
