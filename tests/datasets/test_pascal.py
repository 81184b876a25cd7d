import os
from pathlib import Path

import numpy as np
import pytest
from miniature import box, picture, write
from PIL import Image

from cyctr.config import ProtocolConfig
from cyctr.datasets.listing import read_names
from cyctr.datasets.pascal import CLASSES, open_pascal, read_list
from cyctr.episodes.sampler import eligible
from cyctr.episodes.sizes import list_sizes
from cyctr.errors import DataError

VOC2012 = Path(__file__).parents[2] / "data" / "VOC2012"
SIZE = (60, 80)
TRAIN, TEST = ("2007_3", "2007_1", "2007_2"), ("2008_2", "2008_1")
OBJECTS = {  # value -> rectangle
    "2007_1": {1: (0, 0, 50, 50)},
    "2007_2": {20: (0, 0, 10, 10), 15: (10, 20, 60, 80)},
    "2007_3": {5: (0, 0, 32, 64), 6: (32, 0, 33, 64)},
    "2008_1": {12: (0, 0, 60, 80)},
    "2008_2": {1: (1, 1, 60, 60)},
}


@pytest.fixture
def root(tmp_path):
    """Two lists, out of order, images in three formats."""
    root = tmp_path / "VOC2012"
    for number, (stem, objects) in enumerate(OBJECTS.items()):
        picture(root / "JPEGImages" / f"{stem}{('.jpg', '.png', '.webp')[number % 3]}", SIZE, seed=number)
        values = sum(box(corners, value, SIZE) for value, corners in objects.items())
        values[-1, -1] = 255
        write(root / "SegmentationClassAug" / f"{stem}.png", values)
    write_list(root, "train_aug_5953", TRAIN)
    write_list(root, "val", TEST)
    return root


def write_list(root, name, lines):
    path = root / "ImageSets" / "Segmentation" / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def values_of(root, stem):
    with Image.open(root / "SegmentationClassAug" / f"{stem}.png") as image:
        return np.array(image)


def test_images_are_found_by_stem_whatever_their_format(root):
    dataset = open_pascal(root)
    train, test = dataset.pool("train"), dataset.pool("test")
    assert {path.suffix for path in (*train.images, *test.images)} == {".jpg", ".png", ".webp"}
    assert [path.stem for path in train.images] == list(TRAIN) and [path.stem for path in test.images] == list(TEST)
    for pool in (train, test):
        for i in range(len(pool.keys)):
            with Image.open(pool.images[i]) as image:
                np.testing.assert_array_equal(pool.image(i), np.array(image.convert("RGB")))


def test_the_lists_keep_their_order(root):
    dataset = open_pascal(root)
    assert dataset.pool("train").keys == TRAIN and dataset.pool("test").keys == TEST
    assert dataset.pool("validation") is dataset.pool("train")


def test_there_are_twenty_classes_in_four_folds_and_2048_pixels_make_an_image_count(root):
    dataset = open_pascal(root)
    assert (dataset.name, len(dataset.classes), len(dataset.folds), dataset.smallest) == ("pascal", 20, 4, 2 * 32 * 32)
    assert [dataset.classes[number] for number in (0, 14, 19)] == ["aeroplane", "person", "tvmonitor"]
    assert [fold.test for fold in dataset.folds] == [tuple(range(5 * i, 5 * i + 5)) for i in range(4)]


def test_value_v_of_a_mask_is_class_v_minus_one(root):
    pool = open_pascal(root).pool("train")
    for i, stem in enumerate(TRAIN):
        values = values_of(root, stem)
        for number in range(20):
            expected = np.where(values == 255, 255, values == number + 1)
            np.testing.assert_array_equal(pool.label(i, number), expected)
    assert pool.label(1, 0).sum() > 2500 + 250  # its aeroplane, and the ignored pixel


def test_the_index_counts_every_class_and_the_lists_only_those_with_enough_pixels(root):
    dataset = open_pascal(root)
    index = dataset.pool("train").index()
    rows = [
        (i, value - 1, int((values_of(root, stem) == value).sum()))
        for i, stem in enumerate(TRAIN)
        for value in sorted(OBJECTS[stem])
    ]
    assert list(zip(index.image.tolist(), index.number.tolist(), index.pixels.tolist(), strict=True)) == rows
    assert (0, 4, 2048) in rows and (0, 5, 64) in rows  # just enough, and too few
    images, numbers = eligible(dataset, index, 1, "train")
    assert list(zip(images.tolist(), numbers.tolist(), strict=True)) == [(0, 4), (1, 0), (2, 14)]
    images, numbers = eligible(dataset, index, 1, "test")
    assert not len(images)


