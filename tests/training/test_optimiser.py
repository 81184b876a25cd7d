import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from learning import assert_close, same_bits
from making import episode, losses, tiny

from cyctr.checkpoint import load_model
from cyctr.config import BackboneConfig, OptimizerConfig
from cyctr.errors import CheckpointError, ConfigError
from cyctr.methods.cyctr.config import PAPER, Config, EncoderConfig, ModelConfig
from cyctr.training.optimiser import Optimization

STEPS = 12
PLAIN = replace(PAPER.optimizer, convolution_decay=0.0, transformer_decay=0.0)
RECIPES = {
    "paper": PAPER.optimizer,
    "paper, averaged": replace(PAPER.optimizer, average=0.8),
    "adamw": replace(PAPER.optimizer, convolutions="adamw", decay_biases=False),
    "adamw, averaged": replace(PAPER.optimizer, convolutions="adamw", decay="cosine", warm_up=0.3, clip=1.0, average=0.8),
}


def exact(config=None):
    """A narrow network in float64, so that slow twins agree to many digits."""
    return tiny(config).double()


def with_a_backbone_that_learns():
    """A narrow network whose deepest features learn too, in float64."""
    model = ModelConfig(dim=16, backbone=BackboneConfig("tiny", trained=1), encoder=EncoderConfig(heads=2, points=2))
    return load_model(Config(model=model)).double()


def optimization(config=PAPER.optimizer, model=None, steps=STEPS):
    return Optimization(exact() if model is None else model, config, steps)


def push(made, number, scale=1.0):
    """Gives every weight a gradient that is a function of the step alone."""
    generator = torch.Generator().manual_seed(number)
    for value in made.weights.values():
        value.grad = scale * torch.randn(value.shape, generator=generator, dtype=value.dtype)


def advance(made, steps, scale=1.0):
    for number in steps:
        push(made, number, scale)
        made.step(number)


def copied(tensors):
    return {name: value.detach().clone() for name, value in tensors.items()}


def gradients(made):
    """By weight, the gradients that `push` gives it step after step."""
    found = []
    for number in range(STEPS):
        push(made, number)
        found.append({name: value.grad for name, value in made.weights.items()})
    return found


def of_transformer(name):
    return name.startswith("mixer.")


def members(made, kind):
    """The names of the weights that an optimizer remembers something of."""
    return {
        name for name in made.weights if any(key.startswith(f"{kind}.") and key.endswith(f".{name}") for key in made.state())
    }


def test_the_mixer_goes_to_the_transformer_s_optimizer_and_all_else_to_the_other():
    made = optimization()
    advance(made, range(1))
    transformer, convolutions = members(made, "transformer"), members(made, "convolutions")
    assert transformer == {name for name in made.weights if of_transformer(name)}
    assert convolutions == set(made.weights) - transformer
    assert {name.partition(".")[0] for name in convolutions} >= {"reduce_query", "merge_query", "classifier", "auxiliary"}


def test_the_residual_mixer_counts_as_convolutions():
    made = optimization(model=exact(ModelConfig(dim=16, mixer="residual")))
    advance(made, range(1))
    assert members(made, "convolutions") == set(made.weights)
    assert any(of_transformer(name) for name in made.weights)
    assert not members(made, "transformer")


@pytest.mark.parametrize("config", RECIPES.values(), ids=RECIPES)
def test_every_weight_but_those_of_the_backbone_moves(config):
    model, given = tiny().train(), episode()
    made = optimization(config, model)
    before = copied(model.state_dict())
    for number in range(2):
        losses(model, given).total.backward()
        made.step(number)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == set(made.weights)
    assert moved == {name for name, _ in model.named_parameters() if not name.startswith("backbone.")}


def test_gradients_are_gone_after_a_step():
    made = optimization()
    advance(made, range(1))
    assert all(value.grad is None for value in made.weights.values())


