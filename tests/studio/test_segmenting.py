import base64
import json

import numpy as np
from paging import Page, read, unpacked, wait
from PIL import Image
from segmenting import photo, scene

from cyctr.errors import WeightsError
from cyctr.inference.supports.encoded import read_support
from cyctr.studio import examples
from cyctr.studio import worker as working
from cyctr.studio.serving import opened


class Told:
    """The events of a server."""

    def __init__(self, studio):
        self.events = []
        publish = studio.events.publish
        studio.events.publish = lambda kind, data: (
            self.events.append((kind, json.loads(json.dumps(data)))),
            publish(kind, data),
        )

    def of(self, kind):
        return [data for name, data in list(self.events) if name == kind]


def test_a_preview_is_what_the_segmenter_finds(page, network, studio):
    cup, told = page.add_class(), Told(studio)
    page.make_example("0.jpg", cup)
    page.start()
    one = page.named("1.jpg")
    request = page.post("/api/previews", json={"photos": [one["id"]], "class": cup}).json()["request"]
    wait(lambda: told.of("preview"))
    (event,) = told.of("preview")
    assert (event["photo"], event["class"], event["request"]) == (one["id"], cup, request)
    truth = scene((60, 80), 0)[1]
    support = network.encode_support(studio.project.photos / "0.jpg", truth, name="cup")
    expected = network.segment(studio.project.photos / "1.jpg", support)
    assert np.array_equal(page.mask(one, cup), expected.mask)
    known = page.named("1.jpg")["masks"][str(cup)]
    assert known["origin"] == "found" and known["area"] == expected.mask.sum()
    assert abs(known["confidence"] - expected.confidence) < 1e-4


def test_the_newest_request_for_previews_wins(page, studio):
    cup, told = page.add_class(), Told(studio)
    page.make_example("0.jpg", cup)
    ids = [page.named(name)["id"] for name in ("1.jpg", "2.jpg", "3.jpg")]
    page.post("/api/previews", json={"photos": ids, "class": None})  # the network is not there yet
    newest = page.post("/api/previews", json={"photos": ids[::-1][:2], "class": None}).json()["request"]
    page.start()
    wait(lambda: len(told.of("preview")) == 2)
    assert [(event["photo"], event["request"]) for event in told.of("preview")] == [(ids[2], newest), (ids[1], newest)]


def test_examples_are_encoded_only_when_they_change(page, network, studio, monkeypatch):
    encoded, encode = [], network.encode_support
    monkeypatch.setattr(network, "encode_support", lambda *given, **named: encoded.append(named) or encode(*given, **named))
    cup, told = page.add_class(), Told(studio)
    page.make_example("0.jpg", cup)
    page.start()
    for count, name in enumerate(("1.jpg", "2.jpg"), 1):
        page.post("/api/previews", json={"photos": [page.named(name)["id"]], "class": cup})
        wait(lambda count=count: len(told.of("preview")) == count)
    assert [named["name"] for named in encoded if named["name"] == "cup"] == ["cup"]
    page.make_example("3.jpg", cup)
    page.post("/api/previews", json={"photos": [page.named("1.jpg")["id"]], "class": cup})
    wait(lambda: len(told.of("preview")) == 3)
    assert [named["name"] for named in encoded if named["name"] == "cup"] == ["cup", "cup"]


def test_negatives_are_part_of_what_the_network_is_shown_the_most_mistaken_first(page, network, studio, monkeypatch):
    encoded, encode = [], network.encode_support
    monkeypatch.setattr(network, "encode_support", lambda *given, **named: encoded.append(named) or encode(*given, **named))
    monkeypatch.setattr(examples, "_MOST_NEGATIVES", 2)
    cup, told = page.add_class(), Told(studio)
    page.make_example("0.jpg", cup)
    for name, sure in (("1.jpg", 0.1), ("2.jpg", 0.9), ("3.jpg", 0.5)):
        one = page.named(name)
        studio.masks.put(studio.project.store.photo(one["id"]), cup, np.ones((60, 80), bool), "found", sure)
        page.post(f"/api/photos/{one['id']}/negative", json={"class": cup, "on": True})
    page.start()
    page.post("/api/previews", json={"photos": [page.named("turned.jpg")["id"]], "class": cup})
    wait(lambda: told.of("preview"))
    assert [path.name for path in encoded[-1]["negatives"]] == ["2.jpg", "3.jpg"]
    answer = page.post(f"/api/photos/{page.named('turned.jpg')['id']}/explain", json={"class": cup, "x": 3, "y": 3})
    assert answer.status_code == 200
    page.post(f"/api/photos/{page.named('2.jpg')['id']}/negative", json={"class": cup, "on": False})
    page.post("/api/previews", json={"photos": [page.named("turned.jpg")["id"]], "class": cup})
    wait(lambda: len(told.of("preview")) == 2)
    assert [path.name for path in encoded[-1]["negatives"]] == ["3.jpg", "1.jpg"]


