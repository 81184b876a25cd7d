from dataclasses import replace
from pathlib import Path

import pytest
from miniature import class_mask_folder, coco_folder, fss_folder, labelled_folder, picture, pictures, voc_folder

from cyctr.config import PROTOCOLS
from cyctr.datasets.coco import CUSTOMS as COCO
from cyctr.datasets.fss import CUSTOMS as FSS
from cyctr.datasets.opening import KINDS, detect, open_dataset
from cyctr.errors import ConfigError, DataError


def coco(root):
    return coco_folder(root, "annotations/instances_val2017.json")


def in_folder(make, *parts):
    return lambda root: make(root.joinpath(*parts)) and root


MADE = {
    "pascal": voc_folder,
    "pascal in VOC2012": in_folder(voc_folder, "VOC2012"),
    "pascal in VOCdevkit/VOC2012": in_folder(voc_folder, "VOCdevkit", "VOC2012"),
    "coco": coco,
    "fss": fss_folder,
    "fss in fewshot_data": in_folder(fss_folder, "fewshot_data"),
    "folder of class masks": class_mask_folder,
    "folder of labelled masks": labelled_folder,
    "folder of coco": coco_folder,
    "folder of coco in annotations": lambda root: coco_folder(root, "annotations/instances_default.json"),
}


@pytest.mark.parametrize("made", MADE)
def test_every_kind_is_known_by_its_layout(tmp_path, made):
    root = MADE[made](tmp_path / "data")
    kind = made.split()[0]
    assert detect(root) == kind
    assert kind in KINDS and open_dataset(root).name.split("-")[0] == kind


@pytest.mark.parametrize("part", ["SegmentationClassAug", "ImageSets/Segmentation"])
def test_one_folder_of_pascal_is_enough_to_know_it_and_the_rest_is_asked_for(tmp_path, part):
    (tmp_path / part).mkdir(parents=True)
    assert detect(tmp_path) == "pascal"
    with pytest.raises(DataError, match="JPEGImages: no such folder; expected the VOC2012 layout"):
        open_dataset(tmp_path)


def test_images_with_numbers_for_names_are_not_mistaken_for_fss(tmp_path):
    for number in range(3):
        picture(tmp_path / "images" / f"{number}.jpg")
        picture(tmp_path / "images" / f"{number}.png")
    assert detect(tmp_path) == "folder"


def test_pictures_in_subfolders_are_not_mistaken_for_fss(tmp_path):
    pictures(tmp_path / "holiday")
    picture(tmp_path / "holiday" / "a.jpg")  # a.png is there, but a is no number
    assert detect(tmp_path) == "folder"


def test_an_unknown_folder_is_asked_for_the_layout_of_ones_own(tmp_path):
    with pytest.raises(DataError, match=r"holds no masks; expected images/STEM.jpg and one of masks/CLASS/STEM.png"):
        open_dataset(tmp_path)


def test_a_kind_that_is_named_is_not_guessed(tmp_path):
    class_mask_folder(tmp_path)
    with pytest.raises(DataError, match="JPEGImages: no such folder; expected the VOC2012 layout"):
        open_dataset(tmp_path, "pascal")


def test_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="kind is 'voc'; expected pascal, coco, fss, folder, synthetic or auto"):
        open_dataset(tmp_path, "voc")


def test_an_unknown_split_of_coco_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="coco_split is 'fwb'; expected interleaved or contiguous"):
        open_dataset(coco(tmp_path), coco_split="fwb")


@pytest.mark.parametrize("kind", ["auto", "pascal", "folder"])
def test_a_missing_folder_is_named_with_what_to_do(tmp_path, kind):
    with pytest.raises(DataError, match=r"nowhere: no such folder; expected a dataset: check the path"):
        open_dataset(tmp_path / "nowhere", kind)


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "data.zip").touch()
    with pytest.raises(DataError, match=r"data.zip: is a file; expected the folder of a dataset"):
        open_dataset(tmp_path / "data.zip")


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (voc_folder, {"year": 2014}, "year is 2014, but .* is of kind pascal, and only coco takes it; leave it out"),
        (fss_folder, {"coco_split": "contiguous"}, "coco_split is 'contiguous', but .* is of kind fss, and only coco takes it"),
        (coco, {"folds": 4}, "folds is 4, but .* is of kind coco, and only folder takes it"),
        (voc_folder, {"test_classes": ["cat"]}, r"test_classes is \['cat'\], but .* is of kind pascal"),
        (fss_folder, {"split_seed": 3}, "split_seed is 3, but .* is of kind fss"),
        (class_mask_folder, {"year": 2017}, "year is 2017, but .* is of kind folder, and only coco takes it"),
    ],
)
def test_an_option_of_another_kind_is_refused(tmp_path, make, options, message):
    with pytest.raises(ConfigError, match=message):
        open_dataset(make(tmp_path / "data"), **options)


def test_options_reach_the_kind_they_are_for(tmp_path):
    (fold,) = open_dataset(class_mask_folder(tmp_path / "a"), test_classes=["dog"]).folds
    assert fold.test == (1,)
    assert len(open_dataset(class_mask_folder(tmp_path / "b"), folds=2, split_seed=5).folds) == 2
    blocks = open_dataset(coco(tmp_path / "c"), year=2017, coco_split="contiguous")
    assert blocks.name == "coco-2017" and blocks.fold(1).test == tuple(range(20, 40))


def test_problems_reach_the_one_who_asked_for_them(tmp_path):
    picture(class_mask_folder(tmp_path) / "images" / "extra.png")
    problems = []
    assert open_dataset(tmp_path, complain=problems.append).classes == ("cat", "dog")
    assert len(problems) == 1 and "extra.png: has no mask" in problems[0]


@pytest.mark.parametrize(
    ("name", "protocol", "expected"),
    [
        ("coco", "cyctr", (5000, "images")),
        ("coco", "released", (5000, "images")),
        ("coco", "pfenet", (20000, "images")),
        ("coco", "hsnet", (1000, "classes")),
        ("fss", "cyctr", (2400, "images")),
        ("fss", "hsnet", (2400, "pairs")),
        ("synthetic", "cyctr", (1000, "images")),
        ("synthetic", "pfenet", (5000, "images")),
        ("synthetic", "hsnet", (1000, "pairs")),
    ],
)
def test_a_dataset_says_how_many_episodes_a_protocol_has_on_it_and_in_which_order(name, protocol, expected, tmp_path):
    usual = PROTOCOLS[protocol]
    measure = open_dataset(Path("synthetic") if name == "synthetic" else MADE[name](tmp_path)).protocol(protocol)
    assert (measure.episodes, measure.order) == expected
    assert replace(measure, episodes=usual.episodes, order=usual.order) == usual


def test_the_customs_of_datasets_are_of_protocols_that_exist():
    for customs in (COCO, FSS):
        assert customs.keys() == PROTOCOLS.keys()