def test_palette_masks_give_their_indices(root):
    path = root / "SegmentationClassAug" / "2007_1.png"
    image = Image.fromarray(values_of(root, "2007_1"))
    image.putpalette([255 - i // 3 for i in range(768)])
    assert image.mode == "P"
    image.save(path)
    assert (open_pascal(root).pool("train").label(1, 0) == 1).sum() == 2500


def test_other_lists_can_be_named(root):
    write_list(root, "mine", ["2008_1"])
    dataset = open_pascal(root, train="mine", test="mine")
    assert dataset.pool("train").keys == dataset.pool("test").keys == ("2008_1",)


@pytest.mark.parametrize("line", ["{0}.jpg {0}.png", "/JPEGImages/{0}.jpg /SegmentationClassAug/{0}.png", "  {0}\t1", "{0}\r"])
def test_of_a_line_only_the_stem_of_its_first_word_counts(line, root):
    write_list(root, "val", ["", *(line.format(stem) for stem in TEST), "   "])
    assert open_pascal(root).pool("test").keys == TEST


def test_a_list_saved_by_windows_is_read_like_any_other(root):
    write_list(root, "val", TEST).write_bytes("\r\n".join(TEST).encode("utf-8-sig"))
    assert open_pascal(root).pool("test").keys == TEST


@pytest.mark.parametrize("name", ["JPEGImages", "SegmentationClassAug", "ImageSets/Segmentation"])
def test_a_missing_folder_is_named_with_the_remedy(name, root):
    (root / name).rename(root / "elsewhere")
    with pytest.raises(
        DataError, match=rf"{name}: no such folder; expected the VOC2012 layout, which `cyctr prepare pascal` makes"
    ):
        open_pascal(root)


def test_a_missing_test_list_is_named(root):
    (root / "ImageSets" / "Segmentation" / "val.txt").unlink()
    with pytest.raises(DataError, match=r"val.txt: cannot be read \(No such file.*\); expected a list .*cyctr prepare pascal"):
        open_pascal(root)


def test_measuring_needs_no_training_list(root):
    (root / "ImageSets" / "Segmentation" / "train_aug_5953.txt").unlink()
    dataset = open_pascal(root)
    assert len(dataset.pool("test").keys) > 0
    assert {row.split for row in list_sizes(dataset, ProtocolConfig())} == {"test"}
    with pytest.raises(DataError, match="pascal has no train images here; its list of them is missing"):
        dataset.pool("train")


@pytest.mark.parametrize("read", [read_list, read_names])
def test_a_list_that_is_none_is_refused_before_it_fills_the_memory(read, tmp_path):
    with (tmp_path / "val.txt").open("wb") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(DataError, match="holds 16,777,217 bytes; expected a list of names of at most 16,777,216"):
        read(tmp_path / "val.txt")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.txt")
        with pytest.raises(DataError, match="is a pipe; expected a list of names"):
            read(tmp_path / "pipe.txt")


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "names no image; expected one on each line"), (b"\xff\xfe\x00", r"\(not text\)")]
)
def test_a_list_without_images_or_without_text_is_refused(content, words, tmp_path):
    (tmp_path / "val.txt").write_bytes(content)
    with pytest.raises(DataError, match=rf"val.txt: .*{words}"):
        read_list(tmp_path / "val.txt")


def without_image(root):
    next((root / "JPEGImages").glob("2007_1.*")).unlink()


def without_mask(root):
    (root / "SegmentationClassAug" / "2007_1.png").unlink()


def two_images(root):
    picture(root / "JPEGImages" / "2007_1.jpeg", SIZE)


def two_masks(root):
    write(root / "SegmentationClassAug" / "2007_1.bmp", np.zeros(SIZE))


def named_twice(root):
    write_list(root, "train_aug_5953", [*TRAIN, "2007_1.jpg"])


