import math

import pytest
import torch
from making import support

from cyctr.methods.base import TokenState
from cyctr.methods.cyctr.config import EncoderConfig
from cyctr.methods.cyctr.cycle_attention import (
    CycleAttention,
    attend,
    comes_home,
    cycle_consistency,
    nearest_neighbours,
)
from cyctr.methods.cyctr.extras.cosine_matching import CosineCycleAttention
from cyctr.speed import on_cpu

KINDS = {"dot": CycleAttention, "cosine": CosineCycleAttention}


def slow_consistency(affinity, is_foreground, valid):
    """Section 3.3.1 for one head, one token at a time: (hw, N), (N,), (N,) -> list of bool."""
    cells, tokens = affinity.shape
    answer = []
    for j in range(tokens):
        best_query = max(range(cells), key=lambda i: float(affinity[i, j]))
        candidates = [other for other in range(tokens) if valid[other]]
        landing = max(candidates, key=lambda other: float(affinity[best_query, other])) if candidates else j
        answer.append(bool(valid[j]) and bool(is_foreground[j] == is_foreground[landing]))
    return answer


def random_case(batch=2, heads=3, cells=20, tokens=15, whole_numbers=False):
    shape = (batch, heads, cells, 4), (batch, heads, tokens, 4)
    if whole_numbers:  # many ties
        q, k = (torch.randint(-1, 2, size).float() for size in shape)
    else:
        q, k = (torch.randn(size) for size in shape)
    is_foreground, valid = torch.rand(batch, 1, tokens) < 0.5, torch.rand(batch, 1, tokens) < 0.8
    return q, k, is_foreground, valid


@pytest.mark.parametrize("chunk", [2**21, 100])
@pytest.mark.parametrize("whole_numbers", [False, True])
def test_consistency_equals_a_walk_along_the_paper_s_formulas(chunk, whole_numbers, monkeypatch):
    monkeypatch.setattr(on_cpu, "_CHUNK", chunk)
    q, k, is_foreground, valid = random_case(whole_numbers=whole_numbers)
    whole = cycle_consistency(*nearest_neighbours(q, k, valid), is_foreground, valid)
    by_parts = comes_home(on_cpu.landings(q, k, valid), is_foreground, valid)
    affinity = q @ k.transpose(-2, -1)
    for b in range(2):
        for head in range(3):
            slow = slow_consistency(affinity[b, head], is_foreground[b, 0], valid[b, 0])
            assert whole[b, head].tolist() == by_parts[b, head].tolist() == slow


@pytest.mark.parametrize("some", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("chunk", [2**21, 7])
def test_round_trips_end_where_nearest_neighbours_lead(some, chunk, monkeypatch):
    monkeypatch.setattr(on_cpu, "_CHUNK", chunk)
    q, k, _, _ = random_case(cells=50, tokens=40)
    valid = torch.rand(2, 1, 40) < some
    there, back = nearest_neighbours(q, k, valid)
    expected, found = back.gather(-1, there), on_cpu.landings(q, k, valid)
    assert torch.equal(expected[valid.expand_as(found)], found[valid.expand_as(found)])


@pytest.mark.parametrize("whole_numbers", [False, True])
def test_some_token_is_consistent_wherever_one_is_valid(whole_numbers):
    q, k, is_foreground, valid = random_case(batch=300, whole_numbers=whole_numbers)
    consistent = cycle_consistency(*nearest_neighbours(q, k, valid), is_foreground, valid)
    assert torch.equal(consistent.any(-1), valid.any(-1).expand(-1, 3))


def test_an_object_that_is_not_in_the_query_is_filtered_out():
    thing, ground, other = torch.eye(3)
    q = torch.stack([ground, other, ground])[None, None]  # the query shows no thing
    k = torch.stack([thing + 0.1 * ground, ground, ground])[None, None]
    is_foreground, valid = torch.tensor([[[True, False, False]]]), torch.ones(1, 1, 3, dtype=torch.bool)
    consistent = cycle_consistency(*nearest_neighbours(q, k, valid), is_foreground, valid)
    assert consistent.tolist() == [[[False, True, True]]]


def attention_case(batch=2, heads=3, cells=11, tokens=15, channels=8):
    """Queries, keys and values, and a bias that hides some keys of each head, never all."""
    q = torch.randn(batch, heads, cells, channels)
    k, v = torch.randn(2, batch, heads, tokens, channels)
    hidden = torch.rand(batch, heads, 1, tokens) < 0.5
    hidden[..., 0] = False
    return q, k, v, torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)


