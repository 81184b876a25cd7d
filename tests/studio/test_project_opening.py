import asyncio
import errno
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx2
import numpy as np
import pytest
import uvicorn
from labelled_folders import coco, labelme, polygon, shape
from making import assert_one_line, small_checkpoint, without_rights
from paging import Page, png
from PIL import Image
from segmenting import labelled, photo, photos, scene

from cyctr.datasets.gallery import Scene, Shot
from cyctr.errors import CyctrError
from cyctr.inference.supports.reading import find_supports
from cyctr.studio import listing, masks, samples, serving
from cyctr.studio.serving import opened


def refused(folder, network, match, place=None):
    with pytest.raises(CyctrError, match=match) as caught, opened(folder, place, lambda: network):
        pass
    assert "\n" not in str(caught.value)


def test_folders_that_cannot_be_opened_are_refused_in_a_line(tmp_path, network):
    refused(tmp_path / "nowhere", network, "no such folder; expected a folder of photos")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", network, "is a file; expected a folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", network, "no images")
    assert not (tmp_path / "empty/cyctr-studio").exists() or not any((tmp_path / "empty/cyctr-studio").glob("*.json"))
    photo(tmp_path / "own/a.jpg")
    refused(tmp_path / "own", network, "is the folder of the photos", tmp_path / "own")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/thesis.txt").write_text("mine")
    refused(tmp_path / "own", network, "holds other files", tmp_path / "taken")


@pytest.mark.parametrize(("mode", "words"), [(0o555, "cannot be|Permission"), (0o311, "cannot be listed|Permission")])
def test_folders_without_rights_are_refused_in_a_line(tmp_path, network, mode, words):
    photo(tmp_path / "photos/a.jpg")
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents:
        if parent.is_relative_to(tempfile.gettempdir()) and parent != Path(tempfile.gettempdir()):
            parent.chmod(0o755)
    with without_rights(tmp_path / "photos", mode):
        refused(tmp_path / "photos", network, words)


def test_a_folder_that_cannot_be_written_opens_with_its_project_elsewhere(tmp_path, network):
    photo(tmp_path / "photos/a.jpg")
    with opened(tmp_path / "photos", tmp_path / "work", lambda: network) as studio:
        page = Page(studio)
        page.paint(page.named("a.jpg"), page.add_class(), np.ones((3, 3), bool))
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["a.jpg"]
    with opened(tmp_path / "work", None, lambda: network) as studio:  # a project opens by its own folder, too
        assert Page(studio).named("a.jpg")["masks"]


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ('{"format": "cyctr-studio-2"}', "newer version of cyctr .format 2.; update cyctr"),
        ('{"format": "cyctr-studio-' + 5000 * "9" + '"}', "newer version of cyctr .format 9{20}.; update cyctr"),
        ('{"format": "else"}', "is not of a project"),
        ("{", "cannot be read"),
    ],
)
def test_a_project_of_a_newer_version_or_that_is_damaged_is_not_touched(folder, network, about, words):
    (folder / "cyctr-studio").mkdir()
    (folder / "cyctr-studio/project.json").write_text(about)
    refused(folder, network, words)
    assert (folder / "cyctr-studio/project.json").read_text() == about


def test_tables_of_a_newer_version_or_that_are_damaged_are_refused(folder, network):
    with opened(folder, None, lambda: network) as studio:
        path = studio.project.folder / "state.sqlite"
    base = sqlite3.connect(path)
    base.execute("PRAGMA user_version = 9")
    base.close()
    refused(folder, network, "newer version")
    path.write_bytes(b"no database, but long enough to be looked at" * 50)
    refused(folder, network, "cannot be opened")


