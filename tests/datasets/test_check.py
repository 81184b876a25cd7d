import pytest
from miniature import (
    CLASSES,
    OBJECTS,
    box,
    class_mask_folder,
    coco_folder,
    fss_folder,
    labelled_folder,
    picture,
    state,
    truncate,
    voc_folder,
    write,
)

from cyctr.datasets.check import check
from cyctr.errors import ConfigError


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


def where(root, report):
    """The files that the problems name."""
    return [problem.partition(": ")[0].removeprefix(f"{root}/") for problem in report.problems]


@pytest.mark.parametrize("make", [class_mask_folder, labelled_folder, coco_folder])
def test_a_good_folder_has_no_problems_and_is_counted(root, make):
    report = check(make(root))
    assert report.problems == []
    assert (report.kind, report.images) == ("folder", {"all": len(OBJECTS)})
    assert report.classes == {"all": {"cat": 3, "dog": 2}}


def test_splits_with_images_of_their_own_are_counted_apart(root):
    report = check(voc_folder(root))
    assert (report.kind, report.images) == ("pascal", {"train": 1, "test": 1})
    assert report.classes["train"]["aeroplane"] == report.classes["test"]["aeroplane"] == 1
    assert report.classes["test"]["train"] == 0


def test_an_image_counts_for_a_class_from_the_smallest_number_of_pixels_on(root):
    voc_folder(root)
    write(root / "SegmentationClassAug" / "2008_1.png", box((0, 0, 40, 50), 1, (60, 60)))
    report = check(root)
    assert report.classes["train"]["aeroplane"] == 1 and report.classes["test"]["aeroplane"] == 0
    assert any("(test): class aeroplane has 0 images with 2048 pixels of it or more" in problem for problem in report.problems)


def test_fss_is_counted_by_class(root):
    report = check(fss_folder(root, classes=4, images=6, test=1))
    assert report.problems == [] and report.notes == []
    assert report.images == {"all": 24} and report.classes["all"] == {f"thing_{i:02d}": 6 for i in range(4)}


def test_classes_with_too_few_images_are_named(root):
    class_mask_folder(root)
    (root / "masks" / "dog" / "c.png").rename(root / "masks" / "cat" / "c.png")
    report = check(root)
    assert report.problems == [
        f"{root}: class dog has 1 image with pixels of it; an episode needs 2: add images, or remove the class"
    ]
    assert report.notes == [f"{root}: 1 class of fewer than the 6 images that a 5-shot episode needs: cat (4)"]


def test_many_rare_classes_are_one_note(root):
    (note,) = check(fss_folder(root, classes=12, images=2, test=1)).notes
    assert "12 classes of fewer than the 6 images" in note and note.endswith("thing_09 (2), ...")


def test_the_summary_counts_images_and_classes_and_ends_with_the_notes(root):
    report = check(class_mask_folder(root))
    assert report.summary() == ["folder: 4 images, 2 classes with 2 (dog) to 3 images (cat)", *report.notes]


def test_the_summary_of_classes_of_equally_many_images_says_so_once(root):
    assert check(fss_folder(root, classes=3, images=7, test=0)).summary()[0].endswith("21 images, 3 classes with 7 images each")


def test_the_summary_has_a_line_for_each_split_and_none_of_what_could_not_be_opened(root):
    assert check(root).summary() == []
    assert [line.partition(",")[0:3:2] for line in check(voc_folder(root)).summary()] == [
        ("pascal", " train: 1 image, 20 classes with 0 (bicycle) to 1 image (aeroplane)"),
        ("pascal", " test: 1 image, 20 classes with 0 (bicycle) to 1 image (aeroplane)"),
    ]


def test_all_problems_of_class_masks_are_listed_at_once(root):
    class_mask_folder(root)
    (root / "masks" / "cow").mkdir()
    picture(root / "images" / "extra.png")
    write(root / "masks" / "dog" / "stray.png", box((0, 0, 1, 1)))
    write(root / "masks" / "cat" / "a.png", box((0, 0, 1, 1), 9) + box((2, 2, 3, 3), 4))
    write(root / "masks" / "cat" / "b.png", box((0, 0, 1, 1), 1, (3, 3)))
    (root / "masks" / "dog" / "c.png").write_bytes(b"")
    truncate(root / "images" / "b.png")
    truncate(root / "images" / "d.png")
    report = check(root)
    assert sorted(where(root, report)) == sorted(
        [
            "masks/cow",
            "images/extra.png",
            "masks/dog/stray.png",
            "masks/cat/a.png",
            "masks/cat/b.png",
            "masks/dog/c.png",
            "images/b.png",
            "images/d.png",
            str(root),  # cat has one image left
            str(root),  # and so has dog
        ]
    )
    assert all("\n" not in problem for problem in report.problems)
    assert report.images == {"all": 4} and report.classes == {"all": {"cat": 1, "dog": 1}}