def by_hand(q, k, v, bias):
    """Softmax attention, each head and query on its own, over the keys that are not hidden."""
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for head in range(q.shape[1]):
            seen = bias[b, head, 0] == 0
            for i in range(q.shape[2]):
                affinity = k[b, head, seen] @ q[b, head, i] / math.sqrt(q.shape[-1])
                out[b, head, i] = affinity.softmax(0) @ v[b, head, seen]
    return out


def test_attention_is_the_softmax_over_what_is_not_hidden():
    q, k, v, bias = attention_case()
    torch.testing.assert_close(attend(q, k, v, bias), by_hand(q, k, v, bias))


def test_hidden_keys_have_no_weight_and_no_gradient():
    q, k, v, bias = attention_case()
    k.requires_grad_(), v.requires_grad_()
    attend(q, k, v, bias).square().sum().backward()
    hidden = bias[:, :, 0] != 0
    for part in (k, v):
        assert not part.grad[hidden].any()
        assert part.grad[~hidden].any(-1).float().mean() > 0.9


def test_attention_to_one_key_is_its_value():
    q, k, v, bias = attention_case()
    bias[..., 0], bias[..., 1:] = 0, -math.inf
    torch.testing.assert_close(attend(q, k, v, bias), v[:, :, :1].expand(-1, -1, q.shape[2], -1))


def test_dropped_attention_weights_are_made_up_for_on_average():
    q, k, v, bias = attention_case()
    dropped = torch.stack([attend(q, k, v, bias, dropout=0.3) for _ in range(600)])
    assert not torch.equal(dropped[0], dropped[1])
    error = (dropped.mean(0) - attend(q, k, v, bias)).abs() / (dropped.std(0) / 600**0.5)
    assert error.mean() < 1.2  # as a mean of 600 deviates


def slow_attention(layer, query, given, cross):
    """Equations 1 to 5 with loops over episodes, heads and query tokens."""
    by_angle = isinstance(layer, CosineCycleAttention)
    tokens = layer.norm_support(given.tokens) if by_angle else given.tokens
    q, k, v = layer.q(query), layer.k(tokens), layer.v(tokens)
    width = q.shape[-1] // layer.heads
    out = torch.zeros_like(q)
    for b in range(len(q)):
        for head in range(layer.heads):
            part = slice(head * width, (head + 1) * width)
            affinity = q[b, :, part] @ k[b, :, part].T / math.sqrt(width)  # (hw, N)
            if by_angle:
                one, other = q[b, :, part].norm(dim=1), k[b, :, part].norm(dim=1)
                affinity = layer.sharpness[head].exp() * math.sqrt(width) * affinity / (one[:, None] * other)
            keep = slow_consistency(affinity, given.is_foreground[b], given.valid[b])
            if cross == "vanilla":
                keep = given.valid[b].tolist()
            if cross == "cycle_foreground":
                front = (given.is_foreground[b] & given.valid[b]).tolist()
                keep = [flag and here for flag, here in zip(keep, front, strict=True)]
                keep = keep if any(keep) else front  # our rule where no foreground comes back
            bias = torch.tensor([0.0 if flag else -math.inf for flag in keep])
            for i in range(q.shape[1]):
                out[b, i, part] = (affinity[i] + bias).softmax(0) @ v[b, :, part]
    return layer.out(out)