def test_the_paper_s_convolutions_follow_sgd_with_momentum_and_polynomial_decay():
    made = optimization()
    config, expected, velocity = PAPER.optimizer, copied(made.weights), {}
    for step, gradient in enumerate(gradients(made)):
        rate = config.convolution_rate * (1 - step / STEPS) ** config.poly_power
        for name in expected:
            pull = gradient[name] + config.convolution_decay * expected[name]
            velocity[name] = config.momentum * velocity.get(name, torch.zeros_like(pull)) + pull
            expected[name] = expected[name] - rate * velocity[name]
    advance(made, range(STEPS))
    convolutions = {name for name in made.weights if not of_transformer(name)}
    assert_close({n: made.weights[n].detach() for n in convolutions}, {n: expected[n] for n in convolutions}, 1e-10)


def test_the_paper_s_transformer_follows_adamw_at_a_constant_rate():
    made = optimization()
    config, expected = PAPER.optimizer, copied(made.weights)
    mean = {name: torch.zeros_like(value) for name, value in expected.items()}
    square = copied(mean)
    for step, gradient in enumerate(gradients(made), 1):
        for name in expected:
            mean[name] = 0.9 * mean[name] + 0.1 * gradient[name]
            square[name] = 0.999 * square[name] + 0.001 * gradient[name] ** 2
            size = (square[name] / (1 - 0.999**step)).sqrt() + 1e-8
            decayed = expected[name] * (1 - config.transformer_rate * config.transformer_decay)
            expected[name] = decayed - config.transformer_rate * mean[name] / (1 - 0.9**step) / size
    advance(made, range(STEPS))
    transformer = {name for name in made.weights if of_transformer(name)}
    assert_close({n: made.weights[n].detach() for n in transformer}, {n: expected[n] for n in transformer}, 1e-10)


def rates(kind, steps=100, **fields):
    made = optimization(replace(PAPER.optimizer, **fields), steps=steps)
    return [made.rates(step)[kind] for step in range(steps + 1)]


def test_the_rate_of_the_paper_s_convolutions_falls_to_zero_and_that_of_its_transformer_stays():
    falling = rates("convolutions")
    assert falling[0] == PAPER.optimizer.convolution_rate
    assert falling[-1] == 0
    assert all(later < earlier for earlier, later in pairwise(falling))
    assert set(rates("transformer")) == {PAPER.optimizer.transformer_rate}


def test_the_cosine_falls_along_half_a_wave():
    full = PAPER.optimizer.convolution_rate
    falling = rates("convolutions", decay="cosine")
    assert falling == pytest.approx([full * (1 + math.cos(math.pi * step / 100)) / 2 for step in range(101)])
    assert [falling[0], falling[50], falling[100]] == pytest.approx([full, full / 2, 0])


def test_steps_lower_all_rates_that_fall_to_a_tenth_each_time():
    full = PAPER.optimizer.convolution_rate
    falling = rates("convolutions", decay="steps", drops=(0.25, 0.5))
    assert falling == pytest.approx([full] * 25 + [0.1 * full] * 25 + [0.01 * full] * 51)
    assert set(rates("transformer", decay="steps")) == {PAPER.optimizer.transformer_rate}


@pytest.mark.parametrize("drops", [(0.5, 0.5), (0.6, 0.4), (0.0, 0.5), (0.5, 1.0)])
def test_steps_that_are_no_increasing_shares_are_refused(drops):
    with pytest.raises(ConfigError, match=r"optimizer\.drops is .*; expected increasing shares between 0 and 1"):
        replace(PAPER.optimizer, drops=drops)


@pytest.mark.parametrize("way", ["sgd", "adamw"])
def test_a_backbone_that_learns_follows_an_optimizer_and_a_rate_of_its_own(way):
    model = with_a_backbone_that_learns()
    config = replace(PAPER.optimizer, backbone=way, backbone_rate=0.01, backbone_decay=0.1)
    made = optimization(config, model)
    name = "backbone.body.blocks.4.weight"
    twin = made.weights[name].detach().clone().requires_grad_()
    sgd, adamw = torch.optim.SGD([twin], 0.01, 0.9, weight_decay=0.1), torch.optim.AdamW([twin], 0.01, weight_decay=0.1)
    slowly = {"sgd": sgd, "adamw": adamw}[way]
    for number in range(STEPS):
        push(made, number)
        twin.grad = made.weights[name].grad.clone()
        for group in slowly.param_groups:
            group["lr"] = made.rates(number)["backbone"]
        made.step(number)
        slowly.step()
    torch.testing.assert_close(made.weights[name].detach(), twin.detach())


