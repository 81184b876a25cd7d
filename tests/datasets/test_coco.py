import json
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as drawing
from skimage.draw import polygon2mask
from skimage.morphology import dilation, erosion

from cyctr.datasets import coco_json
from cyctr.datasets.check import check
from cyctr.datasets.coco import CLASSES, open_coco, open_coco_json
from cyctr.datasets.index import Index
from cyctr.errors import ConfigError, DataError

MISSING_IDS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
CATEGORY_IDS = [number for number in range(1, 91) if number not in MISSING_IDS]
OWN = [{"id": 7, "name": "cup"}, {"id": 2, "name": "leaf"}]  # leaf is class 0


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def problems():
    return []


def image(number, file, height, width):
    return {"id": number, "file_name": file, "height": height, "width": width}


def mark(number, image_id, category, segmentation, crowd=0):
    return {"id": number, "image_id": image_id, "category_id": category, "segmentation": segmentation, "iscrowd": crowd}


def rectangle(top, left, bottom, right):
    """The polygon around whole pixels: rows top to bottom - 1, columns left to right - 1."""
    return [left, top, right, top, right, bottom, left, bottom]


def runs(mask):
    """The lengths of alternating runs of 0 and 1, down the columns, beginning with 0."""
    pixels = [0, *mask.T.ravel().tolist()]
    changes = [i for i, (before, after) in enumerate(pairwise(pixels)) if before != after]
    return np.diff([0, *changes, mask.size]).tolist()


def rle(mask):
    return {"size": list(mask.shape), "counts": runs(mask)}


def compressed(mask):
    drawn = drawing.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": list(mask.shape), "counts": drawn["counts"].decode()}


def write(folder, images, annotations, categories=OWN, name="own.json"):
    """A JSON beside its images; returns both places."""
    for entry in images:
        path = folder / "images" / entry["file_name"].replace("\\", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (entry["width"], entry["height"])).save(path)
    document = {"images": images, "annotations": annotations, "categories": categories}
    (folder / name).write_text(json.dumps(document))
    return folder / name, folder / "images"


def own(folder, images, annotations, **more):
    """The pool of a JSON of two classes."""
    return open_coco_json(*write(folder, images, annotations), "own", **more)[1]


def write_coco(root, year=2017, parts=("train", "val"), images="."):
    """Miniature COCO: image n + 1 of each part shows the n-th class, for n = 0 and 4, on 4 and 5 rows."""
    categories = [{"id": number, "name": name} for number, name in zip(CATEGORY_IDS, CLASSES, strict=True)]
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for part in parts:
        folder = root / images / f"{part}{year}"
        folder.mkdir(parents=True)
        listed, marks = [], []
        for number, rows in ((0, 4), (4, 5)):
            listed.append(image(number + 1, f"{part}_{number:012d}.jpg", 10, 12))
            marks.append(mark(number, number + 1, CATEGORY_IDS[number], [rectangle(0, 0, rows, 3)]))
            Image.new("RGB", (12, 10)).save(folder / listed[-1]["file_name"])
        document = {"images": listed, "annotations": marks, "categories": categories[::-1]}
        (root / "annotations" / f"instances_{part}{year}.json").write_text(json.dumps(document))
    return root


def random_scene(folder, seed=0):
    """A JSON of rectangles and noise in all notations, and the labels that a slow twin paints."""
    random = np.random.default_rng(seed)
    images, annotations, twins = [], [], []
    for i in range(12):
        size = height, width = [int(n) for n in random.integers(5, 40, 2)]
        images.append(image(100 - i, f"{i}.png", height, width))
        truth, crowds = np.zeros((2, *size), bool), np.zeros((2, *size), bool)
        for _ in range(int(random.integers(1, 8))):
            top, left = int(random.integers(height)), int(random.integers(width))
            bottom, right = int(random.integers(top + 1, height + 1)), int(random.integers(left + 1, width + 1))
            drawn = np.zeros(size, bool)
            drawn[top:bottom, left:right] = True
            notation = random.integers(5)
            if notation == 0:  # two polygons
                drawn[:2, :3] = True
                outline = [rectangle(top, left, bottom, right), rectangle(0, 0, 2, 3)]
            elif notation == 1:
                outline = [rectangle(top, left, bottom, right)]
            elif notation == 2:
                outline = rle(drawn)
            else:
                drawn &= random.random(size) < 0.7
                outline = rle(drawn) if notation == 3 else compressed(drawn)
            number, crowd = int(random.integers(2)), int(random.integers(4) == 0)
            annotations.append(mark(len(annotations), 100 - i, (2, 7)[number], outline, crowd))
            (crowds if crowd else truth)[number] |= drawn
        twins.append(np.where(truth, 1, np.where(crowds, 255, 0)))
    order = random.permutation(len(annotations))
    return images, [annotations[k] for k in order], twins[::-1]  # images by id, and the ids fall


