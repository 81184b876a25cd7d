"""`cyctr info`: what a configuration builds."""

from typing import Annotated

import typer

from cyctr.methods.recipes import recipes_of
from cyctr.methods.table import METHODS, USUAL, find_method

EXAMPLES = ("cyctr info --preset best",)


def info(
    preset: Annotated[
        str | None,
        typer.Option(help=f"Of {USUAL}: {', '.join(recipes_of().presets)}.", show_default="the first of the method"),
    ] = None,
    method: Annotated[str, typer.Option(help=f"{', '.join(METHODS)}, or package.module:Class of your own.")] = USUAL,
    backbone: Annotated[str, typer.Option(help="A timm network, or 'tiny'.")] = "resnet50",
) -> None:
    """Show the settings of a preset and the size of the network it builds."""
    from dataclasses import replace

    from rich.console import Console
    from rich.table import Table

    from cyctr import config
    from cyctr.backbones.backbone import Backbone

    recipes = recipes_of(method)
    preset = preset or next(iter(recipes.presets))
    chosen = recipes.preset(preset)
    own = chosen.model.backbone
    own = replace(own, name=backbone, deep_stem=own.deep_stem and backbone == own.name)
    chosen = replace(chosen, model=replace(chosen.model, backbone=own))
    console = Console()
    settings = Table(box=None, pad_edge=False, header_style="bold", title=f"Settings of {preset!r}", title_justify="left")
    for heading in ("setting", "value", "meaning"):
        settings.add_column(heading)
    for name, _, help_text in config.settings(recipes.kind):
        settings.add_row(name, str(config.value_at(chosen, name)), help_text)
    console.print(settings)

    model = find_method(method).build(chosen, Backbone(own))
    sizes = Table(box=None, pad_edge=False, header_style="bold", title="\nParameters", title_justify="left")
    sizes.add_column("part")
    sizes.add_column("count", justify="right")
    for child, module in model.named_children():
        frozen = not any(value.requires_grad for value in module.parameters())
        sizes.add_row(child + " (frozen)" * frozen, f"{sum(value.numel() for value in module.parameters()):,}")
    trained = model.parameter_count()
    sizes.add_row("trained", f"{trained.trained:,}", style="bold")
    sizes.add_row("trained and used at test", f"{trained.used_at_test:,}", style="bold")
    console.print(sizes)