PROBLEMS = {
    without_image: r"train_aug_5953.txt: names 2007_1, but .*JPEGImages has no image of that name; add it, or mend the list",
    without_mask: r"2007_1.jpg: has no mask .*Aug/2007_1.png; run `cyctr prepare pascal`, or mend train_aug_5953.txt",
    two_images: r"JPEGImages: 2007_1.jpeg and 2007_1.jpg share the name '2007_1'; rename or remove one",
    two_masks: r"SegmentationClassAug: 2007_1.bmp and 2007_1.png share the name '2007_1'",
    named_twice: r"train_aug_5953.txt: names 2007_1 twice; remove one",
}


@pytest.mark.parametrize("spoil", PROBLEMS)
def test_a_problem_is_refused_in_one_line(spoil, root):
    spoil(root)
    with pytest.raises(DataError, match=PROBLEMS[spoil]) as caught:
        open_pascal(root)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spoil", PROBLEMS)
def test_a_scan_goes_on_after_a_problem(spoil, root):
    spoil(root)
    problems = []
    dataset = open_pascal(root, complain=problems.append)
    assert len(problems) == 1
    left = [stem for stem in TRAIN if stem != "2007_1"] if spoil in (without_image, without_mask) else list(TRAIN)
    assert list(dataset.pool("train").keys) == left and dataset.pool("test").keys == TEST


def test_a_value_that_is_no_class_is_refused(root):
    write(root / "SegmentationClassAug" / "2007_2.png", box((0, 0, 3, 3), 21, SIZE))
    with pytest.raises(DataError, match=r"2007_2.png: holds the value 21; expected 1 to 20 for the classes"):
        open_pascal(root).pool("train").index()


def test_list_sizes_equal_a_count_by_hand(root):
    dataset = open_pascal(root)
    rows = {(row.split, row.fold): row for row in list_sizes(dataset, ProtocolConfig())}
    assert list(rows) == [(split, fold) for split in ("train", "test") for fold in range(4)]
    for (split, fold), row in rows.items():
        stems = TRAIN if split == "train" else TEST
        tested = range(5 * fold + 1, 5 * fold + 6)
        wanted = [v for v in range(1, 21) if (v in tested) == (split == "test")]
        pairs = [(s, v) for s in stems for v in wanted if (values_of(root, s) == v).sum() >= 2048]
        counts = {v: sum(1 for _, value in pairs if value == v) for v in wanted}
        assert (row.classes, row.images, row.pairs) == (len(wanted), len({s for s, _ in pairs}), len(pairs))
        assert row.fewest == min(counts.values()) and counts[CLASSES.index(row.rarest) + 1] == row.fewest


def test_list_sizes_follow_the_protocol(root):
    dataset = open_pascal(root)
    rows = {(row.split, row.fold): row for row in list_sizes(dataset, ProtocolConfig(smallest=1))}
    assert (rows["train", 0].images, rows["train", 0].pairs) == (2, 3)  # bus, person, tvmonitor
    rows = {(row.split, row.fold): row for row in list_sizes(dataset, ProtocolConfig(smallest=1, drop_novel=True))}
    assert (rows["train", 0].images, rows["train", 0].pairs) == (1, 2)  # the bus stands beside a bottle, which is tested
    assert rows["test", 0].images == 1


def test_list_sizes_read_no_index_that_no_fold_asks_for(root):
    dataset = open_pascal(root)
    asked = []

    class Watched:
        def __init__(self, split):
            self.split = split

        def index(self, progress=None):
            asked.append(self.split)
            return dataset.pool(self.split).index(progress)

    watched = type(dataset)(dataset.name, dataset.classes, {s: Watched(s) for s in ("train", "test")}, dataset.folds, 2048)
    assert list_sizes(watched, ProtocolConfig()) == list_sizes(dataset, ProtocolConfig())
    assert asked == ["train", "test"]


@pytest.mark.skipif(not VOC2012.is_dir(), reason=f"needs {VOC2012}, which `cyctr prepare pascal` makes")
@pytest.mark.parametrize(
    ("split", "images", "pairs"),
    [("train", (4760, 4588, 4097, 5108), None), ("test", (364, 445, 592, 336), (365, 467, 734, 357))],
)
def test_the_lists_of_pascal_have_the_known_sizes(split, images, pairs):
    dataset = open_pascal(VOC2012)
    index = dataset.pool(split).index()
    found = [eligible(dataset, index, fold, split) for fold in range(4)]
    assert len(index) == {"train": 5953, "test": 1449}[split]
    assert tuple(len(set(held.tolist())) for held, _ in found) == images
    assert pairs is None or tuple(len(numbers) for _, numbers in found) == pairs