def assert_equal(found, expected):
    for part in ("sizes", "image", "number", "pixels"):
        assert np.array_equal(getattr(found, part), getattr(expected, part)), part


@pytest.mark.parametrize("seed", range(4))
def test_labels_are_the_union_of_instances_over_ignored_crowds(tmp_path, seed):
    images, annotations, twins = random_scene(tmp_path, seed)
    pool = own(tmp_path, images, annotations)
    assert len(pool.keys) == len(twins)
    for i, twin in enumerate(twins):
        for number in (0, 1):
            label = pool.label(i, number)
            assert label.dtype == np.uint8 and label.flags.c_contiguous
            assert np.array_equal(label, twin[number])


@pytest.mark.parametrize("seed", range(4))
def test_the_index_counts_the_pixels_of_the_labels(tmp_path, seed):
    images, annotations, _ = random_scene(tmp_path, seed)
    pool = own(tmp_path, images, annotations)
    counted = [(i, c, int((pool.label(i, c) == 1).sum())) for i in range(len(pool.keys)) for c in (0, 1)]
    table = np.array([row for row in counted if row[2]])
    sizes = np.array([pool.label(i, 0).shape for i in range(len(pool.keys))])
    assert_equal(pool.index(), Index(sizes, *table.T))


def test_a_slanted_polygon_is_drawn_to_within_a_pixel(tmp_path):
    corners = [(3.2, 4.7), (44.1, 9.3), (30.6, 36.8), (12.4, 30.2)]  # x, y
    pool = own(tmp_path, [image(1, "a.png", 40, 50)], [mark(1, 1, 2, [[n for corner in corners for n in corner]])])
    centres = polygon2mask((40, 50), [(y - 0.5, x - 0.5) for x, y in corners])
    label = pool.label(0, 0).astype(bool)
    assert (label >= erosion(centres, np.ones((3, 3)))).all()
    assert (label <= dilation(centres, np.ones((3, 3)))).all()


def test_overlapping_classes_are_each_drawn_whole(tmp_path):
    marks = [mark(1, 1, 2, [rectangle(0, 0, 4, 4)]), mark(2, 1, 7, [rectangle(2, 2, 6, 6)])]
    pool = own(tmp_path, [image(1, "a.png", 8, 8)], marks)
    assert pool.label(0, 0)[:4, :4].all() and pool.label(0, 0).sum() == 16
    assert pool.label(0, 1)[2:6, 2:6].all() and pool.label(0, 1).sum() == 16


def test_a_crowd_is_ignored_for_its_own_class_only(tmp_path):
    marks = [mark(1, 1, 2, [rectangle(0, 0, 4, 4)], crowd=1), mark(2, 1, 7, [rectangle(0, 0, 2, 2)])]
    pool = own(tmp_path, [image(1, "a.png", 8, 8)], marks)
    assert (pool.label(0, 0)[:4, :4] == 255).all()
    assert set(np.unique(pool.label(0, 1))) == {0, 1}
    assert pool.index().number.tolist() == [1]


