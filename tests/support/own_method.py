"""The example of `docs/your-own-method.md` as the module `nearest`, and methods that lack something."""

import re
import sys
import types
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/your-own-method.md"


def blocks(kind: str) -> list[str]:
    """The blocks of code of the page."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.S)


def nearest() -> types.ModuleType:
    """The module of the example, which can be imported from then on."""
    if "nearest" not in sys.modules:
        module = types.ModuleType("nearest")
        sys.modules["nearest"] = module
        exec(compile(blocks("python")[0], "nearest.py", "exec"), module.__dict__)
    return sys.modules["nearest"]


class NoMethod:
    """Not a method at all."""
