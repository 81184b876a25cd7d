"""The same network on a GPU. Skipped where there is none."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from kernel_checks import (
    FILTERS,
    GRIDS,
    SIZES,
    WIDTHS,
    check_depthwise,
    check_mix_points,
    check_nearest,
    check_nearest_of_noise,
    check_nobody_valid,
    check_registration,
)
from making import episode, losses, tiny

from cyctr.config import BackboneConfig
from cyctr.methods.cyctr.config import ABLATIONS, PAPER, ModelConfig, PriorConfig
from cyctr.methods.cyctr.cycle_attention import attend, cycle_consistency, nearest_neighbours
from cyctr.methods.cyctr.network import build
from cyctr.methods.cyctr.predicted_attention import sample_points
from cyctr.methods.cyctr.sampling import sample_tokens
from cyctr.speed import kernels
from cyctr.types import Episode

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode", "ignore:TensorFloat32"),
]
needs_kernels = pytest.mark.skipif(not kernels.AVAILABLE, reason="needs triton")
PRECISIONS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def narrow(name: str) -> ModelConfig:
    """A row of the ablations, or the full one with votes, of few channels."""
    if name == "voting":
        return replace(ABLATIONS["full"], dim=64, prior=PriorConfig(("mid", "high")))
    return replace(ABLATIONS[name], dim=64)


def moved(given: Episode) -> Episode:
    values = (given.support_images, given.support_labels, given.query_images, given.query_labels)
    return Episode(*(value.cuda() for value in values), trusted=True)


@pytest.mark.parametrize("name", [*ABLATIONS, "voting"])
def test_the_gpu_answers_as_the_cpu(name):
    model, given = tiny(narrow(name)), episode(batch=2, shots=2)
    with torch.inference_mode():
        expected = model(given).probability
        found = model.cuda()(moved(given)).probability.cpu()
    assert (expected - found).abs().mean() < 1e-3


def test_the_same_tokens_are_sampled_on_both():
    cells = torch.randint(0, 2, (3, 2, 60, 60), dtype=torch.uint8)
    seeds = torch.arange(3)
    here, there = sample_tokens(cells, 1200, seeds), sample_tokens(cells.cuda(), 1200, seeds.cuda())
    assert torch.equal(here.index, there.index.cpu())
    assert torch.equal(here.valid, there.valid.cpu())


@pytest.mark.parametrize("name", ["full", "cycle_foreground", "vanilla", "predicted", "self", "baseline", "voting"])
def test_a_training_step_never_waits_for_the_gpu(name):
    model, given = tiny(narrow(name)).cuda().train(), moved(episode(batch=2))
    seeds = torch.arange(2).cuda()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        with torch.autocast("cuda", torch.bfloat16):
            found = losses(model, given, seeds)
        found.total.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_the_compiled_network_answers_as_the_eager_one():
    model = build(replace(PAPER.model, backbone=BackboneConfig("resnet18"))).cuda().eval()
    given = moved(episode(batch=2, size=129))
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        assert (compiled(given).probability - model(given).probability).abs().mean() < 1e-3


def attention_case(heads=4, channels=32, cells=500, tokens=300):
    """Queries, keys and values in bfloat16, and a bias that hides half of the keys."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, heads, cells, channels, generator=generator)
    k, v = torch.randn(2, 2, heads, tokens, channels, generator=generator)
    hidden = torch.rand(2, heads, 1, tokens, generator=generator) < 0.5
    bias = torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)
    return [part.to("cuda", torch.bfloat16) for part in (q, k, v, bias)]


def with_gradients(function, q, k, v, bias):
    """What a function gives, and the gradients of its inputs."""
    parts = [part.clone().requires_grad_() for part in (q, k, v)]
    out = function(*parts, bias)
    weights = torch.linspace(-1, 1, out.numel(), device="cuda").view(out.shape)
    return out, *torch.autograd.grad((out * weights).sum(), parts)


def masked(q, k, v, bias):
    """The usual form in float32, whose bias is a mask."""
    rows = bias.float().expand(-1, -1, q.shape[2], -1)
    return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), rows)


