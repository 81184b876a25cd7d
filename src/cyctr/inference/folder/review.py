"""A page of thumbnails to look through, the least certain first. It opens from disk; its pictures are files beside it."""

import html
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cyctr.errors import DataError
from cyctr.inference.folder.ledger import PAGE, REVIEW
from cyctr.storage import write_atomically
from cyctr.visual.draw import COLOURS
from cyctr.visual.page import STYLE
from cyctr.words import counted

_STYLE = """
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(230px, 1fr)); gap: 1.2rem 1rem; }
figure { margin: 0; } figure img { width: 100%; height: 180px; object-fit: contain; background: #f4f5f7; }
figcaption { overflow-wrap: anywhere; } .absent img { opacity: .55; }
.bar { height: 4px; background: #e4e7eb; border-radius: 2px; margin-top: .25rem; } .bar i { display: block; height: 100%; }
label { cursor: pointer; } main { margin-top: 1.2rem; } #doubtful:checked ~ main .sure { display: none; }
#absent:checked ~ main .absent { display: none; } input { margin-right: .35rem; }
"""
Record = Mapping[str, Any]
_DOUBTFUL = 0.8  # confidence of a clear case


def write_review(folder: Path, records: Mapping[str, Record], classes: Sequence[str]) -> None:
    """Writes folder/index.html (`PAGE`) from what a ledger knows, of all images whose thumbnails lie in folder/review."""
    drawn = [(key, record) for key, record in records.items() if (folder / REVIEW / f"{key}.jpg").is_file()]
    shown = sorted(drawn, key=lambda one: (_doubt(one[1]), one[0]))
    legend = "".join(
        f'<span style="color:rgb{COLOURS[place % len(COLOURS)]}">&#9632;</span> {html.escape(name)} &ensp;'
        for place, name in enumerate(classes)
    )
    body = [
        f"<h1>{counted(len(shown), 'image')}</h1>",
        f"<p>The least certain first. The longer the bar, the surer it is that the class is there. {legend}</p>",
        '<input type="checkbox" id="doubtful"><label for="doubtful">only doubtful ones</label>&emsp;',
        '<input type="checkbox" id="absent"><label for="absent">hide images without any class</label>',
        "<main>",
        *(_figure(key, record, classes) for key, record in shown),
        "</main>",
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>cyctr: review</title>'
    page = f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}{_STYLE}</style></head><body>\n' + "\n".join(body)
    try:
        write_atomically(folder / PAGE, f"{page}\n</body></html>\n".encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise DataError(f"{folder / PAGE}: cannot be written ({error.strerror}); choose another place", "output") from error


def _doubt(record: Record) -> float:
    """0 where a class may as well be there as not, 1 where all are clear."""
    return min(abs(2 * one["confidence"] - 1) for one in record["classes"].values())


def _figure(key: str, record: Record, classes: Sequence[str]) -> str:
    found = record["classes"]
    clear = all(max(one["confidence"], 1 - one["confidence"]) >= _DOUBTFUL for one in found.values())
    present = any(one["present"] for one in found.values())
    bars = "".join(
        f'<div class="bar" title="{html.escape(name)}: {found[name]["confidence"]:.2f}">'
        f'<i style="width:{100 * found[name]["confidence"]:.0f}%;background:rgb{COLOURS[place % len(COLOURS)]}"></i></div>'
        for place, name in enumerate(classes)
    )
    words = ", ".join(f"{name} {found[name]['confidence']:.2f}" for name in classes if found[name]["present"])
    picture = quote(os.fsencode(f"{REVIEW}/{key}.jpg"))
    kinds = " ".join((["sure"] if clear else []) + ([] if present else ["absent"]))
    caption = f"{html.escape(key)}<br>{html.escape(words) or 'probably not there'}"
    alt = html.escape(key, quote=True)
    return (
        f'<figure class="{kinds}"><img loading="lazy" src="{html.escape(picture, quote=True)}" alt="{alt}">'
        f"{bars}<figcaption>{caption}</figcaption></figure>"
    )
