import json
import os
import shutil
import sys
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from labelled_folders import (
    BOXES,
    CLASSES,
    LAYOUTS,
    SIZE,
    class_folders,
    coco,
    coco_above,
    coco_beside,
    flat_numbers,
    labelme,
    labelme_polygons,
    marked,
    mask,
    number_masks,
    numbered,
    photos,
    picture,
    polygon,
    runs,
    shape,
)

from cyctr.errors import ConfigError, DataError
from cyctr.inference.inputs import to_image, to_label
from cyctr.inference.shapes import Box, Polygons
from cyctr.inference.supports.labelled import Labelled
from cyctr.inference.supports.reading import find_supports, read_supports


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "things"
    folder.mkdir()
    return folder


def label(support):
    return to_label(support.mask, to_image(support.image).shape[:2], support.class_id)


def stems(supports):
    return [support.image.stem for support in supports]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_classes_images_and_labels(layout, root):
    LAYOUTS[layout](root)
    found = find_supports(root)
    assert found.problems == ()
    assert tuple(found.classes) == CLASSES
    for name, supports in found.classes.items():
        assert stems(supports) == [stem for stem, boxes in BOXES.items() if name in boxes]
        for support in supports:
            np.testing.assert_array_equal(label(support), marked(BOXES[support.image.stem][name]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_classes_restrict_and_order(layout, root):
    LAYOUTS[layout](root)
    every = find_supports(root).classes
    assert read_supports(root, classes=["plate"]).classes == {"plate": every["plate"]}
    turned = read_supports(root, classes=["plate", "cup"]).classes
    assert list(turned) == ["plate", "cup"] and turned == every


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_unknown_class_is_a_wrong_setting_that_names_what_is_there(layout, root):
    LAYOUTS[layout](root)
    with pytest.raises(ConfigError, match=r"^there is no class 'fork'; the supports show cup, plate: choose"):
        read_supports(root, classes=["cup", "fork"])
    with pytest.raises(ConfigError, match="classes is empty"):
        read_supports(root, classes=[])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_image_is_passed_over_with_a_line_that_names_it(layout, root):
    LAYOUTS[layout](root)
    for path in [path for path in root.rglob("*") if path.name.lower() == "b.jpg"]:
        path.write_bytes(path.read_bytes()[:400])
    found = find_supports(root)
    assert {name: stems(supports) for name, supports in found.classes.items()} == {"cup": ["a"], "plate": ["c"]}
    assert found.problems
    assert all("b.jpg" in problem.lower() and "\n" not in problem for problem in found.problems)
    assert any("damaged" in problem for problem in found.problems)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_left_where_every_image_is_damaged(layout, root):
    LAYOUTS[layout](root)
    for path in [path for path in root.rglob("*") if path.suffix.lower() == ".jpg"]:
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"things: no labelled image is left; .*is not a JPEG.*") as caught:
        find_supports(root)
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="things: no labelled image is left"):
        read_supports(root, classes=["cup"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hidden_files_and_leavings_of_other_systems_are_not_seen(layout, root):
    LAYOUTS[layout](root)
    before = find_supports(root)
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        for name in ("._a.jpg", ".hidden.png", "._a.json", ".DS_Store", "Thumbs.db", "notes.txt"):
            (folder / name).write_bytes(b"nothing")
    picture(root / ".cache" / "a.jpg")
    picture(root / "__MACOSX" / "a.jpg")
    assert find_supports(root) == before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_links_that_lead_round_in_a_circle_are_safe(layout, root):
    LAYOUTS[layout](root)
    before = find_supports(root).classes
    for folder in [path for path in root.rglob("*") if path.is_dir()] + [root]:
        (folder / "up").symlink_to(root, target_is_directory=True)
        (folder / "here").symlink_to(".", target_is_directory=True)
        (folder / "itself").symlink_to("itself")
        (folder / "itself.jpg").symlink_to("itself.jpg")
    assert find_supports(root).classes == before


def test_supports_are_values(root):
    class_folders(root)
    first, second = find_supports(root), find_supports(root)
    assert first == second
    support = first.classes["cup"][0]
    assert hash(support) == hash(second.classes["cup"][0])
    with pytest.raises(FrozenInstanceError):
        support.class_id = 3


# names and values


@pytest.mark.parametrize(
    "named", ["{}_mask.png", "{}-mask.png", "{}.mask.png", "{}.png", "{}_MASK.PNG", "{}_Mask.Png", "{}.PNG"]
)
@pytest.mark.parametrize("value", [1, 255])
def test_masks_beside_images_are_of_one_class_called_after_the_folder(named, value, root):
    picture(root / "cup1.jpg")
    path = mask(root / named.format("cup1"), marked((2, 1, 9, 8), value))
    found = find_supports(root)
    assert found.classes == {"things": (Labelled(root / "cup1.jpg", path, None),)}
    assert found.problems == ()


@pytest.mark.parametrize("ending", [".jpg", ".JPG", ".jpeg", ".webp", ".bmp", ".tif"])
def test_images_of_every_kind_have_masks_beside_them(ending, root):
    picture(root / f"cup1{ending}")
    mask(root / "cup1.png", marked((2, 1, 9, 8)))
    assert stems(find_supports(root).classes["things"]) == ["cup1"]


def test_a_png_has_its_mask_beside_it(root):
    image = picture(root / "cup1.png")
    path = mask(root / "cup1_mask.png", marked((2, 1, 9, 8)))
    assert find_supports(root).classes == {"things": (Labelled(image, path, None),)}


def test_a_photo_of_a_mask_is_no_mask(root):
    image = picture(root / "face_mask.jpg")
    path = mask(root / "face_mask_mask.png", marked((2, 1, 9, 8)))
    assert find_supports(root).classes == {"things": (Labelled(image, path, None),)}


@pytest.mark.parametrize("folder", [".", ".."])
def test_the_class_is_called_after_the_folder_wherever_one_stands(folder, root, monkeypatch):
    picture(root / "cup1.jpg")
    mask(root / "cup1_mask.png", marked((2, 1, 9, 8)))
    (root / "inner").mkdir()
    monkeypatch.chdir(root if folder == "." else root / "inner")
    assert list(find_supports(root.__class__(folder)).classes) == ["things"]


def binary(root, *values):
    for number, each in enumerate(values):
        picture(root / "images" / f"{number}.jpg")
        mask(root / "masks" / f"{number}.png", each)


def test_masks_in_a_folder_of_their_own_may_be_binary(root):
    binary(root, marked((1, 1, 5, 5), 255), marked((1, 1, 9, 9), 255))
    found = find_supports(root)
    assert list(found.classes) == ["things"] and stems(found.classes["things"]) == ["0", "1"]


def test_one_name_in_the_list_names_the_only_class(root):
    binary(root, marked((1, 1, 5, 5), 255))
    (root / "classes.txt").write_text("mug\n")
    assert list(find_supports(root).classes) == ["mug"]


def test_beside_a_1_255_is_ignored_and_a_mask_of_255_alone_is_doubtful(root):
    both = marked((1, 1, 5, 5)) + marked((10, 10, 12, 12), 255)
    binary(root, both, marked((1, 1, 9, 9), 255))
    found = find_supports(root)
    assert stems(found.classes["things"]) == ["0"]
    np.testing.assert_array_equal(label(found.classes["things"][0]), both)
    (problem,) = found.problems
    assert "1.png: holds 255 but no 1" in problem


def test_numbers_without_names_are_called_by_their_numbers_in_order(root):
    binary(root, marked((1, 1, 5, 5), 12), marked((1, 1, 9, 9), 3) + marked((12, 12, 15, 15), 12))
    found = find_supports(root).classes
    assert {name: [(each.image.stem, each.class_id) for each in supports] for name, supports in found.items()} == {
        "3": [("1", 3)],
        "12": [("0", 12), ("1", 12)],
    }
    assert list(found) == ["3", "12"]


def test_a_number_that_the_list_does_not_name_is_a_problem_of_its_mask(root):
    binary(root, marked((1, 1, 5, 5), 2) + marked((10, 10, 12, 12), 5))
    (root / "classes.txt").write_text("cup\nplate\n")
    found = find_supports(root)
    assert list(found.classes) == ["plate"]
    assert "0.png: holds the value 5, which classes.txt does not name; expected 1 to 2" in found.problems[0]


def test_a_mask_that_is_ignored_everywhere_marks_nothing_beside_numbers(root):
    binary(root, marked((1, 1, 5, 5), 2), marked((1, 1, 9, 9), 255))
    found = find_supports(root)
    assert list(found.classes) == ["2"]
    assert "1.png: holds only 0 and 255" in found.problems[0]


def test_a_bad_list_of_names_is_an_error(root):
    binary(root, marked((1, 1, 5, 5), 2))
    (root / "classes.txt").write_text("# none\n")
    with pytest.raises(DataError, match=r"classes\.txt: names no class"):
        find_supports(root)


@pytest.mark.parametrize("value", [1, 2, 38, 255])
def test_in_the_folder_of_a_class_any_one_value_is_the_class(value, root):
    picture(root / "cup" / "a.jpg")
    mask(root / "cup" / "a_mask.png", marked((2, 1, 9, 8), value))
    (support,) = find_supports(root).classes["cup"]
    np.testing.assert_array_equal(label(support), marked((2, 1, 9, 8)))


def test_in_the_folder_of_a_class_several_values_are_a_problem(root):
    class_folders(root)
    picture(root / "cup" / "images" / "z.jpg")
    mask(root / "cup" / "masks" / "z.png", numbered("b") + 1)
    found = find_supports(root)
    assert stems(found.classes["cup"]) == ["a", "b"]
    assert "z.png: holds the values 1, 2, 3; expected one, for the class" in found.problems[0]


def test_full_masks_are_taken(root):
    binary(root, np.full(SIZE, 255))
    (support,) = find_supports(root).classes["things"]
    assert (label(support) == 1).all()


# what is passed over


def only_problem(root):
    (problem,) = find_supports(root).problems
    return problem


def test_an_image_without_a_mask_is_a_problem(root):
    flat_numbers(root)
    picture(root / "d.jpg")
    assert only_problem(root).startswith(f"{root / 'd.jpg'}: has no mask; expected one called d_mask.png or d.json")


def test_a_mask_without_an_image_is_a_problem(root):
    flat_numbers(root)
    mask(root / "d_mask.png", numbered("a"))
    assert only_problem(root).startswith(f"{root / 'd_mask.png'}: belongs to no image; expected one called d")


def test_masks_and_images_in_folders_of_their_own_must_match(root):
    number_masks(root)
    picture(root / "images" / "d.jpg")
    mask(root / "masks" / "e.png", numbered("a"))
    lone, unmarked = find_supports(root).problems
    assert "e.png: belongs to no image" in lone and "d.jpg: has no mask" in unmarked


def test_masks_in_a_folder_of_their_own_may_say_that_they_are_masks(root):
    picture(root / "images" / "a.jpg")
    path = mask(root / "masks" / "a_mask.png", numbered("a"))
    assert find_supports(root).classes == {"things": (Labelled(root / "images" / "a.jpg", path, None),)}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros(SIZE), "marks nothing"),
        (np.full((*SIZE, 3), (255, 0, 0)), "shows the colour (255, 0, 0)"),
        (np.ones((30, 20)), "mask is 30 x 20, image is 20 x 30 (height x width)"),
        (np.ones((9, 20)), "mask is 9 x 20, image is 20 x 30"),
    ],
)
def test_a_mask_that_cannot_be_used_is_a_problem(values, words, root):
    binary(root, marked((1, 1, 5, 5)), values)
    found = find_supports(root)
    assert stems(found.classes["things"]) == ["0"]
    (problem,) = found.problems
    assert "1.png: " in problem and words in problem and "\n" not in problem


