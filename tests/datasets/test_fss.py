import numpy as np
import pytest
from miniature import box, fss_folder, picture, state, write
from PIL import Image

from cyctr.datasets import fss
from cyctr.datasets.fss import open_fss, published_test_classes, read_soft_mask
from cyctr.errors import DataError


@pytest.fixture
def root(tmp_path):
    return fss_folder(tmp_path / "fss")


@pytest.fixture
def whole(tmp_path):
    """A thousand classes by name, the published ones among them."""
    names = published_test_classes() + [f"other_{i}" for i in range(760)]
    for name in names:
        folder = tmp_path / "fss" / name
        folder.mkdir(parents=True)
        (folder / "1.jpg").touch()
        (folder / "1.png").touch()
    return tmp_path / "fss"


def names(dataset, split):
    return [dataset.classes[number] for number in dataset.fold(0).classes(split)]


def test_the_published_list_has_240_different_names_in_the_order_of_the_authors():
    listed = published_test_classes()
    assert len(listed) == len(set(listed)) == 240
    assert (listed[0], listed[4], listed[-1]) == ("bus", "abe's_flyingfish", "tower_pisa")


def test_the_whole_dataset_has_520_classes_to_train_240_to_validate_and_the_240_published_to_test(whole):
    dataset = open_fss(whole)
    (fold,) = dataset.folds
    assert (len(fold.train), len(fold.validation), len(fold.test)) == (520, 240, 240)
    assert sorted(fold.train + fold.validation + fold.test) == list(range(1000))
    assert sorted(names(dataset, "test")) == sorted(published_test_classes())


def test_the_division_into_training_and_validation_is_always_the_same(whole):
    fold = open_fss(whole).fold(0)
    assert open_fss(whole).fold(0) == fold
    assert fold.validation != tuple(sorted(fold.train + fold.validation))[:240]  # drawn, not cut off


def test_fewer_classes_are_divided_in_the_same_proportion(tmp_path):
    dataset = open_fss(fss_folder(tmp_path, classes=22, images=1, test=3))
    assert [len(names(dataset, split)) for split in ("train", "validation", "test")] == [13, 6, 3]


def test_images_are_in_the_order_of_class_and_number(tmp_path):
    dataset = open_fss(fss_folder(tmp_path, classes=2, images=11, test=1))
    expected = [f"thing_{number:02d}/{i}" for number in range(2) for i in range(1, 12)]
    assert list(dataset.pool("train").keys) == expected
    assert dataset.pool("train") is dataset.pool("validation") is dataset.pool("test")


def test_every_image_marks_its_own_class(root):
    dataset = open_fss(root)
    pool = dataset.pool("test")
    index = pool.index()
    for i, key in enumerate(pool.keys):
        number, shot = int(key[6:8]), int(key[9:])
        np.testing.assert_array_equal(pool.label(i, number), box((0, 0, number + 1, shot)))
        assert not pool.label(i, (number + 1) % 10).any()
        assert pool.image(i).shape == (12, 16, 3)
        assert (index.image[i], index.number[i], index.pixels[i]) == (i, number, (number + 1) * shot)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_soft_edges_belong_to_the_object_from_the_middle_on(tmp_path, mode):
    path = write(tmp_path / "1.png", [[0, 1, 127, 128, 200, 255]], mode)
    assert read_soft_mask(path).tolist() == [[0, 0, 0, 1, 1, 1]]


def test_a_coloured_mask_counts_by_its_brightness(tmp_path):
    path = picture(tmp_path / "1.png", (64, 64))
    np.testing.assert_array_equal(read_soft_mask(path), np.array(Image.open(path).convert("L")) >= 128)


def test_the_brightness_of_every_grey_is_itself(tmp_path):
    path = write(tmp_path / "1.png", [range(256)], "RGB")
    assert read_soft_mask(path).tolist() == [[int(value >= 128) for value in range(256)]]


