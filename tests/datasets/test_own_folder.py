import dataclasses
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from miniature import (
    CLASSES,
    OBJECTS,
    SIZE,
    box,
    class_mask_folder,
    coco_folder,
    labelled,
    labelled_folder,
    picture,
    pictures,
    state,
    write,
)
from PIL import Image

from cyctr.datasets import pools
from cyctr.datasets.own_folder import open_folder, read_class_mask
from cyctr.errors import ConfigError, DataError
from cyctr.images.imaging import read_values

LAYOUTS = {"class masks": class_mask_folder, "labelled masks": labelled_folder, "coco": coco_folder}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "mine"


@pytest.fixture(params=LAYOUTS)
def any_layout(request, root):
    return LAYOUTS[request.param](root)


def pairs(index):
    return list(zip(index.image.tolist(), index.number.tolist(), index.pixels.tolist(), strict=True))


def problems_of(root, **options):
    problems = []
    dataset = open_folder(root, complain=problems.append, **options)
    dataset.pool("test").index(complain=problems.append)
    return problems


def test_every_layout_gives_the_same_keys_classes_index_and_labels(any_layout):
    dataset = open_folder(any_layout)
    pool = dataset.pool("test")
    index = pool.index()
    assert dataset.classes == CLASSES and tuple(pool.keys) == tuple(OBJECTS)
    assert index.sizes.tolist() == [list(SIZE)] * len(OBJECTS)
    expected = []
    for i, (stem, objects) in enumerate(OBJECTS.items()):
        for number, name in enumerate(CLASSES):
            wanted = labelled(stem) == number + 1
            np.testing.assert_array_equal(pool.label(i, number), wanted)
            expected += [(i, number, int(wanted.sum()))] if name in objects else []
    assert pairs(index) == expected


def test_every_layout_gives_the_pixels_of_its_images(any_layout):
    pool = open_folder(any_layout).pool("train")
    for i, key in enumerate(pool.keys):
        np.testing.assert_array_equal(pool.image(i), np.array(Image.open(any_layout / "images" / f"{key}.png")))


def test_every_layout_can_be_read_from_many_threads(any_layout):
    pool = open_folder(any_layout).pool("test")
    with ThreadPoolExecutor(8) as workers:
        sums = list(workers.map(lambda i: int(pool.label(i % 4, 0).sum()), range(64)))
    assert sums == [int(pool.label(i % 4, 0).sum()) for i in range(64)]


def test_every_layout_leaves_the_folder_as_it_was(any_layout):
    before = state(any_layout)
    open_folder(any_layout).pool("test").index()
    assert state(any_layout) == before


def test_images_may_lie_in_the_folder_itself(any_layout):
    before = pairs(open_folder(any_layout).pool("test").index())
    for path in (any_layout / "images").iterdir():
        path.rename(any_layout / path.name)
    (any_layout / "images").rmdir()
    assert pairs(open_folder(any_layout).pool("test").index()) == before


@pytest.mark.parametrize("name", ["_annotations.coco.json", "annotations/instances_default.json"])
def test_a_single_json_is_taken_whatever_its_name(root, name):
    dataset = open_folder(coco_folder(root, name))
    assert dataset.classes == CLASSES and len(dataset.pool("test").keys) == 4


def test_two_json_files_are_one_too_many(root):
    coco_folder(root, "train.json")
    (root / "val.json").write_text("{}")
    with pytest.raises(DataError, match=r"holds train.json and val.json; expected one: call the right one annotations.json"):
        open_folder(root)


def test_other_json_beside_masks_does_not_matter(root):
    class_mask_folder(root)
    (root / "report.json").write_text("{}")
    assert open_folder(root).classes == CLASSES


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (class_mask_folder, coco_folder, "masks/CLASS/ and annotations.json"),
        (labelled_folder, coco_folder, r"masks/STEM.png and annotations.json"),
        (class_mask_folder, labelled_folder, r"masks/CLASS/ and masks/STEM.png"),
    ],
)
def test_two_layouts_at_once_are_refused_in_one_line_that_shows_them(root, first, second, named):
    first(root)
    second(root)
    with pytest.raises(DataError, match=rf"holds {named}; expected images/STEM.jpg and one of .*: keep one$") as caught:
        open_folder(root)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("made", [pictures, lambda folder: (folder.parent / "masks").mkdir(parents=True)])
