from dataclasses import replace

import numpy as np
import pytest
import torch
from measuring import NAMES, Album, album, dataset, ellipse
from miniature import voc_folder

from cyctr.datasets.dataset import Dataset
from cyctr.datasets.folds import everything
from cyctr.datasets.joined import ALL, JoinedPool, fold_to_learn, learn_from_everything
from cyctr.datasets.pascal import open_pascal
from cyctr.datasets.synthetic_pool import SyntheticPool, open_synthetic
from cyctr.episodes.image_store import open_store
from cyctr.episodes.sampler import Sampler
from cyctr.errors import ConfigError, DataError


class Named(Album):
    """An album whose images have names of their own."""

    def __init__(self, name, values):
        super().__init__(values)
        object.__setattr__(self, "keys", tuple(f"{name}-{i}" for i in range(len(values))))


def pools():
    """Three albums of different lengths, the second empty."""
    shapes = [(20 + i, 40 - i) for i in range(9)]
    values = [ellipse(shape, 1 + i % len(NAMES), i, rim=1) for i, shape in enumerate(shapes)]
    values[3][0, 0] = 4  # a second class in the same image
    return [Named("first", values[:5]), Named("none", []), Named("last", values[5:])]


def places(parts):
    """(pool, place in it) of each image, in order."""
    return [(part, i) for part in parts for i in range(len(part.keys))]


def test_the_keys_are_those_of_the_parts_one_after_the_other():
    assert JoinedPool(pools()).keys == (*(f"first-{i}" for i in range(5)), *(f"last-{i}" for i in range(4)))


def test_every_image_and_label_is_that_of_its_part():
    parts = pools()
    joined = JoinedPool(parts)
    for i, (part, place) in enumerate(places(parts)):
        assert joined.keys[i] == part.keys[place]
        assert np.array_equal(joined.image(i), part.image(place))
        for number in range(len(NAMES)):
            assert np.array_equal(joined.label(i, number), part.label(place, number))


def test_the_index_counts_what_the_labels_of_the_joined_images_show():
    parts = [part for part in pools() if part.keys]
    joined = JoinedPool(parts)
    index = joined.index()
    assert len(index) == len(joined.keys)
    assert index.sizes.tolist() == [list(joined.image(i).shape[:2]) for i in range(9)]
    found = dict(zip(zip(index.image.tolist(), index.number.tolist(), strict=True), index.pixels.tolist(), strict=True))
    counted = {
        (i, number): count
        for i in range(9)
        for number in range(len(NAMES))
        if (count := int((joined.label(i, number) == 1).sum()))
    }
    assert found == counted
    assert list(found) == sorted(found)  # images increasing, classes increasing within an image


def test_an_empty_part_changes_nothing():
    first, none, last = pools()
    assert JoinedPool([first, none, last]).index().digest == JoinedPool([first, last]).index().digest
    assert JoinedPool([none, first]).index().digest == first.index().digest


def test_progress_and_complaints_reach_every_part():
    told, complained = [], []

    class Complaining(Album):
        def index(self, progress=None, complain=None):
            progress(1, 1)
            complain("something")
            return super().index()

    parts = [Complaining(album().values), Complaining(album().values)]
    JoinedPool(parts).index(lambda *about: told.append(about), complained.append)
    assert told == [(1, 1)] * 2 and complained == ["something"] * 2


def split():
    """Different images to learn from and to test, of four classes in two folds."""
    first, _, last = pools()
    return Dataset("album", NAMES, {"train": first, "test": last}, dataset().folds, smallest=3)


def test_everything_is_learned_from_every_class_in_every_image_and_nothing_tested():
    given = split()
    every = learn_from_everything(given)
    (fold,) = every.folds
    assert (fold.train, fold.test, fold.validation) == ((0, 1, 2, 3), (), ())
    assert list(every.pools) == ["train"]
    assert every.pool("train").keys == (*given.pools["train"].keys, *given.pools["test"].keys)
    assert (every.name, every.classes, every.smallest) == ("album-all", NAMES, 3)
    assert len(given.folds) == 2  # as it was


def test_images_that_serve_both_sides_are_there_once():
    given = dataset()
    assert given.pools["train"] is given.pools["test"]
    assert learn_from_everything(given).pool("train") is given.pools["train"]


def test_a_dataset_without_a_training_list_gives_what_it_has():
    given = Dataset("album", NAMES, {"test": album()}, dataset().folds)
    assert learn_from_everything(given).pool("train").keys == album().keys


def test_episodes_of_everything_find_their_images_and_masks_across_the_parts():
    every = learn_from_everything(split())
    pool = every.pool("train")
    index = pool.index()
    sampler = Sampler(every, index, 0, "train", shots=1)
    assert {draw.category for draw in map(sampler, range(40))} == {0, 1, 2, 3}
    store = open_store(pool, index, sampler.pairs, torch.device("cpu"), resident=True)
    for draw, found in zip(
        map(sampler, range(40)),
        store.stream([(i, draw.category) for i in (draw.query, *draw.supports)] for draw in map(sampler, range(40))),
        strict=True,
    ):
        for place, i in enumerate((draw.query, *draw.supports)):
            height, width = found.sizes[place].tolist()
            assert np.array_equal(found.labels[place, :height, :width], pool.label(i, draw.category))


def test_nothing_is_left_to_test():
    every = learn_from_everything(split())
    with pytest.raises(DataError, match="album-all has no test images here"):
        every.pool("test")
    with pytest.raises(DataError, match="fold 0 of album-all has no test classes"):
        Sampler(every, every.pool("train").index(), 0, "test")


def test_all_of_pascal_is_its_training_and_its_test_list(tmp_path):
    given = open_pascal(voc_folder(tmp_path))
    every = learn_from_everything(given)
    assert every.pool("train").keys == (*given.pool("train").keys, *given.pool("test").keys)
    assert every.pool("train").index().image.tolist() == [0, 1]
    assert every.folds[0].train == tuple(range(20))


def test_the_fold_to_learn_from_is_the_one_asked_for_or_what_leaves_classes_to_learn_from():
    few = open_synthetic(SyntheticPool(8, 2, 33))
    assert fold_to_learn(few) == (few, 0)
    assert fold_to_learn(few, 2) == fold_to_learn(few, "2") == (few, 2)
    assert fold_to_learn(few, ALL)[0].fold(0).train == tuple(range(8))
    untaught = replace(few, folds=everything(8))
    assert fold_to_learn(untaught)[0].name == "synthetic-all"
    assert fold_to_learn(untaught, kept=True) == (untaught, 0)  # not those that somebody keeps for the test
    with pytest.raises(ConfigError, match="fold is 'two'; expected a number from 0 to 3, or all"):
        fold_to_learn(few, "two")
    with pytest.raises(DataError, match="fold is 4; synthetic has folds 0 to 3"):
        fold_to_learn(few, 4)