@pytest.mark.parametrize(("heads", "channels"), [(8, 32), (8, 16), (1, 256), (4, 64), (3, 12)])
def test_a_bias_that_travels_as_a_channel_hides_what_a_mask_hides(heads, channels):
    given = attention_case(heads, channels)
    found, expected = with_gradients(attend, *given), with_gradients(masked, *given)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.bfloat16
        assert one.isfinite().all()
        assert (one.float() - other.float()).norm() < 0.02 * other.float().norm()
    hidden = (given[3] != 0)[:, :, 0]
    for gradient in found[2:]:  # of keys and values
        assert not gradient[hidden].any()


def test_attention_in_float32_is_the_masked_form():
    given = [part.float() for part in attention_case()]
    torch.testing.assert_close(attend(*given), masked(*given))


@pytest.fixture
def _deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_deterministic")
def test_attention_has_the_same_gradients_twice_in_deterministic_mode():
    given = attention_case(cells=3600, tokens=1800)
    first = with_gradients(attend, *given)
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(first, with_gradients(attend, *given), strict=True))


def read_points(values, points):
    read = sample_points(values, points)
    return read, *torch.autograd.grad((read * torch.linspace(-1, 1, read.shape[-1], device="cuda")).sum(), [values, points])


def test_positions_are_read_with_the_same_gradients_twice_in_deterministic_mode(request):
    values = torch.randn(4, 32, 60, 60, device="cuda", requires_grad=True)
    points = (torch.rand(4, 9, 3600, 2, device="cuda") * 64 - 2).requires_grad_()
    usual = read_points(values, points)
    request.getfixturevalue("_deterministic")
    first = read_points(values, points)
    for one, other in zip(usual, first, strict=True):
        far = (one - other).abs() > 1e-3 + 1e-3 * other.abs()  # of a point on the edge of a cell, either slope is right
        assert far.double().mean() < 1e-4
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(first, read_points(values, points), strict=True))


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("name", ["full", "predicted", "baseline", "voting"])
def test_a_training_step_has_the_same_gradients_twice_in_deterministic_mode(name):
    model, given = tiny(narrow(name)).cuda().train(), moved(episode(batch=2, shots=2))

    def gradients():
        torch.manual_seed(5)
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            found = losses(model, given, torch.arange(2).cuda())
        found.total.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    first, second = gradients(), gradients()
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@needs_kernels
@PRECISIONS
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_kernel_names_the_same_nearest_tokens_as_its_twin(dtype, size, width):
    check_nearest("cuda", dtype, *size, width)


@needs_kernels
@PRECISIONS
@pytest.mark.parametrize("width", WIDTHS)
def test_the_kernel_names_tokens_that_are_as_near_as_any(dtype, width):
    check_nearest_of_noise("cuda", dtype, width=width)


@needs_kernels
@PRECISIONS
def test_the_kernel_names_some_token_where_none_is_valid(dtype):
    check_nobody_valid("cuda", dtype)


@needs_kernels
@PRECISIONS
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_kernel_mixes_the_points_its_twin_reads_and_has_its_gradients(dtype, grid, width):
    check_mix_points("cuda", dtype, grid, width)


@needs_kernels
@PRECISIONS
@pytest.mark.parametrize("form", FILTERS, ids=str)
def test_the_kernel_convolves_each_channel_as_torch_does_and_has_its_gradients(dtype, form):
    check_depthwise("cuda", dtype, *form)


@needs_kernels
@PRECISIONS
def test_the_kernel_convolves_the_same_within_a_compiled_function(dtype):
    def convolve(images, filters, bias, dilation, padding):
        return kernels.depthwise(images * 2, filters, bias * 2, dilation, padding) / 2

    check_depthwise("cuda", dtype, convolve=torch.compile(convolve, fullgraph=True, dynamic=False))


@needs_kernels
def test_torch_compile_is_told_the_truth_of_the_kernels():
    check_registration("cuda")


