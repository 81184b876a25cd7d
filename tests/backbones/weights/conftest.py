import pytest


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """An empty cache that is nobody's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CYCTR_CACHE", str(folder))
    return folder