def test_no_layout_is_refused_in_one_line_that_shows_them(root, made):
    made(root / "images")
    with pytest.raises(
        DataError, match=r"holds no masks; expected images/STEM.jpg and one of masks/CLASS/STEM.png .*: add one"
    ):
        open_folder(root)


def test_a_missing_folder_is_named(root):
    with pytest.raises(DataError, match=r"mine: no such folder; expected images/STEM.jpg"):
        open_folder(root)


def test_no_images_at_all_is_an_error(root):
    write(root / "masks" / "cat" / "a.png", box((0, 0, 1, 1)))
    with pytest.raises(DataError, match="holds no images"):
        open_folder(root)


def test_images_and_masks_without_a_common_name_are_an_error(root):
    picture(root / "images" / "a.png")
    write(root / "masks" / "cat" / "a_mask.png", box((0, 0, 1, 1)))
    with pytest.raises(DataError, match=r"no image has a mask; .*: image and mask of the same name"):
        problems_of(root)


def test_without_a_choice_one_fold_tests_every_class(root):
    (fold,) = open_folder(class_mask_folder(root)).folds
    assert (fold.train, fold.test) == ((), (0, 1))


def test_named_classes_are_the_test(root):
    (fold,) = open_folder(class_mask_folder(root), test_classes=["cat"]).folds
    assert (fold.train, fold.test) == ((1,), (0,))


def test_folds_test_each_class_once_and_depend_on_the_seed_alone(root):
    class_mask_folder(root)
    for name in ("elk", "fox", "gnu", "hen"):
        write(root / "masks" / name / "a.png", box((0, 0, 1, 1)))
    folds = open_folder(root, folds=3, split_seed=1).folds
    assert sorted(number for fold in folds for number in fold.test) == list(range(6))
    assert open_folder(root, folds=3, split_seed=1).folds == folds
    assert any(open_folder(root, folds=3, split_seed=seed).folds != folds for seed in range(2, 6))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"test_classes": ["cow"]}, DataError, "class 'cow' is not in the dataset; expected some of cat, dog"),
        ({"folds": 3}, DataError, "folds is 3 for 2 classes"),
        ({"folds": 2, "test_classes": ["cat"]}, ConfigError, "test_classes are named, and folds is 2"),
        ({"test_classes": []}, ConfigError, "test_classes is empty"),
    ],
)
def test_an_impossible_split_is_refused(root, options, error, message):
    class_mask_folder(root)
    with pytest.raises(error, match=message):
        open_folder(root, **options)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0, 1, 1, 0]], [[0, 1, 1, 0]]),
        ([[0, 0, 0, 0]], [[0, 0, 0, 0]]),
        ([[1, 1, 1, 1]], [[1, 1, 1, 1]]),
        ([[0, 1, 255, 0]], [[0, 1, 255, 0]]),
        ([[1, 255, 255, 1]], [[1, 255, 255, 1]]),
        ([[0, 255, 255, 0]], [[0, 1, 1, 0]]),
        ([[255, 255, 255, 255]], [[1, 1, 1, 1]]),
        ([[0, 127, 128, 255]], [[0, 0, 1, 1]]),
        ([[0, 1, 200, 255]], [[0, 0, 1, 1]]),
        ([[0, 2]], [[0, 1]]),
        ([[0, 200, 0]], [[0, 1, 0]]),
        ([[0, 0, 0]], [[0, 0, 0]]),
    ],
)
def test_the_mask_of_a_class_is_read_by_the_values_it_holds(tmp_path, values, expected):
    label = read_class_mask(write(tmp_path / "mask.png", values))
    assert label.dtype == np.uint8 and label.tolist() == expected


