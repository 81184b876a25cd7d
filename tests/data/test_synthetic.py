import numpy as np
import pytest
import torch

from cyctr.data.synthetic import SyntheticEpisodes, appearance
from cyctr.errors import DataError
from cyctr.evaluation.metrics import Overlap, overlap

EPISODES = SyntheticEpisodes(range(100), size=65, shots=2, seed=3)


def test_an_episode_is_the_same_in_any_batch():
    together = EPISODES.batch(4, 3)
    alone = EPISODES.batch(5, 1)
    assert torch.equal(together.query_images[1], alone.query_images[0])
    assert torch.equal(together.support_labels[1], alone.support_labels[0])


def test_another_seed_gives_other_images_of_the_same_classes():
    other = SyntheticEpisodes(range(100), size=65, shots=2, seed=4)
    assert not torch.equal(EPISODES.batch(0, 1).query_images, other.batch(0, 1).query_images)
    assert np.array_equal(appearance(7).colours, appearance(7).colours)


def score(answer):
    total = Overlap()
    for i in range(60):
        given = EPISODES.batch(i, 1)
        total += overlap(answer(given), given.query_labels)
    return total.iou


def test_a_constant_answer_scores_badly():
    assert score(lambda given: torch.ones_like(given.query_labels, dtype=torch.bool)) < 0.3


def test_colour_alone_scores_badly():
    def nearest_colour(given):
        images, labels = given.support_images.float(), given.support_labels == 1
        front = torch.stack([images[:, :, c][labels] for c in range(3)], -1)  # every marked pixel's colour
        colours = front[:: max(1, len(front) // 64)]
        distance = (given.query_images[0].permute(1, 2, 0).float()[..., None, :] - colours).norm(dim=-1).amin(-1)
        return (distance < 25)[None]

    assert score(nearest_colour) < 0.5


@pytest.mark.parametrize(
    ("fields", "message"), [({"classes": []}, "classes is empty"), ({"classes": [1], "shots": 0}, "shots is 0")]
)
def test_impossible_requests_are_refused(fields, message):
    with pytest.raises(DataError, match=message):
        SyntheticEpisodes(**fields)
