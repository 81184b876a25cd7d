"""The methods that come with the package. A further one is a line here."""

from typing import NamedTuple


class Place(NamedTuple):
    """Where a method is, as text: nothing is imported before it is asked for.

    Attributes:
        kind: "module:Class".
        config: the module of its `Config`, `PRESETS`, `USUAL` and `preset`, which imports no torch.
    """

    kind: str
    config: str


METHODS = {
    "cyctr": Place("cyctr.methods.cyctr.network:CyCTR", "cyctr.methods.cyctr.config"),
    "panet": Place("cyctr.methods.panet.network:PANet", "cyctr.methods.panet.config"),
}
USUAL = "cyctr"
"""The method of a checkpoint that names none, and of a command that is told of none."""
