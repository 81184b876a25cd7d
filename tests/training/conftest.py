import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """A cache that the tests of one process share: indices of the same few datasets."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("CYCTR_CACHE", str(folder))
    return folder