def test_masks_of_the_same_proportions_fit(root):
    binary(root, np.ones((SIZE[0] * 2, SIZE[1] * 2)))
    assert label(find_supports(root).classes["things"][0]).shape == SIZE


def test_soft_edges_and_masks_as_jpeg_are_recognised(root):
    binary(root, marked((1, 1, 15, 15)))
    soft = marked((5, 5, 25, 18), 255)
    soft[4, 5:25] = np.arange(10, 210, 10)
    picture(root / "images" / "soft.jpg")
    mask(root / "masks" / "soft.png", soft)
    picture(root / "images" / "lossy.jpg")
    mask(root / "masks" / "lossy.jpg", marked((5, 5, 25, 18), 255))
    found = find_supports(root)
    assert stems(found.classes["things"]) == ["0"]
    lossy, edges = found.problems
    assert "lossy.jpg: holds" in lossy and "save it as PNG" in lossy
    assert "soft.png: holds 21 values beside 0, as it has soft edges" in edges


ROWS, COLUMNS = np.mgrid[:40, :60]
GREYS = {
    "a gradient": COLUMNS * 4,
    "a slow gradient": np.repeat(COLUMNS * 2, 5, 1),
    "a blurred disc": 200 * np.exp(-((ROWS - 20) ** 2 + (COLUMNS - 30) ** 2) / 120),
    "an edge of three greys": np.where(ROWS < 20, 0, 255)
    + np.choose(ROWS - 17, [64, 128, 192], mode="clip") * (abs(ROWS - 18) < 2),
    "an edge of one grey": np.where(ROWS < 20, 0, 255) + 128 * (ROWS == 19),
    "an edge in blocks": np.kron(np.where(COLUMNS + ROWS < 50, 0, 255) + 128 * (COLUMNS + ROWS == 49), np.ones((2, 2))),
    "a dark edge": np.where(ROWS < 20, 0, 100) + 50 * (ROWS == 19),
}
CLASS_NUMBERS = {
    "many regions": 1 + ROWS // 8 * 10 + COLUMNS // 6,
    "layers": 1 + ROWS // 4,
    "a thin thing": 7 * (ROWS < 20) + 12 * (ROWS == 30),
    "what is ignored around a region": 3 * (abs(ROWS - 20) < 5) + 255 * (abs(ROWS - 20) == 5),
    "a region in what is ignored": np.where(ROWS < 30, 255, 0) + 2 * (ROWS == 35),
}


