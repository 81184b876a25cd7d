import io
import threading

import numpy as np
import pytest
from paging import Page, png
from PIL import Image
from segmenting import files, scene

from cyctr.datasets.opening import open_dataset
from cyctr.inference.supports.reading import find_supports
from cyctr.studio.serving import opened


def test_photos_are_listed_by_name_with_their_upright_size(page):
    listed = page.photos()
    assert [one["name"] for one in listed] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg", "inner/deep.png", "turned.jpg"]
    assert {(one["width"], one["height"]) for one in listed[:5]} == {(80, 60)}
    assert (listed[5]["width"], listed[5]["height"]) == (60, 80)
    assert all(one["state"] == "open" and not one["masks"] for one in listed)


def test_a_photo_is_shown_upright_and_packed_again(page, folder):
    turned = page.named("turned.jpg")
    answer = page.get(f"/api/photos/{turned['id']}/image", params={"side": 160})
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.content != (folder / "turned.jpg").read_bytes()
    shown = np.asarray(Image.open(io.BytesIO(answer.content))).astype(int)
    upright = np.asarray(Image.open(folder / "turned.jpg").rotate(-90, expand=True)).astype(int)
    assert shown.shape == upright.shape and np.abs(shown - upright).mean() < 8
    assert "exif" not in Image.open(io.BytesIO(answer.content)).info