def test_a_job_does_every_photo_and_leaves_alone_what_a_person_decided(page):
    cup = page.add_class()
    page.make_example("0.jpg", cup)
    painted, accepted = page.named("1.jpg"), page.named("2.jpg")
    mine = np.eye(60, 80, dtype=bool)
    page.paint(painted, cup, mine)
    page.post(f"/api/photos/{accepted['id']}/state", json={"state": "accepted"})
    page.start()
    status = page.segment_all()
    assert (status["state"], status["done"], status["total"]) == ("finished", 5, 5)
    assert np.array_equal(page.mask(painted, cup), mine)
    assert page.named("2.jpg")["masks"] == {}
    found = [one["masks"].get(str(cup), {}).get("origin") for one in page.photos()]
    assert found == ["person", "person", None, "found", "found", "found"]


def test_classes_share_no_pixel_and_none_of_what_is_painted(page):
    cup, plate = page.add_class("cup"), page.add_class("plate")
    page.make_example("0.jpg", cup)
    page.make_example("1.jpg", plate)
    page.patch("/api/project", json={"settings": {"threshold": 0.01}})
    both = page.named("3.jpg")
    stripe = np.zeros((60, 80), bool)
    stripe[20:30] = True
    page.paint(both, cup, stripe)
    page.start()
    page.segment_all()
    assert not (page.mask(both, plate) & stripe).any()
    free = page.named("inner/deep.png")
    assert not (page.mask(free, cup) & page.mask(free, plate)).any()
    assert page.mask(free, cup).any() or page.mask(free, plate).any()


def test_a_second_run_says_which_masks_differ_and_shows_them_as_they_were(page):
    cup = page.add_class()
    page.make_example("0.jpg", cup)
    page.start()
    page.segment_all()
    before = {one["name"]: page.mask(one, cup) for one in page.photos() if not one["example"]}
    one = page.named("1.jpg")
    base = one["masks"][str(cup)]["revision"]
    page.paint(one, cup, np.ones((60, 80), bool) & ~scene((60, 80), 1)[1], base=base)
    page.post(f"/api/photos/{one['id']}/example", json={"on": True})
    status = page.segment_all()
    changes = page.get("/api/changes").json()
    assert status["changed"] == changes["total"] == len(changes["items"]) > 0
    ious = [change["iou_with_before"] for change in changes["items"]]
    assert ious == sorted(ious) and max(ious) < 0.98
    names = {one["id"]: one for one in page.photos()}
    for change in changes["items"]:
        now = names[change["photo"]]
        earlier = page.mask(now, cup, run="before")
        assert np.array_equal(earlier, before[now["name"]])
        both = page.mask(now, cup)
        assert abs((both & earlier).sum() / max(1, (both | earlier).sum()) - change["iou_with_before"]) < 1e-3


def test_a_job_that_was_stopped_goes_on_where_it_was(page, studio):
    cup, told = page.add_class(), Told(studio)
    page.make_example("0.jpg", cup)
    step = studio.worker.jobs.step

    def stop_after_two(network):
        step(network)
        if studio.worker.jobs.status.done == 2:
            studio.worker.jobs.stop()

    studio.worker.jobs.step = stop_after_two
    page.start()
    stopped = page.segment_all()
    assert (stopped["state"], stopped["done"]) == ("stopped", 2)
    studio.worker.jobs.step = step
    done = page.segment_all()
    assert (done["id"], done["state"], done["done"], done["total"]) == (stopped["id"], "finished", 6, 6)
    assert len([event for event in told.of("photo") if event["masks"].get(str(cup), {}).get("origin") == "found"]) == 5


def test_a_job_goes_on_when_the_project_is_opened_again(folder, network):
    with opened(folder, None, lambda: network) as studio:
        page = Page(studio)
        page.make_example("0.jpg", page.add_class())
        page.post("/api/job", json={"what": "segment", "only": "open"})  # nothing computes: as if it were killed now
    with opened(folder, None, lambda: network) as studio:
        page = Page(studio)
        page.start()
        wait(lambda: page.get("/api/job").json()["state"] == "finished")
        assert page.get("/api/job").json()["done"] == 6
        studio.worker.end()


