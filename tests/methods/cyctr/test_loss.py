import pytest
import torch
from making import episode, one

from cyctr.errors import DataError
from cyctr.methods.cyctr.config import LossConfig
from cyctr.methods.cyctr.loss import dice_loss, episode_loss, two_channel_dice_loss
from cyctr.types import Episode


def slow_dice(probability, label, counted=lambda value: value != 255, target=1):
    overlap = size = 0.0
    for p, g in zip(probability.flatten().tolist(), label.flatten().tolist(), strict=True):
        truth = 1.0 if g == target else 0.0
        if counted(g):
            overlap += p * truth
            size += p * p + truth
    return 1 - (2 * overlap + 1) / (size + 1)


def case():
    return torch.randn(3, 2, 5, 6), torch.tensor([0, 1, 255], dtype=torch.uint8)[torch.randint(0, 3, (3, 5, 6))]


def test_the_dice_loss_equals_its_formula_in_a_loop():
    logits, labels = case()
    probability = logits.softmax(1)[:, 1]
    slow = [slow_dice(p, g) for p, g in zip(probability, labels, strict=True)]
    assert dice_loss(logits, labels).tolist() == pytest.approx(slow, abs=1e-5)


def test_the_two_channel_form_sums_background_and_foreground_and_ignores_255_in_the_target_alone():
    logits, labels = case()
    background, foreground = logits.sigmoid().unbind(1)
    everything = lambda _: True  # noqa: E731
    slow = [
        slow_dice(background[i], labels[i], everything, 0) + slow_dice(foreground[i], labels[i], everything, 1)
        for i in range(3)
    ]
    assert two_channel_dice_loss(logits, labels).tolist() == pytest.approx(slow, abs=1e-5)


def test_a_clamped_divisor_leaves_no_one_above_and_below():
    logits, labels = case()
    background, foreground = logits.sigmoid().unbind(1)
    for i in range(3):
        parts = [(channel[i], (labels[i] == kind).float()) for kind, channel in ((0, background), (1, foreground))]
        slow = sum(1 - 2 * float((p * t).sum()) / float(p.square().sum() + t.sum()) for p, t in parts)
        assert two_channel_dice_loss(logits, labels, clamp=True)[i].item() == pytest.approx(slow, abs=1e-5)
    silent, empty = torch.full((1, 2, 4, 4), -1e4), torch.full((1, 4, 4), 255, dtype=torch.uint8)
    assert two_channel_dice_loss(silent, empty, clamp=True).tolist() == [2.0]  # nothing said and nothing there


def test_ignored_pixels_have_no_gradient():
    logits, labels = case()
    logits.requires_grad_()
    dice_loss(logits, labels).sum().backward()
    assert not logits.grad.transpose(0, 1)[:, labels == 255].any()
    assert logits.grad.transpose(0, 1)[:, labels != 255].all()


def test_a_sure_and_right_answer_costs_nothing_and_a_wrong_one_everything():
    labels = torch.zeros(1, 20, 20, dtype=torch.uint8)
    labels[:, 5:15, 5:15] = 1
    right = torch.stack([1 - labels.float(), labels.float()], 1) * 200 - 100
    assert dice_loss(right, labels) < 1e-3
    assert dice_loss(-right, labels) > 0.99


def test_the_auxiliary_loss_is_weighted_in_and_absent_without_auxiliary_logits():
    given = episode(batch=2, shots=3)
    logits, auxiliary = torch.randn(2, 2, 65, 65), torch.randn(2, 3, 2, 65, 65)
    with_it = episode_loss(logits, auxiliary, given, LossConfig(auxiliary_weight=0.5))
    torch.testing.assert_close(with_it.total, with_it.parts["main"] + 0.5 * with_it.parts["auxiliary"])
    expected = dice_loss(auxiliary.flatten(0, 1), given.support_labels.flatten(0, 1))
    torch.testing.assert_close(with_it.parts["auxiliary"], expected.mean())
    without = episode_loss(logits, None, given, LossConfig())
    assert without.parts["auxiliary"] == 0
    assert without.total == without.parts["main"]


@pytest.mark.parametrize("both_channels", [False, True])
@pytest.mark.parametrize("shots", [0, 1, 3])
def test_every_episode_adds_its_own_loss_to_the_mean_that_is_minimised(shots, both_channels):
    """Without shots the network predicts no support masks."""
    config = LossConfig(auxiliary_weight=0.5, both_channels=both_channels)
    given = episode(batch=3, shots=max(shots, 1))
    logits, auxiliary = torch.randn(3, 2, 65, 65), torch.randn(3, shots, 2, 65, 65) if shots else None
    together = episode_loss(logits, auxiliary, given, config)
    assert together.each.shape == (3,)
    for part in (together.total, together.parts["main"], together.parts["auxiliary"]):
        assert part.shape == ()
    torch.testing.assert_close(together.total, together.each.mean())
    for i in range(3):
        own = logits[i : i + 1], None if auxiliary is None else auxiliary[i : i + 1]
        torch.testing.assert_close(together.each[i], episode_loss(*own, one(given, i), config).total)


def test_a_loss_without_labels_is_refused():
    given = episode()
    unlabelled = Episode(given.support_images, given.support_labels, given.query_images)
    with pytest.raises(DataError, match="no query_labels"):
        episode_loss(torch.zeros(2, 2, 65, 65), None, unlabelled, LossConfig())