def test_a_mask_of_255_with_a_stray_1_is_not_taken_for_an_ignored_image(tmp_path):
    values = box((0, 0, 9, 9), 255)
    values[11, 11] = 1
    path = write(tmp_path / "mask.png", values)
    with pytest.raises(DataError, match=r"81 pixels of 255 \(ignored\) and 1 of 1 \(the class\); if 255 is"):
        read_class_mask(path)


@pytest.mark.parametrize("values", [[[0, 1, 7]], [[0, 2, 3]], [[0, 1, 254]]])
def test_the_mask_of_a_class_with_other_values_is_refused(tmp_path, values):
    path = write(tmp_path / "mask.png", values)
    with pytest.raises(DataError, match=rf"holds the values {values[0][1]} and {values[0][2]}; expected one for the class"):
        read_class_mask(path)


@pytest.mark.parametrize("mode", ["1", "L", "RGB"])
def test_black_and_white_masks_of_a_class_mean_the_same_in_every_format(tmp_path, mode):
    path = write(tmp_path / "mask.png", [[0, 255, 255]], mode)
    assert read_class_mask(path).tolist() == [[0, 1, 1]]


def test_ignored_pixels_of_a_class_do_not_count_for_it(root):
    picture(root / "images" / "a.png")
    values = box((0, 0, 2, 2)) + box((5, 5, 8, 8), 255)
    write(root / "masks" / "cat" / "a.png", values)
    pool = open_folder(root).pool("test")
    np.testing.assert_array_equal(pool.label(0, 0), values)
    assert pairs(pool.index()) == [(0, 0, 4)]


def test_a_class_may_overlap_another_in_its_own_mask(root):
    picture(root / "images" / "a.png")
    write(root / "masks" / "cat" / "a.png", box((0, 0, 4, 4)))
    write(root / "masks" / "dog" / "a.png", box((2, 2, 6, 6), 255))
    pool = open_folder(root).pool("test")
    assert pairs(pool.index()) == [(0, 0, 16), (0, 1, 16)]
    assert pool.label(0, 0)[3, 3] == pool.label(0, 1)[3, 3] == 1


def test_an_empty_mask_is_no_occurrence_of_the_class(root):
    class_mask_folder(root)
    write(root / "masks" / "dog" / "a.png", box((0, 0, 0, 0)))
    assert pairs(open_folder(root).pool("test").index())[:2] == [(0, 0, 20), (1, 0, 9)]


def test_hidden_files_and_folders_are_passed_over(root):
    class_mask_folder(root)
    (root / "masks" / ".ipynb_checkpoints").mkdir()
    (root / "masks" / "__MACOSX").mkdir()
    (root / "masks" / "cat" / "._a.png").write_bytes(b"x")
    (root / "images" / ".DS_Store").write_bytes(b"x")
    assert open_folder(root).classes == CLASSES


def test_values_are_classes_by_their_number_without_a_list_of_names(root):
    labelled_folder(root, names=False)
    write(root / "masks" / "a.png", box((0, 0, 2, 2), 7) + box((4, 4, 6, 6), 255))
    dataset = open_folder(root)
    pool = dataset.pool("test")
    assert dataset.classes == ("1", "2", "7")
    assert pairs(pool.index())[0] == (0, 2, 4)
    assert pool.label(0, 2)[0, 0] == 1 and pool.label(0, 2)[4, 4] == 255 and pool.label(1, 1)[4, 4] == 1


def test_classes_by_their_number_have_the_same_index_as_named_ones(root):
    named = open_folder(labelled_folder(root)).pool("test").index()
    (root / "classes.txt").unlink()
    numbered = open_folder(root).pool("test")
    assert numbered.index().digest == named.digest
    assert dataclasses.replace(numbered, known=None).index().digest == named.digest


@pytest.mark.parametrize("names", [None, "tumour"])
def test_labelled_masks_of_0_and_255_alone_are_of_one_class(root, names):
    pictures(root / "images")
    for stem, objects in OBJECTS.items():
        write(root / "masks" / f"{stem}.png", box(objects.get("cat", (0, 0, 0, 0)), 255))
    if names:
        (root / "classes.txt").write_text(names)
    dataset = open_folder(root)
    pool = dataset.pool("test")
    assert dataset.classes == (names or "object",)
    assert pairs(pool.index()) == [(0, 0, 20), (1, 0, 9), (3, 0, 42)]
    np.testing.assert_array_equal(pool.label(0, 0), box(OBJECTS["a"]["cat"]))
    assert dataclasses.replace(pool, known=None).index().digest == pool.index().digest


