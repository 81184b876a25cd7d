import hashlib
import sys
import tomllib
from dataclasses import FrozenInstanceError
from importlib.resources import files
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from cyctr.datasets import gallery
from cyctr.datasets.gallery import PLANS, Crop, scenes
from cyctr.datasets.pascal import CLASSES
from cyctr.errors import DataError

pytest.importorskip("skimage")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def shown():
    return scenes()


def shots(scene):
    return scene.supports + scene.queries


def test_the_scenes_are_those_of_the_table_in_its_order(shown):
    assert [(s.name, len(s.supports), len(s.queries)) for s in shown] == [
        (plan.name, len(plan.supports), len(plan.queries)) for plan in PLANS
    ]
    assert len({scene.name for scene in shown}) == len(shown) >= 8
    assert all(1 <= len(scene.supports) <= 5 and scene.queries for scene in shown)


def test_every_label_fits_its_image_and_holds_only_0_1_and_255(shown):
    for scene in shown:
        for shot in shots(scene):
            assert shot.image.dtype == shot.label.dtype == np.uint8
            assert shot.image.shape == (*shot.label.shape, 3)
            assert set(np.unique(shot.label)) <= {0, 1, 255}, scene.name


def test_every_shot_shows_the_class_and_something_else(shown):
    for scene in shown:
        for shot in shots(scene):
            foreground, background = (shot.label == 1).mean(), (shot.label == 0).mean()
            assert foreground > 0.01 and background > 0.1, scene.name


def test_what_nobody_can_say_is_a_small_part(shown):
    for scene in shown:
        for shot in shots(scene):
            assert (shot.label == 255).mean() < 0.15, scene.name


def test_every_side_has_from_200_pixels_to_what_a_network_takes_in_well(shown):
    for scene in shown:
        for shot in shots(scene):
            assert min(shot.label.shape) >= 200 and max(shot.label.shape) <= 800, (scene.name, shot.label.shape)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_no_query_shares_a_pixel_with_a_support(plan):
    assert not any(query.meets(support) for query, support in product(plan.queries, plan.supports))
    boxes = plan.supports + plan.queries
    assert len(set(boxes)) == len(boxes)


def test_boxes_that_only_touch_do_not_meet():
    box = Crop(10, 10, 5, 5)
    assert box.meets(Crop(14, 14, 5, 5)) and box.meets(Crop(0, 0, 100, 100)) and box.meets(box)
    assert not box.meets(Crop(15, 10, 5, 5)) and not box.meets(Crop(10, 5, 5, 5))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_every_crop_lies_within_its_photograph_and_the_mask_ends_where_the_crops_end(plan):
    label = gallery.read_values(Path(str(files("cyctr.datasets") / "gallery_masks" / f"{plan.name}.png")))
    image = gallery.read_image(gallery._located(plan.photo))
    assert label.shape == image.shape[:2]
    seen = np.zeros(label.shape, bool)
    for box in plan.supports + plan.queries:
        assert box.top >= 0 and box.left >= 0
        assert box.top + box.height <= label.shape[0] and box.left + box.width <= label.shape[1]
        seen[box.top : box.top + box.height, box.left : box.left + box.width] = True
    assert (label[~seen] == 255).all()


def test_enlarging_keeps_the_picture_and_the_share_of_the_mask(shown):
    plan, scene = next((p, s) for p, s in zip(PLANS, shown, strict=True) if p.name == "coin")
    box, shot = plan.supports[0], scene.supports[0]
    zoom = shot.label.shape[0] // box.height
    assert zoom > 1 and shot.label.shape == (box.height * zoom, box.width * zoom)
    part = np.s_[box.top : box.top + box.height, box.left : box.left + box.width]
    image = gallery.read_image(gallery._located(plan.photo))[part]
    label = gallery.read_values(Path(str(files("cyctr.datasets") / "gallery_masks" / "coin.png")))[part]
    averaged = shot.image.reshape(box.height, zoom, box.width, zoom, 3).mean((1, 3))
    assert np.abs(averaged - image).mean() < 3
    assert (shot.label == 1).mean() == pytest.approx((label == 1).mean(), rel=0.02)


def test_two_readings_give_the_same_bits(shown):
    def digest(gallery_scenes):
        return [hashlib.sha256(x.image.tobytes() + x.label.tobytes()).hexdigest() for s in gallery_scenes for x in shots(s)]

    assert digest(scenes()) == digest(shown)


def test_no_scene_is_of_a_class_of_pascal(shown):
    assert not {scene.name for scene in shown} & set(CLASSES)


def test_every_scene_names_the_maker_and_the_licence(shown):
    for scene in shown:
        assert scene.title and scene.source.endswith(("in scikit-image", "in scikit-learn"))
        assert scene.licence in {"CC0", "CC BY 2.0", "public domain", "no known copyright restrictions"}


def test_a_scene_cannot_be_changed(shown):
    with pytest.raises(FrozenInstanceError):
        shown[0].title = "other"


@pytest.mark.parametrize(("package", "project"), [("skimage", "scikit-image"), ("sklearn", "scikit-learn")])
def test_without_the_package_the_message_says_what_to_install(monkeypatch, package, project):
    monkeypatch.setitem(sys.modules, package, None)  # what Python takes for: not there
    with pytest.raises(DataError, match=f"^{project} is not installed.*pip install scikit-image scikit-learn$"):
        scenes()


def test_a_photograph_of_another_size_is_refused(monkeypatch):
    monkeypatch.setattr(gallery, "read_image", lambda path: np.zeros((10, 12, 3), np.uint8))
    with pytest.raises(DataError, match=r"is \(10, 12\), and the mask of dahlia is for \(427, 640\)"):
        scenes()


def test_the_masks_are_few_bytes_and_no_file_of_the_folder_is_without_a_scene():
    folder = Path(str(files("cyctr.datasets") / "gallery_masks"))
    assert {path.name for path in folder.iterdir()} == {f"{plan.name}.png" for plan in PLANS}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 300_000


def test_the_wheel_takes_every_file_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["src/cyctr"]}
