"""Teaches a light backbone to see what another one sees, on images without their labels.

    python experiments/distil.py --data VOC2012 --output lite0-distilled.safetensors

The student's weights learn, the statistics of its BatchNorms stay. Beside it a linear map from each of its taps to the same tap
of the teacher is learned, beginning with the best one for the student as it is, and thrown away. What is lost at a cell is one
minus the cosine of both, where they speak of the same pixels: their offsets differ, and the student keeps its own. The file
that is written is one for `model.backbone.weights`; the JSON beside it says how it was made, and the other settings that the
backbone needs then.
"""

import argparse
import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from cyctr.backbones.backbone import Backbone
from cyctr.backbones.bodies import STRIDE
from cyctr.backbones.weights import find, load_backbone
from cyctr.config import BackboneConfig
from cyctr.datasets.opening import open_dataset
from cyctr.devices import choose_device, half_pays
from cyctr.episodes.augmentation import warp
from cyctr.episodes.image_store import Store, open_store
from cyctr.evaluation.run import environment
from cyctr.methods.backbone_choice import with_weights
from cyctr.methods.cyctr.config import preset
from cyctr.methods.cyctr.state import Levels
from cyctr.seeding import Stream, random_bits

_SMALLEST = 0.5  # of the longest side of an image: the side of a crop
_SPACING = 0x9E3779B1  # odd, so that no two seeds below 2**32 draw the same crops
_TOLD = 50  # steps between two lines
_FITTED = 16  # steps whose images the first linear maps are fitted to
_RIDGE = 1e-3  # of the mean variance of the student's features


def _widths(backbone: Backbone) -> tuple[int, int]:
    """Channels of the middle features, joined, and of the high ones."""
    *middle, high = backbone.channels
    return sum(middle), high