def test_empty_runs_in_an_rle_change_nothing(tmp_path):
    counts = [0, 0, 3, 0, 0, 2, 1, 0, 0, 4, 6, 0]  # down the columns: 3 + 0 zeros, 2 ones, a zero, 4 ones, 6 zeros
    marks = [mark(1, 1, 2, {"size": [4, 4], "counts": counts}), mark(2, 1, 2, [rectangle(3, 3, 4, 4)])]
    pool = own(tmp_path, [image(1, "a.png", 4, 4)], marks)
    assert pool.label(0, 0).T.ravel().tolist() == [0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("notation", [rle, compressed])
@pytest.mark.parametrize("mask", [np.zeros((3, 5), bool), np.ones((3, 5), bool), np.eye(3, 5, dtype=bool)])
def test_empty_full_and_scattered_masks_survive(tmp_path, notation, mask):
    pool = own(tmp_path, [image(1, "a.png", 3, 5)], [mark(1, 1, 2, notation(mask))])
    assert np.array_equal(pool.label(0, 0), mask)
    assert pool.index().pixels.tolist() == ([mask.sum()] if mask.any() else [])


def test_the_list_holds_annotated_images_by_id(tmp_path):
    images = [image(30, "c.png", 4, 4), image(4, "sub/a.png", 4, 4), image(5, "sub\\b.jpg", 4, 4), image(6, "bare.png", 4, 4)]
    marks = [mark(n, n, 2, [rectangle(0, 0, 2, 2)], crowd=int(n == 5)) for n in (30, 4, 5)]
    pool = own(tmp_path, images, marks)
    assert list(pool.keys) == ["sub/a", "sub/b", "c"]
    assert [pool.image(i).shape for i in range(3)] == [(4, 4, 3)] * 3
    assert pool.index().image.tolist() == [0, 2]  # only a crowd in the middle


def test_a_place_counted_from_the_end_is_the_same_image(tmp_path):
    images, annotations, twins = random_scene(tmp_path)
    pool = own(tmp_path, images, annotations)
    assert np.array_equal(pool.label(-1, 1), twins[-1][1])
    with pytest.raises(IndexError):
        pool.label(len(twins), 0)


def test_classes_come_by_category_id(tmp_path):
    places = write(tmp_path, [image(1, "a.png", 4, 4)], [mark(1, 1, 7, [rectangle(0, 0, 2, 2)])])
    names, pool = open_coco_json(*places, "own")
    assert names == ("leaf", "cup")
    assert pool.index().number.tolist() == [1]


def test_coco_has_its_80_classes_in_id_order(tmp_path):
    dataset = open_coco(write_coco(tmp_path))
    assert (len(dataset.classes), len(set(dataset.classes)), dataset.smallest) == (80, 80, 2048)
    known = {
        1: "person",
        11: "fire hydrant",
        13: "stop sign",
        27: "backpack",
        44: "bottle",
        67: "dining table",
        90: "toothbrush",
    }
    assert {number: dataset.classes[CATEGORY_IDS.index(number)] for number in known} == known
    assert dataset.pool("train").index().number.tolist() == [0, 4]
    assert dataset.pool("test").index().pixels.tolist() == [12, 15]


def test_interleaved_folds_take_every_fourth_class(tmp_path):
    dataset = open_coco(write_coco(tmp_path))
    names = [[dataset.classes[c] for c in dataset.fold(i).test] for i in range(4)]
    assert [fold[:3] for fold in names] == [
        ["person", "airplane", "boat"],
        ["bicycle", "bus", "traffic light"],
        ["car", "train", "fire hydrant"],
        ["motorcycle", "truck", "stop sign"],
    ]
    assert sorted(c for i in range(4) for c in dataset.fold(i).test) == list(range(80))
    assert all(sorted(dataset.fold(i).train + dataset.fold(i).test) == list(range(80)) for i in range(4))


def test_contiguous_folds_take_blocks_of_20(tmp_path):
    dataset = open_coco(write_coco(tmp_path), split="contiguous")
    assert [dataset.fold(i).test for i in range(4)] == [tuple(range(20 * i, 20 * i + 20)) for i in range(4)]
    assert dataset.name == open_coco(tmp_path).name == "coco-2017"


@pytest.mark.parametrize("year", [2014, 2017])
@pytest.mark.parametrize("images", [".", "images"])
def test_the_year_that_is_there_is_found_in_both_layouts(tmp_path, year, images):
    dataset = open_coco(write_coco(tmp_path, year, images=images))
    assert dataset.name == f"coco-{year}"
    assert list(dataset.pool("train").keys) == ["train_000000000000", "train_000000000004"]
    assert list(dataset.pool("validation").keys) == list(dataset.pool("train").keys)
    assert list(dataset.pool("test").keys) == ["val_000000000000", "val_000000000004"]
    assert dataset.pool("test").image(1).shape == (10, 12, 3)


def test_of_two_years_one_must_be_chosen(tmp_path):
    write_coco(write_coco(tmp_path, 2014), 2017)
    with pytest.raises(DataError, match=r"holds COCO of 2014 and 2017; choose one$"):
        open_coco(tmp_path)
    assert open_coco(tmp_path, 2014).name == "coco-2014"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"year": 2014}, DataError, "annotations: holds no instances_train2014.json or .* unpack annotations_trainval2014.zip"),
        ({"year": 2015}, ConfigError, "year is 2015; COCO has 2014 and 2017"),
        ({"split": "random"}, ConfigError, "split is 'random'; expected interleaved or contiguous"),
    ],
)
def test_a_year_or_split_that_is_not_there_is_refused(tmp_path, arguments, error, message):
    write_coco(tmp_path)
    with pytest.raises(error, match=message):
        open_coco(tmp_path, **arguments)