@pytest.mark.parametrize("names", [True, False])
def test_all_problems_of_labelled_masks_are_listed_at_once(root, names):
    labelled_folder(root, names)
    picture(root / "images" / "extra.png")
    write(root / "masks" / "stray.png", box((0, 0, 1, 1)))
    write(root / "masks" / "a.png", box((0, 0, 1, 1), 1, (3, 3)))
    (root / "images" / "b.png").write_bytes(b"no image")
    truncate(root / "images" / "d.png")
    report = check(root)
    assert where(root, report)[:5] == ["masks/stray.png", "images/extra.png", "masks/a.png", "images/b.png", "images/d.png"]
    assert len(report.problems) == 7  # neither class has two images left


def test_all_problems_of_a_coco_file_are_listed_at_once(root):
    coco_folder(root)
    (root / "images" / "a.png").unlink()
    truncate(root / "images" / "b.png")
    picture(root / "images" / "c.png", (5, 5))
    assert where(root, check(root))[:3] == ["images/a.png", "images/b.png", "images/c.png"]


def test_a_split_without_images_is_not_also_said_to_lack_every_class(root):
    report = check(coco_folder(root, "annotations/instances_val2017.json"))
    assert (report.kind, report.images) == ("coco", {"train": 0, "test": 0})
    assert len(report.problems) == 2  # one for each split


def test_all_problems_of_pascal_are_listed_at_once(root):
    voc_folder(root)
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("2008_1\n2008_2\n")
    truncate(root / "JPEGImages" / "2007_1.jpg")
    write(root / "SegmentationClassAug" / "2008_1.png", box((0, 0, 50, 50), 77, (60, 60)))
    found = where(root, check(root))
    assert found[:2] == ["ImageSets/Segmentation/val.txt", "JPEGImages/2007_1.jpg"]
    assert "SegmentationClassAug/2008_1.png" in found


def test_all_problems_of_fss_are_listed_at_once(root):
    fss_folder(root, images=3, test=0)
    (root / "thing_00" / "1.png").unlink()
    truncate(root / "thing_01" / "1.jpg")
    report = check(root)
    assert where(root, report) == ["thing_00/1.jpg", str(root), "thing_01/1.jpg"]
    assert "lacks 240 of the 240 test classes" in report.problems[1]


def test_an_image_whose_header_is_bad_is_named_once(root):
    class_mask_folder(root)
    (root / "images" / "b.png").write_bytes(b"no image")  # it has two masks
    assert where(root, check(root)).count("images/b.png") == 1


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (lambda root: None, "auto", "no such folder; expected a dataset"),
        (lambda root: root.touch(), "auto", "is a file; expected the folder of a dataset"),
        (lambda root: root.mkdir(), "folder", "holds no masks; expected images/STEM.jpg"),
        (lambda root: picture(class_mask_folder(root) / "images" / "a.jpg"), "folder", "share the name 'a'"),
        (lambda root: (labelled_folder(root) / "classes.txt").write_text(""), "folder", "names no class"),
        (lambda root: (coco_folder(root) / "annotations.json").write_text("{"), "folder", "is not JSON"),
        (lambda root: (voc_folder(root) / "ImageSets/Segmentation/val.txt").unlink(), "pascal", "val.txt: cannot be read"),
    ],
)
def test_what_stops_the_opening_is_one_problem(root, spoil, kind, message):
    spoil(root)
    report = check(root)
    assert len(report.problems) == 1 and message in report.problems[0]
    assert report.kind == kind


def test_a_class_split_that_does_not_fit_is_a_problem_and_an_option_that_does_not_apply_an_error(root):
    class_mask_folder(root)
    assert "class 'cow' is not in the dataset" in check(root, test_classes=["cow"]).problems[0]
    with pytest.raises(ConfigError, match="year is 2014"):
        check(root, year=2014)


def test_progress_ends_with_everything_done(root):
    seen = []
    check(class_mask_folder(root), progress=lambda done, count: seen.append((done, count)))
    assert seen == [(5, 5), (4, 4)]  # five masks, four images


@pytest.mark.parametrize("make", [class_mask_folder, labelled_folder, coco_folder, voc_folder, fss_folder])
def test_nothing_of_the_users_is_written_or_changed(root, make):
    before = state(make(root))
    check(root)
    assert state(root) == before


def test_a_check_looks_at_the_masks_themselves_not_at_the_cache(root, cache):
    class_mask_folder(root)
    assert check(root).classes["all"]["cat"] == 3
    assert not cache.exists()
    assert tuple(check(root).classes["all"]) == CLASSES


def test_two_files_of_one_name_hide_no_other_problem(root):
    class_mask_folder(root)
    picture(root / "images" / "a.jpg")
    write(root / "masks" / "dog" / "b.bmp", box((0, 0, 9, 9), 255))
    write(root / "masks" / "cat" / "b.png", box((0, 0, 3, 3), 255, size=(5, 5)))
    problems = "\n".join(check(root).problems)
    assert "a.jpg and a.png share the name 'a'" in problems
    assert "mask is 5 x 5" in problems
    assert "has no mask" not in problems
