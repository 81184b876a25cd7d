import pytest
import torch

from cyctr.methods.parts.prior import prior_map, support_vectors


def slow_prior(query, high, mask):
    """Appendix A.1 for one episode with loops: (C, h, w), (K, C, h, w), (K, h, w) -> (h, w)."""
    height, width = query.shape[-2:]
    total = torch.zeros(height, width)
    for shot in range(len(high)):
        best = torch.zeros(height, width)
        for y in range(height):
            for x in range(width):
                similarities = [
                    float(torch.cosine_similarity(query[:, y, x], high[shot, :, i, j], 0))
                    for i in range(mask.shape[-2])
                    for j in range(mask.shape[-1])
                    if mask[shot, i, j]
                ]
                best[y, x] = max(similarities)
        total += (best - best.min()) / (best.max() - best.min())
    return total / len(high)


def case(batch=2, shots=2):
    mask = torch.rand(batch, shots, 4, 4) < 0.4
    mask[..., 0, 0] = True
    return torch.randn(batch, 6, 3, 5), torch.randn(batch, shots, 6, 4, 4), mask


def test_the_prior_map_equals_its_definition_in_loops():
    query, high, mask = case()
    fast = prior_map(query, *support_vectors(high, mask))
    slow = torch.stack([slow_prior(query[b], high[b], mask[b]) for b in range(2)])
    torch.testing.assert_close(fast, slow)


def test_signed_features_never_match_the_background():
    query, high, mask = -torch.ones(1, 2, 3, 3), torch.ones(1, 1, 2, 2, 2), torch.tensor([[[[1, 0], [0, 0]]]]).bool()
    query[..., 0, 0] = torch.tensor([1.0, 0.5])
    prior = prior_map(query, *support_vectors(high, mask))
    assert prior[0, 0, 0] == 1
    assert prior.flatten()[1:].abs().max() == 0  # a background "similarity" of 0 would have been larger than -1


def test_leaving_the_background_out_early_changes_nothing():
    query, high, mask = case()
    trimmed = prior_map(query, *support_vectors(high, mask))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        vectors, valid = support_vectors(high, mask)
    assert vectors.shape[2] == 16
    torch.testing.assert_close(trimmed, prior_map(query, vectors, valid))


def test_the_prior_map_lies_between_zero_and_one():
    query, high, mask = case(batch=20, shots=1)
    prior = prior_map(query, *support_vectors(high, mask))
    torch.testing.assert_close(prior.flatten(1).amin(1), torch.zeros(20))
    torch.testing.assert_close(prior.flatten(1).amax(1), torch.ones(20))


def test_a_query_that_looks_the_same_everywhere_gives_a_map_of_zeros():
    _, high, mask = case()
    prior = prior_map(torch.ones(2, 6, 3, 5), *support_vectors(high, mask))
    assert prior.abs().max() < 1e-3


@pytest.mark.parametrize("length", [1.0, 1e-3, 0.0])
def test_a_shot_without_foreground_has_no_say(length):
    query, high, mask = case(batch=1)
    query = query * length
    mask[:, 1] = False
    both = prior_map(query, *support_vectors(high, mask))
    alone = prior_map(query, *support_vectors(high[:, :1], mask[:, :1]))
    torch.testing.assert_close(both, alone)
