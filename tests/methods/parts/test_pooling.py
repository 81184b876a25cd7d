import torch

from cyctr.methods.parts.pooling import masked_average


def test_the_masked_average_equals_a_loop_over_shots_and_cells():
    features, mask = torch.randn(2, 3, 5, 4, 4), torch.rand(2, 3, 4, 4) < 0.5
    mask[..., 0, 0] = True
    fast = masked_average(features, mask)
    for b in range(2):
        shots = []
        for k in range(3):
            inside = [features[b, k, :, i, j] for i in range(4) for j in range(4) if mask[b, k, i, j]]
            shots.append(sum(inside) / len(inside))
        torch.testing.assert_close(fast[b], sum(shots) / 3)


def test_a_shot_without_foreground_is_left_out():
    features, mask = torch.randn(1, 2, 5, 4, 4), torch.ones(1, 2, 4, 4, dtype=torch.bool)
    mask[:, 1] = False
    torch.testing.assert_close(masked_average(features, mask), masked_average(features[:, :1], mask[:, :1]))


def test_no_foreground_at_all_gives_zero():
    assert not masked_average(torch.randn(1, 2, 5, 4, 4), torch.zeros(1, 2, 4, 4, dtype=torch.bool)).any()
