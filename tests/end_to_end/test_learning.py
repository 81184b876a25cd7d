import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from making import tiny

from cyctr.datasets.synthetic import SyntheticEpisodes
from cyctr.methods.cyctr.config import RELEASED, EncoderConfig, ModelConfig
from cyctr.methods.cyctr.network import CyCTR

EXAMPLE = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "examples" / "learn_from_scratch.py")))


@pytest.mark.slow
def test_a_quarter_of_a_minute_of_training_beats_the_untrained_network_by_far_on_classes_it_has_never_seen():
    model = EXAMPLE.untrained()
    seen, unseen = (replace(episodes, size=65) for episodes in (EXAMPLE.BASE, EXAMPLE.NOVEL))
    before = EXAMPLE.score(model, unseen, count=96).iou
    EXAMPLE.fit(model, seen, steps=240, rate=4e-3)
    after = EXAMPLE.score(model, unseen, count=96).iou
    assert after > before + 0.2
    assert after > 2 * before


def test_the_same_seed_trains_the_same_network_whatever_the_global_generator():
    episodes = SyntheticEpisodes(range(10), size=33)

    def trained(disturb):
        model = tiny(ModelConfig(dim=16, encoder=EncoderConfig(heads=2, points=2)))
        torch.manual_seed(disturb)
        EXAMPLE.fit(model, episodes, steps=3, batch=2, seed=5)
        return model.state_dict()

    one, other = trained(1), trained(2)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_training_with_the_release_s_scale_sees_other_numbers_of_tokens(monkeypatch):
    counts = []
    original = CyCTR.learn

    def watched(self, episode, query, support, step):
        counts.append(step.drawn)
        return original(self, episode, query, support, step)

    monkeypatch.setattr(CyCTR, "learn", watched)
    config = ModelConfig(dim=16, encoder=EncoderConfig(heads=2, points=2), sampling=RELEASED.model.sampling)
    EXAMPLE.fit(tiny(config), SyntheticEpisodes(range(10), size=33), steps=6, batch=1)
    assert len(set(counts)) > 2