@pytest.mark.parametrize("kind", GREYS)
def test_greys_are_no_classes(kind, root):
    binary(root, marked((1, 1, 15, 15)))
    picture(root / "images" / "grey.jpg", size=GREYS[kind].shape)
    mask(root / "masks" / "grey.png", GREYS[kind])
    found = find_supports(root)
    assert {name: stems(supports) for name, supports in found.classes.items()} == {"things": ["0"]}
    (problem,) = found.problems
    assert "grey.png: holds" in problem and "soft edges or greys" in problem and "save it as PNG" in problem


@pytest.mark.parametrize("kind", CLASS_NUMBERS)
def test_numbers_of_classes_are_no_greys(kind, root):
    values = CLASS_NUMBERS[kind]
    picture(root / "images" / "a.jpg", size=values.shape)
    mask(root / "masks" / "a.png", values)
    found = find_supports(root)
    assert found.problems == () and set(found.classes) == {str(value) for value in np.unique(values) if 0 < value < 255}


def test_what_the_list_names_is_a_class_however_it_looks(root):
    picture(root / "images" / "a.jpg", size=ROWS.shape)
    mask(root / "masks" / "a.png", np.where(ROWS < 20, 0, 60) + 40 * (ROWS == 19))
    with pytest.raises(DataError, match="soft edges or greys"):
        find_supports(root)
    (root / "classes.txt").write_text("".join(f"class {number}\n" for number in range(1, 61)))
    assert list(find_supports(root).classes) == ["class 40", "class 60"]


