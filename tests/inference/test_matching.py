"""Plain matching: each class has the same say, however many tokens it has."""

import pytest
import torch
import torch.nn.functional as F
from making import support

from cyctr.inference.matching import EXPECTED, balanced
from cyctr.methods.cyctr.extras.votes import vote_map


def voters(count, seed=0):
    """Features of query cells, and tokens of two classes that lie around two places, `count` of each."""
    generator = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(2, 8, generator=generator), dim=-1)
    marked = torch.tensor([True] * count[0] + [False] * count[1])
    tokens = centres[(~marked).long()] + 0.3 * torch.randn(sum(count), 8, generator=generator)
    query = (centres + 0.2 * torch.randn(2, 8, generator=generator)).T.reshape(1, 8, 1, 2)
    return query, F.normalize(tokens, dim=-1)[None], marked[None]


def share(query, tokens, marked, valid=None):
    valid = torch.ones_like(marked) if valid is None else valid
    votes = vote_map(query, tokens, marked, valid, 0.5)
    return votes, balanced(votes, support(tokens, marked, valid))


def test_repeating_the_background_changes_the_plain_share_and_not_the_balanced_one():
    query, tokens, marked = voters((3, 5))
    plain, even = share(query, tokens, marked)
    repeats = torch.cat([torch.ones(3, dtype=torch.long), torch.full((5,), 40)])
    many, still = share(query, *(values.repeat_interleave(repeats, 1) for values in (tokens, marked)))
    assert (many < plain - 0.1).any()
    torch.testing.assert_close(still, even, atol=1e-4, rtol=1e-3)


def test_a_balanced_share_is_the_ratio_of_mean_likeness_weighed_by_what_is_expected():
    query, tokens, marked = voters((3, 50))
    _, found = share(query, tokens, marked)
    likeness = (F.normalize(query.flatten(2).transpose(1, 2), dim=-1) @ tokens.transpose(1, 2) / 0.5).exp()[0]  # (cells, N)
    of_class, of_rest = likeness[:, marked[0]].mean(1) * EXPECTED, likeness[:, ~marked[0]].mean(1) * (1 - EXPECTED)
    torch.testing.assert_close(found.flatten(), of_class / (of_class + of_rest), atol=1e-5, rtol=1e-4)


def test_slots_that_no_token_fills_have_no_say_in_the_balance():
    query, tokens, marked = voters((3, 9))
    valid = torch.ones_like(marked)
    valid[:, -4:] = False
    torch.testing.assert_close(share(query, tokens, marked, valid)[1], share(query, tokens[:, :8], marked[:, :8])[1])


@pytest.mark.parametrize("count", [(4, 0), (0, 4)])
def test_where_all_tokens_are_of_one_class_they_win(count):
    _, found = share(*voters(count))
    torch.testing.assert_close(found, torch.full_like(found, float(count[0] > 0)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("plain", [0.0, 1.0])
def test_a_share_of_all_or_nothing_stays_a_number(plain):
    _, tokens, marked = voters((1, 600))
    found = balanced(torch.full((1, 2, 3, 3), plain), support(tokens, marked))
    assert found.shape == (1, 2, 3, 3) and ((found - plain).abs() < 0.01).all()
