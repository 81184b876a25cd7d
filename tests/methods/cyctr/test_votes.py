import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from making import answered, encoded, episode, features, losses, one, tiny

from cyctr.methods.cyctr.config import EncoderConfig, ModelConfig, PriorConfig, SamplingConfig
from cyctr.methods.cyctr.extras.votes import vote_map
from cyctr.methods.cyctr.state import Levels
from cyctr.methods.parts.prior import prior_map
from cyctr.types import Episode


def test_maps_are_the_same_in_whatever_parts_they_are_made(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(2, 5, 7, 6, generator=draw)
    voters = F.normalize(torch.randn(2, 9, 5, generator=draw), dim=-1)
    chosen = torch.rand(2, 9, generator=draw) < 0.6
    vectors, valid = voters[:, None], chosen[:, None]

    def both():
        return vote_map(query, voters, chosen, torch.ones_like(chosen), 0.1), prior_map(query, vectors, valid)

    whole = both()
    monkeypatch.setattr("cyctr.methods.parts.prior._PRODUCTS", 100)
    for parts, all_at_once in zip(both(), whole, strict=True):
        torch.testing.assert_close(parts, all_at_once)


def slow_votes(query, voters, is_foreground, valid, temperature):
    """The votes of one episode with loops: (C, h, w), (N, C), (N,), (N,) -> (h, w)."""
    height, width = query.shape[-2:]
    share = torch.zeros(height, width)
    for y in range(height):
        for x in range(width):
            total = foreground = 0.0
            for voter, marked, counts in zip(voters, is_foreground.tolist(), valid.tolist(), strict=True):
                if counts:
                    weight = math.exp(float(torch.cosine_similarity(query[:, y, x], voter, 0)) / temperature)
                    total += weight
                    foreground += weight * marked
            share[y, x] = foreground / total
    return share


def voting(batch=2, tokens=9, channels=6):
    """Query features, voters of unit length, what they are and whether they count; the first always does."""
    valid = torch.rand(batch, tokens) < 0.7
    valid[:, 0] = True
    voters = F.normalize(torch.randn(batch, tokens, channels), dim=-1)
    return torch.randn(batch, channels, 3, 5), voters, torch.rand(batch, tokens) < 0.5, valid


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_the_vote_map_equals_its_definition_in_loops(temperature):
    given = voting()
    fast = vote_map(*given, temperature)
    slow = torch.stack([slow_votes(*(part[b] for part in given), temperature) for b in range(2)])
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("temperature", [1e-3, 0.05, 10.0])
def test_votes_are_shares(temperature):
    votes = vote_map(*voting(batch=30), temperature)
    assert votes.shape == (30, 3, 5) and votes.dtype == torch.float32
    assert votes.min() >= 0 and votes.max() <= 1 + 1e-6


def test_who_does_not_count_has_no_vote():
    query, voters, is_foreground, valid = voting()
    votes = vote_map(query, voters, is_foreground, valid, 0.05)
    others = torch.where(valid[..., None], voters, 100 * torch.randn_like(voters))
    torch.testing.assert_close(vote_map(query, others, is_foreground ^ ~valid, valid, 0.05), votes)
    for b, counts in enumerate(valid):
        rest = (part[b : b + 1, counts] for part in (voters, is_foreground, valid))
        torch.testing.assert_close(vote_map(query[b : b + 1], *rest, 0.05), votes[b : b + 1])


@pytest.mark.parametrize("tokens", [0, 1, 9])
def test_where_nobody_votes_it_is_undecided(tokens):
    query, voters, is_foreground, valid = voting(batch=2, tokens=9)
    voters, is_foreground, valid = voters[:, :tokens], is_foreground[:, :tokens], valid[:, :tokens].clone()
    valid[1] = False
    votes = vote_map(query, voters, is_foreground, valid, 0.05)
    assert (votes[1] == 0.5).all()
    if tokens:
        torch.testing.assert_close(votes[:1], vote_map(query[:1], voters[:1], is_foreground[:1], valid[:1], 0.05))


@pytest.mark.parametrize("marked", [True, False])
def test_voters_of_one_class_are_of_one_mind(marked):
    query, voters, is_foreground, valid = voting()
    votes = vote_map(query, voters, torch.full_like(is_foreground, marked), valid, 0.05)
    torch.testing.assert_close(votes, torch.full_like(votes, float(marked)))


def test_the_order_of_the_voters_does_not_matter():
    query, *tokens = voting()
    order = torch.randperm(9)
    torch.testing.assert_close(vote_map(query, *(part[:, order] for part in tokens), 0.05), vote_map(query, *tokens, 0.05))


def test_the_length_of_the_query_s_features_does_not_matter():
    query, *tokens = voting()
    longer = query * torch.rand(2, 1, 3, 5).add(0.1) * 50
    torch.testing.assert_close(vote_map(longer, *tokens, 0.05), vote_map(query, *tokens, 0.05), atol=1e-4, rtol=1e-4)
    silent = vote_map(torch.zeros_like(query), *tokens, 0.05)  # resembles nobody more than others
    _, is_foreground, valid = tokens
    shares = (is_foreground & valid).sum(1) / valid.sum(1)
    torch.testing.assert_close(silent, shares.view(2, 1, 1).expand(2, 3, 5))


def test_a_cell_that_looks_like_the_object_is_voted_for_and_one_like_the_background_against():
    """The prior map, which knows no background, would give both their place by the object alone."""
    thing, ground = torch.eye(2)
    query = torch.stack([thing, ground], -1).view(1, 2, 1, 2)
    voters = torch.stack([thing, ground, ground, ground])[None]
    is_foreground = torch.tensor([[True, False, False, False]])
    votes = vote_map(query, voters, is_foreground, torch.ones(1, 4, dtype=torch.bool), 0.05)
    assert votes[0, 0, 0] > 0.99 and votes[0, 0, 1] < 0.01


def test_a_smaller_temperature_listens_to_the_most_similar_alone():
    query, voters, is_foreground, valid = voting(batch=8)
    votes = vote_map(query, voters, is_foreground, valid, 1e-4)
    cosine = torch.einsum("bchw,bnc->bhwn", F.normalize(query, dim=1), voters)
    first, second = cosine.masked_fill(~valid[:, None, None], -2).topk(2).values.unbind(-1)
    nearest = cosine.masked_fill(~valid[:, None, None], -2).argmax(-1)
    expected = is_foreground[torch.arange(8)[:, None, None], nearest].float()
    clear = first - second > 0.01
    torch.testing.assert_close(votes[clear], expected[clear])


VOTES = PriorConfig(votes=("mid", "high"))
VOTING = {
    "cycle": ModelConfig(dim=32, encoder=EncoderConfig(heads=4, points=3)),
    "none": ModelConfig(dim=32, encoder=EncoderConfig(heads=4, points=3, cross="none")),
    "predicted": ModelConfig(dim=32, encoder=EncoderConfig(heads=4, points=3, cross="predicted")),
    "residual": ModelConfig(dim=32, mixer="residual", encoder=EncoderConfig(heads=4)),
}
EVERY = pytest.mark.parametrize("name", VOTING)


def voter(name, votes=VOTES, tokens=30):
    return tiny(replace(VOTING[name], prior=votes, sampling=SamplingConfig(tokens_per_shot=tokens)))


@EVERY
@pytest.mark.parametrize("shots", [1, 5])
def test_a_network_that_votes_answers_the_same_with_its_support_encoded_once(name, shots):
    model, given = voter(name), episode(batch=2, shots=shots, query_size=49)
    with torch.inference_mode():
        joint = model(given)
        support = encoded(model, given.support_images, given.support_labels)
        torch.testing.assert_close(answered(model, given.query_images, support).logits, joint.logits)
    assert joint.logits.shape == (2, 2, 49, 49) and joint.logits.isfinite().all()
    assert [voters.shape[:2] for voters in support.voters] == [(2, 30 * shots)] * 2
    for voters in support.voters:
        torch.testing.assert_close(voters.norm(dim=-1), torch.ones(2, 30 * shots))


@EVERY
def test_the_order_of_the_shots_changes_no_vote(name):
    model, given = voter(name), episode(batch=1, shots=5)
    order = torch.tensor([2, 4, 0, 1, 3])
    permuted = Episode(given.support_images[:, order], given.support_labels[:, order], given.query_images)
    with torch.inference_mode():
        torch.testing.assert_close(model(given).logits, model(permuted).logits, atol=1e-5, rtol=1e-4)


@EVERY
def test_a_batch_of_episodes_that_vote_equals_the_episodes_alone(name):
    model, given = voter(name), episode(batch=3, shots=2)
    with torch.inference_mode():
        together = model(given).logits
        apart = torch.cat([model(one(given, i)).logits for i in range(3)])
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-4)