def test_many_classes_in_one_mask_are_not_taken_for_soft_edges(root):
    values = np.zeros(SIZE)
    values[5:15] = np.arange(SIZE[1])
    values[15, :] = 255
    binary(root, values)
    assert list(find_supports(root).classes) == [str(number) for number in range(1, SIZE[1])]


def test_two_files_of_one_name_are_a_problem(root):
    flat_numbers(root)
    picture(root / "a.bmp")
    assert "a.jpg: stands for the same as a.bmp" in only_problem(root)


def test_folders_beside_labelled_images_are_passed_over_in_one_line(root):
    flat_numbers(root)
    picture(root / "queries" / "x.jpg")
    picture(root / "results" / "x.jpg")
    assert only_problem(root) == f"{root}: holds labelled images itself, so its folders queries, results were passed over"


def test_a_folder_without_masks_among_those_of_classes_is_passed_over_in_one_line(root):
    class_folders(root)
    for number in range(20):
        picture(root / "queries" / f"{number}.jpg")
    found = find_supports(root)
    assert tuple(found.classes) == CLASSES
    (problem,) = found.problems
    assert problem.startswith(f"{root / 'queries'}: none of its 20 images has a mask")


def test_unlabelled_images_beside_folders_of_classes_are_told(root):
    class_folders(root)
    picture(root / "x.jpg")
    assert only_problem(root).startswith(f"{root}: none of its 1 image has a mask")


@pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is closed to root")
def test_a_folder_that_may_not_be_read_is_a_problem(root):
    class_folders(root)
    (root / "fork").mkdir(mode=0)
    assert "fork: cannot be listed" in only_problem(root)


def test_an_empty_folder_says_what_was_expected(root):
    with pytest.raises(DataError, match=r"things: no labelled image is left; expected images/ with masks/, NAME\.jpg with"):
        find_supports(root)


def test_images_alone_say_what_is_missing(root):
    photos(root)
    with pytest.raises(DataError, match=r"no labelled image is left; .*none of its 3 images has a mask; expected images/ with"):
        find_supports(root)


def test_something_else_than_a_folder_is_refused(root):
    with pytest.raises(DataError, match="none: no such folder; expected labelled images"):
        find_supports(root / "none")
    with pytest.raises(DataError, match=r"a\.jpg: is not a folder"):
        find_supports(picture(root / "a.jpg"))


def test_a_class_whose_supports_are_all_lost_is_an_error_only_where_it_was_asked_for(root):
    class_folders(root)
    for path in (root / "plate").glob("*.JPG"):
        path.write_bytes(b"no picture")
    assert list(find_supports(root).classes) == ["cup"]
    with pytest.raises(DataError, match=r"no labelled image of plate is left; .*b\.JPG: is not a JPEG.*\(and 1 more problem\)"):
        read_supports(root, classes=["cup", "plate"])


def test_several_places_give_the_classes_of_all(root, tmp_path):
    class_folders(root)
    for name in ("fork", "cup"):
        picture(tmp_path / name / "a.jpg")
        mask(tmp_path / name / "a_mask.png", marked((2, 1, 9, 8)))
    found = read_supports(root, str(tmp_path / "fork"))
    assert list(found.classes) == ["cup", "plate", "fork"]
    assert read_supports(root, tmp_path / "cup", classes=["plate"]).classes == {"plate": found.classes["plate"]}
    with pytest.raises(ConfigError, match=r"class 'cup' comes from two supports; rename one, or give one of them"):
        read_supports(root, tmp_path / "cup")
    with pytest.raises(ConfigError, match="no place was given; expected folders"):
        read_supports()


# LabelMe


def test_a_rectangle_alone_is_a_box_and_several_shapes_are_one_mark(root):
    picture(root / "a.jpg")
    labelme(
        root / "a.json", [shape("cup", (2, 1, 9, 8), "rectangle"), shape("fork", (1, 1, 4, 4)), shape("fork", (9, 9, 12, 15))]
    )
    found = find_supports(root).classes
    assert found["cup"][0].mask == Box(2, 1, 9, 8)
    assert isinstance(found["fork"][0].mask, Polygons)
    np.testing.assert_array_equal(label(found["fork"][0]), marked((1, 1, 4, 4)) | marked((9, 9, 12, 15)))