def test_a_folder_without_annotations_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no instances_train2017.json"):
        open_coco(tmp_path)


def test_the_test_needs_nothing_of_the_training_images(tmp_path, problems):
    dataset = open_coco(write_coco(tmp_path, parts=["val"]))
    assert len(dataset.pool("test").index()) == 2
    with pytest.raises(DataError, match=r"instances_train2017.json: cannot be read \(No such file or directory\)"):
        dataset.pool("train").index()
    assert len(dataset.pool("train").index(complain=problems.append)) == 0
    assert len(problems) == 1


def test_other_categories_than_those_of_coco_are_refused(tmp_path):
    root = write_coco(tmp_path)
    path = root / "annotations" / "instances_val2017.json"
    document = json.loads(path.read_text())
    document["categories"].pop()
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"its 79 categories are not COCO's 80; download .* dataset of your own"):
        open_coco(root).pool("test").index()
    assert len(open_coco(root).pool("train").index()) == 2


def scribble(path):
    """Makes a file unreadable in a way that its size and time do not show."""
    state = path.stat()
    path.write_bytes(b"?" * state.st_size)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_the_second_opening_does_not_read_the_json(tmp_path):
    images, annotations, twins = random_scene(tmp_path)
    places = write(tmp_path, images, annotations)
    first, told = open_coco_json(*places, "own"), []
    scribble(places[0])
    names, pool = open_coco_json(*places, "own", progress=lambda done, total: told.append(done))
    assert (names, pool.keys, told) == (first[0], first[1].keys, [])
    assert_equal(pool.index(), first[1].index())
    assert pool.index().digest == first[1].index().digest
    assert all(np.array_equal(pool.label(i, c), twins[i][c]) for i in range(len(twins)) for c in (0, 1))


def test_a_changed_json_is_read_anew(tmp_path):
    images = [image(1, "a.png", 8, 8)]
    before = own(tmp_path, images, [mark(1, 1, 2, [rectangle(0, 0, 2, 2)])]).index()
    places = write(tmp_path, images, [mark(1, 1, 2, [rectangle(0, 0, 3, 3)])])
    os.utime(places[0], (1, 1))  # the same size, another time
    after = open_coco_json(*places, "own")[1].index()
    assert (before.pixels.tolist(), after.pixels.tolist()) == ([4], [9])
    assert len(list((tmp_path / "cache" / "coco").iterdir())) == 1


def test_a_kept_problem_is_told_again(tmp_path, problems):
    marks = [mark(1, 1, 2, [rectangle(0, 0, 2, 2)]), mark(2, 1, 2, [[1, 2, 3]])]
    places = write(tmp_path, [image(1, "a.png", 8, 8)], marks)
    open_coco_json(*places, "own", problems.append)
    scribble(places[0])
    open_coco_json(*places, "own", problems.append)
    assert len(problems) == 2 and problems[0] == problems[1]
    with pytest.raises(DataError, match="polygon of 3 numbers"):
        open_coco_json(*places, "own")


@pytest.mark.parametrize("damage", [lambda content: content[:-40], lambda content: b"PK" + content[2:60], lambda content: b""])
def test_a_damaged_cache_is_drawn_again_with_a_warning(tmp_path, damage):
    images = [image(1, "a.png", 8, 8)], [mark(1, 1, 2, [rectangle(0, 0, 2, 2)])]
    whole = own(tmp_path, *images).index()
    (kept,) = (tmp_path / "cache" / "coco").iterdir()
    kept.write_bytes(damage(kept.read_bytes()))
    with pytest.warns(UserWarning, match=r"own-\w+.npz: the kept index cannot be read \(damaged\), so it is built again"):
        again = own(tmp_path, *images).index()
    assert_equal(again, whole)
    assert_equal(own(tmp_path, *images).index(), whole)