@needs_kernels
@PRECISIONS
def test_the_kernel_mixes_the_same_points_within_a_compiled_function(dtype):
    def mix(values, offsets, weights, height, width):
        return kernels.mix_points(values * 2, offsets, weights, height, width) / 2

    check_mix_points("cuda", dtype, (9, 11), mix=torch.compile(mix, fullgraph=True, dynamic=False))


@needs_kernels
def test_the_kernel_finds_the_same_cycles_within_a_compiled_function():
    q, k = torch.randint(-3, 4, (2, 2, 4, 70, 32), device="cuda").float()
    valid = torch.rand(2, 70, device="cuda") < 0.8
    is_foreground = torch.rand(2, 1, 70, device="cuda") < 0.5

    def cycle(q, k):
        of_support, of_query = kernels.nearest(q + 1, k, valid.byte())
        return cycle_consistency(of_support, of_query, is_foreground, valid[:, None])

    expected = cycle_consistency(*nearest_neighbours(q + 1, k, valid[:, None]), is_foreground, valid[:, None])
    assert expected.any() and not expected[valid[:, None].expand_as(expected)].all()
    assert torch.equal(torch.compile(cycle, fullgraph=True, dynamic=False)(q, k), expected)


def counted(monkeypatch):
    """How often each kernel was called."""
    calls = {"nearest": 0, "mix_points": 0}

    def watch(name):
        kernel = getattr(kernels, name)

        def count(*given):
            calls[name] += 1
            return kernel(*given)

        return count

    for name in calls:
        monkeypatch.setattr(kernels, name, watch(name))
    return calls


def answers(model, given):
    """Probabilities, and the gradients that a step of training would follow."""
    model.zero_grad()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        seeds = torch.arange(2, device=given.query_images.device)
        prediction = model(given, seeds)
        losses(model, given, seeds).total.backward()
    gradients = {name: value.grad.cpu().clone() for name, value in model.named_parameters() if value.grad is not None}
    return prediction.probability.detach().cpu(), gradients


def without_dropout(name):
    config = narrow(name)
    return tiny(replace(config, reduction_dropout=0.0, encoder=replace(config.encoder, dropout=0.0))).train()


@needs_kernels
@pytest.mark.parametrize("name", ["full", "cycle_foreground", "vanilla", "self"])
@pytest.mark.parametrize("shots", [1, 3])
def test_a_network_of_kernels_answers_and_learns_as_the_one_on_the_cpu(name, shots, monkeypatch):
    model, given = without_dropout(name), episode(batch=2, shots=shots)
    expected, slopes = answers(model, given)
    calls = counted(monkeypatch)
    found, own = answers(model.cuda(), moved(given))
    layers = model.config.encoder.layers
    assert calls == {"nearest": 2 * layers * name.startswith(("full", "cycle")), "mix_points": 2 * layers}  # two forwards
    assert (expected - found).abs().mean() < 1e-3
    assert own.keys() == slopes.keys()
    for part, gradient in own.items():  # a cycle that rounding breaks changes a little of every gradient
        assert (gradient - slopes[part]).norm() <= 0.05 * slopes[part].norm() + 1e-5, part


@needs_kernels
@pytest.mark.parametrize("name", ["full", "self"])
def test_a_network_answers_with_kernels_as_without_in_half_precision(name, monkeypatch):
    model, given = tiny(narrow(name)).cuda(), moved(episode(batch=2, shots=2))
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        found = model(given).probability
        monkeypatch.setattr(kernels, "AVAILABLE", False)
        calls = counted(monkeypatch)
        expected = model(given).probability
    assert not any(calls.values())
    assert (expected - found).abs().mean() < 5e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_to_one_key_is_its_value_within_a_compiled_function_too(dtype):
    q, k, v, bias = (part.to(dtype) for part in attention_case())
    bias[..., 7], bias[..., :7], bias[..., 8:] = 0, -math.inf, -math.inf
    expected = v[:, :, 7:8].expand(-1, -1, q.shape[2], -1)
    for function in (attend, torch.compile(attend, fullgraph=True, dynamic=False)):
        torch.testing.assert_close(function(q, k, v, bias), expected, atol=1e-2, rtol=1e-2)
