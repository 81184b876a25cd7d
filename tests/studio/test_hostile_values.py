"""Whatever a request or a project's files hold, the answer is a status and a line."""

import json

import numpy as np
import pytest
from paging import png

HUGE = 10**400
TEXTS = ("", "x" * 10_000, "\0", "a\nb", "..", "../../x", "<b>&", "\ud800", "NaN", "1e999", "²", "-1", "9" * 5_000)
VALUES = (None, True, False, 0, -1, 0.5, 2**31, 2**63, -(2**63) - 1, HUGE, -HUGE, [], {}, [[]], [{}], [None], {"a": {}}, *TEXTS)
NUMBERS = ("NaN", "Infinity", "-Infinity", "1e400", "9" * 5_000)
"""What is no JSON, or no number of ours, but is read as one by Python."""
BODIES = {
    "PATCH /api/project": {"settings": {"threshold": 0.5, "zoom": True, "edges": True, "reject_is_negative": True}},
    "POST /api/classes": {"name": "plate", "color": "#ffffff"},
    "PATCH /api/classes/1": {"name": "dish", "color": "#ffffff"},
    "DELETE /api/classes/9": {"force": True},
    "POST /api/previews": {"photos": ["PHOTO"], "class": 1},
    "POST /api/job": {"what": "nothing", "only": "open"},
    "POST /api/job/stop": {},
    "POST /api/accept": {"min": 0.5, "class": 1, "dry": True},
    "POST /api/export": {"format": "png", "accepted_only": False, "dry": True},
    "POST /api/photos/PHOTO/state": {"state": "open", "base": {"1": 0}},
    "POST /api/photos/PHOTO/example": {"on": False},
    "POST /api/photos/PHOTO/negative": {"class": 1, "on": True},
    "POST /api/photos/PHOTO/wand": {"x": 3, "y": 3, "tolerance": 10},
    "POST /api/photos/PHOTO/click": {"class": 1, "points": [[3, 3, 1]], "box": [0, 0, 9, 9], "kind": "plain"},
    "POST /api/photos/PHOTO/region": {"class": 1, "box": [0, 0, 9, 9]},
    "POST /api/photos/PHOTO/explain": {"class": 1, "x": 3, "y": 3},
}
QUERIES = {
    "GET /api/photos": ("sort", "class", "min", "max", "state", "example", "offset", "limit"),
    "GET /api/photos/PHOTO/image": ("side",),
    "GET /api/photos/PHOTO/mask/1": ("run", "side"),
    "PUT /api/photos/PHOTO/mask/1": ("x", "y", "width", "height", "base"),
    "GET /api/changes": ("offset", "limit"),
}
PLACES = (
    "/api/photos/{}",
    "/api/photos/{}/image",
    "/api/photos/PHOTO/mask/{}",
    "/api/photos/PHOTO/tile/{}/0/0",
    "/api/photos/PHOTO/tile/0/{}/0",
    "/api/classes/{}",
    "/static/{}",
    "/{}",
)


@pytest.fixture
def asked(page, monkeypatch):
    """Asks, and checks that what comes back is an answer; the network is not asked, as whoever asks it waits."""
    cup, photo = page.add_class(), page.named("0.jpg")["id"]
    assert cup == 1
    monkeypatch.setattr(page.studio.worker, "problem", "there is no network")

    def ask(line, **given):
        method, _, path = line.partition(" ")
        answer = page.request(method, path.replace("PHOTO", photo), **given)
        assert answer.status_code in (200, 204, 307, 400, 404, 405, 409, 413, 414, 429), (line, given, answer.text)
        if answer.status_code >= 400:
            assert set(answer.json()) >= {"error"} and len(answer.text) < 500, (line, given, answer.text)
        return answer

    ask.photo = photo
    return ask


def with_value(body, place, value):
    """A copy of a body, another value in place of one of its own."""
    if not place:
        return value
    key, *rest = place
    if isinstance(body, dict):
        return body | {key: with_value(body[key], rest, value)}
    return [*body[:key], with_value(body[key], rest, value), *body[key + 1 :]]


def places_of(body, before=()):
    """Where a body, or each part of it, is."""
    yield before
    inner = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in inner:
        yield from places_of(value, (*before, key))


@pytest.mark.parametrize("line", BODIES)
def test_any_value_in_any_field_of_a_body_is_answered(asked, line):
    for place in places_of(BODIES[line]):
        for value in VALUES:
            content = json.dumps(with_value(BODIES[line], place, value)) if value not in (HUGE, -HUGE) else None
            if content is None:
                content = json.dumps(with_value(BODIES[line], place, "HERE")).replace('"HERE"', str(value))
            asked(line, content=content.replace("PHOTO", asked.photo))
        for number in NUMBERS:
            content = json.dumps(with_value(BODIES[line], place, "HERE")).replace('"HERE"', number)
            asked(line, content=content.replace("PHOTO", asked.photo))
    for key in ("9" * 5_000, "9" * 30, "-1", "²", "\ud800", "\0"):
        for inner in (0, -1, 2**80, True):
            asked(line, content=json.dumps({key: inner}))
            asked(line, content=json.dumps(BODIES[line] | {"base": {key: inner}}))
    for content in (
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{" * 1000,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b"\x00" * 64,
        b"\xef\xbb\xbf{}",
    ):
        asked(line, content=content)
    assert asked("GET /api/project").json()["classes"][0]["id"] == 1


@pytest.mark.parametrize("line", QUERIES)
def test_any_word_in_any_part_of_a_query_is_answered(asked, line):
    usual = {"x": 0, "y": 0, "width": 4, "height": 4, "base": 0} if line.startswith("PUT") else {}
    content = png(np.ones((4, 4))) if line.startswith("PUT") else None
    for name in QUERIES[line]:
        for text in (*(text for text in TEXTS if text.isprintable()), "%00", "0", "1", "99999999999", "\u0661", *NUMBERS):
            asked(line, params=usual | {name: text}, content=content)


def test_any_name_in_any_part_of_a_path_is_answered(asked):
    for place in PLACES:
        for name in (
            "%00",
            "%0a",
            "..%2f..",
            "%ff",
            "%ed%a0%80",
            "9" * 5_000,
            "-1",
            "1e3",
            "x" * 20_000,
            "²",
            "%",
            " ",
            "1" * 40,
        ):
            for method in ("GET", "PUT", "DELETE"):
                asked(f"{method} {place.format(name)}")