@pytest.mark.parametrize("inner", ["fewshot_data", "fewshot_data/fewshot_data"])
@pytest.mark.parametrize("place", [".", "..", "fewshot_data"])
def test_the_folder_of_the_archive_and_a_list_in_it_or_beside_it_are_found(tmp_path, inner, place):
    root = tmp_path / "data"
    fss_folder(root / inner, test=0)
    (root / place / "fss_test_set.txt").write_text("thing_03\n")
    dataset = open_fss(root)
    assert len(dataset.classes) == 10 and names(dataset, "test") == ["thing_03"]


def test_the_users_list_has_precedence_over_the_published_one(whole):
    (whole / "fss_test_set.txt").write_text("bus\nother_7\n")
    dataset = open_fss(whole)
    assert names(dataset, "test") == ["bus", "other_7"]
    assert len(dataset.fold(0).validation) == round(998 * 240 / 760)


def test_signs_and_capitals_in_a_name_do_not_matter(whole):
    (whole / "abe's_flyingfish").rename(whole / "Abes-flyingfish")
    assert "Abes-flyingfish" in names(open_fss(whole), "test")


def test_test_classes_missing_on_disk_are_named_with_what_they_may_be_called(whole):
    (whole / "peregine_falcon").rename(whole / "peregrine_falcon")
    with pytest.raises(
        DataError, match=r"lacks 1 of the 240 test classes in the published list \(peregine_falcon: do you call it "
    ):
        open_fss(whole)
    problems = []
    dataset = open_fss(whole, problems.append)
    assert len(problems) == 1 and "peregrine_falcon?" in problems[0]
    assert len(names(dataset, "test")) == 239


def test_many_missing_test_classes_are_one_problem(tmp_path):
    fss_folder(tmp_path, test=0)
    with pytest.raises(
        DataError, match=r"lacks 240 of the 240 .*\(bus, .*, \.\.\.\); add or rename the folders, or list"
    ) as caught:
        open_fss(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_empty_list_is_refused(root):
    (root / "fss_test_set.txt").write_text("\n")
    with pytest.raises(DataError, match=r"fss_test_set.txt: names no class"):
        open_fss(root)


def test_a_folder_without_classes_is_refused(tmp_path):
    (tmp_path / "fss").mkdir()
    with pytest.raises(DataError, match=r"holds no class of FSS-1000; expected folders CLASS with 1.jpg, 1.png"):
        open_fss(tmp_path / "fss")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "thing_01" / "2.png").unlink(), r"thing_01/2.jpg: has no mask; expected 2.png beside it"),
        (lambda root: (root / "thing_01" / "2.jpg").unlink(), r"thing_01/2.png: belongs to no image; expected 2.jpg beside it"),
        (lambda root: (root / "empty").mkdir(), r"empty: holds no images; expected 1.jpg, 1.png, 2.jpg"),
        (lambda root: picture(root / "thing_01" / "2.jpg", (9, 9)), r"2.png: mask is 12 x 16, image 2.jpg is 9 x 9"),
        (lambda root: (root / "thing_01" / "2.png").write_bytes(b"x"), r"thing_01/2.png: is not a JPEG, PNG"),
    ],
)
def test_each_problem_is_told_in_one_line_and_the_rest_is_used(root, spoil, message):
    spoil(root)
    with pytest.raises(DataError, match=message) as caught:
        open_fss(root).pool("test").index()
    assert "\n" not in str(caught.value)
    problems = []
    dataset = open_fss(root, problems.append)
    index = dataset.pool("test").index(complain=problems.append)
    assert problems == [str(caught.value)]
    assert len(dataset.classes) == 10 and len(index.image) in (19, 20)


def test_the_index_is_kept_until_a_mask_changes(root, monkeypatch):
    first = open_fss(root).pool("test").index()
    with monkeypatch.context() as patch:
        patch.setattr(fss, "read_image", lambda path: pytest.fail("a mask was read again"))
        assert open_fss(root).pool("test").index().digest == first.digest
    write(root / "thing_00" / "1.png", box((0, 0, 5, 5), 255), "RGB")
    assert open_fss(root).pool("test").index().pixels[0] == 25


def test_the_folder_stays_as_it_was(root):
    before = state(root)
    open_fss(root).pool("test").index()
    assert state(root) == before
