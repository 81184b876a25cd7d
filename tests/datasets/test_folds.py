from itertools import pairwise

import pytest

from cyctr.datasets import folds
from cyctr.datasets.dataset import Dataset, Fold
from cyctr.datasets.pascal import CLASSES
from cyctr.errors import DataError


def assert_partition(made, classes):
    """Every class is in the test of exactly one fold, and learned from in all others."""
    assert sorted(number for fold in made for number in fold.test) == list(range(classes))
    for fold in made:
        assert sorted(fold.train + fold.test) == list(range(classes)) and not fold.validation
        assert list(fold.test) == sorted(fold.test) and list(fold.train) == sorted(fold.train)


def test_fold_i_of_pascal_tests_five_classes_in_their_order():
    made = folds.contiguous(20)
    assert [fold.test for fold in made] == [tuple(range(5 * i, 5 * i + 5)) for i in range(4)]
    assert_partition(made, 20)
    assert [CLASSES[number] for number in made[1].test] == ["bus", "car", "cat", "chair", "cow"]


def test_fold_i_of_coco_tests_every_fourth_class_from_i_on():
    made = folds.interleaved(80)
    assert made[0].test[:3] == (0, 4, 8) and made[3].test[-1] == 79
    assert all(fold.test == tuple(n for n in range(80) if n % 4 == i) for i, fold in enumerate(made))
    assert_partition(made, 80)


def test_the_other_split_of_coco_tests_blocks_of_twenty():
    made = folds.contiguous(80)
    assert [(fold.test[0], fold.test[-1], len(fold.test)) for fold in made] == [
        (0, 19, 20),
        (20, 39, 20),
        (40, 59, 20),
        (60, 79, 20),
    ]
    assert_partition(made, 80)


@pytest.mark.parametrize(("classes", "count"), [(2, 2), (7, 3), (20, 4), (11, 11)])
def test_a_seed_deals_every_class_to_the_test_of_one_fold_evenly(classes, count):
    for seed in range(5):
        made = folds.seeded(classes, count, seed)
        assert_partition(made, classes)
        assert len(made) == count
        sizes = [len(fold.test) for fold in made]
        assert max(sizes) - min(sizes) <= 1


def test_the_same_seed_deals_the_same_folds_and_another_seed_others():
    dealt = [folds.seeded(12, 3, seed) for seed in range(20)]
    assert dealt == [folds.seeded(12, 3, seed) for seed in range(20)]
    assert len(set(dealt)) == 20


@pytest.mark.parametrize("count", [0, 1, 6])
def test_folds_that_cannot_be_dealt_are_refused(count):
    with pytest.raises(DataError, match=f"folds is {count} for 5 classes; expected 2 to 5"):
        folds.seeded(5, count, 0)


def test_named_classes_are_tested_in_the_dataset_s_order():
    assert folds.named(["cat", "dog", "cow", "owl"], ["owl", "dog"]) == (Fold(train=(0, 2), test=(1, 3)),)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(DataError, match="class 'cart' is not in the dataset; expected some of cat, dog"):
        folds.named(["cat", "dog"], ["cat", "cart"])


def test_everything_leaves_nothing_to_learn_from():
    assert folds.everything(3) == (Fold(train=(), test=(0, 1, 2)),)


def test_a_fold_tells_the_classes_of_each_side():
    fold = Fold(train=(0, 1), test=(4,), validation=(2, 3))
    assert [fold.classes(split) for split in ("train", "validation", "test")] == [(0, 1), (2, 3), (4,)]


@pytest.mark.parametrize("number", [-1, 4])
def test_a_fold_out_of_range_is_refused_with_the_range(number):
    dataset = Dataset("pascal", CLASSES, {}, folds.contiguous(20))
    with pytest.raises(DataError, match=f"fold is {number}; pascal has folds 0 to 3"):
        dataset.fold(number)


def test_validation_takes_the_training_images_unless_it_has_its_own():
    train, test, validation = object(), object(), object()
    dataset = Dataset("mine", ("cat",), {"train": train, "test": test}, ())
    assert [dataset.pool(split) for split in ("train", "validation", "test")] == [train, train, test]
    dataset = Dataset("mine", ("cat",), {"train": train, "test": test, "validation": validation}, ())
    assert dataset.pool("validation") is validation


@pytest.mark.parametrize("count", [1, 2, 7, 14])
def test_classes_that_are_held_out_are_some_of_those_to_learn_from(count):
    for fold in folds.contiguous(20):
        held = folds.hold_out(fold, count)
        assert len(held.validation) == count
        assert sorted(held.train + held.validation) == list(fold.train)
        assert held.test == fold.test
        assert list(held.train) == sorted(held.train) and list(held.validation) == sorted(held.validation)


def test_always_the_same_classes_are_held_out_and_more_of_them_hold_fewer():
    for fold in folds.interleaved(80):
        held = [folds.hold_out(fold, count) for count in range(60)]
        assert held == [folds.hold_out(fold, count) for count in range(60)]
        for fewer, more in pairwise(held):
            assert set(fewer.validation) < set(more.validation)


def test_the_classes_held_out_come_from_all_over_the_fold():
    """They are drawn, not the first ones of a list."""
    made = [folds.hold_out(fold, 5).validation for fold in folds.contiguous(20)]
    assert len({number for held in made for number in held}) > 10
    assert all(held != fold.train[:5] for held, fold in zip(made, folds.contiguous(20), strict=True))


def test_nothing_held_out_leaves_the_fold_as_it_was():
    assert folds.hold_out(Fold(train=(0, 3), test=(1,)), 0) == Fold(train=(0, 3), test=(1,))


@pytest.mark.parametrize("count", [-1, 3, 4])
def test_one_class_at_least_is_left_to_learn_from(count):
    message = f"training.hold_out is {count}; the fold has 3 training classes: expected 0 to 2"
    with pytest.raises(DataError, match=message):
        folds.hold_out(Fold(train=(0, 1, 2), test=(3,)), count)