@pytest.mark.parametrize("matching", ["dot", "cosine"])
@pytest.mark.parametrize("cross", ["vanilla", "cycle", "cycle_foreground"])
def test_attention_equals_its_formula_in_loops(cross, matching):
    config = EncoderConfig(heads=3, cross=cross, matching=matching)
    layer = KINDS[matching](12, config).eval().requires_grad_(False)
    if matching == "cosine":
        layer.sharpness.copy_(torch.tensor([0.5, 1.0, 2.0]))
        layer.norm_support.weight.normal_()
    query, tokens = torch.randn(2, 10, 12), torch.randn(2, 14, 12)
    given = support(tokens, torch.arange(14).expand(2, -1) < 7, torch.arange(14).expand(2, -1) != 3)
    fast, _ = layer(query, None, (1, 10), given)
    torch.testing.assert_close(fast, slow_attention(layer, query, given, cross))


@pytest.mark.parametrize("cross", ["vanilla", "cycle", "cycle_foreground"])
def test_what_stands_in_an_invalid_slot_changes_nothing(cross):
    layer = CycleAttention(8, EncoderConfig(heads=2, cross=cross)).eval()
    query, tokens = torch.randn(1, 9, 8), torch.randn(1, 6, 8)
    is_foreground, valid = torch.tensor([[1, 1, 1, 0, 0, 0]]).bool(), torch.tensor([[1, 1, 0, 1, 0, 1]]).bool()
    before, _ = layer(query, None, (3, 3), support(tokens, is_foreground, valid))
    changed = torch.where(valid[..., None], tokens, 100 * torch.randn(1, 6, 8))
    after, _ = layer(query, None, (3, 3), support(changed, is_foreground, valid))
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize("matching", ["dot", "cosine"])
@pytest.mark.parametrize("cross", ["vanilla", "cycle", "cycle_foreground"])
@pytest.mark.parametrize("foreground", ["all", "none"])
@pytest.mark.parametrize("valid", ["all", "none", "first"])
def test_no_row_of_attention_becomes_nan(cross, foreground, valid, matching):
    layer = KINDS[matching](8, EncoderConfig(heads=2, cross=cross, matching=matching)).train()
    flags = {"all": torch.ones(1, 5), "none": torch.zeros(1, 5), "first": torch.tensor([[1, 0, 0, 0, 0]])}
    tokens = torch.randn(1, 5, 8, requires_grad=True)
    out, _ = layer(torch.randn(1, 7, 8), None, (1, 7), support(tokens, flags[foreground].bool(), flags[valid].bool()))
    out.sum().backward()
    assert out.isfinite().all()
    assert tokens.grad.isfinite().all()


@torch.no_grad()
def heard(layer, query, given):
    """How many tokens a query token attends to, of all: the exponential of the entropy of its weights."""
    _, trace = layer(query, None, (1, query.shape[1]), given, explain=True)
    weights = (trace.q @ trace.k.transpose(-2, -1) + trace.bias).softmax(-1)
    return float((-(weights * weights.clamp_min(1e-12).log()).sum(-1)).exp().mean()) / given.tokens.shape[1]


def test_angles_are_a_comparison_from_the_start_where_products_are_a_mean():
    torch.manual_seed(0)
    base = torch.randn(1, 40, 64)
    query, tokens = base + 0.3 * torch.randn(1, 40, 64), 0.2 * base  # the same things, in another unit
    given = support(tokens, torch.arange(40)[None] < 20, torch.ones(1, 40, dtype=torch.bool))
    layers = {m: KINDS[m](64, EncoderConfig(heads=4, cross="vanilla", matching=m)).eval() for m in ("dot", "cosine")}
    shares = {name: heard(layer, query, given) for name, layer in layers.items()}
    assert shares["dot"] > 0.95
    assert shares["cosine"] < 0.3
    q, k = layers["cosine"].q(query), layers["cosine"].k(layers["cosine"].norm_support(tokens))
    nearest = torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).transpose(1, 2)
    assert (nearest.argmax(-1)[0] == torch.arange(40)).float().mean() > 0.9


