import io
import itertools
import json
import tarfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from parcels import (
    ARCHITECTURE,
    OTHER_ARCHITECTURE,
    entry_of,
    random_like,
    random_state,
    renamed,
    saved,
    truncate,
    weights_wheel,
    wheel,
)

from cyctr import compat
from cyctr.backbones.weights.convert import from_archive, to_timm_names
from cyctr.errors import WeightsError

KERAS_PARTS = ("kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance")
SMALLEST = {"kernel": (1, 1, 1, 1)}
BLOCKS = {2: "abc", 3: "abcd", 4: "abcdef", 5: "abc"}


def torchvision_state(name):
    """A torchvision network and its state, every tensor drawn anew so that none can stand in for another."""
    network = getattr(compat.torchvision().models, name)(weights=None).eval()
    for value in network.state_dict().values():
        if value.is_floating_point():
            value.copy_(random_like(value))
    return network, network.state_dict()


@pytest.mark.parametrize(("theirs", "ours"), [("mobilenet_v2", "mobilenetv2_100"), ("resnet18", "resnet18")])
def test_a_network_of_torchvision_computes_the_same_under_timms_names(theirs, ours):
    network, state = torchvision_state(theirs)
    twin = compat.timm().create_model(ours).eval()
    missing, unexpected = twin.load_state_dict(to_timm_names(state, ours), strict=False)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing)
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(twin(image), network(image), rtol=1e-4, atol=1e-5)


def test_foreign_names_are_matched_by_order():
    state = random_state()
    converted = to_timm_names(renamed(state), ARCHITECTURE)
    assert list(converted) == list(state)
    assert all(converted[name] is state[name] for name in state)


def test_batch_counters_are_left_out():
    state = random_state()
    counted = {"layer000.num_batches_tracked": torch.tensor(5), **renamed(state)}
    assert list(to_timm_names(counted, ARCHITECTURE)) == list(state)


def test_weights_with_timms_names_need_no_classifier():
    body = {name: value for name, value in random_state().items() if not name.startswith("fc.")}
    assert to_timm_names(body, ARCHITECTURE).keys() == body.keys()


def test_another_number_of_tensors_is_another_network():
    state = renamed(random_state())
    fewer = dict(itertools.islice(state.items(), len(state) - 1))
    with pytest.raises(WeightsError, match=rf"hold {len(fewer)} tensors, {ARCHITECTURE} {len(state)}; .*another network"):
        to_timm_names(fewer, ARCHITECTURE)


def test_another_shape_at_the_same_place_is_another_network():
    state = renamed(random_state())
    name = next(iter(state))
    state[name] = state[name][1:]
    shape = ", ".join(map(str, state[name].shape))
    with pytest.raises(
        WeightsError, match=rf"'{name}' is \({shape}\), {ARCHITECTURE}'s .*; they were made for another network"
    ):
        to_timm_names(state, ARCHITECTURE)


def test_a_norm_that_lists_its_bias_first_is_refused_although_every_shape_fits():
    names = list(renamed(random_state()))
    first, second = next(pair for pair in itertools.pairwise(names) if pair[1] == pair[0].replace("weight", "bias"))
    swap = {first: second, second: first}
    state = renamed(random_state())
    with pytest.raises(WeightsError, match=f"'{second}'"):
        to_timm_names({swap.get(name, name): state[swap.get(name, name)] for name in names}, ARCHITECTURE)


def test_a_wheel_gives_its_one_pth_file_under_timms_names(tmp_path):
    state = random_state()
    archive = weights_wheel(tmp_path, renamed(state))
    converted = from_archive(entry_of(archive), archive)
    assert converted.keys() == state.keys()
    assert all(torch.equal(converted[name], state[name]) for name in state)


@pytest.mark.parametrize("names", [[], ["a.pth", "b.pth"]], ids=["none", "two"])
def test_a_wheel_must_hold_exactly_one_pth_file(names, tmp_path):
    archive = wheel(tmp_path, dict.fromkeys(names, saved({})))
    with pytest.raises(WeightsError, match=rf"holds {len(names)} \.pth files; expected 1"):
        from_archive(entry_of(archive), archive)


def test_a_wheel_of_another_network_is_refused(tmp_path):
    archive = weights_wheel(tmp_path, renamed(random_state(OTHER_ARCHITECTURE)))
    with pytest.raises(WeightsError, match="made for another network"):
        from_archive(entry_of(archive), archive)


