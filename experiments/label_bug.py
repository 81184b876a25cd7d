"""How many labels of sampled tokens the release's label bug turns, by the size of the object.

    python experiments/label_bug.py --data VOC2012

Each class of each mask is one object. The mask is shrunk or enlarged until its longer side is --size pixels, tokens are drawn
from its cells as the release draws them, and their labels are read once with the bug and once rightly.
"""

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from cyctr.methods.cyctr.config import RELEASED
from cyctr.methods.cyctr.released import ReleasedSampler, nearest_pixels
from cyctr.types import IGNORE

BOUNDS = (300, 600, 1000, 1500, 2000, 2500)
WITH_BUG = ReleasedSampler(RELEASED.model.sampling)
WITHOUT = ReleasedSampler(replace(RELEASED.model.sampling, release_labels=False))


def square(mask: np.ndarray, kind: int, size: int) -> torch.Tensor:
    """(1, 1, size, size) labels of one class: its longer side fills the square, the rest is void."""
    labels = np.where(mask == kind, 1, np.where(mask == IGNORE, IGNORE, 0)).astype(np.uint8)
    scale = size / max(mask.shape)
    width, height = (round(side * scale) for side in mask.shape[::-1])
    padded = np.full((size, size), IGNORE, np.uint8)
    padded[:height, :width] = np.asarray(Image.fromarray(labels).resize((width, height), Image.Resampling.NEAREST))
    return torch.from_numpy(padded)[None, None]


def wrong_share(labels: torch.Tensor, seed: int) -> tuple[int, float]:
    """The object's cells, and the share of tokens whose label the bug turns."""
    side = (labels.shape[-1] + 7) // 8
    cells = torch.zeros(1, 1, side, side, dtype=torch.uint8)
    seeds = torch.tensor([seed])
    count = RELEASED.model.sampling.tokens_per_shot
    read, true = (sampler(cells, labels, count, seeds) for sampler in (WITH_BUG, WITHOUT))
    turned = (read.is_foreground != true.is_foreground)[true.valid]
    return int((nearest_pixels(labels, (side, side)) == 1).sum()), turned.float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with SegmentationClassAug")
    parser.add_argument("--masks", type=int, default=3000, help="so many masks, in random order")
    parser.add_argument("--size", type=int, default=473, help="longer side of a mask in pixels")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    files = sorted((arguments.data / "SegmentationClassAug").glob("*.png"))
    if not files:
        parser.error(f"{arguments.data} holds no SegmentationClassAug/*.png; give the folder VOC2012")
    np.random.default_rng(arguments.seed).shuffle(files)  # type: ignore[arg-type]  # a list is shuffled in place
    shares = defaultdict(list)
    seed = 0
    for file in files[: arguments.masks]:
        mask = np.asarray(Image.open(file))
        for kind in sorted(set(np.unique(mask).tolist()) - {0, IGNORE}):
            cells, share = wrong_share(square(mask, kind, arguments.size), seed)
            shares[sum(cells >= bound for bound in BOUNDS)].append(100 * share)
            seed += 1
    print("cells       objects  median  lowest  highest")
    for place, found in sorted(shares.items()):
        upper = f"under {BOUNDS[place]}" if place < len(BOUNDS) else f"{BOUNDS[-1]} or more"
        print(f"{upper:12}{len(found):7}{np.median(found):7.0f} %{min(found):6.0f} %{max(found):7.0f} %")


if __name__ == "__main__":
    main()
