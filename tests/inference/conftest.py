import pytest
from making import tiny
from segmenting import MODEL as CONFIG
from segmenting import scene

from cyctr.inference import Segmenter


@pytest.fixture(scope="session")
def segmenter():
    return Segmenter(tiny(CONFIG), size=65, device="cpu", name="tiny")


@pytest.fixture(scope="session")
def disc(segmenter):
    return segmenter.encode_support(*scene((60, 80)), name="disc")
