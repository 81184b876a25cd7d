"""`cyctr convert-release`: a checkpoint of the authors' release as one of ours."""

from pathlib import Path
from typing import Annotated

import typer

from cyctr.errors import ConfigError

EXAMPLES = ("cyctr convert-release train_epoch_100.pth --output released.safetensors",)


def convert_release(
    file: Annotated[Path, typer.Argument(help="A .pth file that the release's training saved, for ResNet-50.")],
    output: Annotated[Path, typer.Option(help="The checkpoint to write; ends in .safetensors.")],
    mend_labels: Annotated[
        bool,
        typer.Option("--mend-labels", help="Read the label of each token at its own place; the release reads some at others."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUTPUT.")] = False,
) -> None:
    """Convert a checkpoint of the authors' release, backbone included.

    The result answers as the release does: cyctr evaluate --method OUTPUT --protocol released measures it as the release was.
    """
    from cyctr.release_checkpoint import convert_release as convert

    if output.exists() and not force:
        raise ConfigError(f"{output}: is there already; replace it with --force, or choose another --output")
    convert(file, output, mend_labels)
    print(f"checkpoint: {output} ({output.stat().st_size / 1e6:.0f} MB, with its backbone)")
    print(f"measure it: cyctr evaluate --data VOC2012 --method {output} --protocol released")
