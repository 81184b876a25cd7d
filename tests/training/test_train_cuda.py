"""What only a GPU can show of training. Skipped without one."""

import pytest
import torch
from learning import SMALL, begun, changed, go, resumed, same_bits, state_of, trained

from cyctr.config import BackboneConfig
from cyctr.training.options import Options
from cyctr.transfer import Fetching

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = torch.device("cuda")
LATENT = changed(SMALL, training={"latent_classes": 4, "latent_share": 0.9})


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("config", [SMALL, LATENT], ids=["labelled", "latent"])
def test_a_whole_step_from_images_to_weights_never_waits_for_the_gpu(config, resident, tmp_path, monkeypatch):
    monkeypatch.setattr("cyctr.episodes.latent._FEWEST", 2)
    trainer = begun(tmp_path, config, Options(half=True, resident=resident, tensorboard=False), device=CUDA)
    trainer.model.train()
    feed = trainer.episodes.steps(range(6))

    def step(number):
        trainer.losses(next(feed), trainer.drawn(number)).total.backward()
        trainer.optimization.step(number)

    step(0)  # what is made once may wait
    step(1)
    before = {name: value.clone() for name, value in trainer.optimization.weights.items()}
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for number in range(2, 6):
            step(number)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    feed.close()
    assert all(not torch.equal(value, before[name]) for name, value in trainer.optimization.weights.items())


def test_what_is_fetched_is_what_the_tensor_held_then():
    numbers = torch.arange(1000.0, device=CUDA)
    fetching = Fetching(numbers)
    numbers.zero_()
    assert torch.equal(fetching.get(), torch.arange(1000.0))


def test_a_deterministic_run_with_latent_classes_trains_to_its_end_and_twice_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr("cyctr.episodes.latent._FEWEST", 2)
    states = []
    for name in ("one", "other"):
        trainer = begun(tmp_path / name, LATENT, Options(half=True, deterministic=True, tensorboard=False), device=CUDA)
        assert go(trainer) == "finished"
        states.append({key: value.cpu() for key, value in trainer.optimization.state().items()})
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("tuned", [False, True], ids=["frozen", "tuned"])
def test_a_deterministic_run_that_is_stopped_twice_and_resumed_is_the_run_in_one_go(tuned, tmp_path, monkeypatch):
    monkeypatch.setattr("cyctr.episodes.latent._FEWEST", 2)
    config = changed(LATENT, model={"backbone": BackboneConfig("tiny", tuned=tuned), "familiar": 4})
    options = Options(half=True, deterministic=True, tensorboard=False)
    trained(tmp_path / "whole", config, options, device=CUDA)
    go(begun(tmp_path / "parts", config, options, device=CUDA), until=1)
    go(resumed(tmp_path / "parts", config, options, device=CUDA), until=4)
    assert go(resumed(tmp_path / "parts", config, options, device=CUDA)) == "finished"
    assert same_bits(state_of(tmp_path / "parts"), state_of(tmp_path / "whole"))