def test_the_average_follows_weights_whose_memory_was_laid_out_anew():
    model = with_a_backbone_that_learns()
    made = optimization(replace(PAPER.optimizer, average=0.5), model)
    model.to(memory_format=torch.channels_last)
    before = copied(made.tested)
    advance(made, range(STEPS))
    assert not any(torch.equal(value, before[name]) for name, value in made.tested.items())


@pytest.mark.parametrize("decay", ["poly", "cosine"])
def test_the_transformer_s_rate_falls_like_the_other_where_that_is_asked_for(decay):
    falling = rates("transformer", decay=decay, transformer_falls=True)
    other = rates("convolutions", decay=decay, transformer_falls=True)
    ratio = PAPER.optimizer.transformer_rate / PAPER.optimizer.convolution_rate
    assert falling == pytest.approx([ratio * rate for rate in other])
    assert falling[0] == PAPER.optimizer.transformer_rate


def test_warm_up_raises_both_rates_in_equal_steps_and_then_leaves_them():
    for kind, fields in (("convolutions", {"poly_power": 0.0}), ("transformer", {})):
        warm = rates(kind, warm_up=0.2, **fields)
        full = rates(kind, **fields)[0]
        assert warm[:20] == pytest.approx([full * (step + 1) / 20 for step in range(20)])
        assert warm[20:100] == pytest.approx([full] * 80)
    assert rates("convolutions", steps=3, warm_up=0.1) == rates("convolutions", steps=3)  # less than a step


def test_the_release_s_multiplier_is_for_the_convolutions_alone():
    assert rates("convolutions", rate_multiplier=15.0) == pytest.approx([15 * rate for rate in rates("convolutions")])
    assert rates("transformer", rate_multiplier=15.0) == rates("transformer")


def test_a_rate_is_what_the_weights_move_by():
    """Without momentum and decay, SGD moves a weight by its rate times its gradient."""
    made = optimization(replace(PLAIN, momentum=0.0, rate_multiplier=15.0, warm_up=0.5))
    for number in range(3):
        before = copied(made.weights)
        push(made, number)
        wanted = {name: value.grad * made.rates(number)["convolutions"] for name, value in made.weights.items()}
        made.step(number)
        for name in filter(lambda name: not of_transformer(name), before):
            torch.testing.assert_close(before[name] - made.weights[name].detach(), wanted[name])


def length(made):
    return math.sqrt(sum(float(value.grad.square().sum()) for value in made.weights.values()))


def test_a_gradient_that_is_too_long_is_shortened_as_a_whole():
    clipped, plain = (optimization(replace(PLAIN, clip=clip)) for clip in (2.0, 0.0))
    for number in range(3):
        for made, scale in ((clipped, 1.0), (plain, 2.0 / _length_of_step(number))):
            push(made, number, scale)
            made.step(number)
    assert_close(copied(clipped.weights), copied(plain.weights), 1e-7)


def _length_of_step(number):
    made = optimization()
    push(made, number)
    return length(made)


def test_a_gradient_that_is_short_enough_is_let_through_as_it_is():
    clipped, plain = (optimization(replace(PAPER.optimizer, clip=clip)) for clip in (1.0, 0.0))
    for made in (clipped, plain):
        advance(made, range(3), scale=1e-6)
    assert same_bits(copied(clipped.weights), copied(plain.weights))


@pytest.mark.parametrize("decayed", [True, False])
def test_adamw_decays_biases_only_where_that_is_asked_for(decayed):
    config = replace(PAPER.optimizer, convolutions="adamw", convolution_decay=0.5, transformer_decay=0.25, decay_biases=decayed)
    made = optimization(config)
    with torch.no_grad():
        for value in made.weights.values():
            value.fill_(1.0)
    for value in made.weights.values():
        value.grad = torch.zeros_like(value)
    made.step(0)
    for name, value in made.weights.items():
        rate, decay = (config.transformer_rate, 0.25) if of_transformer(name) else (config.convolution_rate, 0.5)
        expected = 1 - rate * decay if decayed or value.ndim >= 2 else 1.0
        assert value.unique().tolist() == pytest.approx([expected], abs=1e-15), name
    assert any(value.ndim < 2 for value in made.weights.values())


