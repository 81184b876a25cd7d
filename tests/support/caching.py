"""Caches of the user that tests may fill. A conftest names the one that its tests use `cache`."""

import pytest

from cyctr.datasets import pools


@pytest.fixture(autouse=True, name="cache")
def own_cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True, name="cache")
def shared_cache(tmp_path_factory, monkeypatch):
    """A cache that the tests of one process share: indices of the same few datasets."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("CYCTR_CACHE", str(folder))
    return folder


@pytest.fixture
def reads(monkeypatch):
    """The images and masks that were read."""
    names = []

    def remembered(read):
        def remember(path):
            names.append(f"{path.parent.name}/{path.stem}")
            return read(path)

        return remember

    for read in (pools.read_image, pools.read_values):
        monkeypatch.setattr(pools, read.__name__, remembered(read))
    return names
