from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cyctr.datasets.synthetic_pool import SyntheticPool, open_synthetic
from cyctr.episodes.sampler import Sampler

POOL = SyntheticPool(classes=8, each=3, size=33, seed=2)


def test_a_pool_has_so_many_images_of_each_class_each_with_its_name():
    assert len(POOL.keys) == len(set(POOL.keys)) == 24
    assert POOL.keys[:4] == ("000/0", "000/1", "000/2", "001/0")
    assert POOL.image(5).shape == (33, 33, 3) and POOL.image(5).dtype == np.uint8


def test_an_image_shows_its_own_class_and_no_other():
    for i in range(24):
        for number in range(8):
            label = POOL.label(i, number)
            assert label.shape == (33, 33) and label.dtype == np.uint8
            assert set(np.unique(label)) <= {0, 1}
            assert label.any() == (number == i // 3)


def test_the_index_equals_a_slow_count():
    index = POOL.index()
    rows = [(i, i // 3, sum(map(bool, POOL.label(i, i // 3).ravel().tolist()))) for i in range(24)]
    assert list(zip(index.image.tolist(), index.number.tolist(), index.pixels.tolist(), strict=True)) == rows
    assert index.sizes.tolist() == [[33, 33]] * 24


def test_an_image_is_a_function_of_its_place_and_the_seed_alone():
    fresh = SyntheticPool(classes=8, each=3, size=33, seed=2)
    with ThreadPoolExecutor(4) as workers:
        images = list(workers.map(fresh.image, reversed(range(24))))[::-1]
    assert all(np.array_equal(image, POOL.image(i)) for i, image in enumerate(images))
    other = SyntheticPool(classes=8, each=3, size=33, seed=3)
    assert not any(np.array_equal(image, other.image(i)) for i, image in enumerate(images))
    assert len({image.tobytes() for image in images}) == 24


def test_more_images_of_a_class_leave_the_others_as_they_were():
    more = SyntheticPool(classes=9, each=5, size=33, seed=2)
    assert np.array_equal(more.image(5 * 4 + 2), POOL.image(3 * 4 + 2))


def test_what_is_forgotten_is_drawn_again_the_same():
    first = POOL.image(0).copy()
    many = SyntheticPool(classes=30, each=10, size=9)
    for i in range(300):
        many.image(i)
    assert np.array_equal(POOL.image(0), first)


def test_the_dataset_has_four_folds_of_named_classes():
    dataset = open_synthetic(POOL)
    assert dataset.name == "synthetic" and dataset.classes[3] == "texture-003" and len(dataset.classes) == 8
    assert [fold.test for fold in dataset.folds] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert len(open_synthetic().pool("test").keys) == 400


@pytest.mark.parametrize("split", ["train", "test"])
def test_episodes_can_be_drawn_from_it(split):
    dataset = open_synthetic(POOL)
    sampler = Sampler(dataset, dataset.pool(split).index(), 1, split, shots=2)
    for number in range(30):
        draw = sampler(number)
        assert (draw.category in (2, 3)) == (split == "test")
        assert {i // 3 for i in (draw.query, *draw.supports)} == {draw.category}


def test_training_and_test_of_a_fold_share_no_image():
    dataset = open_synthetic(POOL)
    index = POOL.index()
    seen = {}
    for split in ("train", "test"):
        sampler = Sampler(dataset, index, 0, split)
        seen[split] = {i for number in range(100) for i in (sampler(number).query, *sampler(number).supports)}
    assert len(seen["train"]) == 18 and len(seen["test"]) == 6 and not seen["train"] & seen["test"]