def test_a_rectangle_of_four_corners_is_a_box(root):
    picture(root / "a.jpg")
    labelme(root / "a.json", [shape("cup", (2, 1, 9, 8)) | {"shape_type": "rectangle"}])
    assert find_supports(root).classes["cup"][0].mask == Box(2, 1, 9, 8)


@pytest.mark.parametrize("path", ["photo 1.jpg", "..\\images\\photo 1.jpg", "/home/me/photo 1.jpg"])
def test_a_json_of_another_name_says_which_image_it_is_of(path, root):
    image = picture(root / "photo 1.jpg")
    labelme(root / "first.json", [shape("cup", (2, 1, 9, 8))], imagePath=path)
    assert find_supports(root).classes["cup"][0].image == image


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (shape("cup", (2, 1, 9, 8)) | {"shape_type": "circle"}, "is a circle; expected a polygon or a rectangle"),
        (shape("", (2, 1, 9, 8)), "has the label ''"),
        (shape(None, (2, 1, 9, 8)), "has the label None"),
        (shape("__ignore__", (2, 1, 9, 8)), "is labelled __ignore__"),
        (shape("cup", (2, 1, 9, 8)) | {"points": None}, "has the points None"),
        (shape("cup", (2, 1, 9, 8)) | {"points": [[1, 2], [3, 4]]}, "outline 0 has 2 points"),
        (shape("cup", (2, 1, 9, 8)) | {"points": [1, 2, 3]}, "something else than points"),
        (shape("cup", (2, 1, 2, 8), "rectangle"), "box: holds nothing"),
        (shape("cup", (2, 1, 9, 8), "rectangle") | {"points": []}, "outline 0 has 0 points"),
        (7, "is 7; expected an object"),
    ],
)
def test_a_shape_that_cannot_be_used_is_a_problem_and_the_others_count(bad, words, root):
    picture(root / "a.jpg")
    labelme(root / "a.json", [bad, shape("plate", (1, 1, 4, 4))])
    found = find_supports(root)
    assert list(found.classes) == ["plate"]
    (problem,) = found.problems
    assert "a.json: shape 0: " in problem and words in problem


def test_shapes_outside_the_image_are_a_problem(root):
    labelme_polygons(root)
    picture(root / "d.jpg")
    labelme(root / "d.json", [shape("cup", (90, 90, 99, 99))])
    assert f"{root / 'd.jpg'}: outline 0 lies outside the image" in only_problem(root)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: labelme(path, []), "holds no shape"),
        (
            lambda path: labelme(path, [shape("cup", (2, 1, 9, 8))], imageHeight=99),
            "d.jpg: image is 20 x 30, d.json says 99 x 30 (height x width)",
        ),
        (lambda path: path.write_text("{"), "is not JSON"),
        (lambda path: path.write_bytes(b"\xff\xfe\xff"), "is not JSON"),
        (lambda path: path.write_text("[]"), "is JSON of another kind"),
        (lambda path: path.write_text('{"a": 1}'), "is JSON of another kind"),
    ],
)
def test_a_json_that_cannot_be_used_is_a_problem(write, words, root):
    labelme_polygons(root)
    picture(root / "d.jpg")
    write(root / "d.json")
    found = find_supports(root)
    assert tuple(found.classes) == CLASSES
    assert any("d.json" in problem and words in problem for problem in found.problems)


def test_a_json_without_an_image_is_a_problem(root):
    labelme_polygons(root)
    labelme(root / "d.json", [shape("cup", (2, 1, 9, 8))])
    assert "d.json: has no image beside it; expected one called d" in only_problem(root)


def test_a_mask_goes_before_a_json_of_the_same_image(root):
    labelme_polygons(root)
    mask(root / "a_mask.png", marked((3, 3, 9, 9), 255))
    found = find_supports(root)
    assert stems(found.classes["things"]) == ["a"] and stems(found.classes["cup"]) == ["b"]
    assert "a.json: is passed over, for a mask marks the same image" in found.problems[0]


