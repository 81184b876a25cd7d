import json

import numpy as np
import pytest
from paging import Page
from PIL import Image

from cyctr.formats import FORMATS
from cyctr.studio import exporting
from cyctr.studio.serving import opened

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # pycocotools' decode


@pytest.fixture
def labelled(page, studio):
    """Two classes; masks on four photos, of which one is accepted and one rejected."""
    cup, plate = page.add_class("cup"), page.add_class("plate")
    random = np.random.default_rng(0)
    truth = {}
    for name, number in (("0.jpg", cup), ("0.jpg", plate), ("1.jpg", cup), ("inner/deep.png", plate)):
        one = page.named(name)
        mask = np.zeros((60, 80), bool)
        top, left = (cup == number) * 30, random.integers(0, 40)
        mask[top : top + 25, left : left + 30] = True
        page.paint(one, number, mask)
        truth[name, number] = mask
    page.post(f"/api/photos/{page.named('1.jpg')['id']}/state", json={"state": "accepted"})
    page.post(f"/api/photos/{page.named('2.jpg')['id']}/state", json={"state": "rejected"})
    return truth


def exported(page, form, only=False):
    given = {"format": form, "accepted_only": only}
    planned = page.post("/api/export", json={**given, "dry": True}).json()
    done = page.post("/api/export", json={**given, "dry": False}).json()
    assert (planned["photos"], planned["masks"]) == (done["photos"], done["masks"])
    return planned, done


@pytest.mark.parametrize("form", FORMATS)
def test_what_goes_in_comes_out_and_is_counted_before(form, page, labelled, studio):
    planned, done = exported(page, form)
    assert (done["photos"], done["masks"]) == (4, 4)
    assert planned["skipped"] == done["skipped"] == ["2 photos without a mask"]
    folder = studio.project.folder / "exports" / f"{form}-1"
    assert str(folder) == done["folder"] and planned["tree"].startswith(f"{form}-1/")
    for line in planned["tree"].splitlines()[1:]:
        assert list(folder.rglob(line.strip().rpartition("/")[0] or line.strip())) or "more" in line
    assert exported(page, form)[1]["folder"].endswith(f"{form}-2")


def test_png_has_a_number_for_each_class(page, labelled, studio):
    exported(page, "png")
    folder = studio.project.folder / "exports/png-1"
    assert (folder / "classes.txt").read_text().split() == ["cup", "plate"]
    values = np.asarray(Image.open(folder / "masks/0.png"))
    assert np.array_equal(values == 1, labelled["0.jpg", 1]) and np.array_equal(values == 2, labelled["0.jpg", 2])
    assert not np.asarray(Image.open(folder / "masks/2.png")).any()  # rejected
    assert np.array_equal(np.asarray(Image.open(folder / "masks/inner/deep.png")) == 2, labelled["inner/deep.png", 2])


def test_coco_loads_with_pycocotools_and_has_every_pixel(page, labelled, studio):
    from pycocotools.coco import COCO

    exported(page, "coco")
    coco = COCO(studio.project.folder / "exports/coco-1/annotations.json")
    files = {image["id"]: image["file_name"] for image in coco.imgs.values()}
    found = {(files[one["image_id"]], one["category_id"]): coco.annToMask(one) > 0 for one in coco.anns.values()}
    assert found.keys() == labelled.keys()
    assert all(np.array_equal(found[key], mask) for key, mask in labelled.items())


def test_only_what_is_accepted_or_an_example_is_exported_where_that_is_asked_for(page, labelled, studio):
    assert exported(page, "npz", True)[1]["photos"] == 1
    one = page.named("0.jpg")
    page.post(f"/api/photos/{one['id']}/example", json={"on": True})
    planned, done = exported(page, "npz", True)
    assert (done["photos"], done["masks"], planned["skipped"]) == (2, 3, ["4 photos not accepted"])


def test_exports_that_make_no_sense_are_refused_in_a_line(page):
    wrong = page.post("/api/export", json={"format": "tiff", "accepted_only": False})
    assert wrong.status_code == 400 and "expected png, coco" in wrong.json()["error"]
    assert "no class" in page.post("/api/export", json={"format": "png"}).json()["error"]
    page.add_class()
    assert "nothing to export" in page.post("/api/export", json={"format": "png"}).json()["error"]


def test_an_export_that_fails_leaves_nothing_half_written(page, labelled, studio, monkeypatch):
    real = exporting.open_writer

    def failing(*given, **named):
        writer = real(*given, **named)
        writer.finish = lambda: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        return writer

    monkeypatch.setattr(exporting, "open_writer", failing)
    answer = page.post("/api/export", json={"format": "png", "accepted_only": False})
    assert answer.status_code == 507 and "No space left" in answer.json()["error"]
    assert not (studio.project.folder / "exports/png-1").exists()


def test_the_export_of_a_large_project_says_how_many_files_it_does_not_show(page, studio):
    cup = page.add_class()
    for one in page.photos():
        page.paint(one, cup, np.ones((3, 3), bool))
    tree = page.post("/api/export", json={"format": "labelme", "dry": True}).json()["tree"]
    assert "... 2 more" in tree and json.dumps(tree)


def test_an_export_reads_the_masks_that_somebody_changed_by_hand(folder, network):
    with opened(folder, None, lambda: network) as studio:
        page = Page(studio)
        cup = page.add_class()
        page.paint(page.named("0.jpg"), cup, np.ones((3, 3), bool))
        path = studio.project.folder / "found/cup/0.png"
    edited = np.zeros((60, 80), np.uint8)
    edited[5:9, 5:9] = 255
    Image.fromarray(edited).save(path)
    with opened(folder, None, lambda: network) as studio:
        page = Page(studio)
        page.post("/api/export", json={"format": "png", "accepted_only": False})
        written = np.asarray(Image.open(studio.project.folder / "exports/png-1/masks/0.png"))
        assert np.array_equal(written > 0, edited > 0)
        assert page.named("0.jpg")["masks"][str(cup)]["area"] == 16
