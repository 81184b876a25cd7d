import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread_per_worker():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
