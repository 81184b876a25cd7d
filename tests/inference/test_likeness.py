import torch
import torch.nn.functional as F
from making import episode, features, tiny

from cyctr.backbones.grid import Grid
from cyctr.inference.likeness import likeness_map, mean_foreground
from cyctr.methods.parts.prior import prior_map, support_vectors
from cyctr.types import Features

CELLS = Grid(stride=1)


def case(batch=2, shots=3):
    labels = (torch.rand(batch, shots, 4, 4) < 0.4).byte()
    labels[..., 0, 0] = 1
    return torch.randn(batch, 6, 3, 5), torch.randn(batch, shots, 6, 4, 4), labels


def likeness(query, high, labels):
    mean = mean_foreground(Features((high.flatten(0, 1),)), labels, CELLS)
    return likeness_map(Features((query,)), mean, CELLS, query.shape[-2:])


def test_the_likeness_equals_its_definition_in_loops():
    query, high, labels = case()
    labels[0, 1] = 0  # a shot without foreground says nothing
    fast, mask = likeness(query, high, labels), labels == 1
    for b in range(2):
        shots = [F.normalize(high[b, k][:, mask[b, k]].T, dim=-1).mean(0) for k in range(3) if mask[b, k].any()]
        mean = torch.stack(shots).mean(0)
        for y in range(3):
            for x in range(5):
                torch.testing.assert_close(fast[b, y, x], torch.cosine_similarity(query[b, :, y, x], mean, 0))


def test_the_likeness_of_an_image_without_anything_alike_is_low_everywhere():
    high, labels = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1, 1), torch.ones(1, 1, 1, 1, dtype=torch.uint8)
    query = torch.tensor([0.1, 1.0]).view(1, 2, 1, 1).repeat(1, 1, 2, 2)
    query[..., 0, 0] = torch.tensor([0.2, 1.0])
    assert likeness(query, high, labels).max() < 0.2
    assert prior_map(query, *support_vectors(high, labels == 1)).max() == 1


def test_one_mean_serves_any_number_of_queries():
    _, high, labels = case(batch=1)
    queries = torch.randn(4, 6, 3, 5)
    apart = torch.cat([likeness(query[None], high, labels) for query in queries])
    torch.testing.assert_close(likeness(queries, high, labels), apart)


def test_a_query_is_most_like_itself():
    model, given = tiny(), episode(batch=1)
    grid, size = model.backbone.grid, (65, 65)
    with torch.inference_mode():
        mean = mean_foreground(features(model, given.support_images), given.support_labels, grid)
        own, other = (likeness_map(features(model, i), mean, grid, size) for i in (given.support_images, given.query_images))
    assert own.shape == (1, 65, 65)
    assert own.abs().max() <= 1 + 1e-5
    assert own[given.support_labels[:, 0] == 1].mean() > other.mean()
