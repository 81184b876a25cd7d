from dataclasses import replace

import numpy as np
import pytest
from making import assert_one_line, tiny
from PIL import Image
from segmenting import MODEL, checkpoint, labelled, photo, scene

from cyctr.errors import ConfigError, DataError
from cyctr.inference import Segmenter
from cyctr.inference.explanation import explain
from cyctr.inference.matching import WEIGHT
from cyctr.methods.cyctr.config import PriorConfig
from cyctr.visual.draw import GREEN, heat, overlay

KINDS = {".png": b"\x89PNG", ".jpg": b"\xff\xd8\xff", ".JPEG": b"\xff\xd8\xff", ".html": b"<!doctype html>"}


def shots(segmenter, count):
    pairs = [scene((60, 80), seed) for seed in range(count)]
    return segmenter.encode_support([image for image, _ in pairs], [mask for _, mask in pairs], name="disc")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_there_is_a_line_for_the_answer_and_one_for_each_shot(segmenter, count):
    found = explain(segmenter, scene((40, 90), 7)[0], shots(segmenter, count))
    assert [len(line) for line in found.lines] == [5] + [3] * count
    assert [line[0].title for line in found.lines] == ["query", *(f"support {number + 1}" for number in range(count))]
    assert all(0 <= share <= 1 for share in found.consistent)
    assert found.title.startswith("disc: ")
    sheet = found.sheet()
    assert sheet.width > 900 and sheet.height > sum(line[0].pixels.shape[0] for line in found.lines)


@pytest.mark.parametrize("votes", [None, 0, 0.25, 1])
def test_the_answer_is_that_of_segment_and_says_how_much_of_it_is_the_network_s(segmenter, disc, votes):
    image = scene((65, 65), 7)[0]  # as the network sees it
    _, answer, network, matching, _ = explain(segmenter, image, disc, votes=votes).lines[0]
    mask = segmenter.segment(image, disc, votes=votes).mask
    assert answer.caption == f"{100 * mask.mean():.1f} % of the image"
    np.testing.assert_array_equal(answer.pixels, overlay(image, mask, GREEN))
    weight = WEIGHT if votes is None else votes
    assert f"{100 - 100 * weight:.0f} % of the answer" in network.caption
    assert f"{100 * weight:.0f} % of the answer" in matching.caption
    alone = {weight: segmenter.segment(image, disc, votes=weight, edges=False).probability for weight in (0, 1)}
    for picture, weight in ((network, 0), (matching, 1)):
        np.testing.assert_array_equal(picture.pixels, heat(alone[weight]))


def test_a_network_without_votes_has_no_panel_of_them():
    plain = Segmenter(tiny(replace(MODEL, prior=PriorConfig())), size=65, device="cpu")
    line = explain(plain, scene((40, 90), 7)[0], shots(plain, 1)).lines[0]
    assert [picture.title for picture in line] == ["query", "answer", "network", "prior map"]
    assert "100 % of the answer" in line[2].caption


def test_a_support_that_was_cut_for_tiles_is_remarked_on(segmenter, disc):
    with pytest.warns(UserWarning, match="'disc' was cut in windows of 64 pixels, and the whole image is explained"):
        explain(segmenter, scene((40, 90), 7)[0], replace(disc, tile=64))


def test_attention_to_all_shots_adds_up_to_one(segmenter):
    found = explain(segmenter, scene((40, 90), 7)[0], shots(segmenter, 3))
    shares = [int(line[2].caption.partition(" %")[0]) for line in found.lines[1:]]
    assert abs(sum(shares) - 100) <= 2


def test_panels_have_the_proportions_of_the_images(segmenter, disc):
    found = explain(segmenter, scene((40, 120), 7)[0], disc)
    for panel in found.lines[0]:
        height, width = panel.pixels.shape[:2]
        assert width / height == pytest.approx(3, rel=0.05)


def test_no_words_are_cut_where_panels_are_narrow(segmenter, disc):
    narrow, wide = (explain(segmenter, scene(size, 7)[0], disc) for size in ((90, 20), (20, 90)))
    assert narrow.sheet().width == wide.sheet().width  # as wide as the words


@pytest.mark.parametrize("at", [(0, 0), (89, 39), (45, 20)])
def test_any_place_of_the_image_may_be_asked_for(segmenter, disc, at):
    pictures = explain(segmenter, scene((40, 90), 7)[0], disc, at).lines[0]
    marked = np.abs(
        pictures[0].pixels.astype(int) - explain(segmenter, scene((40, 90), 7)[0], disc, (44, 0)).lines[0][0].pixels
    )
    assert marked.any()


