import torch

from cyctr.evaluation.metrics import Overlap, overlap


def test_overlap_counts_what_a_loop_counts():
    mask, labels = torch.rand(3, 7, 7) < 0.5, torch.tensor([0, 1, 255], dtype=torch.uint8)[torch.randint(0, 3, (3, 7, 7))]
    both = either = 0
    for p, g in zip(mask.flatten().tolist(), labels.flatten().tolist(), strict=True):
        if g != 255:
            both += p and g == 1
            either += p or g == 1
    assert overlap(mask, labels) == Overlap(both, either)


def test_counts_add_up_before_the_ratio_is_taken():
    total = Overlap(1, 2) + Overlap(0, 6)
    assert total.iou == 1 / 8


def test_nothing_marked_and_nothing_found_counts_as_zero():
    assert overlap(torch.zeros(2, 2, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.uint8)).iou == 0
