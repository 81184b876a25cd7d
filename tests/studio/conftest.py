import pytest
from making import tiny
from paging import Page
from PIL import Image
from segmenting import MODEL, photo

from cyctr.inference import Segmenter
from cyctr.studio.serving import opened


@pytest.fixture(scope="session")
def network():
    return Segmenter(tiny(MODEL), size=65, device="cpu", name="tiny")


@pytest.fixture
def folder(tmp_path):
    """Six photos, one in a folder of its own and one turned by EXIF."""
    root = tmp_path / "photos"
    for number in range(4):
        photo(root / f"{number}.jpg", number, (60, 80))
    photo(root / "inner" / "deep.png", 4, (60, 80))
    exif = Image.Exif()
    exif[274] = 6
    photo(root / "turned.jpg", 5, (60, 80), exif=exif)
    return root


@pytest.fixture
def studio(folder, network):
    with opened(folder, None, lambda: network) as parts:
        yield parts
        parts.worker.end()


@pytest.fixture
def page(studio):
    """A page whose network is not loaded yet: `start` does that."""
    return Page(studio)