def test_in_the_folder_of_a_class_its_own_label_counts(root):
    picture(root / "cup" / "b.jpg")
    labelme(root / "cup" / "b.json", [shape("Cup", BOXES["b"]["cup"]), shape("plate", BOXES["b"]["plate"])])
    (support,) = find_supports(root).classes["cup"]
    np.testing.assert_array_equal(label(support), marked(BOXES["b"]["cup"]))


def test_in_the_folder_of_a_class_several_foreign_labels_are_a_problem(root):
    class_folders(root)
    picture(root / "fork" / "b.jpg")
    labelme(root / "fork" / "b.json", [shape("cup", BOXES["b"]["cup"]), shape("plate", BOXES["b"]["plate"])])
    assert "fork: labels cup, plate in the folder of fork; expected one" in only_problem(root)


# COCO


def test_an_rle_keeps_holes_and_single_pixels(root):
    values = (np.random.default_rng(0).random(SIZE) > 0.5).astype(np.uint8)
    values[3:12, 4:20] = 1
    values[5:8, 6:9] = 0
    picture(root / "a.jpg")
    coco(root / "labels.json", lambda corners: runs(values), {"a": BOXES["a"]})
    np.testing.assert_array_equal(label(find_supports(root).classes["cup"][0]), values)


def test_polygons_and_rle_of_one_class_are_one_mark(root):
    picture(root / "a.jpg")
    path = coco(root / "labels.json", polygon, {"a": {"cup": (1, 1, 5, 5)}})
    document = json.loads(path.read_text())
    document["annotations"].append(document["annotations"][0] | {"id": 9, "segmentation": runs(marked((9, 9, 15, 15)))})
    path.write_text(json.dumps(document))
    (support,) = find_supports(root).classes["cup"]
    np.testing.assert_array_equal(label(support), marked((1, 1, 5, 5)) | marked((9, 9, 15, 15)))


def test_a_crowd_is_no_support(root):
    photos(root)
    path = coco(root / "labels.json", polygon)
    document = json.loads(path.read_text())
    document["annotations"][1]["iscrowd"] = 1  # the cup of b
    path.write_text(json.dumps(document))
    found = find_supports(root)
    assert {name: stems(supports) for name, supports in found.classes.items()} == {"cup": ["a"], "plate": ["b", "c"]}
    assert "labels.json: marks a crowd of cup in b.jpg" in found.problems[0]


def test_what_is_wrong_in_a_coco_file_is_a_problem_and_the_rest_counts(root):
    photos(root)
    path = coco(root / "labels.json", polygon)
    document = json.loads(path.read_text())
    document["annotations"] += [
        {"id": 90, "image_id": 0, "category_id": 99, "segmentation": polygon((1, 1, 4, 4))},
        {"id": 91, "image_id": 0, "category_id": 8, "segmentation": []},
        {"id": 92, "image_id": 0, "category_id": 8, "segmentation": runs(np.ones(SIZE)) | {"counts": [1, 2]}},
    ]
    document["images"].append({"id": 5, "file_name": "gone.jpg", "height": 20, "width": 30})
    document["annotations"].append({"id": 93, "image_id": 5, "category_id": 8, "segmentation": polygon((1, 1, 4, 4))})
    path.write_text(json.dumps(document))
    found = find_supports(root)
    assert stems(found.classes["plate"]) == ["b", "c"]
    expected = [
        "annotation 90 has category 99",
        "annotation 91, in a.jpg, has no segmentation",
        "annotation 92, in a.jpg, has an",
    ]
    assert all(words in problem for words, problem in zip([*expected, "names gone.jpg"], found.problems, strict=True))


def test_an_image_of_another_size_than_the_coco_file_says_is_a_problem(root):
    coco_beside(root)
    picture(root / "c.jpg", size=(40, 60))
    found = find_supports(root)
    assert stems(found.classes["plate"]) == ["b"]
    assert "c.jpg: image is 40 x 60, labels.json says 20 x 30 (height x width)" in found.problems[0]