def test_what_the_tables_knew_of_masks_is_read_from_their_files_when_they_are_lost(folder, network):
    with opened(folder, None, lambda: network) as studio:
        page = Page(studio)
        cup = page.add_class()
        page.make_example("0.jpg", cup)
        one = studio.project.store.photo(page.named("1.jpg")["id"])
        studio.masks.put(one, cup, scene((60, 80), 1)[1], "found", 0.625)
        before = page.photos()
    for path in studio.project.folder.glob("state.sqlite*"):
        path.unlink()
    with opened(folder, None, lambda: network) as studio:
        after = Page(studio).photos()
        for was, now in zip(before, after, strict=True):
            assert {**was, "masks": 0} == {**now, "masks": 0}
            for number, mask in was["masks"].items():
                again = now["masks"][number]
                assert {name: mask[name] for name in ("origin", "confidence", "area")} == {
                    name: again[name] for name in ("origin", "confidence", "area")
                }
                assert again["revision"] >= mask["revision"]


def test_two_servers_do_not_open_one_project(folder, network, studio):
    refused(folder, network, "another process is writing it; close the other one")


def test_images_that_are_none_are_listed_with_their_problem_and_the_others_work(tmp_path, network):
    photos(tmp_path / "photos", 2)
    (tmp_path / "photos/broken.jpg").write_bytes(b"\xff\xd8\xff broken")
    (tmp_path / "photos/empty.png").write_bytes(b"")
    with opened(tmp_path / "photos", None, lambda: network) as studio:
        page = Page(studio)
        problems = {one["name"]: one["problem"] for one in page.photos()}
        assert problems["0.jpg"] is None and "damaged" in problems["broken.jpg"] and "0 bytes" in problems["empty.png"]
        answer = page.get(f"/api/photos/{page.named('broken.jpg')['id']}/image?side=160")
        assert answer.status_code == 400 and "broken.jpg" in answer.json()["error"]
        cup = page.add_class()
        assert page.paint(page.named("broken.jpg"), cup, np.ones((1, 1), bool)).status_code == 400


def test_opening_reads_no_image_of_a_large_folder(tmp_path, network, monkeypatch):
    root = tmp_path / "photos"
    root.mkdir()
    for number in range(1000):
        (root / f"{number:05d}.jpg").write_bytes(b"x")
    looked = []
    real = listing.image_size
    monkeypatch.setattr(listing, "image_size", lambda path: looked.append(path) or real(path))
    with opened(root, None, lambda: network) as studio:
        assert looked == []
        page = Page(studio)
        answer = page.get("/api/photos", params={"offset": 600, "limit": 10}).json()
        assert answer["total"] == 1000 and answer["items"][0]["name"] == "00600.jpg"
        assert len(looked) == 10


def test_a_photo_that_is_deleted_while_it_is_open_is_gone_and_its_masks_stay(page, folder, studio):
    cup, one = page.add_class(), page.named("0.jpg")
    page.paint(one, cup, np.ones((3, 3), bool))
    kept = (folder / "0.jpg").read_bytes()
    (folder / "0.jpg").unlink()
    answer = page.get(f"/api/photos/{one['id']}/image?side=1280")
    assert answer.status_code == 410 and "no longer in the folder; its masks stay" in answer.json()["error"]
    assert page.paint(one, cup, np.ones((3, 3), bool)).status_code == 410
    assert "0.jpg" not in [other["name"] for other in page.photos()]
    assert (studio.project.folder / "found/cup/0.png").exists()
    (folder / "0.jpg").write_bytes(kept)
    listing.list_photos(studio.project)
    assert page.named("0.jpg")["masks"]