def test_a_flipped_byte_in_the_cache_never_changes_a_label(tmp_path, recwarn):
    places = write(tmp_path, [image(1, "a.png", 8, 8)], [mark(1, 1, 2, [rectangle(1, 2, 5, 4)])])
    twin = open_coco_json(*places, "own")[1].label(0, 0)
    (kept,) = (tmp_path / "cache" / "coco").iterdir()
    content = kept.read_bytes()
    for place in range(0, len(content), 29):
        kept.write_bytes(content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :])
        assert np.array_equal(open_coco_json(*places, "own")[1].label(0, 0), twin)


def test_without_a_place_for_the_cache_there_is_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="the index cannot be kept .* set CYCTR_CACHE") as warned:
        pool = own(tmp_path, [image(1, "a.png", 8, 8)], [mark(1, 1, 2, [rectangle(0, 0, 2, 2)])])
    assert len(warned) == 1
    assert pool.index().pixels.tolist() == [4]


def test_progress_reaches_the_last_image(tmp_path):
    images, annotations, twins = random_scene(tmp_path)
    told = []
    own(tmp_path, images, annotations, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(twins), len(twins))


def test_the_index_of_coco_shows_the_progress_of_the_first_reading(tmp_path):
    root = write_coco(tmp_path)
    told = []
    for _ in range(2):
        open_coco(root).pool("train").index(lambda done, total: told.append((done, total)))
    assert told == [(2, 2)]


def test_many_threads_share_one_reading(tmp_path, problems):
    root = write_coco(tmp_path)
    (root / "val2017" / "val_000000000000.jpg").unlink()
    pool = open_coco(root, complain=problems.append).pool("test")
    with ThreadPoolExecutor(8) as workers:
        labels = list(workers.map(lambda _: pool.label(0, 4), range(32)))
    assert len(problems) == 1
    assert all(label.sum() == 15 for label in labels)


def test_a_pool_can_be_sent_to_another_process(tmp_path):
    images, annotations, twins = random_scene(tmp_path)
    pool = pickle.loads(pickle.dumps(own(tmp_path, images, annotations)))
    assert np.array_equal(pool.label(3, 1), twins[3][1])


GOOD = [rectangle(0, 0, 2, 3)]


def outline(segmentation):
    return lambda document: document["annotations"][0].update(segmentation=segmentation)


def change(part, place=0, **fields):
    return lambda document: document[part][place].update(fields)


def insert(part, entry):
    return lambda document: document[part].insert(0, entry)