def test_a_picture_has_the_side_that_was_asked_for_and_is_kept_by_the_browser(page, folder):
    Image.fromarray(scene((300, 700))[0]).save(folder / "3.jpg")
    one = page.named("3.jpg")
    first = page.get(f"/api/photos/{one['id']}/image?side=320")
    assert Image.open(io.BytesIO(first.content)).size == (320, 137)
    again = page.get(f"/api/photos/{one['id']}/image?side=320", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_tiles_put_together_are_the_photo_at_each_level(page, folder):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 90, 1), dtype=np.uint8).repeat(16, 0).repeat(16, 1).repeat(3, 2)
    Image.fromarray(pixels).save(folder / "0.jpg", quality=95)
    one = page.named("0.jpg")
    for level in range(3):
        height, width = (-(-side // 2**level) for side in pixels.shape[:2])
        whole = np.zeros((height, width, 3), int)
        for row in range(-(-height // 512)):
            for column in range(-(-width // 512)):
                answer = page.get(f"/api/photos/{one['id']}/tile/{level}/{column}/{row}")
                part = np.asarray(Image.open(io.BytesIO(answer.content)))
                whole[row * 512 : row * 512 + part.shape[0], column * 512 : column * 512 + part.shape[1]] = part
        expected = pixels[:: 2**level, :: 2**level]
        assert np.abs(whole - expected).mean() < 6
    beyond = page.get(f"/api/photos/{one['id']}/tile/0/3/0")
    assert beyond.status_code == 400 and "no tile" in beyond.json()["error"]


def test_a_patch_changes_its_rectangle_and_nothing_else_and_is_on_disk(page, studio):
    cup, one = page.add_class(), page.named("0.jpg")
    random = np.random.default_rng(0)
    truth, revision = np.zeros((60, 80), bool), 0
    for _ in range(8):
        top, left = random.integers(0, 40), random.integers(0, 60)
        patch = random.random((random.integers(1, 20), random.integers(1, 20))) < 0.5
        answer = page.paint(one, cup, patch, left, top, revision).json()
        truth[top : top + patch.shape[0], left : left + patch.shape[1]] = patch
        assert answer["revision"] > revision and answer["area"] == truth.sum()
        revision = answer["revision"]
        assert np.array_equal(np.asarray(Image.open(studio.project.folder / "found/cup/0.png")), truth * np.uint8(255))
    assert np.array_equal(page.mask(one, cup), truth)
    known = page.named("0.jpg")["masks"][str(cup)]
    assert known["origin"] == "person" and known["revision"] == revision and known["confidence"] is None


def test_a_patch_for_an_older_mask_is_refused_and_changes_nothing(page):
    cup, one = page.add_class(), page.named("0.jpg")
    first = page.paint(one, cup, np.ones((3, 3), bool)).json()["revision"]
    answer = page.paint(one, cup, np.ones((9, 9), bool), base=0)
    assert answer.status_code == 409 and answer.json()["revision"] == first and "changed elsewhere" in answer.json()["error"]
    assert page.mask(one, cup).sum() == 9
    assert page.delete(f"/api/photos/{one['id']}/mask/{cup}?base=0").status_code == 409
    assert page.delete(f"/api/photos/{one['id']}/mask/{cup}?base={first}").json()["masks"] == {}
    assert page.mask(one, cup) is None
    again = page.paint(one, cup, np.ones((2, 2), bool)).json()
    assert again["area"] == 4 and again["revision"] > first


def test_two_pages_that_paint_at_once_lose_no_stroke_without_being_told(page):
    cup, one = page.add_class(), page.named("0.jpg")
    told = []

    def strokes(row):
        base = 0
        for column in range(20):
            answer = page.paint(one, cup, np.ones((1, 1), bool), column, row, base)
            told.append(answer.status_code == 200)
            base = answer.json()["revision"]

    threads = [threading.Thread(target=strokes, args=(row,)) for row in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert page.mask(one, cup).sum() == sum(told) and len(told) == 60


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no png", "no PNG"),
        (png(np.ones((4, 4), bool))[:-30], "no PNG, or damaged"),
        (png(np.ones((5, 4), bool)), "expected 4 x 4"),
    ],
)
def test_a_patch_that_is_no_mask_is_refused(page, content, words):
    cup, one = page.add_class(), page.named("0.jpg")
    place = {"x": 0, "y": 0, "width": 4, "height": 4, "base": 0}
    answer = page.put(f"/api/photos/{one['id']}/mask/{cup}", params=place, content=content)
    assert answer.status_code == 400 and words in answer.json()["error"]
    assert page.mask(one, cup) is None


def test_patches_of_greys_colours_or_transparency_are_refused_and_opaque_grey_of_any_kind_is_taken(page):
    cup, one = page.add_class(), page.named("0.jpg")
    place = {"x": 0, "y": 0, "width": 2, "height": 2, "base": 0}
    wrong = (
        ((7, 7, 7, 255), "RGBA", "value 7"),
        ((255, 0, 0, 255), "RGBA", "colours"),
        ((0, 0, 0, 9), "RGBA", "transparent"),
    )
    for colour, mode, words in wrong:
        content = io.BytesIO()
        Image.new(mode, (2, 2), colour).save(content, "PNG")
        answer = page.put(f"/api/photos/{one['id']}/mask/{cup}", params=place, content=content.getvalue())
        assert answer.status_code == 400 and words in answer.json()["error"]
    for mode, white in (("RGBA", (255,) * 4), ("RGB", (255,) * 3), ("1", 1), ("L", 255)):
        content = io.BytesIO()
        Image.new(mode, (2, 2), white).save(content, "PNG")
        answer = page.put(f"/api/photos/{one['id']}/mask/{cup}", params=place, content=content.getvalue())
        assert answer.json()["area"] == 4
        place["base"] = answer.json()["revision"]


def test_examples_are_a_labelled_folder_that_the_command_line_reads(page, studio):
    cup, plate = page.add_class("cup"), page.add_class("plate")
    page.make_example("0.jpg", cup)
    two = page.make_example("1.jpg", plate)
    found = find_supports(studio.project.folder)
    assert {name: [shot.image.name for shot in shots] for name, shots in found.classes.items()} == {
        "cup": ["0.jpg"],
        "plate": ["1.jpg"],
    }
    counts = {one["name"]: one["examples"] for one in page.get("/api/project").json()["classes"]}
    assert counts == {"cup": 1, "plate": 1}
    page.post(f"/api/photos/{two['id']}/example", json={"on": False})
    assert set(find_supports(studio.project.folder).classes) == {"cup"}
    assert page.mask(two, plate).any()


def test_a_project_is_a_dataset_that_can_be_evaluated(page, studio):
    cup, plate = page.add_class("cup"), page.add_class("plate")
    for name, number in (("0.jpg", cup), ("1.jpg", cup), ("2.jpg", plate), ("3.jpg", plate)):
        page.make_example(name, number)
    page.post("/api/export", json={"format": "labelme"})
    dataset = open_dataset(studio.project.folder)
    assert dataset.classes == ("cup", "plate")
    assert sorted(dataset.pools["test"].keys) == ["0", "1", "2", "3"]


def test_a_photo_without_a_mask_is_no_example(page):
    page.add_class()
    answer = page.post(f"/api/photos/{page.named('0.jpg')['id']}/example", json={"on": True})
    assert answer.status_code == 400 and "marks nothing" in answer.json()["error"]


def test_a_negative_is_kept_with_its_photo_and_taken_back(page, studio):
    cup, one = page.add_class(), page.named("inner/deep.png")
    assert page.post(f"/api/photos/{one['id']}/negative", json={"class": cup, "on": True}).json()["negative"] == [cup]
    kept = studio.project.folder / "negatives/cup/inner__deep.png"
    assert kept.read_bytes() == (studio.project.photos / "inner/deep.png").read_bytes()
    assert page.post(f"/api/photos/{one['id']}/negative", json={"class": cup, "on": False}).json()["negative"] == []
    assert not kept.exists()


def test_a_rejected_photo_is_a_negative_of_every_class_until_it_is_open_again(page):
    classes = [page.add_class(name) for name in ("cup", "plate")]
    one = page.named("0.jpg")
    assert page.post(f"/api/photos/{one['id']}/state", json={"state": "rejected"}).json()["negative"] == classes
    assert page.post(f"/api/photos/{one['id']}/state", json={"state": "open"}).json()["negative"] == []


def test_accepting_what_has_changed_meanwhile_is_refused(page):
    cup, one = page.add_class(), page.named("0.jpg")
    revision = page.paint(one, cup, np.ones((3, 3), bool)).json()["revision"]
    stale = page.post(f"/api/photos/{one['id']}/state", json={"state": "accepted", "base": {str(cup): revision - 1}})
    assert stale.status_code == 409 and page.named("0.jpg")["state"] == "open"
    fresh = page.post(f"/api/photos/{one['id']}/state", json={"state": "accepted", "base": {str(cup): revision}})
    assert fresh.json()["state"] == "accepted"


NAMES = ['<img src=x onerror="alert(1)">', "a'b\"c", "line\nbreak", "../../etc", "ä/ö\\ü", "CUP", ".hidden", "con", "  x  "]


def test_a_class_of_any_name_keeps_it_and_its_masks_stay_inside_the_project(page, studio, network):
    page.add_class("cup")
    for name in NAMES:
        class_id = page.add_class(name)
        page.paint(page.named("0.jpg"), class_id, np.ones((3, 3), bool))
        page.post(f"/api/photos/{page.named('0.jpg')['id']}/example", json={"on": True})
    names = [one["name"] for one in page.get("/api/project").json()["classes"]]
    assert names == ["cup", *(name.strip() for name in NAMES)]
    inside = studio.project.folder / "masks"
    assert len(list(inside.glob("*/0.png"))) == len(NAMES) and not list(inside.glob("*/*/*.png"))
    studio.project.close()


def test_a_renamed_class_takes_its_masks_along(page, studio):
    cup = page.add_class("cup")
    page.make_example("0.jpg", cup)
    page.paint(page.named("1.jpg"), cup, np.ones((3, 3), bool))
    assert page.patch(f"/api/classes/{cup}", json={"name": "mug", "color": "#112233"}).json()["color"] == "#112233"
    assert set(find_supports(studio.project.folder).classes) == {"mug"}
    assert page.mask(page.named("1.jpg"), cup).sum() == 9
    twice = page.post("/api/classes", json={"name": "mug"})
    assert twice.status_code == 400 and "already" in twice.json()["error"]


def test_a_class_with_painted_masks_is_removed_only_when_that_is_confirmed(page, studio):
    cup, plate = page.add_class("cup"), page.add_class("plate")
    page.make_example("0.jpg", cup)
    refused = page.request("DELETE", f"/api/classes/{cup}")
    assert refused.status_code == 400 and "1 masks" in refused.json()["error"]
    left = page.request("DELETE", f"/api/classes/{cup}", json={"force": True}).json()["classes"]
    assert [one["id"] for one in left] == [plate]
    assert not (studio.project.folder / "masks/cup").exists()
    assert page.add_class("cup") > plate


def test_nothing_is_written_to_the_folder_of_photos_but_the_project(page, folder, studio):
    before = {name: content for name, content in files(folder).items() if not name.startswith("cyctr-studio")}
    cup = page.add_class()
    page.make_example("0.jpg", cup)
    page.get(f"/api/photos/{page.named('1.jpg')['id']}/image?side=320")
    page.post("/api/export", json={"format": "png", "accepted_only": False})
    assert {name: content for name, content in files(folder).items() if not name.startswith("cyctr-studio")} == before


def test_a_project_opens_as_it_was_left(folder, network, page, studio):
    cup = page.add_class()
    page.make_example("0.jpg", cup)
    page.post(f"/api/photos/{page.named('1.jpg')['id']}/state", json={"state": "rejected"})
    page.patch("/api/project", json={"settings": {"threshold": 0.4}})
    before, about = page.photos(), page.get("/api/project").json()
    studio.project.close()
    (studio.project.folder / ".cyctr.lock").unlink()
    with opened(folder, None, lambda: network) as again:
        assert Page(again).photos() == before
        now = Page(again).get("/api/project").json()
        assert {name: now[name] for name in ("classes", "counts", "settings")} == {
            name: about[name] for name in ("classes", "counts", "settings")
        }
