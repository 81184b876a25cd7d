import torch
from making import tiny

from cyctr.config import EncoderConfig, ModelConfig
from cyctr.data.synthetic import SyntheticEpisodes
from cyctr.engine.fit import fit, score

CONFIG = ModelConfig(dim=64, encoder=EncoderConfig(heads=4, points=4))


def test_half_a_minute_of_training_beats_the_untrained_network_by_far_on_classes_it_has_never_seen():
    seen, unseen = SyntheticEpisodes(range(400), seed=1), SyntheticEpisodes(range(1000, 1100), seed=2)
    model = tiny(CONFIG)
    before = score(model, unseen, count=96).iou
    fit(model, seen, steps=160, rate=2e-3)
    after = score(model, unseen, count=96).iou
    assert after > before + 0.2
    assert after > 2 * before


def test_the_same_seed_trains_the_same_network_whatever_the_global_generator():
    episodes = SyntheticEpisodes(range(10), size=33)

    def trained(disturb):
        model = tiny(ModelConfig(dim=16, encoder=EncoderConfig(heads=2, points=2)))
        torch.manual_seed(disturb)
        fit(model, episodes, steps=3, batch=2, seed=5)
        return model.state_dict()

    one, other = trained(1), trained(2)
    assert all(torch.equal(one[name], other[name]) for name in one)