def test_previews_come_before_the_job(page, studio):
    cup, told = page.add_class(), Told(studio)
    page.make_example("0.jpg", cup)
    page.post("/api/job", json={"what": "segment", "only": "open"})
    last = page.named("turned.jpg")
    page.post("/api/previews", json={"photos": [last["id"]], "class": cup})
    page.start()
    wait(lambda: page.get("/api/job").json()["state"] == "finished")
    kinds = [kind for kind, data in told.events if kind in ("preview", "photo") and data.get("photo", "x") != ""]
    job_results = [place for place, kind in enumerate(kinds) if kind == "photo"]
    assert kinds.index("preview") < job_results[-5]


def test_a_job_without_an_example_is_refused_and_one_that_loses_it_fails_in_a_line(page, studio):
    cup = page.add_class()
    answer = page.post("/api/job", json={"what": "segment", "only": "open"})
    assert answer.status_code == 400 and "no class has an example" in answer.json()["error"]
    example = page.make_example("0.jpg", cup)
    page.post("/api/job", json={"what": "segment", "only": "open"})
    page.post(f"/api/photos/{example['id']}/example", json={"on": False})
    page.start()
    wait(lambda: page.get("/api/job").json()["state"] == "failed")
    assert "no class has an example any more" in page.get("/api/job").json()["problem"]


