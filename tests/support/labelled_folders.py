"""Folders of labelled photographs, in every layout that is read."""

import json

import numpy as np
from PIL import Image

from cyctr.images.imaging import voc_palette

SIZE = (20, 30)
BOXES = {  # image -> class -> left, top, right, bottom
    "a": {"cup": (2, 1, 9, 8)},
    "b": {"cup": (1, 1, 6, 6), "plate": (10, 5, 28, 18)},
    "c": {"plate": (0, 0, 12, 20)},
}
CLASSES = ("cup", "plate")


def picture(path, seed=0, size=SIZE):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def mask(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, np.uint8)).save(path)
    return path


def marked(corners, value=1):
    left, top, right, bottom = corners
    values = np.zeros(SIZE, np.uint8)
    values[top:bottom, left:right] = value
    return values


def numbered(stem):
    """1 for cup, 2 for plate."""
    return sum(marked(corners, 1 + CLASSES.index(name)) for name, corners in BOXES[stem].items())


def outline(corners):
    left, top, right, bottom = corners
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def shape(label, corners, kind="polygon"):
    points = outline(corners) if kind == "polygon" else [list(corners[2:]), list(corners[:2])]
    return {"label": label, "points": points, "shape_type": kind, "group_id": None, "flags": {}}


def labelme(path, shapes, **more):
    known = {"version": "5.5.0", "flags": {}, "imageHeight": SIZE[0], "imageWidth": SIZE[1], "imagePath": f"{path.stem}.jpg"}
    path.write_text(json.dumps(known | {"shapes": shapes} | more))
    return path


def runs(values):
    """The uncompressed RLE of a mask, by going down its columns."""
    counts, last = [0], 0
    for value in np.asarray(values).T.ravel().tolist():
        if value != last:
            counts.append(0)
            last = value
        counts[-1] += 1
    return {"size": list(SIZE), "counts": counts}


def coco(path, segment, objects=BOXES, folder="", **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for number, (stem, boxes) in enumerate(objects.items()):
        images.append({"id": number, "file_name": f"{folder}{stem}.jpg", "height": SIZE[0], "width": SIZE[1]})
        for name, corners in boxes.items():
            annotations.append(
                {"id": len(annotations), "image_id": number, "category_id": 7 + CLASSES.index(name), "iscrowd": 0}
                | {"segmentation": segment(corners)}
                | more
            )
    categories = [{"id": 7 + number, "name": name} for number, name in enumerate(CLASSES)]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


def polygon(corners):
    return [[number for point in outline(corners) for number in point]]


def compressed(corners):
    from pycocotools.mask import encode

    rle = encode(np.asfortranarray(marked(corners)))
    return {"size": list(SIZE), "counts": rle["counts"].decode()}


def photos(folder, ending=".jpg"):
    for seed, stem in enumerate(BOXES):
        picture(folder / f"{stem}{ending}", seed)


def number_masks(root):
    photos(root / "images")
    for stem in BOXES:
        mask(root / "masks" / f"{stem}.png", numbered(stem))
    (root / "classes.txt").write_text("\n".join(CLASSES))


def palette_masks(root):
    number_masks(root)
    for stem in BOXES:
        coloured = Image.fromarray(numbered(stem))
        coloured.putpalette(voc_palette())
        coloured.save(root / "masks" / f"{stem}.png")


def class_masks(root):
    photos(root / "Images")
    for stem, boxes in BOXES.items():
        for name, corners in boxes.items():
            mask(root / "Masks" / name / f"{stem}.png", marked(corners, 255))


def flat_numbers(root):
    photos(root)
    for stem in BOXES:
        mask(root / f"{stem}_mask.png", numbered(stem))
    (root / "classes.txt").write_text("background\ncup\nplate")


def labelme_polygons(root, kind="polygon"):
    photos(root)
    for stem, boxes in BOXES.items():
        labelme(root / f"{stem}.json", [shape(name, corners, kind) for name, corners in boxes.items()])


def labelme_in_images(root):
    labelme_polygons(root / "images")


def coco_beside(root, segment=polygon):
    photos(root)
    coco(root / "labels.json", segment)


def coco_above(root):
    photos(root / "photos")
    coco(root / "annotations.json", polygon)


def coco_in_annotations(root):
    photos(root / "images")
    coco(root / "annotations" / "instances.json", polygon, folder="images/")


def class_folders(root):
    """One layout for each class."""
    for stem, boxes in BOXES.items():
        if "cup" in boxes:
            picture(root / "cup" / "images" / f"{stem}.jpg")
            mask(root / "cup" / "masks" / f"{stem}.png", marked(boxes["cup"], 255))
        if "plate" in boxes:
            picture(root / "plate" / f"{stem}.JPG")
            mask(root / "plate" / f"{stem}-MASK.PNG", marked(boxes["plate"]))


def class_folders_of_labelme(root):
    for name in CLASSES:
        for stem in [stem for stem, boxes in BOXES.items() if name in boxes]:
            picture(root / name / f"{stem}.jpg")
            labelme(root / name / f"{stem}.json", [shape("object", BOXES[stem][name])])


LAYOUTS = {
    "numbers": number_masks,
    "palettes": palette_masks,
    "a folder of masks for each class": class_masks,
    "flat numbers": flat_numbers,
    "labelme": labelme_polygons,
    "labelme rectangles": lambda root: labelme_polygons(root, "rectangle"),
    "labelme in images": labelme_in_images,
    "coco beside": coco_beside,
    "coco with RLE": lambda root: coco_beside(root, lambda corners: runs(marked(corners))),
    "coco with compressed RLE": lambda root: coco_beside(root, compressed),
    "coco above": coco_above,
    "coco in annotations": coco_in_annotations,
    "class folders": class_folders,
    "class folders of labelme": class_folders_of_labelme,
}
