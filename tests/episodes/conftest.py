import pytest

from cyctr.datasets import pools


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


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