def test_one_named_class_marked_with_1_keeps_255_for_ignored_pixels(root):
    picture(root / "images" / "a.png")
    write(root / "masks" / "a.png", box((0, 0, 2, 2)) + box((5, 5, 8, 8), 255))
    (root / "classes.txt").write_text("tumour\n")
    pool = open_folder(root).pool("test")
    assert pool.label(0, 0)[0, 0] == 1 and pool.label(0, 0)[5, 5] == 255
    assert pairs(pool.index()) == [(0, 0, 4)]


def test_palette_masks_are_read_by_index(root):
    labelled_folder(root)
    for stem in OBJECTS:
        image = Image.fromarray(labelled(stem).astype(np.uint8))
        image.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
        image.save(root / "masks" / f"{stem}.png")
    assert open_folder(root).pool("test").label(0, 0).sum() == 20


@pytest.mark.parametrize("first", ["background", "_background_", "Background"])
def test_the_list_of_names_may_begin_with_background_and_hold_comments(root, first):
    labelled_folder(root)
    (root / "classes.txt").write_bytes(f"\ufeff# mine\n{first}\r\n\n cat  # value 1\ndog\n".encode())
    assert open_folder(root).classes == CLASSES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cat\ncat\n", r"classes.txt: names cat twice, for the values 1 and 2; rename one"),
        (b"# nothing\n", r"classes.txt: names no class; expected one on each line"),
        (b"background\n", r"classes.txt: names 0 classes; expected 1 to 254"),
        (b"\xff\xfe\x00", r"classes.txt: cannot be read \(not text in UTF-8\)"),
        (b"\n".join(b"%d" % i for i in range(255)), r"classes.txt: names 255 classes; expected 1 to 254"),
    ],
)
def test_a_bad_list_of_names_is_refused(root, content, message):
    labelled_folder(root)
    (root / "classes.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_folder(root)


@pytest.mark.parametrize("names", ["cat", "cat\ndog"])
def test_a_list_with_too_few_names_is_found_by_the_value_it_lacks(root, names):
    labelled_folder(root)
    (root / "classes.txt").write_text(names)
    write(root / "masks" / "d.png", box((0, 0, 2, 2), 3))
    with pytest.raises(DataError, match=r"png: holds the value [23]; expected 1.* for the classes.*the list of classes"):
        open_folder(root).pool("test").index()


def test_soft_edges_in_labelled_masks_are_not_taken_for_classes(root):
    pictures(root / "images")
    for stem in OBJECTS:
        soft = box((2, 2, 12, 16), 255)
        soft[1, :] = np.linspace(0, 240, 16)
        write(root / "masks" / f"{stem}.png", soft)
    with pytest.raises(DataError, match="15 values between: soft edges, it seems"):
        open_folder(root)


def test_classes_in_a_largely_ignored_image_are_not_taken_for_soft_edges(root):
    picture(root / "images" / "a.png")
    partly = np.full(SIZE, 255)
    partly[0, :9] = range(9)
    write(root / "masks" / "a.png", partly)
    assert open_folder(root).classes == tuple("12345678")


def test_masks_of_background_alone_are_refused(root):
    picture(root / "images" / "a.png")
    write(root / "masks" / "a.png", box((0, 0, 0, 0)))
    with pytest.raises(DataError, match="every mask is 0 everywhere"):
        open_folder(root)


def test_labelled_masks_in_jpeg_are_refused(root):
    labelled_folder(root)
    (root / "masks" / "a.png").unlink()
    write(root / "masks" / "a.jpg", labelled("a"))
    with pytest.raises(DataError, match=r"a.jpg: is a JPEG, which does not keep the values of classes; save the mask as PNG"):
        open_folder(root)
    assert len(problems_of(root)) == 1


def spoil_image_without_mask(root):
    picture(root / "images" / "extra.png")


def spoil_mask_without_image(root):
    (root / "images" / "a.png").unlink()


def spoil_size(root):
    write(next(root.glob("masks/**/a.png")), box((0, 0, 2, 2), 1, (12, 17)))


def spoil_duplicate(root):
    picture(root / "images" / "a.jpg")


def spoil_duplicate_mask(root):
    first = next(root.glob("masks/**/a.png"))
    write(first.with_suffix(".bmp"), box((0, 0, 2, 2)))


def spoil_colour(root):
    write(next(root.glob("masks/**/a.png")), np.full((*SIZE, 3), (128, 0, 0)))


def spoil_value(root):
    write(next(root.glob("masks/**/a.png")), box((0, 0, 2, 2), 9) + box((3, 3, 4, 4), 1))


def spoil_mask_file(root):
    next(root.glob("masks/**/a.png")).write_bytes(b"no image")


def spoil_image_file(root):
    (root / "images" / "a.png").write_bytes(b"no image")


def spoil_by_a_dead_link(root):
    (root / "images" / "a.png").unlink()
    (root / "images" / "a.png").symlink_to(root / "nowhere.png")


@pytest.mark.parametrize("make", [class_mask_folder, labelled_folder])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_image_without_mask, r"images/extra.png: has no mask; expected .*extra.png: add one, or remove the image"),
        (spoil_mask_without_image, r"a.png: belongs to no image; expected one called a: add or rename it, or remove the mask"),
        (spoil_size, r"a.png: mask is 12 x 17, image a.png is 12 x 16 \(height x width\); resize one to match the other"),
        (spoil_duplicate, r"a.jpg and a.png share the name 'a'"),
        (spoil_duplicate_mask, r"a.bmp and a.png share the name 'a'"),
        (spoil_colour, r"a.png: shows the colour \(128, 0, 0\)"),
        (spoil_value, r"a.png: holds the values? .*9; expected"),
        (spoil_mask_file, r"masks/.*a.png: is not a JPEG, PNG"),
        (spoil_image_file, r"images/a.png: is not a JPEG, PNG"),
        (spoil_by_a_dead_link, r"images/a.png: cannot be read \(No such file"),
    ],
)
def test_each_problem_is_told_in_one_line_that_names_the_file(root, make, spoil, message):
    spoil(make(root))
    with pytest.raises(DataError, match=message) as caught:
        open_folder(root).pool("test").index()
    assert "\n" not in str(caught.value)


