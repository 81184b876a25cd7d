"""Methods that learn nothing, by name: the references, and classes of one's own."""

from pathlib import Path
from typing import Any

from cyctr.backbones.weights import load_backbone
from cyctr.errors import ConfigError
from cyctr.methods.backbone_choice import backbone_of, with_weights
from cyctr.methods.base import Method
from cyctr.methods.recipes import recipes_of
from cyctr.methods.references import CONSTANTS, REFERENCES, check_reference, reference
from cyctr.methods.table import METHODS, find_method


def is_untrained(name: str) -> bool:
    """Whether a name is of a reference, or of a class as package.module:Class; others are of checkpoints."""
    return name.partition(":")[0] in REFERENCES or (":" in name and not Path(name).is_file())


def check_untrained(name: str, weights: str) -> None:
    """Raises what `open_untrained` would, as far as that can be known without loading weights."""
    if name in METHODS:
        raise ConfigError(f"method is {name!r}, which learns; expected the path of a checkpoint that a training of it has made")
    known = ", ".join(kind for kind in REFERENCES if kind not in CONSTANTS)
    if name in CONSTANTS:
        raise ConfigError(f"method is {name!r}, which looks at no image; expected one that does, such as {known}")
    if not is_untrained(name):
        raise ConfigError(f"method is {name!r}; expected {known}, or package.module:Class of your own that learns nothing")
    if name.partition(":")[0] in REFERENCES:
        check_reference(name)
    else:
        find_method(name)
    backbone_of(weights)


def open_untrained(name: str, weights: str) -> Method[Any]:
    """A method that learns nothing, on the backbone of weights.

    Args:
        name: "prior" or "prototype", with a variant as in "prior:0.6", or "package.module:Class".
        weights: a name of the catalogue, or "tiny".

    Raises:
        ConfigError: there is no such method, it learns, or it looks at no image.
    """
    check_untrained(name, weights)
    if name.partition(":")[0] in REFERENCES:
        found = reference(name, backbone_of(weights))
        assert isinstance(found, Method)
        return found
    config = with_weights(recipes_of(name).preset(), weights)
    method = find_method(name).build(config, load_backbone(config.model.backbone)).eval()
    if learns := method.parameter_count().trained:
        raise ConfigError(f"method is {name!r}, which learns {learns:,} numbers; expected the path of a checkpoint of it")
    return method