def test_images_that_a_coco_file_does_not_mark_are_told_in_one_line(root):
    coco_beside(root)
    picture(root / "x.jpg")
    picture(root / "y.jpg")
    assert only_problem(root) == f"{root}: 2 images passed over, x.jpg first: no outline to use"


def test_two_coco_files_count_together_and_the_first_of_two_that_mark_the_same(root):
    photos(root)
    coco(root / "1.json", polygon, {"a": BOXES["a"], "b": BOXES["b"]})
    coco(root / "2.json", polygon, {"b": {"cup": (1, 1, 3, 3)}, "c": BOXES["c"]})
    found = find_supports(root)
    assert {name: stems(supports) for name, supports in found.classes.items()} == {"cup": ["a", "b"], "plate": ["b", "c"]}
    np.testing.assert_array_equal(label(found.classes["cup"][1]), marked(BOXES["b"]["cup"]))
    assert "2.json: marks cup in b.jpg as another file does" in found.problems[0]


def test_a_coco_file_above_the_folder_counts_for_the_images_in_it_alone(root):
    photos(root / "train")
    picture(root / "test" / "z.jpg")
    coco(root / "labels.json", polygon, BOXES | {"z": BOXES["a"]})
    found = find_supports(root / "train")
    assert {name: stems(supports) for name, supports in found.classes.items()} == {"cup": ["a", "b"], "plate": ["b", "c"]}
    assert all(each.image.parent == root / "train" for supports in found.classes.values() for each in supports)


def test_a_coco_file_in_the_folder_of_a_class_is_a_problem(root):
    class_folders(root)
    coco_beside_folder = root / "fork"
    photos(coco_beside_folder)
    coco(coco_beside_folder / "labels.json", polygon)
    found = find_supports(root)
    assert tuple(found.classes) == CLASSES
    assert "labels.json: is a COCO file in the folder of a class; give its own folder" in found.problems[0]


def test_coco_needs_no_pycocotools(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    monkeypatch.setitem(sys.modules, "pycocotools.mask", None)
    coco_beside(root, lambda corners: runs(marked(corners)))
    assert tuple(find_supports(root).classes) == CLASSES


def test_finding_supports_writes_nothing(root, tmp_path, monkeypatch):
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "cache"))
    coco_above(root)
    before = sorted(tmp_path.rglob("*"))
    find_supports(root)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_coco_file_goes_before_labelme(root):
    coco_beside(root)
    labelme(root / "a.json", [shape("fork", (2, 1, 9, 8))])
    found = find_supports(root)
    assert tuple(found.classes) == CLASSES
    assert found.problems == (f"{root / 'a.json'}: is passed over, for a COCO file is there; keep one of the two",)


@pytest.mark.parametrize("lead", ["../", "../../a/", "/", "C:/", "..\\"])
def test_an_image_outside_the_folder_of_a_coco_file_is_never_read(lead, tmp_path):
    root = tmp_path / "a" / "root"
    root.mkdir(parents=True)
    coco_beside(root)
    (path,) = root.glob("*.json")
    document = json.loads(path.read_text())
    outside = tmp_path / "a" / "secret.jpg"
    shutil.copy(root / document["images"][0]["file_name"], outside)
    document["images"][0]["file_name"] = str(outside) if lead == "/" else f"{lead}secret.jpg"
    path.write_text(json.dumps(document))
    found = find_supports(root)
    assert all(support.image.is_relative_to(root) for supports in found.classes.values() for support in supports)
    assert any("names secret.jpg, which is not there" in problem for problem in found.problems)


def test_a_file_name_that_leads_out_of_the_folder_counts_by_its_last_part(tmp_path):
    coco_beside(tmp_path)
    usual = find_supports(tmp_path)
    (path,) = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    for image in document["images"]:
        image["file_name"] = f"../../label-studio/{image['file_name']}"
    path.write_text(json.dumps(document))
    assert {name: stems(one) for name, one in find_supports(tmp_path).classes.items()} == {
        name: stems(one) for name, one in usual.classes.items()
    }