def test_the_weights_of_norms_decay_where_biases_do_not_if_that_is_asked_for():
    made = optimization(replace(PAPER.optimizer, transformer_decay=0.25, decay_biases=False, decay_norms=True))
    with torch.no_grad():
        for value in made.weights.values():
            value.fill_(1.0)
    for value in made.weights.values():
        value.grad = torch.zeros_like(value)
    made.step(0)
    flat = {name: value for name, value in made.weights.items() if of_transformer(name) and value.ndim < 2}
    decayed = {name for name, value in flat.items() if (value < 1).all()}
    assert decayed == {name for name in flat if "norm" in name and name.endswith("weight")} and decayed < set(flat)


def test_the_moving_average_is_that_of_a_slow_loop():
    made = optimization(replace(PAPER.optimizer, average=0.8))
    expected = copied(made.weights)
    for number in range(STEPS * 4):
        advance(made, [number])
        keep = min(0.8, (1 + number) / (10 + number))
        expected = {name: keep * expected[name] + (1 - keep) * value.detach() for name, value in made.weights.items()}
    assert_close(made.tested, expected, 1e-12)
    assert not any(torch.equal(made.tested[name], value) for name, value in made.weights.items())


def test_without_an_average_the_last_weights_are_tested():
    made = optimization()
    advance(made, range(3))
    assert same_bits(made.tested, copied(made.weights))


@pytest.mark.parametrize("config", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("done", [0, 1, 5])
def test_a_restored_state_goes_on_to_the_same_bits(done, config):
    one = optimization(config)
    advance(one, range(done))
    kept = copied(one.state())
    advance(one, range(done, STEPS))

    torch.manual_seed(5)
    other_start = exact()
    with torch.no_grad():
        for value in other_start.parameters():
            value.add_(0.1)
    other = optimization(config, other_start)
    again = copied(kept)
    other.restore(again)
    assert same_bits(copied(other.state()), kept)
    advance(other, range(done, STEPS))
    assert same_bits(copied(other.state()), copied(one.state()))
    assert same_bits(other.tested, one.tested)
    assert same_bits(again, kept)  # so that it may be restored again


def test_the_state_holds_what_each_optimizer_remembers_of_each_weight():
    made = optimization(replace(PAPER.optimizer, average=0.5))
    assert set(made.state()) == {f"{part}.{name}" for part in ("weights", "average") for name in made.weights}
    advance(made, range(2))
    parts = {
        True: ("transformer.step", "transformer.exp_avg", "transformer.exp_avg_sq"),
        False: ("convolutions.momentum_buffer",),
    }
    remembered = {f"{part}.{name}" for name in made.weights for part in parts[of_transformer(name)]}
    assert remembered == {key for key in made.state() if not key.startswith(("weights.", "average."))}


def test_a_state_of_another_network_is_refused():
    lacks_attention = optimization(model=exact(ModelConfig(dim=16, mixer="residual")))
    with pytest.raises(CheckpointError, match=r"'weights\..*which this network lacks; resume with its own config"):
        lacks_attention.restore(optimization(model=exact(ModelConfig(dim=16))).state())
    lacks_average = optimization(OptimizerConfig())
    with pytest.raises(CheckpointError, match=r"'average\..*which this network lacks"):
        lacks_average.restore(optimization(OptimizerConfig(average=0.5)).state())


@pytest.mark.parametrize("part", ["weights", "average"])
def test_a_state_that_lacks_a_weight_is_refused_and_changes_nothing(part):
    made = optimization(OptimizerConfig(average=0.5))
    before = copied(made.state())
    lost = f"{part}.{list(made.weights)[-1]}"
    with pytest.raises(CheckpointError, match=rf"lacks '{re.escape(lost)}', which this network has; resume with its own"):
        made.restore({name: value + 1 for name, value in before.items() if name != lost})
    assert same_bits(copied(made.state()), before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_no_number_is_found(value):
    made = optimization()
    assert made.finite
    with torch.no_grad():
        list(made.weights.values())[-1].view(-1)[-1] = value
    assert not made.finite
