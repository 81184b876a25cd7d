"""Draws round trips of the cycle-consistency test, computed by a network that was trained for a minute.

    python examples/cycle_picture.py docs/images/cycle.png

Left the support, right the query. Each trip starts at a marked support cell, goes to the most similar query cell and
returns to the support cell most similar to that. Solid: it came back to its own class, and stays. Dashed: it did not.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from learn_from_scratch import BASE, NOVEL, STEPS, fit, untrained
from PIL import Image, ImageDraw, ImageFont

from cyctr import Episode
from cyctr.backbones.grid import Grid
from cyctr.methods.base import TokenState
from cyctr.methods.cyctr.cycle_attention import nearest_neighbours
from cyctr.methods.cyctr.state import CrossTrace
from cyctr.visual.draw import BLUE, GREY, INK, PAPER, RED, enlarge, overlay, to_pixels

FACTOR, GAP, MARGIN = 3, 150, 30
COLOURS = {TokenState.INCONSISTENT: GREY, TokenState.CONSISTENT_BACKGROUND: BLUE, TokenState.CONSISTENT_FOREGROUND: RED}


def trips(trace: CrossTrace, valid: torch.Tensor, head: int) -> list[tuple[int, int, int, TokenState]]:
    """(start, query cell, landing, state) of every token of one head, as places in their grids."""
    nearest_query, nearest_support = nearest_neighbours(trace.q, trace.k, valid[:, None])
    query = nearest_query[0, head].tolist()
    landing = [int(nearest_support[0, head, i]) for i in query]
    states = [TokenState(state) for state in trace.state[0, head].tolist()]
    return list(zip(range(len(query)), query, landing, states, strict=True))


def choose(all_trips: list, is_foreground: torch.Tensor, on_object: torch.Tensor, each: int = 3) -> list:
    """A few trips of each outcome through different query cells: kept ones through their own class, hidden ones not."""
    spread = np.random.default_rng(3).permutation(len(all_trips))
    chosen, seen = [], set()
    for state, front, through_object in (
        (TokenState.CONSISTENT_FOREGROUND, True, True),
        (TokenState.INCONSISTENT, True, False),
        (TokenState.CONSISTENT_BACKGROUND, False, False),
    ):
        taken = 0
        for i in spread:
            _, query, _, outcome = all_trips[i]
            fits = outcome == state and bool(is_foreground[i]) == front and bool(on_object[query]) == through_object
            if fits and query not in seen and taken < each:
                chosen.append(all_trips[i])
                seen.add(query)
                taken += 1
    return chosen


def draw(episode: Episode, chosen: list, index: torch.Tensor, grid: Grid, width: int) -> Image.Image:
    """The two images side by side with the trips across the gap."""
    left = enlarge(overlay(to_pixels(episode.support_images[0, 0]), (episode.support_labels[0, 0] == 1).numpy()), FACTOR)
    right = enlarge(to_pixels(episode.query_images[0]), FACTOR)
    side = left.shape[0]
    page = Image.new("RGB", (2 * side + GAP + 2 * MARGIN, side + 2 * MARGIN + 60), PAPER)
    page.paste(Image.fromarray(left), (MARGIN, MARGIN + 30))
    page.paste(Image.fromarray(right), (MARGIN + side + GAP, MARGIN + 30))
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(18)
    pen.text((MARGIN, MARGIN - 6), "support, the object marked", INK, font)
    pen.text((MARGIN + side + GAP, MARGIN - 6), "query", INK, font)

    def centre(place: int, shift: int) -> tuple[float, float]:
        x, y = (grid.centres(torch.tensor([place]), width)[0] * FACTOR + FACTOR / 2).tolist()
        return MARGIN + shift + x, MARGIN + 30 + y

    for start, query, landing, state in chosen:
        colour, dashed = COLOURS[state], state == TokenState.INCONSISTENT
        here, there, back = centre(int(index[start]), 0), centre(query, side + GAP), centre(int(index[landing]), 0)
        line(pen, here, there, colour, dashed)
        line(pen, there, back, colour, dashed)
        for (x, y), radius in ((here, 9), (there, 6)):
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour, outline=PAPER, width=2)
        x, y = back
        pen.rectangle((x - 6, y - 6, x + 6, y + 6), outline=colour, width=3)
    legend = (
        (RED, "came back to the object: kept"),
        (BLUE, "came back to the background: kept"),
        (GREY, "changed class: hidden"),
    )
    x = MARGIN
    for colour, text in legend:
        pen.ellipse((x, page.height - 36, x + 14, page.height - 22), fill=colour)
        pen.text((x + 22, page.height - 40), text, INK, font)
        x += 330
    return page


def line(pen: ImageDraw.ImageDraw, start: tuple, end: tuple, colour: tuple, dashed: bool) -> None:
    """A line, dashed or not, with a pale edge that keeps it readable on any picture."""
    points = np.linspace(start, end, 60)
    pieces = zip(points[:-1:2] if dashed else points[:-1], points[1::2] if dashed else points[1:], strict=False)
    for one, other in pieces:
        pen.line((*one, *other), fill=PAPER, width=6)
        pen.line((*one, *other), fill=colour, width=3)


def main() -> None:
    model, episodes = untrained(), NOVEL
    fit(model, BASE, STEPS, rate=2e-3)
    best = None
    for i in range(200):  # an episode and head that show all three outcomes
        episode = episodes.batch(i, 1)
        with torch.inference_mode():
            explanation = model(episode, explain=True).extras.explanation
            support = model.encode_support(model.backbone(episode.support_images[0]), episode.support_labels)
            on_object = model.backbone.grid.cells(episode.query_labels, explanation.support_grid).flatten() == 1
        for trace in explanation.cross:
            for head in range(trace.state.shape[1]):
                chosen = choose(trips(trace, explanation.valid, head), support.is_foreground[0], on_object)
                if best is None or len(chosen) > len(best[1]):
                    best = (episode, chosen, explanation)
    episode, chosen, explanation = best
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "cycle.png")
    page = draw(episode, chosen, explanation.index[0], model.backbone.grid, explanation.support_grid[1])
    page.save(path, optimize=True)
    print(path)


if __name__ == "__main__":
    main()