def test_photos_that_break_are_left_out_and_named(page, folder, studio):
    told = Told(studio)
    page.make_example("0.jpg", page.add_class())
    content = (folder / "2.jpg").read_bytes()
    (folder / "2.jpg").write_bytes(content[: len(content) // 2])
    (folder / "3.jpg").unlink()
    page.start()
    assert page.segment_all()["state"] == "finished"
    assert "damaged" in page.named("2.jpg")["problem"]
    assert "3.jpg" not in [one["name"] for one in page.photos()]
    assert any("2.jpg" in data["text"] for data in told.of("problem"))


def test_review_begins_with_the_least_certain_and_accepts_all_above_a_number(page, studio):
    cup, photos = page.add_class(), page.photos()
    sure = [0.91, 0.2, 0.55, 0.7, 0.7, 0.05]
    for one, value in zip(photos, sure, strict=True):
        mask = np.ones((one["height"], one["width"]), bool)
        studio.masks.put(studio.project.store.photo(one["id"]), cup, mask, "found", value)

    def confidences(**query):
        return [one["masks"][str(cup)]["confidence"] for one in page.photos(**query)]

    assert confidences(sort="confidence") == sorted(sure)
    assert confidences(sort="confidence", min=0.2, max=0.7) == [0.2, 0.55, 0.7, 0.7]
    told = page.post("/api/accept", json={"min": 0.7, "class": cup, "dry": True}).json()["count"]
    assert page.photos(state="accepted") == []
    assert page.post("/api/accept", json={"min": 0.7, "class": None, "dry": False}).json()["count"] == told == 3
    assert confidences(state="accepted", sort="confidence") == [0.7, 0.7, 0.91]


def test_a_click_gives_a_mask_that_holds_the_click_and_stores_nothing(page, studio):
    cup = page.add_class()
    page.start()
    one = page.named("0.jpg")
    truth = scene((60, 80), 0)[1]
    y, x = (int(side.mean()) for side in np.nonzero(truth))
    click = {"class": cup, "points": [[x, y, 1]], "box": None, "kind": "plain"}
    proposal = page.post(f"/api/photos/{one['id']}/click", json=click).json()
    found = unpacked(proposal, one)
    assert proposal["kind"] == "plain" and found[y, x] and found.sum() == proposal["area"]
    assert page.named("0.jpg")["masks"] == {} and not (studio.project.folder / "found").exists()
    boxed = {**click, "points": [], "box": [x - 20, y - 20, x + 20, y + 20]}
    inside = unpacked(page.post(f"/api/photos/{one['id']}/click", json=boxed).json(), one)
    assert inside.any() and not inside[:, : x - 20].any() and not inside[: y - 20].any() and not inside[:, x + 20 :].any()


def test_clicks_that_make_no_sense_are_refused_in_a_line(page):
    page.start()
    one = page.named("0.jpg")
    for given, words in (
        ({"points": [], "box": None}, "no click on the thing"),
        ({"points": [[90, 3, 1]]}, "from 0 to 79.999"),
        ({"points": [[3, 3, 2]]}, r"expected [x, y, 1 or 0]"),
        ({"points": "x"}, "expected a list"),
        ({"points": [], "box": [9, 9, 3, 3]}, "left below right"),
        ({"points": [[3, 3, 1]], "kind": "best"}, "expected auto, plain, sam"),
    ):
        answer = page.post(f"/api/photos/{one['id']}/click", json={"class": 1, "kind": "plain", **given})
        assert answer.status_code == 400 and words in answer.json()["error"], given


def test_the_wand_takes_the_connected_region_of_one_colour(page, folder):
    pixels = np.full((60, 80, 3), 200, np.uint8)
    pixels[10:20, 10:20], pixels[40:50, 10:20], pixels[12:15, 12:15] = (200, 30, 30), (200, 30, 30), (30, 30, 200)
    Image.fromarray(pixels).save(folder / "inner/deep.png")
    one = page.named("inner/deep.png")
    proposal = page.post(f"/api/photos/{one['id']}/wand", json={"x": 18, "y": 18, "tolerance": 5}).json()
    expected = np.zeros((60, 80), bool)
    expected[10:20, 10:20] = True
    expected[12:15, 12:15] = False
    assert np.array_equal(unpacked(proposal, one), expected)
    everything = page.post(f"/api/photos/{one['id']}/wand", json={"x": 18, "y": 18, "tolerance": 200}).json()
    assert everything["area"] == 60 * 80


def test_an_explanation_shows_the_answer_and_each_example(page):
    cup = page.add_class()
    page.make_example("0.jpg", cup)
    page.make_example("1.jpg", cup)
    page.start()
    answer = page.post(f"/api/photos/{page.named('2.jpg')['id']}/explain", json={"class": cup, "x": 30, "y": 20}).json()
    names = [one["name"] for one in answer["images"]]
    assert names[0] == "query" and {"support 1", "support 2", "cycle consistency", "prior map"} <= set(names)
    assert all(read(base64.b64decode(one["png"])).size for one in answer["images"])


def test_examples_are_exported_as_a_support_that_the_segmenter_loads(page, network, tmp_path):
    cup = page.add_class()
    page.make_example("0.jpg", cup)
    page.start()
    path = tmp_path / "cup.cyctr"
    path.write_bytes(page.get("/api/export/support").content)
    assert read_support(path).name == "cup"
    found = network.segment(scene((60, 80), 3)[0], network.load_support(path))
    direct = network.encode_support(page.studio.project.photos / "0.jpg", scene((60, 80), 0)[1], name="cup")
    assert np.array_equal(found.mask, network.segment(scene((60, 80), 3)[0], direct).mask)


def test_a_network_that_cannot_be_loaded_is_told_and_labelling_goes_on(folder):
    def fail():
        raise WeightsError("the weights are not here; fetch them")

    with opened(folder, None, fail) as studio:
        page = Page(studio)
        studio.worker.start()
        wait(lambda: page.get("/api/project").json()["model"]["problem"])
        assert "fetch them" in page.get("/api/project").json()["model"]["problem"]
        cup = page.add_class()
        assert page.paint(page.named("0.jpg"), cup, np.ones((3, 3), bool)).status_code == 200
        click = {"class": cup, "points": [[3, 3, 1]], "box": None, "kind": "plain"}
        answer = page.post(f"/api/photos/{page.named('0.jpg')['id']}/click", json=click)
        assert answer.status_code == 400 and "fetch them" in answer.json()["error"]
        studio.worker.end()


def test_the_worker_survives_what_one_photo_does(page, studio, monkeypatch):
    told, cup = Told(studio), page.add_class()
    page.make_example("0.jpg", cup)
    store, calls = working.store_result, []

    def break_once(*given, **named):
        calls.append(given)
        if len(calls) == 1:
            raise ZeroDivisionError("a bug")
        return store(*given, **named)

    monkeypatch.setattr(working, "store_result", break_once)
    page.start()
    ids = [page.named(name)["id"] for name in ("1.jpg", "2.jpg")]
    page.post("/api/previews", json={"photos": ids, "class": cup})
    wait(lambda: told.of("preview"))
    assert any("ZeroDivisionError: a bug" in data["text"] for data in told.of("problem"))


def test_a_photo_of_another_size_is_segmented_at_its_own(page, folder):
    photo(folder / "3.jpg", 3, (90, 41))
    cup = page.add_class()
    page.make_example("0.jpg", cup)
    page.start()
    page.segment_all()
    assert page.mask(page.named("3.jpg"), cup).shape == (90, 41)