BROKEN = {
    "annotation 1, in a.png, has a polygon of 4 numbers; expected x, y of 3 points": outline([[1, 2, 3, 4]]),
    "annotation 1, in a.png, has a polygon of 7 numbers": outline([*GOOD, [1, 2, 3, 4, 5, 6, 7]]),
    "annotation 1, in a.png, has a polygon with nan among": outline([[1, 2, 3, 4, 5, float("nan")]]),
    "annotation 1, in a.png, has a polygon with inf among": outline([[1, 2, 3, 4, 5, float("inf")]]),
    "annotation 1, in a.png, has a polygon with 1e\\+30 among": outline([[1, 2, 3, 4, 5, 1e30]]),
    "has a polygon with 100000.0 among its numbers; expected pixels from -12 to 12": outline([[0, 0, 1e5, 1e5, 0, 1e5]]),
    "annotation 1, in a.png, has a polygon with 1000000000": outline([[1, 2, 3, 4, 5, 10**400]]),
    "annotation 1, in a.png, has a polygon with '4' among": outline([[1, 2, 3, "4", 5, 6]]),
    "annotation 1, in a.png, has a polygon with None among": outline([[1, 2, 3, None, 5, 6]]),
    r"annotation 1, in a.png, has a polygon with \[4\] among": outline([[1, 2, 3, [4], 5, 6]]),
    "annotation 1, in a.png, has a polygon that is 1, not a list": outline([1, 2, 3, 4, 5, 6]),
    "annotation 1, in a.png, has no segmentation; expected polygons or RLE": outline([]),
    "annotation 1, .* has no segmentation; .* or remove the annotation": lambda d: d["annotations"][0].pop("segmentation"),
    r"has an RLE of size 6 x 5, but the image is 5 x 6 \(height x width\)": outline({"size": [6, 5], "counts": [30]}),
    r"has an RLE of size None, but the image is 5 x 6": outline({"counts": [30]}),
    "has an RLE whose counts do not add up to the 30 pixels": outline({"size": [5, 6], "counts": [10, 21]}),
    "RLE whose counts do not add up": outline({"size": [5, 6], "counts": [40, -10]}),
    "counts do not add up": outline({"size": [5, 6], "counts": "O1"}),
    r"RLE whose counts cannot be read \('~'\)": outline({"size": [5, 6], "counts": "~"}),
    r"RLE whose counts cannot be read \('P'\)": outline({"size": [5, 6], "counts": "P"}),
    "RLE whose counts cannot be read .'ooooooooooo": outline({"size": [5, 6], "counts": "o" * 20 + "0"}),
    "RLE whose counts cannot be read .'é'": outline({"size": [5, 6], "counts": "é"}),
    "RLE whose counts cannot be read .''": outline({"size": [5, 6], "counts": ""}),
    r"RLE whose counts cannot be read \(None\)": outline({"size": [5, 6]}),
    r"RLE whose counts cannot be read \(\[30.0\]\)": outline({"size": [5, 6], "counts": [30.0]}),
    r"RLE whose counts cannot be read \(\[1000": outline({"size": [5, 6], "counts": [10**30]}),
    "annotation 1 is for image 99, which is not listed; remove it, or list the image": change("annotations", image_id=99),
    "annotation 1 is for image 'x', which is not listed": change("annotations", image_id="x"),
    "annotation 1 has category 3, which is not listed; remove it, or list the category": change("annotations", category_id=3),
    r"annotation 1 has category \[\], which is not listed": change("annotations", category_id=[]),
    r"annotations\[0\] is for image 99": lambda d: d["annotations"].insert(0, {"image_id": 99}),
    r"annotations\[0\] is 5; expected an object": insert("annotations", 5),
    r"images\[0\] has the id None and the file_name None; expected a whole number": insert("images", "a.png"),
    r"images\[0\] has the id '1' and the file_name 'z.png'": insert("images", image("1", "z.png", 5, 6)),
    "image 2 is listed twice; give z.png another id": lambda d: d["images"].append(image(2, "z.png", 5, 6)),
    "images 2 and 3 are both called b; rename or remove one": lambda d: d["images"].append(image(3, "b.jpg", 5, 6)),
    r"image 1, a.png, is None x 6 \(height x width\); expected whole": change("images", height=None),
    r"image 1, a.png, is 0 x 6": change("images", height=0),
    r"image 1, a.png, is 5 x 10000000000 .* at most 178956970 pixels": change("images", width=10**10),
    r"categories\[0\] has the id None and the name 'x'; expected": insert("categories", {"name": "x"}),
    r"categories\[0\] has the id 5 and the name 3; expected": insert("categories", {"id": 5, "name": 3}),
    "category 7 is listed twice; give x another id": lambda d: d["categories"].append({"id": 7, "name": "x"}),
    "categories 2 and 9 are both called leaf; rename one": lambda d: d["categories"].append({"id": 9, "name": "leaf"}),
}


@pytest.mark.parametrize("message", BROKEN)
def test_what_is_broken_is_named_and_left_out(tmp_path, problems, message):
    images = [image(1, "a.png", 5, 6), image(2, "b.png", 5, 6)]
    path, folder = write(tmp_path, images, [mark(1, 1, 7, GOOD), mark(2, 2, 7, GOOD)])
    document = json.loads(path.read_text())
    BROKEN[message](document)
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match=message) as refused:
        open_coco_json(path, folder, "own")
    assert str(refused.value).startswith(f"{path}: ") and "\n" not in str(refused.value)
    assert len(str(refused.value)) < len(str(path)) + 200
    names, pool = open_coco_json(path, folder, "own", problems.append)
    assert names == ("leaf", "cup")
    assert problems == [str(refused.value)]
    assert pool.keys[-1] == "b"
    assert pool.label(len(pool.keys) - 1, 1).sum() == 6


