"""What the settings of the Segmenter bring on the gallery: `python experiments/settings.py`.

Mean IoU over the twelve scenes of `cyctr.datasets.gallery`, whose supports and queries are crops of one photograph: easier than
real use, and few. It says what a setting does, not what it will do for you. Writes results/settings-MODEL.json.
"""

import argparse
import json
from pathlib import Path

import torch

from cyctr import Segmenter
from cyctr.datasets.gallery import scenes
from cyctr.evaluation.metrics import Counts, count

CHOICES = {
    "as it is": {},
    "edges=False": {"edges": False},
    "edges=False, votes=0": {"edges": False, "votes": 0.0},
    "votes=0": {"votes": 0.0},
    "votes=1": {"votes": 1.0},
    "flip=True": {"flip": True},
    "scales=(0.75, 1, 1.25)": {"scales": (0.75, 1, 1.25)},
}
RESULTS = Path(__file__).parent.parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lite0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", help="or bfloat16, or auto, as the Segmenter's own default")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    segmenter = Segmenter.from_pretrained(given.model, device=given.device, precision=given.precision)
    found: dict[str, dict[str, float]] = {name: {} for name in CHOICES}
    for scene in scenes():
        images, labels = [shot.image for shot in scene.supports], [shot.label for shot in scene.supports]
        support = segmenter.encode_support(images, labels, name=scene.name, class_id=1)
        for name, settings in CHOICES.items():
            total = Counts()
            for query in scene.queries:
                mask = segmenter.segment(query.image, support, **settings).mask
                total += count(torch.from_numpy(mask), torch.from_numpy(query.label))
            found[name][scene.name] = round(100 * total.iou, 1)
            print(f"{scene.name:<14} {name:<24} {100 * total.iou:5.1f}", flush=True)
    for name, by_scene in found.items():
        by_scene["mean"] = round(sum(by_scene.values()) / len(by_scene), 1)
        print(f"{'mean':<14} {name:<24} {by_scene['mean']:5.1f}")
    about = {"model": segmenter.name, "device": given.device, "precision": given.precision, "torch": torch.__version__}
    output = given.output or RESULTS / f"settings-{segmenter.name}.json"
    output.write_text(json.dumps({"about": about, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
