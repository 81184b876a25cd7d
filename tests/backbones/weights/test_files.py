import os
import pickle
from pathlib import Path

import pytest
import torch
from parcels import saved
from safetensors.torch import save_file

from cyctr.backbones.weights.files import read_state
from cyctr.errors import WeightsError

FORMATS = {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}}


class Bait:
    """Makes a folder in whoever unpickles it carelessly."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def state():
    return {"convolution.weight": torch.randn(4, 3, 3, 3), "norm.bias": torch.randn(4), "count": torch.tensor(7)}


def write(path, content):
    if path.suffix == ".safetensors":
        save_file(content, path)
    else:
        torch.save(content, path)
    return path


@pytest.mark.parametrize("name", ["small.safetensors", "small.pth", "small.pt", "small.bin"])
def test_every_kind_of_file_gives_back_the_tensors_that_went_in(name, tmp_path, state):
    back = read_state(write(tmp_path / name, state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], state[key]) for key in state)


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state},
        lambda state: {"state_dict": {"model": state}},
        lambda state: {f"module.{name}": value for name, value in state.items()},
        lambda state: {"state_dict": {f"module.{name}": value for name, value in state.items()}},
    ],
    ids=["state_dict", "model", "both", "module", "state_dict_module"],
)
def test_wrappings_of_training_scripts_come_off(wrap, options, tmp_path, state):
    path = tmp_path / "wrapped.pth"
    path.write_bytes(saved(wrap(state), **options))
    back = read_state(path)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], state[key]) for key in state)


@pytest.mark.parametrize("other", [{"module.norm.bias": torch.ones(4)}, {7: torch.ones(4), "7": torch.ones(4)}])
def test_two_tensors_of_one_name_are_refused(other, tmp_path, state):
    with pytest.raises(WeightsError, match=r"twice\.pth: holds '(norm\.bias|7)' twice.* expected it once: save the state_dict"):
        read_state(write(tmp_path / "twice.pth", state | other))


def bare_pickle(content):
    return pickle.dumps(content, protocol=2)  # what torch.save uses


def torch_zip(content):
    return saved(content)


def torch_legacy(content):
    return saved(content, **FORMATS["legacy"])


@pytest.mark.parametrize("serialise", [bare_pickle, torch_zip, torch_legacy])
def test_a_file_that_holds_code_is_refused_and_nothing_in_it_runs(serialise, tmp_path, state):
    path, trap = tmp_path / "code.pth", tmp_path / "made_by_code"
    path.write_bytes(serialise({"first": Bait(trap), **state}))
    with pytest.raises(WeightsError, match=r"code\.pth: cannot be read as plain tensors .*holds code, which is never run"):
        read_state(path)
    assert not trap.exists()


def test_the_bait_of_these_tests_would_catch_a_careless_reader(tmp_path):
    trap = tmp_path / "made_by_code"
    pickle.loads(bare_pickle(Bait(trap)))
    assert trap.is_dir()


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_a_torch_file_cut_anywhere_is_one_clear_error(options, tmp_path, state):
    whole, path = saved(state, **options), tmp_path / "cut.pth"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(WeightsError, match=r"cut\.pth: cannot be read as plain tensors .*damaged") as error:
            read_state(path)
        assert "\n" not in str(error.value)


def test_a_safetensors_file_cut_anywhere_is_one_clear_error(tmp_path, state):
    path = write(tmp_path / "cut.safetensors", state)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(WeightsError, match=r"cut\.safetensors: not a whole safetensors file .*fetch or copy it again"):
            read_state(path)


@pytest.mark.parametrize("content", [b"", b"\x80", b"<html>not found</html>", b"version https://git-lfs"])
def test_a_page_or_a_pointer_instead_of_weights_is_one_clear_error(content, tmp_path):
    path = tmp_path / "page.pth"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="cannot be read as plain tensors"):
        read_state(path)


def test_a_torch_file_called_safetensors_is_refused(tmp_path, state):
    path = tmp_path / "wrong.safetensors"
    torch.save(state, path)
    with pytest.raises(WeightsError, match="not a whole safetensors file"):
        read_state(path)


@pytest.mark.parametrize(
    ("content", "kind"), [([torch.ones(2)], "list"), ({"epoch": 3}, "dict"), (torch.ones(2), "Tensor"), (5, "int")]
)
def test_a_file_of_anything_but_tensors_by_name_is_refused(content, kind, tmp_path):
    with pytest.raises(WeightsError, match=rf"odd\.pth: holds {kind}, not tensors by name; expected a state_dict"):
        read_state(write(tmp_path / "odd.pth", content))


@pytest.mark.parametrize("odd", [torch.ones(2, 2).to_sparse(), torch.empty(2, device="meta")], ids=["sparse", "meta"])
def test_a_tensor_that_is_not_dense_is_refused(odd, tmp_path):
    with pytest.raises(WeightsError, match=r"odd\.pth: 'one' is sparse, quantized or empty; expected a dense tensor"):
        read_state(write(tmp_path / "odd.pth", {"one": odd}))


@pytest.mark.filterwarnings("error")
def test_what_is_wrong_with_a_file_is_said_in_a_line_without_pages_of_advice(tmp_path):
    path = tmp_path / "wrong.pth"
    for content in (pickle.dumps({"first": Bait(tmp_path / "trap")}), b"hello", b""):
        path.write_bytes(content)
        with pytest.raises(WeightsError, match=r"plain tensors \(\w*Error\); the file is damaged or holds code"):
            read_state(path)


@pytest.mark.parametrize("name", ["missing.pth", "missing.safetensors"])
def test_a_file_that_is_not_there_is_refused(name, tmp_path):
    with pytest.raises(WeightsError, match=r"missing\..*: no such file; expected weights as \.safetensors"):
        read_state(tmp_path / name)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(WeightsError, match="no such file"):
        read_state(tmp_path)
