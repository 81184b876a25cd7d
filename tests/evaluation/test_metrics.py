import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, jaccard_score

from cyctr.evaluation.metrics import Counts, count, count_pixels, summarise


def maps(shape=(3, 7, 9), seed=0):
    """A bool answer, and labels of 0, 1 and 255."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0, 1, 255], dtype=torch.uint8)[torch.randint(0, 3, shape, generator=generator)]
    return torch.rand(shape, generator=generator) < 0.6, labels


def decided(mask, labels):
    """Answer and truth of the pixels that count."""
    kept = labels != 255
    return mask[kept].numpy(), (labels[kept] == 1).numpy()


def test_pixels_are_counted_as_a_loop_counts_them():
    mask, labels = maps((21, 9))
    found = {"tp": 0, "fp": 0, "fn": 0, "tn": 0}
    for answered, true in zip(mask.flatten().tolist(), labels.flatten().tolist(), strict=True):
        if true != 255:
            found[("t" if answered == (true == 1) else "f") + ("p" if answered else "n")] += 1
    assert count(mask, labels) == Counts(found["tp"], found["fp"], found["fn"], found["tn"])
    assert len(set(found.values())) == 4  # so that no two of them could be exchanged unseen


@pytest.mark.parametrize("shape", [(1, 7, 9), (3, 7, 9), (2, 3, 5, 4), (0, 7, 9)])
def test_many_answers_are_counted_as_each_alone(shape):
    masks, labels = maps(shape)
    together = count_pixels(masks, labels)
    assert together.shape == (*shape[:-2], 4) and together.dtype == torch.int64
    alone = [count(mask, label) for mask, label in zip(masks.view(-1, *shape[-2:]), labels.view(-1, *shape[-2:]), strict=True)]
    assert [Counts(*counts) for counts in together.view(-1, 4).tolist()] == alone


def test_counts_are_scikit_learn_s_confusion_matrix():
    mask, labels = maps((64, 64), seed=1)
    answered, true = decided(mask, labels)
    (tn, fp), (fn, tp) = confusion_matrix(true, answered)
    assert count(mask, labels) == Counts(tp, fp, fn, tn)


def test_both_ious_are_scikit_learn_s_jaccard_scores():
    mask, labels = maps((64, 64), seed=2)
    answered, true = decided(mask, labels)
    counts = count(mask, labels)
    assert counts.iou == pytest.approx(jaccard_score(true, answered), abs=1e-15)
    assert counts.background_iou == pytest.approx(jaccard_score(true, answered, pos_label=0), abs=1e-15)


def test_ignored_pixels_do_not_count_whatever_is_answered_there():
    mask, labels = maps()
    flipped = torch.where(labels == 255, ~mask, mask)
    assert not torch.equal(flipped, mask)
    assert torch.equal(count_pixels(flipped, labels), count_pixels(mask, labels))
    assert torch.equal(count_pixels(mask, labels).sum(-1), (labels != 255).flatten(1).sum(1))


def test_counts_of_parts_add_up_to_those_of_the_whole():
    mask, labels = maps()
    parts = [count(mask[i], labels[i]) for i in range(len(mask))]
    assert sum(parts, start=Counts()) == count(mask.flatten(0, 1), labels.flatten(0, 1))


def test_counts_add_up_before_the_ratio_is_taken():
    assert (Counts(1, 1, 0, 5) + Counts(0, 2, 4, 1)).iou == 1 / 8
    assert (Counts(1, 1, 0, 5) + Counts(0, 2, 4, 1)).background_iou == 6 / 13


def test_counts_hold_more_pixels_than_32_bits_can():
    many = Counts(*[3 * 2**31] * 4)
    assert (many + many).true_positive == 6 * 2**31
    assert summarise([0, 0], np.array([[2**40, 0, 0, 0], [0, 2**40, 0, 0]]), replicates=10).miou == 0.5


@pytest.mark.parametrize("labels", [torch.zeros(2, 2, dtype=torch.uint8), torch.full((2, 2), 255, dtype=torch.uint8)])
def test_nothing_marked_and_nothing_found_counts_as_zero(labels):
    assert count(torch.zeros(2, 2, dtype=torch.bool), labels).iou == 0
    assert Counts() == count(torch.ones(0, 2, dtype=torch.bool), torch.ones(0, 2, dtype=torch.uint8))
    assert (Counts().iou, Counts().background_iou) == (0, 0)


def test_miou_is_the_mean_over_classes_of_summed_counts_not_of_the_ious_of_images():
    counts = np.array(
        [
            [90, 10, 0, 0],  # class 4: a large object, found well
            [1, 0, 9, 90],  # class 4: a small one, missed
            [30, 30, 0, 40],  # class 7
        ]
    )
    result = summarise([4, 4, 7], counts)
    assert result.classes == {4: 91 / 110, 7: 30 / 60}
    assert result.miou == pytest.approx((91 / 110 + 30 / 60) / 2)
    per_image = np.mean([90 / 100, 1 / 10, 30 / 60])
    assert abs(result.miou - per_image) > 0.1
    over_all_pixels = 121 / 170
    assert abs(result.miou - over_all_pixels) > 0.02


def test_fb_iou_is_the_mean_of_foreground_and_background_over_all_episodes_whatever_the_class():
    counts = np.array([[90, 10, 0, 0], [1, 0, 9, 90], [30, 30, 0, 40]])
    result = summarise([4, 4, 7], counts)
    foreground, background = 121 / (121 + 40 + 9), 130 / (130 + 40 + 9)
    assert result.fb_iou == pytest.approx((foreground + background) / 2)


def test_each_class_gets_its_own_value_in_whatever_order_the_episodes_come():
    """The released code printed them rotated by one class."""
    ious = {2: 0.2, 0: 0.9, 1: 0.5, 11: 0.7}
    categories, counts = [], []
    for category, iou in ious.items():
        for _ in range(2):
            categories.append(category)
            counts.append([round(100 * iou), 100 - round(100 * iou), 0, 10])
    order = np.random.default_rng(0).permutation(len(categories))
    result = summarise([categories[i] for i in order], np.array(counts)[order])
    assert result.classes == ious
    assert list(result.classes) == [0, 1, 2, 11]


def test_a_slow_twin_over_all_pixels_gives_the_same_numbers():
    answers = [maps((11, 13), seed=seed) for seed in range(12)]
    categories = [seed * 7 % 5 for seed in range(12)]
    counts = torch.stack([count_pixels(*pair) for pair in answers]).numpy()
    result = summarise(categories, counts)

    flat = [decided(*pair) for pair in answers]
    for c in set(categories):
        answered, true = (
            np.concatenate([pair[side] for pair, own in zip(flat, categories, strict=True) if own == c]) for side in (0, 1)
        )
        assert result.classes[c] == pytest.approx(jaccard_score(true, answered), abs=1e-15)
    assert set(result.classes) == set(categories)
    assert result.miou == pytest.approx(np.mean([result.classes[c] for c in set(categories)]), abs=1e-15)
    answered, true = (np.concatenate([pair[side] for pair in flat]) for side in (0, 1))
    assert result.fb_iou == pytest.approx(jaccard_score(true, answered, average="macro"), abs=1e-15)


def random_counts(episodes, spread=30, seed=0):
    random = np.random.default_rng(seed)
    hit = random.integers(50 - spread, 50 + spread + 1, episodes)
    return np.stack([hit, 100 - hit, np.full(episodes, 20), np.full(episodes, 300)], 1)


def test_the_interval_lies_around_the_estimate_and_shrinks_with_more_episodes():
    widths = []
    for episodes in (40, 640):
        categories = [i % 4 for i in range(episodes)]
        result = summarise(categories, random_counts(episodes))
        low, high = result.interval
        assert low < result.miou < high
        widths.append(high - low)
    assert 2.5 < widths[0] / widths[1] < 6  # sixteen times the episodes: a quarter of the width, on average


def test_the_interval_is_as_wide_as_theory_says():
    """Of a mean of n values: 2 x 1.96 standard deviations, over the square root of n."""
    counts = random_counts(400)
    low, high = summarise([0] * 400, counts).interval
    assert high - low == pytest.approx(2 * 1.96 * (counts[:, 0] / 120).std() / 400**0.5, rel=0.15)


def test_the_interval_of_equal_episodes_is_a_point():
    result = summarise([0, 0, 0, 1, 1, 1], np.array([[40, 10, 10, 40]] * 3 + [[10, 30, 10, 50]] * 3))
    assert result.interval == pytest.approx((result.miou, result.miou), abs=1e-12)


def test_the_interval_is_the_same_every_time_and_its_draws_touch_no_global_generator():
    counts = random_counts(30)
    np.random.seed(1)  # noqa: NPY002, the generator that must not matter
    one = summarise([i % 3 for i in range(30)], counts)
    np.random.seed(2)  # noqa: NPY002
    other = summarise([i % 3 for i in range(30)], counts.copy())
    assert one == other
    assert summarise([i % 3 for i in range(30)], counts + 1).interval != one.interval


def test_a_class_met_once_never_varies_whatever_the_others_do():
    counts = np.vstack([random_counts(50), [[80, 20, 0, 0]]])
    only = summarise([0] * 50, counts[:50])
    both = summarise([0] * 50 + [1], counts)
    expected = [(bound + 0.8) / 2 for bound in only.interval]
    assert both.interval == pytest.approx(expected, abs=1e-12)


def test_episodes_of_one_query_are_drawn_together():
    """Measured three times over, the same queries say no more than once."""
    counts, queries = random_counts(50), [f"image {i}" for i in range(50)]
    once = summarise([0] * 50, counts, queries=queries)
    thrice = summarise([0] * 150, np.tile(counts, (3, 1)), queries=queries * 3)
    assert thrice.interval == pytest.approx(once.interval, abs=1e-12)
    apart = summarise([0] * 150, np.tile(counts, (3, 1)))
    assert apart.interval[1] - apart.interval[0] < 0.8 * (once.interval[1] - once.interval[0])


def test_the_order_of_the_episodes_does_not_move_the_interval():
    counts, queries = random_counts(60), [f"image {i % 25}" for i in range(60)]
    categories = [i % 3 for i in range(60)]
    order = np.random.default_rng(1).permutation(60)
    one = summarise(categories, counts, queries=queries)
    assert summarise([categories[i] for i in order], counts[order], queries=[queries[i] for i in order]) == one