def test_an_empty_class_folder_is_a_problem(root):
    class_mask_folder(root)
    (root / "masks" / "cow").mkdir()
    with pytest.raises(DataError, match=r"masks/cow: holds no masks; expected cow/STEM.png: add some, or remove the folder"):
        open_folder(root)


def test_many_problems_are_told_one_by_one_and_the_rest_is_used(root):
    class_mask_folder(root)
    (root / "masks" / "cow").mkdir()
    spoil_image_without_mask(root)
    write(root / "masks" / "dog" / "z.png", box((0, 0, 1, 1)))
    write(root / "masks" / "cat" / "b.png", box((0, 0, 1, 1), 9) + box((2, 2, 3, 3), 4))
    write(root / "masks" / "dog" / "c.png", box((0, 0, 1, 1), 1, (3, 3)))
    problems = []
    dataset = open_folder(root, complain=problems.append)
    index = dataset.pool("test").index(complain=problems.append)
    assert len(problems) == 5
    assert dataset.classes == CLASSES
    assert pairs(index) == [(0, 0, 20), (1, 1, 96), (3, 0, 42)]  # of b only the bad mask is left out
    assert index.sizes.tolist() == [list(SIZE), list(SIZE), [0, 0], list(SIZE)]


def test_two_bad_masks_of_one_image_are_both_told(root):
    class_mask_folder(root)
    for name in CLASSES:
        write(root / "masks" / name / "b.png", box((0, 0, 1, 1), 9) + box((2, 2, 3, 3), 4))
    assert [problem.split(":")[0] for problem in problems_of(root)] == [
        str(root / "masks" / name / "b.png") for name in CLASSES
    ]


