"""A test for each thing that a local server owes its user."""

import io
import os
import re
import socket
import stat
import struct
import threading
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from paging import HEADERS, PORT, TOKEN, png
from PIL import Image
from starlette.testclient import TestClient

from cyctr import limits
from cyctr.studio import security, serving
from cyctr.studio.serving import application, opened, serve

ASKED = ("/", "/static/app.js", "/api/project", "/api/photos", "/api/events", "/api/nowhere")
SHOWN = [path for path in ASKED if path != "/api/events"]  # which has no end


@pytest.fixture
def stranger(studio):
    """Somebody without a token."""
    return TestClient(application(studio, TOKEN, PORT), base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False)


def test_the_server_listens_on_this_machine_only_unless_told_otherwise_and_then_warns(folder, network, monkeypatch):
    bound = []
    monkeypatch.setattr(serving._Server, "run", lambda self, sockets: bound.append(sockets[0].getsockname()))
    told = []
    serve(folder, None, lambda: network, browser=False, say=told.append)
    assert bound[0][0] == "127.0.0.1" and not any("warning" in line for line in told)
    serve(folder, None, lambda: network, host="0.0.0.0", browser=False, say=told.append)
    assert bound[1][0] == "0.0.0.0" and any("warning: 0.0.0.0 can be reached" in line for line in told)


OTHERS = (
    "evil.example",
    f"evil.example:{PORT}",
    "127.0.0.1:1",
    "127.0.0.1",
    f"localhost.evil.example:{PORT}",
    f"10.0.0.7:{PORT}",
    f"127.0.0.1:{PORT}@evil.example",
    f"[::2]:{PORT}",
    "",
    f"127.0.0.1:{PORT}/x",
    "[::1",
    f"localhost:{PORT}x",
)


def test_a_request_that_names_another_host_is_refused_whatever_it_brings(page):
    for path in ASKED:
        for host in OTHERS:
            answer = page.get(path, headers={"Host": host, **HEADERS})
            assert answer.status_code == 403 and "address it printed" in answer.json()["error"], (path, host)


def test_every_name_of_this_machine_is_taken(page):
    for host in ("127.0.0.1", "localhost", "[::1]", "127.8.9.1", "LOCALHOST"):
        assert page.get("/api/project", headers={"Host": f"{host}:{PORT}"}).status_code == 200, host


def test_without_the_token_nothing_is_answered(stranger):
    for given in ({}, {"Authorization": "token wrong"}, {"Authorization": TOKEN}, {"Cookie": f"x={TOKEN}"}):
        for path in ASKED:
            answer = stranger.get(path, headers=given)
            assert answer.status_code == 401 and "no token" in answer.json()["error"], (path, given)


