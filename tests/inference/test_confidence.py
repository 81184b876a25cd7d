import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cyctr.backbones.weights import CATALOGUE
from cyctr.config import BackboneConfig
from cyctr.errors import DataError
from cyctr.inference import confidence as confidences
from cyctr.inference.confidence import CALIBRATIONS, UNKNOWN, Calibration, calibration_name


def resemblance(probability, similarity):
    maps = [torch.from_numpy(values)[None] for values in (probability, similarity)]
    return float(confidences.resemblance(*maps, torch.ones_like(maps[0], dtype=torch.bool)))


def confidence(probability, similarity, shots, calibration):
    return confidences.confidence(resemblance(probability, similarity), shots, calibration)


ANY = Calibration(bias=-4.0, slope=10.0, per_log_shot=-1.0)


def case(seed=0, size=(30, 40)):
    """An answer in a corner that is unlike the rest."""
    generator = np.random.default_rng(seed)
    probability = 0.3 * generator.random(size, np.float32)
    probability[:10, :10] = 0.7 + 0.3 * generator.random((10, 10), np.float32)
    similarity = generator.uniform(-0.2, 0.6, size).astype(np.float32)
    return probability, similarity


@pytest.mark.parametrize("calibration", [ANY, UNKNOWN, *CALIBRATIONS.values()])
def test_it_lies_between_zero_and_one_and_is_the_same_again(calibration):
    for seed in range(5):
        probability, similarity = case(seed)
        found = confidence(probability, similarity, 1, calibration)
        assert 0 < found < 1
        assert confidence(probability.copy(), similarity.copy(), 1, calibration) == found


@pytest.mark.parametrize("calibration", CALIBRATIONS.values(), ids=CALIBRATIONS)
def test_more_similarity_gives_more_confidence(calibration):
    probability, similarity = case()
    levels = [confidence(probability, similarity + more, 1, calibration) for more in (-0.2, 0.0, 0.1, 0.3)]
    assert levels == sorted(levels)
    assert levels[0] < levels[-1]


@pytest.mark.parametrize("calibration", CALIBRATIONS.values(), ids=CALIBRATIONS)
def test_something_unlike_the_support_is_probably_not_it_and_the_support_itself_is(calibration):
    for shots in (1, 5):
        probability, similarity = case()
        assert confidence(probability, np.zeros_like(similarity), shots, calibration) < 0.2
        assert confidence(probability, np.full_like(similarity, 0.7), shots, calibration) > 0.8


def test_similarity_outside_the_answer_does_not_count():
    probability, similarity = case()
    changed = similarity.copy()
    changed[15:] = 1.0
    assert resemblance(probability, changed) == resemblance(probability, similarity)


def test_raising_similarity_anywhere_never_lowers_the_confidence():
    probability, similarity = case()
    before = confidence(probability, similarity, 1, ANY)
    for seed in range(10):
        raised = similarity + np.random.default_rng(seed).random(similarity.shape, np.float32) ** 8
        assert confidence(probability, raised, 1, ANY) >= before


def test_of_a_clear_answer_the_mask_is_looked_at():
    probability, similarity = case()
    probability[0, 0] = 1.0
    assert resemblance(probability, similarity) == pytest.approx(np.quantile(similarity[probability > 0.5], 0.9))


def test_a_small_part_that_is_similar_is_enough_and_a_stray_pixel_is_not():
    probability, similarity = case()
    similarity[:] = 0
    similarity[0, 0] = 1
    assert resemblance(probability, similarity) < 0.1
    similarity[:2, :10] = 1
    assert resemblance(probability, similarity) == 1


@pytest.mark.parametrize("level", [0.0, 1e-30, 0.2, 1.0])
def test_flat_answers_look_at_the_whole_image(level):
    _, similarity = case()
    flat = np.full_like(similarity, level)
    assert resemblance(flat, similarity) == pytest.approx(np.quantile(similarity, 0.9))


def test_an_empty_mask_looks_where_the_network_came_closest():
    probability, similarity = case()
    assert resemblance(0.3 * probability, similarity) == resemblance(probability, similarity)


def test_one_pixel_is_enough():
    one = np.full((1, 1), 0.4, np.float32)
    assert resemblance(one, one) == pytest.approx(0.4)


def test_absurd_similarities_do_not_overflow():
    probability, similarity = case()
    assert confidence(probability, similarity - 1e6, 1, ANY) == 0
    assert confidence(probability, similarity + 1e6, 1, ANY) == 1


def test_shots_count_up_to_the_number_that_was_measured():
    probability, similarity = case()
    one, five, nine = (confidence(probability, similarity, shots, ANY) for shots in (1, 5, 9))
    assert five < one
    assert nine == five


@pytest.mark.parametrize(("probability", "similarity"), [((3, 4), (4, 3)), ((0, 4), (0, 4))])
def test_maps_that_do_not_fit_are_refused(probability, similarity):
    with pytest.raises(DataError, match="expected maps of one size"):
        resemblance(np.zeros(probability, np.float32), np.zeros(similarity, np.float32))


def test_several_answers_are_looked_at_as_each_alone_and_padding_is_not():
    sizes = [(30, 40), (40, 25), (1, 1), (40, 40)]
    cases = [case(seed, size) if min(size) > 10 else (np.full(size, 0.1, np.float32),) * 2 for seed, size in enumerate(sizes)]
    maps = torch.full((2, len(sizes), 40, 40), 0.999)  # the padding would win
    inside = torch.zeros(len(sizes), 40, 40, dtype=torch.bool)
    for number, (height, width) in enumerate(sizes):
        inside[number, :height, :width] = True
        maps[:, number, :height, :width] = torch.from_numpy(np.stack(cases[number]))
    together = confidences.resemblance(*maps, inside)
    assert together.tolist() == pytest.approx([resemblance(*one) for one in cases], abs=1e-6)


def test_answers_that_are_no_numbers_do_not_fail():
    maps = torch.full((2, 1, 9, 9), torch.nan)
    assert confidences.resemblance(*maps, torch.ones(1, 9, 9, dtype=torch.bool)).shape == (1,)


def test_no_shots_are_refused():
    with pytest.raises(DataError, match="shots is 0; expected at least 1"):
        confidence(*case(), 0, ANY)


def test_calibrations_are_of_known_weights():
    assert {name.removesuffix(", tuned") for name in CALIBRATIONS} <= CATALOGUE.keys()
    tuned = BackboneConfig("resnet50", "resnet50-keras", tuned=True)
    assert calibration_name(tuned) in CALIBRATIONS and calibration_name(replace(tuned, tuned=False)) in CALIBRATIONS


def test_the_numbers_are_those_that_were_measured():
    found = json.loads((Path(__file__).parents[2] / "results" / "confidence.json").read_text())
    assert {name: Calibration(**numbers) for name, numbers in found["fits"].items()} == CALIBRATIONS
