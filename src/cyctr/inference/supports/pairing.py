"""Names of files -> which mask belongs to which image."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cyctr.datasets.own_folder import IMAGES, MASKS
from cyctr.images.imaging import EXTENSIONS
from cyctr.inference.supports.outlines import visible_files
from cyctr.words import counted

LAYOUT = (
    f"{IMAGES}/ with {MASKS}/, NAME.jpg with NAME_mask.png, NAME.jpg with NAME.json of LabelMe, "
    "a COCO JSON, or a folder of these for each class"
)
_MARKERS = ("_mask", "-mask", ".mask")
_MARKER = 5  # characters of each


def images_in(folder: Path) -> list[Path]:
    """The image files that lie in a folder, sorted; hidden ones are passed over."""
    return [path for path in visible_files(folder) if path.suffix.lower() in EXTENSIONS]


def matched(images: Mapping[str, Path], masks: Mapping[str, Path], problems: list[str]) -> dict[Path, Path]:
    """Image -> mask of the same name, or of that with _mask."""
    pairs: dict[Path, Path] = {}
    for stem, mask in masks.items():
        image = images.get(stem) or (images.get(stem[:-_MARKER]) if stem.lower().endswith(_MARKERS) else None)
        if image is None:
            problems.append(f"{mask}: belongs to no image; expected one called {stem}: add or rename it, or remove the mask")
        elif image in pairs:
            problems.append(f"{mask}: is a second mask of {image.name}, beside {pairs[image].name}; remove one")
        else:
            pairs[image] = mask
    return dict(sorted(pairs.items()))


def complain_unmarked(images: Sequence[Path], of: int, folder: Path, problems: list[str]) -> None:
    """A line for each image without a mask; a single one where none has any."""
    if images and len(images) == of:
        problems.append(f"{folder}: none of its {counted(of, 'image')} has a mask; expected {LAYOUT}")
        return
    problems += [f"{image}: has no mask; expected one called {image.stem}_mask.png or {image.stem}.json" for image in images]


def paired(files: Sequence[Path], problems: list[str]) -> tuple[dict[Path, Path], list[Path]]:
    """Image -> mask by their names, and the images without a mask."""
    groups: dict[str, list[Path]] = {}
    for path in files:
        groups.setdefault(path.stem, []).append(path)
    masks: dict[str, list[Path]] = {}
    for stem in [stem for stem in groups if stem.lower().endswith(_MARKERS) and stem[:-_MARKER] in groups]:
        masks.setdefault(stem[:-_MARKER], []).extend(groups[stem])
    named = {mask for group in masks.values() for mask in group}
    pairs: dict[Path, Path] = {}
    alone: list[Path] = []
    for stem, group in groups.items():
        if group[0] in named:
            continue
        of_image = masks.get(stem, [])
        pngs = [path for path in group if path.suffix.lower() == ".png"]
        if not of_image and len(group) == 2 and len(pngs) == 1:
            group, of_image = [path for path in group if path not in pngs], pngs
        if stem.lower().endswith(_MARKERS) and not of_image:
            expected = stem[:-_MARKER]
            problems += [f"{path}: belongs to no image; expected one called {expected}: add it, or remove it" for path in group]
            continue
        for extra, first in [(path, group[0]) for path in group[1:]] + [(path, of_image[0]) for path in of_image[1:]]:
            problems.append(f"{extra}: stands for the same as {first.name}; rename or remove one")
        if of_image:
            pairs[group[0]] = of_image[0]
        else:
            alone.append(group[0])
    return pairs, alone
