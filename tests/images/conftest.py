import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
