"""The same network on a GPU. Skipped where there is none."""

from dataclasses import replace

import pytest
import torch
from making import episode, tiny

from cyctr.config import ABLATIONS, PAPER, BackboneConfig
from cyctr.losses import episode_loss
from cyctr.model import build
from cyctr.model.sampling import sample_tokens
from cyctr.types import Episode

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode", "ignore:TensorFloat32"),
]


def moved(given: Episode) -> Episode:
    values = (given.support_images, given.support_labels, given.query_images, given.query_labels)
    return Episode(*(value.cuda() for value in values), trusted=True)


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_gpu_answers_as_the_cpu(name):
    model, given = tiny(replace(ABLATIONS[name], dim=64)), episode(batch=2, shots=2)
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


@pytest.mark.parametrize("name", ["full", "cycle_foreground", "vanilla", "predicted", "self", "baseline"])
def test_a_training_step_never_waits_for_the_gpu(name):
    model, given = tiny(replace(ABLATIONS[name], dim=64)).cuda().train(), moved(episode(batch=2))
    seeds = torch.arange(2).cuda()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        with torch.autocast("cuda", torch.bfloat16):
            prediction = model(given, seeds)
        episode_loss(prediction, given, PAPER.loss).total.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_the_compiled_network_answers_as_the_eager_one():
    model = build(replace(PAPER.model, backbone=BackboneConfig("resnet18"))).cuda().eval()
    given = moved(episode(batch=2, size=129))
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        assert (compiled(given).probability - model(given).probability).abs().mean() < 1e-3
