"""A page of results: the tables, and episodes to look at, in one HTML file that opens from disk."""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from cyctr.visual.contact import Block

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #20242a; max-width: 1180px; margin: 2.5rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p, figcaption { color: #5a6068; } figcaption { font-size: .82rem; margin-top: .3rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem; text-align: right; border-bottom: 1px solid #e4e7eb; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } th { font-weight: 600; }
.episodes { display: flex; flex-wrap: wrap; gap: 1.4rem 2rem; } figure { margin: 0; }
.tiles { display: flex; gap: 6px; } img { display: block; border-radius: 3px; }
"""


@dataclass(frozen=True)
class Section:
    """Episodes under a heading, with a line that says what they are."""

    heading: str
    text: str
    blocks: Sequence[Block]


def page(title: str, lead: str, tables: Sequence[Sequence[Sequence[str]]], sections: Sequence[Section]) -> str:
    """The HTML of it; pictures are part of the file.

    Args:
        title: of the page.
        lead: a line below it.
        tables: rows of cells, the first row the headings.
        sections: the episodes.
    """
    body = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(lead)}</p>", *map(_table, tables)]
    for section in sections:
        body += [f"<h2>{html.escape(section.heading)}</h2>", f"<p>{html.escape(section.text)}</p>", '<div class="episodes">']
        body += [_figure(block) for block in section.blocks]
        body.append("</div>")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    return f"<table>{line(rows[0], 'th')}{''.join(line(row, 'td') for row in rows[1:])}</table>"


def _figure(block: Block) -> str:
    caption = html.escape(block.caption)
    pictures = []
    for cell in block.tiles:
        buffer = io.BytesIO()
        Image.fromarray(cell).save(buffer, "JPEG", quality=85)
        code = base64.b64encode(buffer.getvalue()).decode()
        side = cell.shape[1] // 2 if cell.shape[1] > 300 else cell.shape[1]
        pictures.append(f'<img width="{side}" src="data:image/jpeg;base64,{code}" alt="{caption}">')
    return f'<figure><div class="tiles">{"".join(pictures)}</div><figcaption>{caption}</figcaption></figure>'