def test_only_who_is_heard_depends_on_the_classes_of_the_tokens():
    given = torch.randn(1, 12, 8), torch.arange(12)[None] < 5, torch.ones(1, 12, dtype=torch.bool)
    turned = given[0], ~given[1], given[2]
    layer = CycleAttention(8, EncoderConfig(heads=2, cross="vanilla")).eval()
    query = torch.randn(1, 6, 8)
    one, other = (layer(query, None, (2, 3), support(*tokens))[0] for tokens in (given, turned))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("matching", ["dot", "cosine"])
def test_the_length_of_support_tokens_matters_to_products_alone(matching):
    layer = KINDS[matching](12, EncoderConfig(heads=3, matching=matching)).eval()
    query, tokens = torch.randn(1, 10, 12), torch.randn(1, 14, 12)
    flags = torch.arange(14)[None] < 7, torch.ones(1, 14, dtype=torch.bool)
    one, ten = (layer(query, None, (1, 10), support(size * tokens, *flags))[0] for size in (1, 10))
    assert torch.allclose(one, ten, atol=1e-3) == (matching == "cosine")


def test_the_trace_says_what_became_of_every_token():
    layer = CycleAttention(8, EncoderConfig(heads=2)).eval()
    is_foreground = torch.arange(12).expand(1, -1) < 6
    valid = torch.arange(12).expand(1, -1) != 11
    _, trace = layer(torch.randn(1, 30, 8), None, (5, 6), support(torch.randn(1, 12, 8), is_foreground, valid), explain=True)
    attended = trace.bias[:, :, 0] == 0
    state = trace.state
    assert (state[..., 11] == TokenState.UNUSED).all()
    consistent = (state == TokenState.CONSISTENT_FOREGROUND) | (state == TokenState.CONSISTENT_BACKGROUND)
    assert torch.equal(consistent, attended)
    assert torch.equal(state == TokenState.CONSISTENT_FOREGROUND, attended & is_foreground[:, None])


def test_dropped_flags_let_tokens_through_in_training_alone():
    torch.manual_seed(3)
    layer = CycleAttention(8, EncoderConfig(heads=2, flag_dropout=0.5))
    given = support(torch.randn(1, 400, 8), torch.arange(400).expand(1, -1) < 200)
    query = torch.randn(1, 30, 8)

    def let_through():
        _, trace = layer(query, None, (1, query.shape[1]), given, explain=True)
        inconsistent = trace.state == TokenState.INCONSISTENT
        return float((trace.bias[:, :, 0] == 0)[inconsistent].float().mean())

    layer.eval()
    assert let_through() == 0
    layer.train()
    assert 0.3 < let_through() < 0.7


def test_affinities_are_compared_in_full_precision_under_autocast():
    layer = CycleAttention(64, EncoderConfig(heads=1)).eval()
    given = support(torch.randn(1, 200, 64), torch.rand(1, 200) < 0.5)
    query = torch.randn(1, 300, 64)
    with torch.autocast("cpu", torch.bfloat16):
        _, trace = layer(query, None, (1, query.shape[1]), given, explain=True)
        q, k = layer.q(query)[:, None].float(), layer.k(given.tokens)[:, None].float()
    exact = cycle_consistency(
        *nearest_neighbours(q, k, given.valid[:, None]), given.is_foreground[:, None], given.valid[:, None]
    )
    assert torch.equal(trace.state != TokenState.INCONSISTENT, exact)


def test_vanilla_attention_hears_every_token_but_still_reports_the_cycles():
    given = support(torch.randn(1, 40, 8), torch.arange(40).expand(1, -1) < 20)
    query = torch.randn(1, 30, 8)
    vanilla = CycleAttention(8, EncoderConfig(heads=2, cross="vanilla")).eval()
    cycle = CycleAttention(8, EncoderConfig(heads=2)).eval()
    cycle.load_state_dict(vanilla.state_dict())
    (_, heard), (_, filtered) = (layer(query, None, (5, 6), given, explain=True) for layer in (vanilla, cycle))
    assert not heard.bias.any()
    assert torch.equal(heard.state, filtered.state)
    assert (heard.state == TokenState.INCONSISTENT).any()
