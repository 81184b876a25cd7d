"""The whole story on photographs, with the shipped network: what it finds is where the thing is."""

import numpy as np
import pytest
from browsing import Sight, begin, saved, shows
from scipy import ndimage

from cyctr.backbones.weights import cache, find
from cyctr.datasets.gallery import scenes
from cyctr.images.imaging import write_image
from cyctr.inference import Segmenter


@pytest.fixture(scope="module")
def network():
    if cache.cached(find("efficientnet-lite0")) is None:
        pytest.skip("efficientnet-lite0 is not in the cache; run: cyctr weights get efficientnet-lite0")
    return Segmenter.from_pretrained("lite0", device="cpu")


@pytest.fixture(scope="module")
def shots():
    pytest.importorskip("skimage", reason="scikit-image, whose photographs these are, is not installed")
    coin = next(scene for scene in scenes() if scene.name == "coin")
    return (*coin.supports, *coin.queries)


@pytest.fixture
def folder(tmp_path, shots):
    for place, shot in enumerate(shots):
        write_image(tmp_path / "photos" / f"coin{place}.jpg", shot.image)
    return tmp_path / "photos"


def overlap(found, label):
    known = label != 255
    truth = (label == 1) & known
    return (found & truth).sum() / ((found | truth) & known).sum()


def middles(marked):
    """(column, row) the place in each coin that is furthest from its edge."""
    parts, count = ndimage.label(marked)
    depth = ndimage.distance_transform_edt(np.pad(marked, 1))[1:-1, 1:-1]
    for row, column in ndimage.maximum_position(depth, parts, range(1, count + 1)):
        if depth[row, column] > 20:
            yield column, row


@pytest.mark.slow
def test_two_photos_marked_by_clicks_are_enough_to_find_the_coins_on_the_others(desk, shots):
    page = desk.window()
    page.set_default_timeout(240_000)
    begin(page, "coin")
    page.keyboard.press("s")
    labelled = 0
    for place, shot in enumerate(shots[:2]):
        shows(page, f"coin{place}.jpg")
        page.wait_for_selector("#stage[data-sharp=true]")
        for column, row in middles(shot.label == 1):
            page.mouse.move(5, 5)
            with page.expect_response(lambda answer: answer.request.method == "PUT"):
                page.mouse.click(*Sight(page).screen(column, row))
            saved(page)
            page.keyboard.press("Enter")  # these points are finished
        labelled += overlap(desk.mask(f"coin{place}", "coin"), shot.label)
        page.keyboard.press("d")
    assert labelled / 2 > 0.5
    page.click("#segment-all")
    page.click("dialog button.primary")
    page.wait_for_selector(".note:has-text('segmented'), .note:has-text('differ')")
    found = [overlap(desk.mask(f"coin{place}", "coin"), shot.label) for place, shot in enumerate(shots) if place > 1]
    assert np.mean(found) > 0.6