@EVERY
def test_gradients_reach_every_trainable_parameter_of_a_network_that_votes(name):
    model, given = voter(name).train(), episode(batch=2, shots=2)
    losses(model, given).total.backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.startswith("backbone."):
            assert parameter.grad is None, parameter_name
        else:
            assert parameter.grad.abs().sum() > 0, parameter_name


@EVERY
def test_one_support_with_voters_serves_any_number_of_queries(name):
    model, given, many = voter(name), episode(batch=1, shots=2), episode(batch=4).query_images
    with torch.inference_mode():
        support = encoded(model, given.support_images, given.support_labels)
        grown = support.expand(4)
        together = answered(model, many, support).logits
        apart = torch.cat([answered(model, query[None], support).logits for query in many])
    assert [voters.shape[0] for voters in grown.voters] == [4, 4]
    assert all(torch.equal(a[3], b[0]) for a, b in zip(grown.voters, support.voters, strict=True))
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("votes", [("mid",), ("high",), ("high", "mid")])
def test_a_network_hears_the_votes_of_the_levels_it_was_made_for_in_their_order(votes):
    """The weights of the merge tell which of its inputs are votes: between the query's and the prototype's channels."""
    model, given = voter("residual", PriorConfig(votes)), episode(batch=1, shots=2)
    heard = []
    merge = model.merge_query.forward
    model.merge_query.forward = lambda joined, prototype: heard.append(joined) or merge(joined, prototype)
    with torch.inference_mode():
        model(given)
        support = encoded(model, given.support_images, given.support_labels)
        prepared = model.prepare(features(model, given.query_images))
        query, reduced = prepared.levels, prepared.reduced
        (joined,) = heard
        assert torch.equal(joined[:, :32], reduced)
        prior = prior_map(query.high, support.high, support.high_valid)
        expected = [prior] + [
            vote_map(getattr(query, level), voters, support.is_foreground, support.valid, 0.05)
            for level, voters in zip(votes, support.voters, strict=True)
        ]
    torch.testing.assert_close(joined[:, 32:], torch.stack(expected, 1))
    assert joined.shape[1] == 32 + 1 + len(votes)


