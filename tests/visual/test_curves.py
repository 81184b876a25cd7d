import io
import sys

import numpy as np
import pytest
from PIL import Image

from cyctr.visual.curves import draw_curves, smooth, smoothness

pytest.importorskip("matplotlib")


def losses(count=40, main=0.5, auxiliary=0.7):
    return [{"episodes": 80 * (i + 1), "loss": main + auxiliary, "main": main, "auxiliary": auxiliary} for i in range(count)]


def validated(episodes, miou):
    return {"episodes": episodes, "validation": {"miou": miou, "split": "validation"}}


def pixels(records):
    """(H, W, 3) of a plot that is a PNG and nothing else."""
    png = draw_curves(records)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    with Image.open(io.BytesIO(png)) as picture:
        picture.load()
        return np.array(picture.convert("RGB")).astype(int)


def share_of(picture, colour):
    return (np.abs(picture - colour).max(-1) < 12).mean()


SCORE = (194, 65, 12)
DICE = (76, 120, 168)


def test_a_plot_is_a_picture_of_a_fixed_size():
    """8 by 4.2 inches of 120 dots, whatever is drawn."""
    for records in (losses(), losses(1), [*losses(), validated(1600, 0.31), validated(3200, 0.42)]):
        assert pixels(records).shape == (504, 960, 3)


def test_a_plot_shows_something_on_white():
    picture = pixels(losses())
    white = (picture == 255).all(-1)
    assert 0.6 < white.mean() < 0.99


def test_scores_are_drawn_where_there_are_any():
    assert share_of(pixels(losses()), SCORE) == 0
    few, many = ([*losses(), *(validated(80 * i, 0.3) for i in range(1, count))] for count in (3, 30))
    assert 0 < share_of(pixels(few), SCORE) < share_of(pixels(many), SCORE)


def test_a_better_score_is_drawn_higher():
    def end(*scores):
        picture = pixels([*losses(), *(validated(800 * (i + 1), score) for i, score in enumerate(scores))])
        inside = np.abs(picture - SCORE).max(-1)[60:450, 100:850] < 12  # without the axis, whose text has its colour
        rows, columns = np.nonzero(inside)
        return rows[columns > np.quantile(columns, 0.9)].mean() - rows[columns < np.quantile(columns, 0.1)].mean()

    assert end(0.2, 0.3, 0.6) < 0 < end(0.6, 0.3, 0.2)  # rows count from the top


def test_records_of_another_kind_are_passed_over():
    others = [{"episodes": 5, "learning_rate": 0.1}, {"note": "resumed"}]
    assert np.array_equal(pixels([*others, *losses(), *others]), pixels(losses()))


@pytest.mark.parametrize("records", [[], [{"episodes": 3}], [validated(100, 0.5)]])
def test_without_a_loss_there_is_nothing_to_draw(records):
    assert draw_curves(records) is None


def test_without_matplotlib_nothing_is_drawn(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # what Python takes for: not there
    assert draw_curves(losses()) is None


def test_the_same_records_give_the_same_bytes():
    records = [*losses(), validated(1600, 0.31)]
    assert draw_curves(records) == draw_curves(records)


@pytest.mark.parametrize("count", [1, 2])
def test_a_very_short_run_is_seen(count):
    """A single point has no line, but a marker."""
    inside = pixels(losses(count))[60:440, 80:]
    assert share_of(inside, DICE) > 1e-4


def test_short_runs_are_smoothed_less():
    kept = [smoothness(count) for count in (0, 1, 5, 10, 20, 50, 1000)]
    assert kept[:3] == [0, 0, 0]
    assert kept == sorted(kept) and kept[-2:] == pytest.approx([0.9, 0.9])
    values = [1.0, 0.2, 0.4]
    assert smooth(values, smoothness(3)) == values


def test_a_constant_is_smooth_already():
    assert smooth([0.3] * 50) == pytest.approx([0.3] * 50)
    assert smooth([]) == []


def test_smoothing_is_the_mean_of_what_was_weighted_by_how_long_ago_it_was():
    values = np.random.default_rng(0).normal(size=30).tolist()
    for keep in (0.9, 0.5, 0.0):
        slow = []
        for end in range(1, 31):
            weights = [keep**age for age in reversed(range(end))]
            slow.append(sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights))
        assert smooth(values, keep) == pytest.approx(slow)


def test_a_smooth_curve_begins_where_the_values_do_and_varies_less():
    values = np.random.default_rng(1).normal(5, 1, 200).tolist()
    found = smooth(values)
    assert found[0] == values[0]
    assert np.std(found[20:]) < 0.5 * np.std(values[20:])
    assert min(values) <= min(found) and max(found) <= max(values)
