"""Numbers and lists as a message says them."""

from collections.abc import Sequence

_SHOWN = 10


def counted(number: int, noun: str) -> str:
    """`1 image`, `2 images`."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def listed(names: Sequence[str]) -> str:
    """`cup, plate`; of many names the first few."""
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def one_line(text: object) -> str:
    """A text whose line breaks and other unprintable characters are escaped: names of files may hold them."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(text))
