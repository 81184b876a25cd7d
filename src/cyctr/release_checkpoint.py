"""A checkpoint of the authors' release -> one of ours, its backbone included."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from cyctr.backbones.backbone import Backbone
from cyctr.backbones.weights import INSIDE
from cyctr.backbones.weights.files import read_torch, unwrapped
from cyctr.checkpoint import save_checkpoint
from cyctr.errors import CheckpointError, WeightsError
from cyctr.methods.cyctr.config import RELEASED, Config
from cyctr.methods.cyctr.network import CyCTR

UNUSED = ("addtional_proj.0.weight", "addtional_proj.2.weight")
"""Tensors of the release that nothing reads."""
_MAPS = {  # convolutions outside the transformer
    "adjust_feature_qry.0": "reduce_query.convolution",
    "adjust_feature_supp.0": "reduce_support.convolution",
    "qry_merge_feat.0": "merge_query.convolution",
    "supp_merge_feat.0": "merge_support.convolution",
    "merge_multi_lvl_reduce.0": "refine.reduce",
    "merge_multi_lvl_sum.0": "refine.pair.first",
    "merge_multi_lvl_sum.2": "refine.pair.second",
    "cls.0": "classifier.hidden",
    "cls.3": "classifier.logits",
    "pred_supp_qry_proj.0": "auxiliary.project",
    "supp_init_merge.0": "auxiliary.merge.convolution",
    "supp_beta_conv.0": "auxiliary.refine.first",
    "supp_beta_conv.2": "auxiliary.refine.second",
    "supp_cls.0": "auxiliary.classifier.hidden",
    "supp_cls.3": "auxiliary.classifier.logits",
}
_SELF = {"sampling_offsets": "offsets", "attention_weights": "weights", "value_proj": "v", "output_proj": "out"}
_CROSS = {"q_fc": "q", "k_fc": "k", "v_fc": "v", "proj": "out"}
_STEM = {"conv1": "conv1.0", "bn1": "conv1.1", "conv2": "conv1.3", "bn2": "conv1.4", "conv3": "conv1.6", "bn3": "bn1"}
_COUNTER = "num_batches_tracked"


def convert_release(source: Path, target: Path, mend_labels: bool = False) -> Config:
    """Writes what a `.pth` file of the release holds as a checkpoint of ours.

    Args:
        source: what the release's training saved, for ResNet-50.
        target: ends in .safetensors; what was there is replaced.
        mend_labels: the label of each token is read at its own place; the release reads some at other places.

    Returns:
        Its config.

    Raises:
        WeightsError: the file is damaged, holds code, or is not a checkpoint of the release.
        CheckpointError: the target cannot be written.
    """
    if target.suffix != ".safetensors":
        raise CheckpointError(f"{target}: expected a name that ends in .safetensors")
    if not source.is_file():
        raise WeightsError(f"{source}: no such file; expected a checkpoint of the release, such as train_epoch_200.pth")
    model, config = from_release(read_torch(source, str(source)), str(source), mend_labels)
    save_checkpoint(target, model, config)
    return config


def from_release(state: Mapping[str, Tensor], name: str, mend_labels: bool = False) -> tuple[CyCTR, Config]:
    """The network of a state dict of the release, whatever its names begin with, in evaluation mode.

    Args:
        state: tensors by name.
        name: of where they come from, for errors.
        mend_labels: as above.
    """
    sampling = replace(RELEASED.model.sampling, release_labels=not mend_labels)
    backbone = replace(RELEASED.model.backbone, weights=INSIDE)
    config = replace(RELEASED, model=replace(RELEASED.model, sampling=sampling, backbone=backbone))
    model = CyCTR.build(config, Backbone(config.model.backbone))
    own = {key: value for key, value in model.state_dict().items() if not key.endswith(_COUNTER)}
    names = {name_in_release(ours): ours for ours in own}
    given = {key: value for key, value in unwrapped(state, name).items() if not key.endswith(_COUNTER)}
    missing = [key for key in (*names, *UNUSED) if key not in given]
    strange = [key for key in given if key not in names and key not in UNUSED]
    for problem, keys in (("lacks", missing), ("also holds", strange)):
        if keys:
            others = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise WeightsError(
                f"{name}: not a checkpoint of the release's ResNet-50 network: it {problem} {keys[0]!r}{others}; "
                "give the file that the release's training saved"
            )
    found = {names[key]: _in_our_order(names[key], value) for key, value in given.items() if key in names}
    dim = config.model.dim
    shapes = {theirs: own[ours].shape for theirs, ours in names.items()} | dict.fromkeys(UNUSED, (dim, dim, 1, 1))
    for key, value in given.items():
        if value.shape != shapes[key]:
            raise WeightsError(
                f"{name}: {key!r} is {tuple(value.shape)}, expected {tuple(shapes[key])}; "
                "only the release's ResNet-50 network of 256 channels can be converted"
            )
        if not value.is_floating_point() or not value.float().isfinite().all():
            raise WeightsError(
                f"{name}: {key!r} ({value.dtype}) holds more than finite float32 numbers; "
                "convert another checkpoint of that training"
            )
    model.load_state_dict({key: value.float() for key, value in found.items()}, strict=False)
    return model.eval(), config


def name_in_release(ours: str) -> str:
    """What the release calls a tensor of ours."""
    if ours == "mixer.unpadded.level":
        return "transformer.level_embed"
    stem, _, kind = ours.rpartition(".")
    if stem.startswith("backbone.body."):
        inner = stem.removeprefix("backbone.body.")
        return f"backbone.body.{_OF_STEM.get(inner, inner)}.{kind}"
    if stem.startswith("mixer.encoders."):
        layer, part, *rest = stem.removeprefix("mixer.encoders.").split(".")
        return f"transformer.{_in_transformer(int(layer), part, rest)}.{kind}"
    return f"{_OF_MAPS[stem]}.{kind}"


def _in_transformer(layer: int, part: str, rest: list[str]) -> str:
    """Norms and MLPs are numbered in order of use: two norms and one MLP for each block."""
    block = 2 * layer + part.startswith("cross")
    match part, *rest:
        case "self_attention", name:
            return f"qry_self_layers.{layer}.{_OF_SELF[name]}"
        case "cross_attention", name:
            return f"cross_layers.{layer}.{_OF_CROSS[name]}"
        case _, "norm_attention":
            return f"layer_norms.{2 * block}"
        case _, "norm_mlp":
            return f"layer_norms.{2 * block + 1}"
        case _, "mlp", "0":
            return f"ffns.{block}.layers.0.0"
        case _:
            return f"ffns.{block}.layers.1"


def _in_our_order(ours: str, value: Tensor) -> Tensor:
    """The input channels of a merge or a reduction as ours come."""
    if ours == "merge_query.convolution.weight" and value.ndim == 4 and value.shape[1] > 1:
        dim = value.shape[1] // 2  # query, prototype, prior -> query, prior, prototype
        return torch.cat([value[:, :dim], value[:, 2 * dim :], value[:, dim : 2 * dim]], 1)
    return value


_OF_MAPS, _OF_STEM = {ours: theirs for theirs, ours in _MAPS.items()}, {ours: theirs for theirs, ours in _STEM.items()}
_OF_SELF, _OF_CROSS = {ours: theirs for theirs, ours in _SELF.items()}, {ours: theirs for theirs, ours in _CROSS.items()}
