"""Small datasets on disk."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (12, 16)
OBJECTS = {  # image -> class -> top, left, bottom, right
    "a": {"cat": (1, 2, 5, 7)},
    "b": {"cat": (0, 0, 3, 3), "dog": (4, 4, 12, 16)},
    "c": {"dog": (2, 2, 3, 3)},
    "d": {"cat": (6, 1, 9, 15)},
}
CLASSES = ("cat", "dog")
_SIZES = ((40, 60), (60, 40), (33, 33), (20, 50), (50, 21), (64, 64), (70, 30), (30, 70), (45, 46))
VARIED = dict(zip("abcdefghi", _SIZES, strict=True))  # image -> height, width


def write(path: Path, pixels, mode: str | None = None) -> Path:
    """Saves an array, its folder made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(pixels, np.uint8))
    (image.convert(mode) if mode else image).save(path)
    return path


def picture(path: Path, size: tuple[int, int] = SIZE, seed: int = 0) -> Path:
    """Saves noise in colour."""
    return write(path, np.random.default_rng(seed).integers(0, 256, (*size, 3)))


def box(corners: tuple[int, int, int, int], value: int = 1, size: tuple[int, int] = SIZE):
    """(H, W) with a value in a rectangle."""
    values = np.zeros(size, np.uint8)
    top, left, bottom, right = corners
    values[top:bottom, left:right] = value
    return values


def labelled(stem: str):
    """(H, W) of an image of `OBJECTS`: 1 for cat, 2 for dog."""
    return sum(box(corners, 1 + CLASSES.index(name)) for name, corners in OBJECTS[stem].items())


def pictures(folder: Path) -> Path:
    """The images of `OBJECTS`."""
    for seed, stem in enumerate(OBJECTS):
        picture(folder / f"{stem}.png", seed=seed)
    return folder


def class_mask_folder(root: Path, value: int = 255) -> Path:
    """`OBJECTS` as masks/CLASS/STEM.png."""
    pictures(root / "images")
    for stem, objects in OBJECTS.items():
        for name, corners in objects.items():
            write(root / "masks" / name / f"{stem}.png", box(corners, value))
    return root


def labelled_folder(root: Path, names: bool = True) -> Path:
    """`OBJECTS` as masks/STEM.png."""
    pictures(root / "images")
    for stem in OBJECTS:
        write(root / "masks" / f"{stem}.png", labelled(stem))
    if names:
        (root / "classes.txt").write_text("\n".join(CLASSES))
    return root


def varied_folder(root: Path) -> Path:
    """Nine images of as many sizes, a cat in each and a dog in most, with a border that nobody decided."""
    for number, (stem, (height, width)) in enumerate(VARIED.items()):
        picture(root / "images" / f"{stem}.png", (height, width), seed=number)
        values = box((2, 2, height // 2, width - 3), 1, (height, width))
        if number % 3 != 2:
            values += box((height // 2, number, height - 1, width // 2), 2, (height, width))
        values[:, -1] = 255
        write(root / "masks" / f"{stem}.png", values)
    (root / "classes.txt").write_text("\n".join(CLASSES))
    return root


def coco_folder(root: Path, annotations: str = "annotations.json") -> Path:
    """`OBJECTS` as COCO's JSON."""
    pictures(root / "images")
    marks = []
    for i, objects in enumerate(OBJECTS.values()):
        for name, (top, left, bottom, right) in objects.items():
            outline = [left, top, right, top, right, bottom, left, bottom]
            marks.append(
                {"id": len(marks), "image_id": i, "category_id": CLASSES.index(name), "iscrowd": 0, "segmentation": [outline]}
            )
    images = [{"id": i, "file_name": f"{stem}.png", "height": SIZE[0], "width": SIZE[1]} for i, stem in enumerate(OBJECTS)]
    categories = [{"id": i, "name": name} for i, name in enumerate(CLASSES)]
    (root / annotations).parent.mkdir(parents=True, exist_ok=True)
    (root / annotations).write_text(json.dumps({"images": images, "annotations": marks, "categories": categories}))
    return root


def fss_folder(root: Path, classes: int = 10, images: int = 2, test: int = 3) -> Path:
    """Classes `thing_00`, ... of which the last few are in the list of test classes; 0 makes no list."""
    for number in range(classes):
        for i in range(1, images + 1):
            place = root / f"thing_{number:02d}"
            picture(place / f"{i}.jpg", seed=number)
            write(place / f"{i}.png", box((0, 0, number + 1, i), 255), "RGB")
    if test:
        (root / "fss_test_set.txt").write_text("".join(f"thing_{classes - 1 - i:02d}\r\n" for i in range(test)))
    return root


def voc_folder(root: Path) -> Path:
    """A train and a test image of PASCAL, both of an aeroplane."""
    for stem, part in (("2007_1", "train_aug_5953"), ("2008_1", "val")):
        picture(root / "JPEGImages" / f"{stem}.jpg", (60, 60))
        write(root / "SegmentationClassAug" / f"{stem}.png", box((0, 0, 50, 50), 1, (60, 60)))
        (root / "ImageSets" / "Segmentation").mkdir(parents=True, exist_ok=True)
        (root / "ImageSets" / "Segmentation" / f"{part}.txt").write_text(f"{stem}\n")
    return root


def state(root: Path) -> dict[Path, tuple[int, bytes]]:
    """Time and content of every file below."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(root.rglob("*")) if path.is_file()}


def truncate(path: Path) -> None:
    """Cuts a file short."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