def keras_arrays():
    """A Keras ResNet-50 whose layers are all one channel wide, the first convolution and the classifier excepted."""
    random = np.random.default_rng(0)
    stages = [f"{stage}{block}_branch" for stage, letters in BLOCKS.items() for block in letters]
    branches = [stage + branch for stage in stages for branch in ("2a", "2b", "2c", *(["1"] if "a_" in stage else []))]
    shapes = {f"res{name}/{part}": SMALLEST.get(part, (1,)) for name in branches for part in KERAS_PARTS[:2]}
    shapes |= {f"bn{name}/{part}": (1,) for name in branches for part in KERAS_PARTS[2:]}
    shapes |= {"conv1/kernel": (7, 7, 3, 4), "conv1/bias": (4,), "fc1000/kernel": (5, 3), "fc1000/bias": (3,)}
    shapes |= {f"bn_conv1/{part}": (4,) for part in KERAS_PARTS[2:]}
    return {name: random.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}


def npm_archive(folder, arrays, root="package/ResNet50"):
    """The arrays as a TensorFlow.js model in an npm package, in two files cut in the middle of an array."""
    blob = b"".join(array.tobytes() for array in arrays.values())
    weights = [{"name": name, "shape": array.shape, "dtype": "float32"} for name, array in arrays.items()]
    model = {"weightsManifest": [{"paths": ["shard1", "shard2"], "weights": weights}]}
    cut = len(blob) // 2 - 1
    path = folder / "keras.tgz"
    with tarfile.open(path, "w:gz") as package:
        for name, content in {"model.json": json.dumps(model).encode(), "shard1": blob[:cut], "shard2": blob[cut:]}.items():
            member = tarfile.TarInfo(f"{root}/{name}")
            member.size = len(content)
            package.addfile(member, io.BytesIO(content))
    return path


def from_keras(archive):
    return from_archive(entry_of(archive, form="keras-resnet50", package=("keras", "1.0"), registry="npm"), archive)


def test_keras_arrays_get_exactly_the_names_of_a_resnet50(tmp_path):
    with torch.device("meta"):
        wanted = compat.timm().create_model("resnet50").state_dict()
    given = from_keras(npm_archive(tmp_path, keras_arrays()))
    assert given.keys() == {name for name in wanted if not name.endswith("num_batches_tracked")}


def test_the_first_layer_from_keras_sees_rgb_as_the_original_saw_bgr_bytes(tmp_path):
    arrays = keras_arrays()
    state = from_keras(npm_archive(tmp_path, arrays))
    image = torch.rand(1, 3, 9, 9, dtype=torch.float64)  # RGB in [0, 1]

    tensors = {name: torch.from_numpy(value).double() for name, value in arrays.items()}
    bgr = image.flip(1) * 255 - torch.tensor([103.939, 116.779, 123.68]).view(1, 3, 1, 1)  # Caffe's mean
    original = F.conv2d(bgr, tensors["conv1/kernel"].permute(3, 2, 0, 1), tensors["conv1/bias"])
    norm = [tensors[f"bn_conv1/{part}"] for part in ("moving_mean", "moving_variance", "gamma", "beta")]
    original = F.batch_norm(original, *norm)

    state = {name: value.double() for name, value in state.items()}
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    converted = F.conv2d((image - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1), state["conv1.weight"])
    norm = [state[f"bn1.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    torch.testing.assert_close(F.batch_norm(converted, *norm), original, rtol=1e-4, atol=1e-3)


def test_a_bias_from_keras_moves_into_the_mean_behind_it_and_the_classifier_is_transposed(tmp_path):
    arrays = keras_arrays()
    state = from_keras(npm_archive(tmp_path, arrays))
    for keras, ours in (
        ("3a_branch2b", "layer2.0.bn2"),
        ("5c_branch2c", "layer4.2.bn3"),
        ("2a_branch1", "layer1.0.downsample.1"),
    ):
        expected = arrays[f"bn{keras}/moving_mean"] - arrays[f"res{keras}/bias"]
        np.testing.assert_array_equal(state[f"{ours}.running_mean"], expected)
    np.testing.assert_array_equal(state["fc.weight"], arrays["fc1000/kernel"].T)


def another_root(folder):
    return npm_archive(folder, keras_arrays(), root="package/elsewhere")


def a_layer_short(folder):
    arrays = keras_arrays()
    del arrays["res4f_branch2c/kernel"]
    return npm_archive(folder, arrays)


def cut_in_half(folder):
    archive = npm_archive(folder, keras_arrays())
    truncate(archive)
    return archive


def no_tar(folder):
    path = folder / "page.tgz"
    path.write_bytes(b"<html>not found</html>")
    return path


@pytest.mark.parametrize("make", [another_root, a_layer_short, cut_in_half, no_tar])
def test_an_npm_archive_of_something_else_is_one_clear_error(make, tmp_path):
    with pytest.raises(WeightsError, match=r"\.tgz: not the package keras \(.+\); fetch it again"):
        from_keras(make(tmp_path))
