import errno
import re
from pathlib import Path

import numpy as np
import pytest

from cyctr.errors import DataError
from cyctr.images.imaging import write_image
from cyctr.inference.folder import review
from cyctr.inference.folder.review import write_review


def record(**confidences):
    return {"classes": {name: {"confidence": value, "present": value >= 0.5} for name, value in confidences.items()}}


def page(folder, records, classes):
    for key in records:
        write_image(folder / "review" / f"{key}.jpg", np.zeros((9, 9, 3), np.uint8))
    write_review(folder, records, classes)
    return (folder / "index.html").read_text(encoding="utf-8")


def shown(text):
    return re.findall(r"<figcaption>(.*?)<br>", text)


def test_the_least_certain_comes_first(tmp_path):
    confidences = {"sure": 0.99, "maybe": 0.55, "perhaps not": 0.4, "surely not": 0.02, "even": 0.5}
    text = page(tmp_path, {key: record(cup=value) for key, value in confidences.items()}, ["cup"])
    assert shown(text) == ["even", "maybe", "perhaps not", "surely not", "sure"]
    assert "<h1>5 images</h1>" in text


def test_of_several_classes_the_one_in_doubt_counts_and_each_has_a_bar(tmp_path):
    records = {
        "a": record(cup=0.9, plate=0.9),
        "b": record(cup=0.99, plate=0.51),
        "c": record(cup=0.01, plate=0.3),
    }
    text = page(tmp_path, records, ["cup", "plate"])
    assert shown(text) == ["b", "c", "a"]
    assert text.count('class="bar"') == 6
    assert re.findall(r'<figure class="([^"]*)"', text) == ["", "absent", "sure"]
    assert "cup 0.99, plate 0.51" in text and "probably not there" in text


def test_where_doubt_is_equal_names_decide(tmp_path):
    assert shown(page(tmp_path, {key: record(cup=0.7) for key in "cab"}, ["cup"])) == ["a", "b", "c"]


def test_names_are_escaped(tmp_path):
    name = "<script>\"&'"
    text = page(tmp_path, {f"x/{name}"[:20]: record(**{name: 0.7})}, [name])
    assert "<script" not in text and "&lt;script&gt;" in text
    assert not re.search(r'(src|alt|title)="[^"]*[<>]', text)


def test_an_image_of_an_earlier_run_that_drew_no_thumbnails_is_not_shown(tmp_path):
    page(tmp_path, {"a": record(cup=0.7)}, ["cup"])
    write_review(tmp_path, {"a": record(cup=0.7), "b": record(cup=0.7)}, ["cup"])
    assert shown((tmp_path / "index.html").read_text()) == ["a"]


def test_nothing_at_all_is_an_empty_page(tmp_path):
    assert "<h1>0 images</h1>" in page(tmp_path, {}, ["cup"])


def test_a_page_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(review, "write_atomically", refuse)
    with pytest.raises(DataError, match=r"index\.html: cannot be written \(No space left on device\)"):
        write_review(tmp_path, {}, ["cup"])