class Translation(nn.Module):
    """Linear maps from what a student says of an image to what its teacher says of the same pixels."""

    def __init__(self, student: Backbone, teacher: Backbone) -> None:
        super().__init__()
        self.shift = (teacher.grid.offset - student.grid.offset) / STRIDE  # cells of the student, right and down
        (own, own_high), (other, other_high) = (_widths(one) for one in (student, teacher))
        self.mid = nn.Conv2d(own, other, 1)
        self.high = nn.Conv2d(own_high, other_high, 1)

    def forward(self, said: tuple[Tensor, Tensor], meant: tuple[Tensor, Tensor]) -> Tensor:
        """(2,) one minus the mean cosine, of the middle and of the high features."""
        layers, pairs = (self.mid, self.high), self._pairs(said, meant)
        cosines = [
            F.cosine_similarity(layer(own).float(), other, dim=1) for layer, (own, other) in zip(layers, pairs, strict=True)
        ]
        return torch.stack([1 - cosine.mean() for cosine in cosines])

    def fit(self, examples: Iterable[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]) -> None:
        """Sets the maps to the best ones for what is said and meant now, by ridge regression on the teacher's unit vectors."""
        found = [
            [_products(own, F.normalize(other, dim=1)) for own, other in self._pairs(said, meant)] for said, meant in examples
        ]
        for layer, parts in zip((self.mid, self.high), zip(*found, strict=True), strict=True):
            gram, products = (torch.stack(sums).sum(0) for sums in zip(*parts, strict=True))
            ridge = _RIDGE * gram.diagonal()[:-1].mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
            ridge[-1, -1] = 0  # the bias is free
            solved = torch.linalg.solve(gram + ridge, products).T.to(layer.weight)  # (teacher, student + 1)
            with torch.no_grad():
                layer.weight.copy_(solved[:, :-1, None, None])
                layer.bias.copy_(solved[:, -1])  # type: ignore[union-attr]

    def _pairs(self, said: tuple[Tensor, Tensor], meant: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Middle and high features of both, at cells where they speak of the same pixels."""
        rim = math.ceil(abs(self.shift))  # where the student has no cell for what the teacher speaks of
        kept = slice(0, -rim or None) if self.shift > 0 else slice(rim, None)
        pairs = zip((shifted(maps, self.shift) for maps in said), meant, strict=True)
        return [(own[..., kept, kept], other[..., kept, kept].float()) for own, other in pairs]


def _products(own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """(S + 1, S + 1) and (S + 1, T): the student's features, with a one beside them, times themselves and the teacher's."""
    rows = F.pad(own.movedim(1, -1).flatten(0, -2).double(), (0, 1), value=1.0)
    return rows.T @ rows, rows.T @ other.movedim(1, -1).flatten(0, -2).double()


def shifted(maps: Tensor, shift: float) -> Tensor:
    """(B, C, h, w) what maps say so many cells further right and down, bilinear; at the rim, what the last cell says."""
    height, width = maps.shape[-2:]
    x, y = (2 * (torch.arange(size, device=maps.device) + shift) / (size - 1) - 1 for size in (width, height))
    places = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).expand(len(maps), -1, -1, -1)  # (B, h, w, 2)
    return F.grid_sample(maps.float(), places, mode="bilinear", padding_mode="border", align_corners=True)


def backbone_config(weights: str) -> BackboneConfig:
    """As `best` has it, offset and all, but frozen."""
    return replace(with_weights(preset("best"), weights).model.backbone, tuned=False)


def crops(store: Store, pairs: list[tuple[int, int]], size: int, batch: int, steps: int, seed: int) -> Iterator[Tensor]:
    """(batch, 3, size, size) uint8 of each step: images in a new order each time round, cropped and mirrored at random."""

    def plans() -> Iterator[list[tuple[int, int]]]:
        rounds = -(-steps * batch // len(pairs))
        order = [place for number in range(rounds) for place in Stream("distil", seed, number).choose(len(pairs), len(pairs))]
        yield from ([pairs[place] for place in order[step * batch : (step + 1) * batch]] for step in range(steps))

    for step, pictures in enumerate(store.stream(plans())):
        own = torch.arange(batch, device=pictures.sizes.device) + step * batch + seed * _SPACING
        chance = random_bits(own, 4).double() / 2**32  # (batch, 4)
        side = pictures.sizes.amax(1) * (_SMALLEST + (1 - _SMALLEST) * chance[:, 0])  # pixels of the image
        room = (pictures.sizes - side[:, None]).flip(1)  # (batch, 2) x and y; below zero the crop reaches beyond
        corner = room * chance[:, 1:3]
        ratio = side / size
        matrices = torch.zeros(batch, 2, 3, dtype=torch.float64, device=own.device)
        mirrored = chance[:, 3] < 0.5
        matrices[:, 0, 0] = torch.where(mirrored, -ratio, ratio)
        matrices[:, 1, 1] = ratio
        matrices[:, :, 2] = corner
        matrices[:, 0, 2] += torch.where(mirrored, side, torch.zeros_like(side))
        yield warp(pictures.images, pictures.labels, matrices, size, pictures.sizes)[0]


def distil(
    student: Backbone, teacher: Backbone, images: Iterator[Tensor], steps: int, rate: float, half: bool
) -> list[dict[str, float]]:
    """Moves the student's weights; what was lost on the way."""
    device = student.mean.device
    student.body.requires_grad_(True)
    translation = Translation(student, teacher).to(device)
    weights = [*student.body.parameters(), *translation.parameters()]
    optimizer = torch.optim.AdamW(weights, rate, weight_decay=1e-2, foreach=True)
    told, recent, began = [], [], time.perf_counter()
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
        first = list(islice(images, min(_FITTED, steps)))
        translation.fit((Levels.of(student._extract(pixels)), Levels.of(teacher._extract(pixels))) for pixels in first)
    for step, pixels in enumerate(chain(first, images)):
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            with torch.no_grad():
                meant = Levels.of(teacher._extract(pixels))
            lost = translation(Levels.of(student._extract(pixels)), meant)
        lost.sum().backward()
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / (0.05 * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(lost.detach())
        if (step + 1) % _TOLD == 0 or step + 1 == steps:
            mid, high = torch.stack(recent).mean(0).tolist()
            told.append({"step": step + 1, "mid": mid, "high": high, "seconds": time.perf_counter() - began})
            print(f"step {step + 1} of {steps}: mid {mid:.4f}, high {high:.4f}, {told[-1]['seconds']:.0f} s", flush=True)
            recent = []
    student.body.requires_grad_(False)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--student", default="efficientnet-lite0", help="a name of `cyctr weights list`")
    parser.add_argument("--teacher", default="resnet50-keras", help="likewise")
    parser.add_argument("--output", type=Path, required=True, help="a .safetensors file")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", type=int, default=257, help="of a crop, 8n + 1 pixels")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)  # of the linear maps
    device = choose_device(given.device)
    dataset = open_dataset(given.data)
    pool = dataset.pool("train")
    index = pool.index()
    images, numbers = index.pairs(range(len(dataset.classes)), dataset.smallest)
    pairs = list(
        dict(zip(images.tolist(), numbers.tolist(), strict=True)).items()
    )  # one of each image: labels are not looked at
    store = open_store(pool, index, pairs, device, longest=512)
    student, teacher = (load_backbone(backbone_config(name)).to(device) for name in (given.student, given.teacher))
    teacher.accelerate()
    steps = crops(store, pairs, given.size, given.batch, given.steps, given.seed)
    told = distil(student, teacher, steps, given.steps, given.rate, half_pays(device))
    state = {name: value.cpu().contiguous() for name, value in student.body.state_dict().items()}
    save_file({name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}, given.output)
    found: dict[str, Any] = {
        "environment": environment(device),
        **{name: getattr(given, name) for name in ("student", "teacher", "size", "batch", "steps", "rate", "seed")},
        "settings": {**find(given.student).settings, "offset": student.grid.offset},
        "lost": told,
    }
    given.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