def test_what_belongs_to_something_left_out_goes_quietly(tmp_path, problems):
    images = [image(1, "a.png", 5, 6), image(2, "a.jpg", 5, 6)]
    marks = [mark(1, 1, 7, GOOD), mark(2, 2, 7, GOOD), mark(3, 1, 8, GOOD), mark(4, 1, 8, GOOD)]
    places = write(tmp_path, images, marks, [*OWN, {"id": 8, "name": "cup"}])
    names, pool = open_coco_json(*places, "own", problems.append)
    assert [problem.split(": ", 1)[1].split(";")[0] for problem in problems] == [
        "categories 7 and 8 are both called cup",
        "images 1 and 2 are both called a",
    ]
    assert (names, pool.keys, pool.index().pixels.tolist()) == (("leaf", "cup"), ("a",), [6])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"own.json: cannot be read \(No such file or directory\); expected a COCO instances JSON"),
        (b"{", "own.json: is not JSON .*; expected a COCO instances JSON: export or download it again"),
        (b"\xff\xd8\xff\xe0", "own.json: is not JSON"),
        (b"[" * 100_000, "own.json: is not JSON"),
        (b"[]", "own.json: holds a list, not an object"),
        (b'{"annotations": [], "categories": []}', "own.json: has no list 'images'"),
        (b'{"images": [], "categories": []}', "own.json: has no list 'annotations'"),
        (b'{"images": [], "annotations": {}, "categories": []}', "own.json: has no list 'annotations'"),
        (b'{"images": [], "annotations": []}', "own.json: has no list 'categories'"),
        (b'{"images": [], "annotations": [], "categories": []}', "own.json: holds no annotation; expected objects outlined"),
    ],
)
def test_a_file_that_is_not_coco_gives_one_line_and_an_empty_pool(tmp_path, problems, content, message):
    path, folder = write(tmp_path, [image(1, "a.png", 4, 4)], [])
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=message) as refused:
        open_coco_json(path, folder, "own")
    assert "\n" not in str(refused.value)
    names, pool = open_coco_json(path, folder, "own", problems.append)
    assert (names, len(pool.keys), len(pool.index()), len(problems)) == ((), 0, 0, 1)


def test_missing_images_are_named_and_left_out(tmp_path, problems):
    images, annotations, twins = random_scene(tmp_path)
    path, folder = write(tmp_path, images, annotations)
    whole = open_coco_json(path, folder, "own")[1]
    (folder / f"{whole.keys[3]}.png").unlink()
    with pytest.raises(DataError, match=f"{whole.keys[3]}.png: no such file, but own.json names it; add it, or mend the JSON"):
        open_coco_json(path, folder, "own")
    pool = open_coco_json(path, folder, "own", problems.append)[1]
    assert len(problems) == 1
    assert list(pool.keys) == [key for i, key in enumerate(whole.keys) if i != 3]
    left = twins[:3] + twins[4:]
    assert all(np.array_equal(pool.label(i, c), left[i][c]) for i in range(len(left)) for c in (0, 1))
    sizes = np.array([twin[0].shape for twin in left])
    counts = [(i, c, int((twin[c] == 1).sum())) for i, twin in enumerate(left) for c in (0, 1) if (twin[c] == 1).any()]
    assert_equal(pool.index(), Index(sizes, *np.array(counts).T))


def test_a_missing_folder_of_images_is_one_problem(tmp_path, problems):
    path, _ = write(tmp_path, [image(n, f"{n}.png", 4, 4) for n in (1, 2)], [mark(n, n, 2, GOOD) for n in (1, 2)])
    with pytest.raises(DataError, match=r"nowhere: no such folder; expected the images that own.json names"):
        open_coco_json(path, tmp_path / "nowhere", "own")
    open_coco_json(path, tmp_path / "nowhere", "own", problems.append)
    assert len(problems) == 1


@pytest.mark.parametrize("file", ["gone/a.png", "nul\0l/a.png"])
def test_an_image_in_a_missing_subfolder_is_missing(tmp_path, file):
    path, folder = write(tmp_path, [image(1, "a.png", 4, 4)], [mark(1, 1, 2, GOOD)])
    path.write_text(path.read_text().replace("a.png", json.dumps(file)[1:-1]))
    with pytest.raises(DataError, match=r"a.png: no such file, but own.json names it"):
        open_coco_json(path, folder, "own")


MISMATCH = r"a.png: image is 6 x 5, own.json says 5 x 6 \(height x width\); put the image there that was annotated"