def test_a_class_named_twice_is_told_and_kept_apart(root):
    labelled_folder(root)
    (root / "classes.txt").write_text("cat\ncat\n")
    problems = []
    assert open_folder(root, complain=problems.append).classes == ("cat", "cat (2)")
    assert len(problems) == 1


def test_a_damaged_json_is_one_problem_whatever_the_split(root):
    coco_folder(root)
    (root / "annotations.json").write_text("{")
    assert len(problems_of(root, test_classes=["cat"])) == 1


@pytest.mark.parametrize("names", [True, False])
def test_the_index_is_read_from_the_cache_the_second_time(root, cache, monkeypatch, names):
    first = open_folder(labelled_folder(root, names)).pool("test").index()
    monkeypatch.setattr("cyctr.datasets.pools.read_values", lambda path: pytest.fail("a mask was read again"))
    assert open_folder(root).pool("test").index().digest == first.digest
    assert len(list(cache.rglob("*.npz"))) == 1


@pytest.mark.parametrize("names", [True, False])
def test_each_labelled_mask_is_read_once(root, monkeypatch, names):
    seen, read = [], pools.read_values
    monkeypatch.setattr(pools, "read_values", lambda path: seen.append(path.name) or read(path))
    open_folder(labelled_folder(root, names)).pool("test").index()
    assert sorted(seen) == [f"{stem}.png" for stem in OBJECTS]


@pytest.mark.parametrize("make", [class_mask_folder, labelled_folder, lambda root: labelled_folder(root, names=False)])
def test_an_edited_mask_is_noticed(root, make):
    before = pairs(open_folder(make(root)).pool("test").index())
    path = next(root.glob("masks/**/a.png"))
    write(path, box((0, 0, 2, 2), 1))
    after = pairs(open_folder(root).pool("test").index())
    assert (before[0], after[0]) == ((0, 0, 20), (0, 0, 4))
    assert after[1:] == before[1:]


def test_a_mask_replaced_by_one_of_the_same_size_in_bytes_is_noticed(root):
    class_mask_folder(root)
    path = root / "masks" / "cat" / "a.bmp"
    (root / "masks" / "cat" / "a.png").unlink()
    write(path, box((0, 0, 2, 2), 255))
    size = path.stat().st_size
    assert pairs(open_folder(root).pool("test").index())[0] == (0, 0, 4)
    write(path, box((0, 0, 3, 3), 255))
    os.utime(path, ns=(1, 1))
    assert path.stat().st_size == size
    assert pairs(open_folder(root).pool("test").index())[0] == (0, 0, 9)


def test_swapped_masks_of_the_same_size_and_time_are_noticed(root):
    picture(root / "images" / "a.png")
    for name, corners in (("cat", (0, 0, 2, 2)), ("dog", (0, 0, 3, 3))):
        os.utime(write(root / "masks" / name / "a.bmp", box(corners)), ns=(1, 1))
    assert pairs(open_folder(root).pool("test").index()) == [(0, 0, 4), (0, 1, 9)]
    (root / "masks" / "cat").rename(root / "masks" / "x")
    assert pairs(open_folder(root).pool("test").index()) == [(0, 0, 9), (0, 1, 4)]


def test_a_pool_can_be_sent_to_another_process(any_layout):
    pool = open_folder(any_layout).pool("test")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(pool)).label(1, 1), pool.label(1, 1))


def test_a_folder_with_one_named_class_keeps_its_index(root, monkeypatch):
    """Its masks are first read as values, then as that class: two indices, of which neither may push out the other."""
    labelled_folder(root, names=False)
    for path in (root / "masks").iterdir():
        write(path, (read_values(path) > 0).astype(np.uint8))
    (root / "classes.txt").write_text("animal\n")
    first = open_folder(root).pools["test"].index()
    monkeypatch.setattr("cyctr.datasets.pools.read_values", lambda path: pytest.fail(f"{path} was read again"))
    assert open_folder(root).pools["test"].index().digest == first.digest
