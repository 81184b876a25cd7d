import numpy as np
import pytest
from making import most_memory
from PIL import Image
from shapes import EDGE_CASES, blobs, found, full, one_pixel

from cyctr.formats import open_writer


def arrays(path):
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@pytest.mark.parametrize("mask", [*EDGE_CASES.values(), blobs(0)])
def test_masks_and_probabilities_come_back(mask, tmp_path):
    probability = np.random.default_rng(0).random(mask.shape, np.float32)
    given = [found(~mask, "plate", 0.25), found(mask, "cup", 0.5, probability)]
    assert open_writer("npz", tmp_path, ["cup", "fork", "plate"]).write("room/a", None, given) == ["arrays/room/a.npz"]
    back = arrays(tmp_path / "arrays/room/a.npz")
    assert set(back) == {"masks", "probabilities", "names", "confidences"}
    assert back["masks"].dtype == np.uint8 and np.array_equal(back["masks"], [mask, ~mask])
    assert back["names"].tolist() == ["cup", "plate"] and back["confidences"].tolist() == [0.5, 0.25]
    assert back["probabilities"].dtype == np.float16
    assert np.array_equal(back["probabilities"][0], probability.astype(np.float16))
    assert np.isnan(back["probabilities"][1]).all()


def test_where_no_probability_is_kept_there_is_no_array_of_them(tmp_path):
    open_writer("npz", tmp_path, ["cup"]).write("a", None, [found(full())])
    assert set(arrays(tmp_path / "arrays/a.npz")) == {"masks", "names", "confidences"}


def test_nothing_found_is_no_mask_of_the_image_s_size(tmp_path):
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    writer = open_writer("npz", tmp_path, ["cup"])
    writer.write("a", tmp_path / "a.png", [])
    back = arrays(tmp_path / "arrays/a.npz")
    assert back["masks"].shape == (0, 6, 8) and back["names"].shape == back["confidences"].shape == (0,)


def test_classes_come_back_whatever_they_are_called(tmp_path):
    odd = ["a/b", "a\nb", "Tür", "🦊", " ", "\udcff"]
    open_writer("npz", tmp_path, odd).write("a", None, [found(one_pixel(), name) for name in odd])
    assert arrays(tmp_path / "arrays/a.npz")["names"].tolist() == odd


def test_the_same_masks_give_the_same_bytes(tmp_path):
    writer = open_writer("npz", tmp_path, ["cup"])
    contents = [(writer.write("a", None, [found(blobs(0))]), (tmp_path / "arrays/a.npz").read_bytes())[1] for _ in range(2)]
    assert contents[0] == contents[1]


def test_arrays_of_a_large_image_are_never_held_whole(tmp_path):
    mask, probability = np.zeros((2000, 1000), bool), np.zeros((2000, 1000), np.float32)
    writer, given = open_writer("npz", tmp_path, ["cup"]), [found(mask, "cup", 0.5, probability)]
    assert most_memory(lambda: writer.write("a", None, given)) < mask.size / 2