@pytest.mark.parametrize("at", [(90, 0), (0, 40), (-1, 0), (10**9, 10**9)])
def test_a_place_outside_the_image_is_refused(segmenter, disc, at):
    with pytest.raises(ConfigError, match=f"the place is {at[0]},{at[1]}; expected x below 90 and y below 40"):
        explain(segmenter, scene((40, 90), 7)[0], disc, at)


def test_more_than_five_shots_are_refused(segmenter):
    with pytest.raises(ConfigError, match="has 6 images; expected at most 5"):
        explain(segmenter, scene((40, 90), 7)[0], shots(segmenter, 6))


def test_a_support_of_another_network_and_an_odd_image_are_refused(segmenter, disc, tmp_path):
    other = Segmenter(tiny(replace(MODEL, dim=64)), size=65, device="cpu")
    with pytest.raises(DataError, match="another network"):
        explain(other, scene((40, 90))[0], disc)
    with pytest.raises(DataError, match="too small"):
        explain(segmenter, np.zeros((2, 2, 3), np.uint8), disc)


# the command


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("model") / "tiny.safetensors")


@pytest.fixture
def command(run, model, tmp_path):
    labelled(tmp_path / "disc")
    photo(tmp_path / "query.jpg", 9, (40, 90))

    def main(*options, output="why.png", support="disc", query="query.jpg", model=model):
        places = ("--support", tmp_path / support, "--query", tmp_path / query, "--output", tmp_path / output)
        return run("explain", "--model", model, *places, "--device", "cpu", *options)

    return main


@pytest.mark.parametrize("ending", KINDS)
def test_a_picture_or_a_page_is_written_and_not_replaced(ending, command, tmp_path):
    code, output, error = command(output=f"why{ending}")
    path = tmp_path / f"why{ending}"
    assert (code, error) == (0, "") and str(path) in output and output.startswith("disc: ")
    assert path.read_bytes().startswith(KINDS[ending])
    path.write_bytes(b"mine")
    assert_one_line(command(output=f"why{ending}"), "is there already; replace it with --force")
    assert path.read_bytes() == b"mine"
    assert command("--force", "--at", "3,4", output=f"why{ending}")[0] == 0
    assert path.read_bytes().startswith(KINDS[ending])


def test_a_page_needs_nothing_from_elsewhere(command, tmp_path):
    command(output="deep/why.html")
    text = (tmp_path / "deep" / "why.html").read_text(encoding="utf-8")
    assert text.count("<img") == 11 and "http" not in text.replace("http://www.w3.org", "") and 'src="data:' in text


def test_what_cannot_be_explained_is_one_line(command, tmp_path):
    before = (tmp_path / "query.jpg").read_bytes()
    for text in ("90,0", "3", "a,b", "-1,2", "1,2,3", "99999999999,1"):
        assert_one_line(command("--at", text), text.split(",")[0], "expected x")
    assert_one_line(command("--votes", "2"), "votes is 2.0; expected a weight from 0")
    assert_one_line(command(output="why.gif"), "why.gif; expected a name that ends in .png, .jpg or .html")
    assert_one_line(command("--force", output="query.jpg"), "--output is", "query.jpg, which is to be read")
    assert_one_line(command(support="none"), "none: no such file or folder")
    assert_one_line(command(query="none.jpg"), "none.jpg: no such file or folder")
    assert_one_line(command(query="disc"), "disc: is a folder; expected an image")
    assert_one_line(command("--class", "cat"), "no class 'cat'", "show disc")
    (tmp_path / "file").write_text("x")
    assert_one_line(command(output="file/why.png"), "why.png")
    assert_one_line(command(output="file/why.html"), "why.html")
    labelled(tmp_path / "disc", 6)
    assert_one_line(command(), "has 6 images; expected at most 5")
    labelled(tmp_path / "two" / "disc")
    labelled(tmp_path / "two" / "other")
    assert_one_line(command(support="two"), "shows disc, other; choose one with --class")
    assert command("--class", "other", support="two")[0] == 0
    assert (tmp_path / "query.jpg").read_bytes() == before


def test_a_network_that_attends_to_no_tokens_is_refused(command, tmp_path):
    plain = checkpoint(tmp_path / "plain.safetensors", replace(MODEL, encoder=replace(MODEL.encoder, cross="none")))
    assert_one_line(command(model=plain), "attends to no support tokens")
    assert not (tmp_path / "why.png").exists()


def test_the_picture_can_be_looked_at(command, tmp_path):
    command()
    image = Image.open(tmp_path / "why.png")
    assert image.width > 900 and len(np.unique(np.asarray(image).reshape(-1, 3), axis=0)) > 50