def test_an_image_of_another_size_is_refused_where_it_is_read(tmp_path):
    pool = own(tmp_path, [image(1, "a.png", 5, 6)], [mark(1, 1, 2, GOOD)])
    Image.new("RGB", (5, 6)).save(tmp_path / "images" / "a.png")
    assert len(pool.index()) == 1
    with pytest.raises(DataError, match=MISMATCH):
        pool.image(0)


def test_a_check_finds_images_of_another_size_and_damaged_ones(tmp_path):
    images = [image(n, f"{name}.png", 5, 6) for n, name in enumerate("abcde")]
    own(tmp_path, images, [mark(n, n, (2, 7)[n % 2], GOOD) for n in range(5)])
    Image.new("RGB", (5, 6)).save(tmp_path / "images" / "a.png")
    (tmp_path / "images" / "b.png").write_bytes(b"no image")
    report = check(tmp_path)
    with pytest.raises(DataError, match=MISMATCH):
        raise DataError(report.problems[0])
    assert len(report.problems) == 2 and "b.png" in report.problems[1]


def test_a_scan_of_sound_data_gives_the_same_index(tmp_path, problems):
    images, annotations, _ = random_scene(tmp_path)
    pool = own(tmp_path, images, annotations)
    assert_equal(pool.index(complain=problems.append), pool.index())
    assert problems == []


def test_a_scan_of_coco_hears_of_the_json_and_the_images_once(tmp_path, problems):
    root = write_coco(tmp_path)
    (root / "train2017" / "train_000000000000.jpg").unlink()
    Image.new("RGB", (5, 5)).save(root / "train2017" / "train_000000000004.jpg")
    pool = open_coco(root, complain=problems.append).pool("train")
    pool.index(complain=problems.append)
    assert len(pool.keys) == len(problems) == 1 and "no such file" in problems[0]
    told = check(root).problems
    assert [sum(words in problem for problem in told) for words in ("no such file", "image is 5 x 5")] == [1, 1]


def test_without_pycocotools_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    dataset = open_coco(write_coco(tmp_path))
    monkeypatch.setitem(sys.modules, "pycocotools.mask", None)
    with pytest.raises(DataError, match=r"pycocotools is not installed.*; run: pip install pycocotools$"):
        dataset.pool("test").index()


@pytest.mark.parametrize("lead", ["../", "../../up/", "/", "C:\\\\", "a/../../"])
def test_an_image_outside_the_folder_is_never_read(lead, tmp_path):
    folder = tmp_path / "inner"
    annotations = [mark(1, 1, 2, [rectangle(0, 0, 4, 4)])]
    places = write(folder, [image(1, "a.png", 8, 8)], annotations)
    document = json.loads(places[0].read_text())
    Image.new("RGB", (document["images"][0]["width"], document["images"][0]["height"])).save(tmp_path / "secret.png")
    document["images"][0]["file_name"] = str(tmp_path / "secret.png") if lead == "/" else f"{lead}secret.png"
    places[0].write_text(json.dumps(document))
    problems = []
    _, pool = open_coco_json(*places, "own", problems.append)
    assert list(pool.keys) == [] and any("secret.png: no such file" in problem for problem in problems)


def test_an_outline_that_would_take_all_memory_to_draw_is_left_out_with_a_line(tmp_path):
    zigzag = [0, 0, 9, 150] * 50_000
    places = write(tmp_path, [image(1, "a.png", 80, 80)], [mark(1, 1, 7, [zigzag]), mark(2, 1, 2, [rectangle(0, 0, 4, 4)])])
    problems = []
    _, pool = open_coco_json(*places, "own", problems.append)
    assert pool.index().number.tolist() == [0]
    assert any("has an outline of 15,000,000 pixels of length" in problem for problem in problems)


def test_of_a_json_made_of_wrong_entries_the_first_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(coco_json, "PROBLEMS", 3)
    monkeypatch.setattr(coco_json, "WRONG", 5)
    document = {"images": [], "categories": [], "annotations": [1] * 5}
    problems = coco_json.read_marks(document, tmp_path / "a.json")[2]
    assert [line[:14] for line in problems] == ["annotations[0]", "annotations[1]", "annotations[2]", "more than 3 en"]
    document["annotations"] = [1] * 6
    with pytest.raises(DataError, match=r"a\.json: has more than 5 wrong entries, such as: annotations\[0\] is 1"):
        coco_json.read_marks(document, tmp_path / "a.json")