def test_a_photo_that_is_replaced_while_it_is_open_keeps_masks_that_fit_and_sets_others_aside(page, folder, studio):
    cup = page.add_class()
    for name in ("0.jpg", "1.jpg"):
        page.paint(page.named(name), cup, np.ones((3, 3), bool))
    same, other = page.named("0.jpg"), page.named("1.jpg")
    photo(folder / "0.jpg", 77, (60, 80))
    photo(folder / "1.jpg", 78, (50, 70))
    for one in (same, other):
        answer = page.get(f"/api/photos/{one['id']}/image?side=160")
        assert answer.status_code == 410 and "was replaced by another file" in answer.json()["error"]
        assert page.get(f"/api/photos/{one['id']}/image?side=160").status_code == 200
    assert page.named("0.jpg")["masks"][str(cup)]["area"] == 9
    assert page.named("1.jpg")["masks"] == {} and page.named("1.jpg")["height"] == 50
    (aside,) = (studio.project.folder / "aside").rglob("*.png")
    assert np.asarray(Image.open(aside)).shape == (60, 80)


def test_a_full_disk_is_told_and_changes_nothing_until_there_is_room(page, studio, monkeypatch):
    cup, one = page.add_class(), page.named("0.jpg")
    base = page.paint(one, cup, np.ones((3, 3), bool)).json()["revision"]
    real = masks.write_atomically

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(masks, "write_atomically", full)
    answer = page.paint(one, cup, np.ones((9, 9), bool), base=base)
    assert answer.status_code == 507 and "No space left on device" in answer.json()["error"]
    assert page.mask(one, cup).sum() == 9
    monkeypatch.setattr(masks, "write_atomically", real)
    assert page.paint(one, cup, np.ones((9, 9), bool), base=base).json()["area"] == 81


def test_a_disk_that_takes_the_mask_but_not_the_note_loses_nothing(folder, network, monkeypatch):
    with opened(folder, None, lambda: network) as studio:
        page = Page(studio)
        cup, one = page.add_class(), page.named("0.jpg")
        base = page.paint(one, cup, np.ones((3, 3), bool)).json()["revision"]

        def full(mask):
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(studio.project.store, "put_mask", full)
        assert page.paint(one, cup, np.ones((9, 9), bool), base=base).status_code == 507
    with opened(folder, None, lambda: network) as studio:
        page = Page(studio)
        assert page.mask(page.named("0.jpg"), cup).sum() == 81
        assert page.named("0.jpg")["masks"][str(cup)]["revision"] > base


def test_a_port_in_use_and_an_address_of_another_machine_are_refused_in_a_line(folder, network):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CyctrError, match=f"port {port} of 127.0.0.1 is in use; choose another") as caught:
            serving.serve(folder, None, lambda: network, port=port, browser=False)
        assert caught.value.options == ("port",)
    with pytest.raises(CyctrError, match="choose another"):
        serving.serve(folder, None, lambda: network, host="192.0.2.1", browser=False)
    assert not (folder / "cyctr-studio").exists()


def test_a_browser_that_cannot_be_opened_is_told_and_the_server_goes_on(monkeypatch):
    def broken(address):
        raise serving.webbrowser.Error("none")

    for answer in (broken, lambda address: False):
        told = []
        monkeypatch.setattr(serving.webbrowser, "open", answer)
        serving._open_browser("file:///x", told.append)
        assert told == ["no browser could be opened; open the address above in one"]


def test_masks_that_lie_beside_the_photos_are_its_first_examples_and_no_photos(tmp_path, network):
    root = photos(labelled(tmp_path / "discs"), 2)
    with opened(root, None, lambda: network) as studio:
        page = Page(studio)
        listed = page.photos()
        assert [one["name"] for one in listed] == ["0.jpg", "1.jpg", "shot0.png", "shot1.png"]
        assert [one["example"] for one in listed] == [False, False, True, True]
        (disc,) = page.get("/api/project").json()["classes"]
        assert (disc["name"], disc["examples"]) == ("discs", 2)
        assert np.array_equal(page.mask(listed[2], disc["id"]), scene((60, 80), 0)[1])
    with opened(root, None, lambda: network) as studio:
        assert len(Page(studio).photos()) == 4