def test_voters_are_the_backbone_s_features_at_the_sampled_cells():
    model, given = voter("none"), episode(batch=2, shots=3)
    with torch.inference_mode():
        support = encoded(model, given.support_images, given.support_labels)
        levels = Levels.of(features(model, given.support_images))
    for level, voters in zip(("mid", "high"), support.voters, strict=True):
        maps = getattr(levels, level).unflatten(0, (2, 3))
        for b in range(2):
            for slot, place in enumerate(support.index[b].tolist()):
                shot, cell = divmod(place, 81)
                expected = F.normalize(maps[b, shot].flatten(1)[:, cell], dim=0)
                torch.testing.assert_close(voters[b, slot], expected)


def test_a_network_without_votes_keeps_no_voters():
    assert encoded(tiny(), torch.rand(1, 1, 3, 33, 33), torch.ones(1, 1, 33, 33, dtype=torch.uint8)).voters == ()


@EVERY
def test_the_temperature_of_the_votes_decides_the_answer(name):
    given = episode(batch=1)
    with torch.inference_mode():
        answers = [voter(name, PriorConfig(("high",), temperature))(given).logits for temperature in (0.05, 5.0)]
    assert not torch.allclose(*answers)


@EVERY
def test_votes_under_autocast_stay_close_to_float32(name):
    model, given = voter(name), episode(batch=2, shots=2)
    with torch.inference_mode():
        exact = model(given)
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(given)
            support = encoded(model, given.support_images, given.support_labels)
        outside = answered(model, given.query_images, support)
    assert (exact.probability - rough.probability).abs().mean() < 0.02
    assert (exact.probability - outside.probability).abs().mean() < 0.02


@pytest.mark.parametrize("kind", ["one pixel", "full", "mostly ignored"])
def test_extreme_masks_vote_with_finite_numbers(kind):
    base = episode(batch=1)
    labels = torch.full((1, 1, 65, 65), {"one pixel": 0, "full": 1, "mostly ignored": 255}[kind], dtype=torch.uint8)
    labels[..., 24:33, 24:33] = 1
    if kind == "one pixel":
        labels[:] = 0
        labels[..., 3, 3] = 1
    given = Episode(base.support_images, labels, base.query_images, base.query_labels)
    model = voter("cycle").train()
    found = losses(model, given)
    found.total.backward()
    assert found.total.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


@pytest.fixture
def _fresh_compiler():
    """Torch compiles one function only so many times; other tests have their share of it."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("name", ["cycle", "none"])
def test_a_network_that_votes_compiles_without_a_graph_break(name):
    model, given = voter(name), episode(batch=2, shots=2)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(given).logits, model(given).logits, atol=1e-5, rtol=1e-4)