def test_the_token_of_the_address_becomes_a_cookie_that_no_script_and_no_other_site_can_use(stranger):
    answer = stranger.get("/", params={"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert TOKEN in cookie and "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie
    assert TOKEN not in answer.text and re.search(r'http-equiv="refresh" content="0;url=/"', answer.text)
    assert stranger.get("/api/project").status_code == 200
    stranger.cookies.clear()
    wrong = stranger.get("/", params={"token": TOKEN[:-1]})
    assert wrong.status_code == 401 and "set-cookie" not in wrong.headers


def test_tokens_are_long_and_never_the_same():
    assert len({security.new_token() for _ in range(100)}) == 100
    assert min(len(security.new_token()) for _ in range(100)) >= 40


def test_the_browser_is_told_the_token_by_a_file_that_only_its_user_can_read(monkeypatch):
    opened_files = []

    def look(address):
        path = address.removeprefix("file://")
        opened_files.append((stat.S_IMODE(os.stat(path).st_mode), Path(path).read_text(), path))
        return True

    monkeypatch.setattr(serving.webbrowser, "open", look)
    monkeypatch.setattr(serving, "_PATIENCE", 0.0)
    with serving._launched("http://127.0.0.1:1/?token=secret", print):
        while not opened_files:
            pass
    ((mode, text, path),) = opened_files
    assert mode == 0o600 and "token=secret" in text and not os.path.exists(path)


def test_no_answer_lets_another_site_in(page):
    for path in SHOWN:
        answer = page.get(path, headers={"Origin": f"http://127.0.0.1:{PORT}"})
        assert not [name for name in answer.headers if name.startswith("access-control")]
        asked = page.options(path, headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "PUT"})
        assert asked.status_code == 403
        assert not [name for name in asked.headers if name.startswith("access-control")]


def test_a_request_from_another_page_is_refused_even_with_the_token(page):
    for origin in ("null", "http://evil.example", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:1", ""):
        for method, path in (("GET", "/api/project"), ("POST", "/api/classes")):
            answer = page.request(method, path, headers={"Origin": origin})
            assert answer.status_code == 403 and "another page" in answer.json()["error"], origin
    assert page.get("/api/project").json()["classes"] == []


def test_what_changes_something_needs_a_header_that_forms_cannot_send(stranger):
    for method, path in (
        ("POST", "/api/classes"),
        ("PATCH", "/api/project"),
        ("POST", "/api/job/stop"),
        ("DELETE", "/api/classes/1"),
    ):
        answer = stranger.request(method, path, headers={"Authorization": f"token {TOKEN}"}, json={"name": "cup"})
        assert answer.status_code == 403 and "X-Cyctr" in answer.json()["error"], path


def test_files_are_named_by_id_and_never_by_path(page):
    names = ("../0.jpg", "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "..\\0.jpg", "0.jpg", "C:\\x", "state.sqlite", "%00")
    for name in names:
        for path in (f"/api/photos/{name}", f"/api/photos/{name}/image", f"/static/{name}", f"/static/../{name}"):
            answer = page.get(path)
            assert answer.status_code in (400, 404) and "root:" not in answer.text, path


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path, folder, network):
    Image.new("RGB", (50, 50), "red").save(tmp_path / "secret.png")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "own.png").symlink_to(folder / "0.jpg")
    with opened(folder, None, lambda: network) as studio:
        client = TestClient(application(studio, TOKEN, PORT), base_url=f"http://127.0.0.1:{PORT}", headers=HEADERS)
        listed = {one["name"]: one for one in client.get("/api/photos").json()["items"]}
        answer = client.get(f"/api/photos/{listed['link.png']['id']}/image?side=160")
        assert answer.status_code == 400 and "leads out of the folder" in answer.json()["error"]
        assert client.get(f"/api/photos/{listed['own.png']['id']}/image?side=160").status_code == 200


def test_bytes_are_counted_as_they_come_whatever_was_promised(page):
    one, cup = page.named("0.jpg"), page.add_class()
    sent = []

    def endless():
        while True:
            sent.append(2**20)
            yield bytes(2**20)
            if len(sent) > 200:
                return

    place = {"x": 0, "y": 0, "width": 4, "height": 4, "base": 0}
    answer = page.put(f"/api/photos/{one['id']}/mask/{cup}", params=place, content=endless())
    assert answer.status_code == 413 and "more than" in answer.json()["error"]
    lying = page.post("/api/classes", content=b" " * 2**21, headers={"Content-Length": "2"})
    assert lying.status_code == 413


def test_a_small_file_of_very_many_pixels_is_refused_before_it_is_unpacked(page):
    one, cup = page.named("0.jpg"), page.add_class()

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    place = {"x": 0, "y": 0, "width": 4, "height": 4, "base": 0}
    answer = page.put(f"/api/photos/{one['id']}/mask/{cup}", params=place, content=bomb)
    assert answer.status_code in (400, 413) and "pixels" in answer.json()["error"]


def test_as_many_questions_wait_as_may_and_no_more(page):
    cup, one = page.add_class(), page.named("0.jpg")
    worker = page.studio.worker  # not started: what is asked waits
    for _ in range(limits.QUESTIONS):
        worker.ask(lambda segmenter: None)
    click = {"class": cup, "points": [[3, 3, 1]], "box": None, "kind": "plain"}
    answer = page.post(f"/api/photos/{one['id']}/click", json=click)
    assert answer.status_code == 429 and "wait" in answer.json()["error"]
    too_many = page.post("/api/previews", json={"photos": [one["id"]] * (limits.PREVIEWS + 1), "class": None})
    assert too_many.status_code == 400 and str(limits.PREVIEWS) in too_many.json()["error"]


def test_photos_leave_as_pictures_that_were_packed_again(tmp_path, network):
    hidden = b"<script>alert(1)</script>"
    root = tmp_path / "photos"
    root.mkdir()
    Image.new("RGB", (50, 50), "red").save(root / "a.jpg", comment=hidden)
    (root / "a.jpg").write_bytes((root / "a.jpg").read_bytes() + hidden)
    (root / "evil.svg").write_text("<svg onload='alert(1)'/>")
    with opened(root, None, lambda: network) as studio:
        client = TestClient(application(studio, TOKEN, PORT), base_url=f"http://127.0.0.1:{PORT}", headers=HEADERS)
        (one,) = client.get("/api/photos").json()["items"]
        for side in (160, 1280):
            answer = client.get(f"/api/photos/{one['id']}/image?side={side}")
            assert answer.headers["content-type"] == "image/jpeg" and hidden not in answer.content
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_answer_forbids_scripts_that_are_not_ours(page):
    for path in SHOWN:
        policy = page.get(path).headers["content-security-policy"]
        assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert "img-src 'self' blob: data:" in policy


def test_the_page_has_no_script_or_style_inside_and_asks_nobody_else():
    text = (serving.STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>", text) and not re.search(r"\son\w+\s*=", text)
    for path in serving.STATIC.rglob("*"):
        if path.suffix in (".js", ".css", ".html"):
            found = re.findall(r"https?://[^\s\"'`)]+", path.read_text())
            assert not [one for one in found if not one.startswith("http://www.w3.org/")], path
            assert not re.search(r"\beval\(|new Function\(", path.read_text()), path


def test_examples_leave_without_a_pickle(page):
    cup = page.add_class()
    page.make_example("0.jpg", cup)
    page.start()
    content = page.get("/api/export/support").content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert {name.rpartition(".")[2] for name in archive.namelist()} == {"json", "png"}


def test_the_project_of_somebody_else_is_no_way_out_of_its_folder(folder, network):
    place = folder / "cyctr-studio"
    place.mkdir()
    classes = '[{"id": 1, "name": "x", "color": "#ffffff", "folder": "../../.."}]'
    (place / "project.json").write_text(
        f'{{"format": "cyctr-studio-1", "photos": "..", "classes": {classes}, "settings": {{}}}}'
    )
    with pytest.raises(Exception, match="expected id, name, color and folder"), opened(folder, None, lambda: network):
        pass


def test_names_with_markup_are_sent_as_text_of_json(page, folder):
    name = '<img src=x onerror="alert(1)">'
    page.add_class(name)
    answer = page.get("/api/project")
    assert answer.headers["content-type"] == "application/json" and answer.json()["classes"][0]["name"] == name


def test_a_real_server_refuses_a_rebound_name_over_a_socket(folder, network):
    with opened(folder, None, lambda: network) as studio, serving._bound("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(application(studio, TOKEN, port), log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            for host, status in ((f"127.0.0.1:{port}", b"200"), (f"evil.example:{port}", b"403")):
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    lines = ("GET /api/project HTTP/1.1", f"Host: {host}", f"Authorization: token {TOKEN}", "Connection: close")
                    connection.sendall("\r\n".join([*lines, "", ""]).encode())
                    assert connection.recv(100).split()[1] == status
        finally:
            server.should_exit = True
            thread.join()


def test_masks_are_read_only_as_png(page):
    one, cup = page.named("0.jpg"), page.add_class()
    content = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(content, "BMP")
    place = {"x": 0, "y": 0, "width": 4, "height": 4, "base": 0}
    answer = page.put(f"/api/photos/{one['id']}/mask/{cup}", params=place, content=content.getvalue())
    assert answer.status_code == 400
    assert page.put(f"/api/photos/{one['id']}/mask/{cup}", params=place, content=png(np.ones((4, 4)))).status_code == 200
