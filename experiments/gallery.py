"""How good networks are on classes that PASCAL VOC does not have: `python experiments/gallery.py CHECKPOINT ...`.

Scores each on the gallery's photographs (`cyctr.data.gallery`), and writes a picture of every answer. Support and query of a
scene come from one photograph, so this is easier than real use: it says what a network can do, not how it compares.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cyctr.config import InputConfig
from cyctr.data.gallery import Scene, Shot, scenes
from cyctr.data.transforms import fit_image, fit_label, planes, restore
from cyctr.devices import choose_device
from cyctr.engine.methods import open_method
from cyctr.evaluation.metrics import Counts, count
from cyctr.evaluation.protocol import Method
from cyctr.types import Episode
from cyctr.visual.contact import Block, contact_sheet, tile
from cyctr.visual.draw import BLUE, GREEN, RED

_SIDE = 220


def answer(method: Method, scene: Scene, query: Shot, config: InputConfig, device: torch.device) -> torch.Tensor:
    """(H, W) bool."""
    images = torch.stack([fit_image(planes(shot.image), config) for shot in scene.supports])
    labels = torch.stack([fit_label(torch.from_numpy(shot.label), config) for shot in scene.supports])
    episode = Episode(images[None].to(device), labels[None].to(device), fit_image(planes(query.image), config)[None].to(device))
    with torch.inference_mode():
        logits = restore(method(episode).logits[0], (query.label.shape[0], query.label.shape[1]), config)
    return (logits[1] > logits[0]).cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="+", help="checkpoints, or references such as prototype")
    parser.add_argument("--weights", default="resnet50-keras", help="backbone of the references")
    parser.add_argument("--size", type=int, default=473)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=Path("runs/gallery"))
    given = parser.parse_args()
    device, config = choose_device(given.device), InputConfig(given.size)
    given.output.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for name in given.methods:
        method, about = open_method(name, given.weights, device)
        blocks, by_scene = [], {}
        for scene in scenes():
            total = Counts()
            for query in scene.queries:
                mask = answer(method, scene, query, config, device)
                own = count(mask, torch.from_numpy(query.label))
                total += own
                shown = [
                    tile(scene.supports[0].image, scene.supports[0].label == 1, _SIDE, RED),
                    tile(query.image, query.label == 1, _SIDE, BLUE),
                    tile(query.image, np.asarray(mask), _SIDE, GREEN),
                ]
                blocks.append(Block(shown, f"{scene.title}, {len(scene.supports)}-shot: IoU {100 * own.iou:.0f}"))
            by_scene[scene.name] = 100 * total.iou
            print(f"{about['name']:<24} {scene.name:<14} {100 * total.iou:5.1f}", flush=True)
        by_scene["mean"] = float(np.mean(list(by_scene.values())))
        print(f"{about['name']:<24} {'mean':<14} {by_scene['mean']:5.1f}", flush=True)
        found[about["name"]] = by_scene
        sheet = contact_sheet(blocks, f"{about['name']} on the gallery", "Support (red), truth (blue), answer (green).", 9)
        sheet.save(given.output / f"{about['name']}.png")
    (given.output / "gallery.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
