import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cyctr.datasets import folds
from cyctr.datasets.dataset import Dataset, Fold
from cyctr.datasets.index import Index, Survey
from cyctr.episodes.sampler import Draw, Sampler, eligible
from cyctr.errors import DataError

IMAGES, CLASSES, SMALLEST = 60, 8, 50
ORDERS = ("images", "shuffled", "pairs", "classes")


def surveys():
    """60 images with up to four of eight classes each, some of them small."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(IMAGES):
        held = random.choice(CLASSES, random.integers(0, 5), replace=False)
        made.append({int(number): int(random.integers(1, 200)) for number in held})
    return made


SURVEYS = surveys()
INDEX = Index.of(Survey((20, 20), held) for held in SURVEYS)
DATASET = Dataset("world", tuple(f"class-{n}" for n in range(CLASSES)), {}, folds.contiguous(CLASSES), SMALLEST)


def holders(number, smallest=SMALLEST):
    """The images of a class, from a slow loop."""
    return [i for i, held in enumerate(SURVEYS) if held.get(number, 0) >= smallest]


def draws(count=200, **settings):
    sampler = Sampler(DATASET, INDEX, **settings)
    return [sampler(number) for number in range(count)]


def test_the_world_has_what_the_tests_need():
    assert all(6 <= len(holders(number)) < len(holders(number, 1)) for number in range(CLASSES))
    assert any(not held for held in SURVEYS)


@pytest.mark.parametrize("order", ORDERS)
def test_an_episode_is_the_same_in_any_order_and_after_making_the_sampler_anew(order):
    settings = {"fold": 1, "shots": 3, "seed": 7, "order": order}
    forward = draws(150, **settings)
    sampler = Sampler(DATASET, INDEX, **settings)
    backward = [sampler(number) for number in reversed(range(150))]
    assert backward[::-1] == forward
    assert [Sampler(DATASET, INDEX, **settings)(number) for number in (149, 3, 77)] == [forward[n] for n in (149, 3, 77)]
    assert [draw.number for draw in forward] == list(range(150))


@pytest.mark.parametrize("order", ORDERS)
def test_an_episode_is_the_same_in_threads(order):
    sampler = Sampler(DATASET, INDEX, split="train", shots=2, order=order)
    with ThreadPoolExecutor(8) as workers:
        found = list(workers.map(sampler, range(2000)))
    assert found == draws(2000, split="train", shots=2, order=order)


def printed():
    return repr([draws(40, fold=2, shots=2, seed=5, order=order) for order in ORDERS])


def test_an_episode_is_the_same_in_another_process():
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_sampler; print(test_sampler.printed())"
    environment = os.environ | {"PYTHONHASHSEED": "123"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.strip() == printed()


def test_everything_that_names_an_episode_changes_it():
    base = {"fold": 0, "split": "train", "shots": 2, "seed": 0}
    first = draws(60, **base)
    for change in ({"fold": 1}, {"split": "test"}, {"seed": 1}):
        assert draws(60, **(base | change)) != first
    renamed = Sampler(Dataset("other", DATASET.classes, {}, DATASET.folds, SMALLEST), INDEX, **base)
    assert [renamed(number) for number in range(60)] != first
    neighbours = [draw.supports for draw in first]
    assert len(set(neighbours)) > 50


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("shots", [1, 5])
def test_supports_are_other_images_of_the_class_on_the_right_side_of_the_fold(order, split, shots):
    for fold in range(4):
        allowed = DATASET.folds[fold].classes(split)
        for draw in draws(100, fold=fold, split=split, shots=shots, order=order):
            assert draw.category in allowed
            assert draw.query not in draw.supports
            assert len(set(draw.supports)) == len(draw.supports) == shots
            assert all(SURVEYS[image].get(draw.category, 0) >= SMALLEST for image in (draw.query, *draw.supports))


@pytest.mark.parametrize("order", ORDERS)
def test_the_supports_of_fewer_shots_are_the_first_of_more(order):
    one, three, five = (draws(shots=shots, order=order, split="train") for shots in (1, 3, 5))
    for few, some, many in zip(one, three, five, strict=True):
        assert (few.query, few.category) == (some.query, some.category) == (many.query, many.category)
        assert few.supports == many.supports[:1] and some.supports == many.supports[:3]


def test_queries_walk_the_list_in_order_and_begin_again():
    wanted = [i for i in range(IMAGES) if any(SURVEYS[i].get(number, 0) >= SMALLEST for number in (0, 1))]
    found = draws(3 * len(wanted))
    assert [draw.query for draw in found] == wanted * 3
    rounds = {
        tuple(draw.supports for draw in found[start : start + len(wanted)]) for start in range(0, len(found), len(wanted))
    }
    assert len(rounds) == 3


def test_the_class_is_uniform_among_those_of_the_image():
    sampler = Sampler(DATASET, INDEX, split="train")
    wanted = [i for i in range(IMAGES) if any(held >= SMALLEST and n > 1 for n, held in SURVEYS[i].items())]
    place, image = next(
        (p, i) for p, i in enumerate(wanted) if sum(n > 1 and c >= SMALLEST for n, c in SURVEYS[i].items()) == 3
    )
    found = Counter(sampler(place + lap * len(wanted)).category for lap in range(3000))
    assert set(found) == {n for n, count in SURVEYS[image].items() if n > 1 and count >= SMALLEST}
    assert all(abs(times - 1000) < 4 * 1000**0.5 for times in found.values())


def test_every_other_image_of_the_class_is_equally_likely_a_support_at_every_place():
    sampler = Sampler(DATASET, INDEX, shots=2, order="pairs")
    image, number = sampler.pairs[0]
    others = [i for i in holders(number) if i != image]
    found = [sampler(lap * len(sampler.pairs)).supports for lap in range(300 * len(others))]
    for place in range(2):
        times = Counter(supports[place] for supports in found)
        assert set(times) == set(others)
        assert all(abs(count - 300) < 4 * 300**0.5 for count in times.values())


def test_a_shuffled_order_visits_every_image_once_a_round_and_each_round_in_another_order():
    walked = draws(10**4, order="images", split="train")
    images = list(dict.fromkeys(draw.query for draw in walked))
    found = [draw.query for draw in draws(8 * len(images), order="shuffled", split="train")]
    rounds = [tuple(found[start : start + len(images)]) for start in range(0, len(found), len(images))]
    assert all(sorted(one) == images for one in rounds)
    assert len({*rounds, tuple(images)}) == 9
    other = [draw.query for draw in draws(len(images), order="shuffled", split="train", seed=1)]
    assert tuple(other) not in rounds


def test_pairs_visit_every_image_and_class_in_list_order():
    wanted = [(i, n) for i in range(IMAGES) for n in (0, 1) if SURVEYS[i].get(n, 0) >= SMALLEST]
    assert [(draw.query, draw.category) for draw in draws(2 * len(wanted), order="pairs")] == wanted * 2


def test_classes_are_exactly_balanced_and_their_queries_uniform():
    found = draws(6 * 400, split="train", order="classes")
    for start in range(0, len(found), 6):
        assert {draw.category for draw in found[start : start + 6]} == set(range(2, 8))
    orders = {tuple(draw.category for draw in found[start : start + 6]) for start in range(0, len(found), 6)}
    assert len(orders) > 200
    times = Counter(draw.query for draw in found if draw.category == 5)
    expected = 400 / len(holders(5))
    assert set(times) == set(holders(5))
    assert all(abs(count - expected) < 4.5 * expected**0.5 for count in times.values())


def test_the_least_number_of_pixels_can_be_chosen():
    everything = draws(500, smallest=1, order="pairs")
    assert {(d.query, d.category) for d in everything} == {(i, n) for n in (0, 1) for i in holders(n, 1)}
    large = draws(500, smallest=120, order="pairs")
    assert {(d.query, d.category) for d in large} == {(i, n) for n in (0, 1) for i in holders(n, 120)}
    assert len({d.query for d in large}) < len({d.query for d in everything})


def test_dropping_novel_classes_leaves_out_every_training_image_with_a_single_pixel_of_them():
    novel = {i for i, held in enumerate(SURVEYS) if held.keys() & {0, 1}}
    assert any(0 < SURVEYS[i].get(0, 0) < SMALLEST for i in novel)
    used = {i for draw in draws(600, split="train", shots=2, drop_novel=True) for i in (draw.query, *draw.supports)}
    assert used and not used & novel
    kept = {i for draw in draws(600, split="train", shots=2) for i in (draw.query, *draw.supports)}
    assert kept & novel
    images, numbers = eligible(DATASET, INDEX, 0, "train", drop_novel=True)
    wanted = [(i, n) for i in range(IMAGES) for n in range(2, 8) if i not in novel and SURVEYS[i].get(n, 0) >= SMALLEST]
    assert list(zip(images.tolist(), numbers.tolist(), strict=True)) == wanted


def test_dropping_novel_classes_leaves_the_test_alone():
    assert draws(100, drop_novel=True) == draws(100)


def test_validation_has_its_own_classes_and_may_drop_novel_ones():
    dataset = Dataset("held", DATASET.classes, {}, (Fold(train=(4, 5, 6, 7), test=(0, 1), validation=(2, 3)),), SMALLEST)
    sampler = Sampler(dataset, INDEX, split="validation", order="pairs")
    assert {sampler(number).category for number in range(100)} == {2, 3}
    strict = Sampler(dataset, INDEX, split="validation", order="pairs", drop_novel=True)
    assert not any(SURVEYS[strict(number).query].keys() & {0, 1} for number in range(100))


def test_the_smallest_class_that_can_be_drawn_has_one_image_more_than_shots():
    index = Index.of([Survey((9, 9), {0: 5})] * 3)
    dataset = Dataset("three", ("cat",), {}, folds.everything(1))
    sampler = Sampler(dataset, index, shots=2)
    found = {sampler(number) for number in range(40)}
    assert {draw.query for draw in found} == {0, 1, 2}
    assert all({draw.query, *draw.supports} == {0, 1, 2} for draw in found)
    assert Draw(1, 0, 1, sampler(1).supports) == sampler(1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"shots": 3},
            r"class 'rare' has 2 images with at least 10 pixels of it in the test split of few; "
            r"a 3-shot episode needs 4: add images, or ask for less; `cyctr data check` says what each class has",
        ),
        ({"shots": 3, "smallest": 1}, r"class 'rare' has 3 images in the test split of few; a 3-shot episode needs 4"),
        ({"smallest": 30}, r"class 'rare' has 1 image with at least 30 pixels .* 1-shot episode needs 2"),
        ({"smallest": 99}, r"class 'rare' has 0 images with at least 99 pixels"),
        ({"shots": 0}, r"shots is 0; expected at least 1"),
        ({"shots": -2}, r"shots is -2; expected at least 1"),
        ({"fold": 2}, r"fold is 2; few has folds 0 to 1"),
        ({"fold": -1}, r"fold is -1; few has folds 0 to 1"),
        (
            {"fold": 1, "split": "train"},
            r"no train classes; name only some .* for the test, and leave the others to learn from",
        ),
        ({"split": "validation"}, r"fold 0 of few has no validation classes; choose another split"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_numbers(settings, words):
    index = Index.of(Survey((9, 9), held) for held in ({0: 90, 1: 40}, {0: 90, 1: 20}, {0: 90, 1: 5}, {0: 90}))
    both = (Fold(train=(0,), test=(1,)), Fold(train=(), test=(0, 1)))
    dataset = Dataset("few", ("common", "rare"), {}, both, smallest=10)
    with pytest.raises(DataError, match=words) as caught:
        Sampler(dataset, index, **settings)
    assert "\n" not in str(caught.value)


def test_a_class_that_dropping_novel_ones_empties_is_named():
    index = Index.of(Survey((9, 9), held) for held in ({0: 9, 1: 1}, {0: 9}, {0: 9, 1: 1}, {1: 9}, {1: 9}))
    dataset = Dataset("beside", ("base", "novel"), {}, (Fold(train=(0,), test=(1,)),))
    assert Sampler(dataset, index, split="train").holders == {0: [0, 1, 2]}
    with pytest.raises(DataError, match="class 'base' has 1 image in the train split of beside; a 1-shot episode needs 2"):
        Sampler(dataset, index, split="train", drop_novel=True)