def test_folders_of_labelme_and_coco_open_with_their_labels(tmp_path, network):
    for name, write in (
        ("labelme", lambda root: [labelme(root / "a.json", [shape("cup", (2, 1, 9, 8)), shape("plate", (9, 9, 20, 15))])]),
        ("coco", lambda root: coco(root / "annotations.json", polygon, {"a": {"cup": (2, 1, 9, 8), "plate": (9, 9, 20, 15)}})),
    ):
        root = tmp_path / name
        photo(root / "a.jpg", 0, (20, 30))
        photo(root / "b.jpg", 1, (20, 30))
        write(root)
        with opened(root, None, lambda: network) as studio:
            page = Page(studio)
            assert {one["name"]: one["examples"] for one in page.get("/api/project").json()["classes"]} == {
                "cup": 1,
                "plate": 1,
            }
            expected = np.zeros((20, 30), bool)
            expected[1:8, 2:9] = True
            assert np.array_equal(page.mask(page.named("a.jpg"), 1), expected)
            assert set(find_supports(studio.project.folder).classes) == {"cup", "plate"}


def test_masks_in_a_folder_of_their_own_are_no_photos(tmp_path, network):
    for number in range(3):
        photo(tmp_path / f"set/images/{number}.jpg", number, (60, 80))
    (tmp_path / "set/masks").mkdir()
    for number in range(2):
        Image.fromarray(scene((60, 80), number)[1]).save(tmp_path / f"set/masks/{number}.png")
    with opened(tmp_path / "set", None, lambda: network) as studio:
        assert [(one["name"], one["example"]) for one in Page(studio).photos()] == [
            ("images/0.jpg", True),
            ("images/1.jpg", True),
            ("images/2.jpg", False),
        ]


