"""A file of a support holds what it says, or is refused in one line."""

import io
import json
import os
import zipfile

import numpy as np
import pytest
from PIL import Image

from cyctr.errors import DataError
from cyctr.inference.supports.encoded import read_support


def png(pixels):
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def written(path, images, labels, **about):
    known = {"format": "cyctr-support-1", "name": "cup", "shots": len(images), "tile": None}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("about.json", json.dumps(known | about))
        for shot, (image, label) in enumerate(zip(images, labels, strict=True)):
            archive.writestr(f"{shot}.png", png(image))
            archive.writestr(f"{shot}-label.png", png(label))
    return path


@pytest.fixture
def image():
    return np.full((65, 65, 3), 100, np.uint8)


@pytest.fixture
def label():
    marked = np.zeros((65, 65), np.uint8)
    marked[10:30, 10:30] = 1
    return marked


def test_a_file_of_an_earlier_version_has_no_checksum_and_is_read(image, label, tmp_path):
    stored = read_support(written(tmp_path / "cup.cyctr", [image], [label]))
    assert stored.name == "cup" and np.array_equal(stored.labels[0].numpy(), label)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "cup.cyctr")
    with pytest.raises(DataError, match="is a pipe; expected a file"):
        read_support(tmp_path / "cup.cyctr")


def test_a_label_of_another_size_than_its_image_is_refused(image, label, tmp_path):
    path = written(tmp_path / "cup.cyctr", [image], [label[:33, :33]])
    with pytest.raises(DataError, match=r"labels are \(33, 33\), images are \(65, 65\); expected one size: save the support"):
        read_support(path)


def test_a_label_that_marks_nothing_is_refused(image, label, tmp_path):
    path = written(tmp_path / "cup.cyctr", [image, image], [label, 0 * label])
    with pytest.raises(DataError, match="label 2 of 2 marks nothing"):
        read_support(path)


def test_a_label_with_a_value_that_means_nothing_is_refused(image, label, tmp_path):
    path = written(tmp_path / "cup.cyctr", [image], [label * 7 + label])
    with pytest.raises(DataError, match="marks nothing"):
        read_support(path)
    label[0, 0] = 7
    with pytest.raises(DataError, match="label 1 holds 7; expected 0, 1 and 255"):
        read_support(written(path, [image], [label]))


def test_a_checksum_that_is_not_of_what_the_file_holds_is_noticed(image, label, tmp_path):
    with pytest.raises(DataError, match="has a checksum that is not of what it holds"):
        read_support(written(tmp_path / "cup.cyctr", [image], [label], digest="0" * 16))


@pytest.mark.parametrize("size", [(65, 40), (5000, 5000)])
def test_an_image_that_no_network_has_seen_is_refused_by_its_header(size, tmp_path):
    path = written(tmp_path / "cup.cyctr", [np.zeros((*size, 3), np.uint8)], [np.ones(size, np.uint8)])
    with pytest.raises(DataError, match=r"0\.png is \d+ x \d+, expected a square of at most 4096 pixels a side"):
        read_support(path)


def test_what_is_nested_too_deep_is_one_clear_line(tmp_path):
    with zipfile.ZipFile(tmp_path / "cup.cyctr", "w") as archive:
        archive.writestr("about.json", "[" * 100_000)
    with pytest.raises(DataError, match="is no support of ours, or damaged"):
        read_support(tmp_path / "cup.cyctr")