def _start(folder, checkpoint):
    process = subprocess.Popen(
        [sys.executable, "-m", "cyctr", "studio", str(folder), "--no-browser", "--model", str(checkpoint), "--device", "cpu"],
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if line.startswith("open "):
            address = line.split()[1]
            break
    token = address.partition("token=")[2]
    headers = {"Authorization": f"token {token}", "X-Cyctr": "1"}
    return process, httpx2.Client(base_url=address.partition("/?")[0], headers=headers, timeout=30)


def test_what_was_called_saved_is_there_after_the_server_is_killed_between_strokes(folder, tmp_path, network):
    truth, base = np.zeros((60, 80), bool), 0
    process, client = _start(folder, small_checkpoint(tmp_path / "small.safetensors"))
    try:
        client.post("/api/classes", json={"name": "cup"})
        one = client.get("/api/photos").json()["items"][0]
        for stroke in range(10):
            place = {"x": 3 * stroke, "y": 5 * stroke, "width": 20, "height": 5, "base": base}
            answer = client.put(f"/api/photos/{one['id']}/mask/1", params=place, content=png(np.ones((5, 20))))
            base = answer.json()["revision"]
            truth[5 * stroke : 5 * stroke + 5, 3 * stroke : 3 * stroke + 20] = True
        client.post(f"/api/photos/{one['id']}/example", json={"on": True})
        client.post(f"/api/photos/{one['id']}/state", json={"state": "accepted"})
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        client.close()
    assert np.array_equal(np.asarray(Image.open(folder / "cyctr-studio/masks/cup/0.png")) > 0, truth)
    with opened(folder, None, lambda: network) as studio:
        now = Page(studio).photos()[0]
        assert (now["state"], now["example"], now["masks"]["1"]["revision"]) == ("accepted", True, base)


def test_a_server_that_was_killed_between_a_file_and_its_note_is_healed(folder, network):
    with opened(folder, None, lambda: network) as studio:
        page = Page(studio)
        page.make_example("0.jpg", page.add_class())
        place = studio.project.folder
    # killed before the photo was copied, and as the mask was on its way to the examples
    (place / "images/0.jpg").unlink()
    (place / "found/cup").mkdir(parents=True)
    os.replace(place / "masks/cup/0.png", place / "found/cup/0.png")
    with opened(folder, None, lambda: network):
        assert set(find_supports(place).classes) == {"cup"}
        assert not (place / "found/cup").exists()


def test_a_class_whose_renaming_was_cut_short_is_renamed_at_the_next_start(folder, network):
    with opened(folder, None, lambda: network) as studio:
        page = Page(studio)
        page.make_example("0.jpg", page.add_class())
        path = studio.project.folder / "project.json"
    about = json.loads(path.read_text())
    about["classes"][0] |= {"name": "mug", "folder": "mug", "before": "cup"}
    path.write_text(json.dumps(about))
    with opened(folder, None, lambda: network) as studio:
        assert Page(studio).mask(Page(studio).named("0.jpg"), 1).any()
        assert set(find_supports(studio.project.folder).classes) == {"mug"}
    assert "before" not in path.read_text()


@pytest.fixture
def loop_of_its_own():
    """Lets a test run an event loop where the browser of other tests has one in the same thread."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)


@pytest.mark.usefixtures("loop_of_its_own")
def test_a_server_that_is_interrupted_ends_well_and_leaves_no_token_behind(folder, network, monkeypatch):
    launched, told = [], []

    def look(address):
        launched.append(address.removeprefix("file://"))
        os.kill(os.getpid(), signal.SIGINT)
        return True

    monkeypatch.setattr(serving.webbrowser, "open", look)
    monkeypatch.setattr(serving, "_PATIENCE", 0.3)
    serving.serve(folder, None, lambda: network, say=told.append)
    assert told[-1] == "stopped" and launched and not os.path.exists(launched[0])
    assert not (folder / "cyctr-studio/.cyctr.lock").exists()
    base = sqlite3.connect(folder / "cyctr-studio/state.sqlite")
    assert base.execute("SELECT COUNT(*) FROM photos").fetchone() == (6,)
    base.close()


def test_the_command_says_in_a_line_what_is_wrong(run, tmp_path, folder):
    assert_one_line(run("studio", tmp_path / "nowhere", "--no-browser"), "no such folder")
    assert_one_line(run("studio", folder, "--no-browser", "--project", folder), "is the folder of the photos", "--project")
    assert_one_line(run("studio", folder, "--no-browser", "--host", "192.0.2.1"), "choose another")


def test_events_reach_a_page_over_a_socket_and_end_with_the_server(folder, network):
    with opened(folder, None, lambda: network) as studio, serving._bound("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        config = uvicorn.Config(serving.application(studio, "t", port), log_level="error", lifespan="off")
        server = serving._Server(config, studio.events)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": "token t"}, timeout=20)
        seen = []
        with client.stream("GET", "/api/events") as answer:
            lines = answer.iter_lines()
            next(lines)
            studio.events.publish("job", {"done": 3})
            for line in lines:
                seen.append(line)
                if line.startswith("data:"):
                    break
            assert "event: job" in seen and json.loads(seen[-1].removeprefix("data: ")) == {"done": 3}
            server.handle_exit(signal.SIGINT, None)
            started = time.monotonic()
            list(lines)
        thread.join(20)
        assert not thread.is_alive() and time.monotonic() - started < 15
        client.close()


def test_every_photo_of_the_gallery_can_be_tried(tmp_path, monkeypatch):
    shot = Shot(scene((60, 80))[0], np.ones((60, 80), np.uint8))
    monkeypatch.setattr(samples, "scenes", lambda: (Scene("coin", "", (shot,), (shot, shot), "", ""),))
    samples.sample_photos(tmp_path / "photos")
    assert sorted(path.name for path in (tmp_path / "photos").iterdir()) == ["coin-1.jpg", "coin-2.jpg", "coin-3.jpg"]
    (tmp_path / "photos/coin-1.jpg").unlink()
    samples.sample_photos(tmp_path / "photos")
    assert len(list((tmp_path / "photos").iterdir())) == 2
