"""Few-shot scenes made of photographs that may be shown, of classes that PASCAL VOC does not have.

The photographs come with scikit-image and scikit-learn; only the masks are ours. A scene is a class and two sets of crops
of one photograph, some of them enlarged: no query shares a pixel with a support.
"""

import importlib.resources
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from cyctr.errors import DataError
from cyctr.images.imaging import read_image, read_values
from cyctr.types import IGNORE, Pixels

_SHORTEST = 200  # a crop whose shorter side has fewer pixels is enlarged by a whole number
_PACKAGES = {"skimage": "scikit-image", "sklearn": "scikit-learn"}


@dataclass(frozen=True, eq=False)
class Shot:
    """An image and its label.

    Attributes:
        image: (H, W, 3) RGB.
        label: (H, W) 1 where the class is, 255 where nobody can say, 0 elsewhere.
    """

    image: Pixels
    label: Pixels


@dataclass(frozen=True, eq=False)
class Scene:
    """A class, shown in the supports and to be found in the queries.

    Attributes:
        name: of the class, in one word.
        title: what the object is, in a few words.
        supports: K of them, each with some foreground.
        queries: one or more, each with some foreground.
        source: who made the photograph, and where it comes from.
        licence: of the photograph.
    """

    name: str
    title: str
    supports: tuple[Shot, ...]
    queries: tuple[Shot, ...]
    source: str
    licence: str


class Crop(NamedTuple):
    """A crop of a photograph, in its pixels."""

    top: int
    left: int
    height: int
    width: int

    def meets(self, other: "Crop") -> bool:
        """Whether the two share a pixel."""
        return (
            self.top < other.top + other.height
            and other.top < self.top + self.height
            and self.left < other.left + other.width
            and other.left < self.left + self.width
        )


class Photo(NamedTuple):
    """A photograph within an installed package."""

    package: str
    path: str
    source: str
    licence: str


class Plan(NamedTuple):
    """A scene before its pixels are read; the mask's file has its name."""

    name: str
    title: str
    photo: Photo
    supports: tuple[Crop, ...]
    queries: tuple[Crop, ...]


_ASTRONAUT = Photo("skimage", "data/astronaut.png", "Eileen Collins, NASA; in scikit-image", "public domain")
_CHELSEA = Photo("skimage", "data/chelsea.png", "Chelsea the cat, Stéfan van der Walt; in scikit-image", "CC0")
_CHINA = Photo("sklearn", "datasets/images/china.jpg", "flickr.com/photos/danielbuechele; in scikit-learn", "CC BY 2.0")
_COFFEE = Photo("skimage", "data/coffee.png", "Rachel Michetti, Pikolo Espresso Bar; in scikit-image", "CC0")
_COINS = Photo(
    "skimage",
    "data/coins.png",
    "Greek coins from Pompeii, Brooklyn Museum; in scikit-image",
    "no known copyright restrictions",
)
_FLOWER = Photo("sklearn", "datasets/images/flower.jpg", "flickr.com/photos/vultilion; in scikit-learn", "CC BY 2.0")
_HUBBLE = Photo("skimage", "data/hubble_deep_field.jpg", "Hubble eXtreme Deep Field, NASA; in scikit-image", "public domain")
_IHC = Photo(
    "skimage",
    "data/ihc.png",
    "stained colon tissue, Center for Microscopy and Molecular Imaging; in scikit-image",
    "no known copyright restrictions",
)
_RETINA = Photo("skimage", "data/retina.jpg", "Mikael Häggström, Wikimedia Commons; in scikit-image", "CC0")
_ROCKET = Photo("skimage", "data/rocket.jpg", "Falcon 9 before launch, SpaceX; in scikit-image", "public domain")
_TEXT = Photo("skimage", "data/text.png", "Wikipedia's Corner.png; in scikit-image", "public domain")

PLANS = (
    Plan("dahlia", "dahlia", _FLOWER, (Crop(362, 282, 65, 165),), (Crop(62, 130, 300, 350),)),
    Plan("eye", "eye of a cat", _CHELSEA, (Crop(45, 95, 150, 155),), (Crop(75, 260, 130, 130),)),
    Plan(
        "roof",
        "pagoda roof",
        _CHINA,
        (Crop(148, 76, 90, 130), Crop(148, 206, 90, 130), Crop(238, 56, 74, 142), Crop(238, 198, 74, 162)),
        (Crop(20, 80, 128, 255), Crop(314, 203, 90, 190)),
    ),
    Plan("tree", "tree", _CHINA, (Crop(135, 0, 152, 82), Crop(288, 0, 139, 150)), (Crop(125, 395, 302, 245),)),
    Plan("saucer", "saucer under a cup", _COFFEE, (Crop(30, 40, 370, 230),), (Crop(30, 290, 370, 230),)),
    Plan("badge", "embroidered badge", _ASTRONAUT, (Crop(325, 105, 120, 125),), (Crop(310, 240, 100, 110),)),
    Plan(
        "coin",
        "ancient coin",
        _COINS,
        (Crop(8, 300, 82, 84), Crop(90, 15, 58, 115), Crop(226, 10, 70, 66)),
        (Crop(90, 180, 134, 204), Crop(150, 78, 150, 100)),
    ),
    Plan(
        "tower",
        "lattice tower",
        _ROCKET,
        (Crop(0, 0, 210, 120), Crop(112, 130, 220, 120)),
        (Crop(0, 530, 210, 110), Crop(112, 390, 220, 120)),
    ),
    Plan(
        "gland",
        "gland in tissue",
        _IHC,
        (Crop(300, 222, 212, 200), Crop(290, 0, 222, 200)),
        (Crop(0, 282, 300, 230), Crop(120, 80, 170, 202)),
    ),
    Plan(
        "galaxy",
        "galaxy",
        _HUBBLE,
        (Crop(350, 55, 160, 160), Crop(650, 360, 130, 130)),
        (Crop(30, 265, 160, 260), Crop(400, 640, 140, 200)),
    ),
    Plan(
        "vessel",
        "blood vessel of the retina",
        _RETINA,
        (Crop(110, 470, 360, 360), Crop(850, 240, 360, 360)),
        (Crop(900, 700, 360, 360), Crop(270, 850, 400, 400)),
    ),
    Plan("handwriting", "handwriting", _TEXT, (Crop(0, 0, 172, 222),), (Crop(0, 226, 172, 222),)),
)
"""What the gallery shows, natural photographs first."""


def scenes() -> tuple[Scene, ...]:
    """The gallery, read from the installed packages."""
    return tuple(_scene(plan) for plan in PLANS)


def _scene(plan: Plan) -> Scene:
    image = read_image(_located(plan.photo))
    with importlib.resources.as_file(
        importlib.resources.files("cyctr.datasets") / "gallery_masks" / f"{plan.name}.png"
    ) as path:
        label = read_values(path)
    if image.shape[:2] != label.shape:
        raise DataError(
            f"{_located(plan.photo)} is {image.shape[:2]}, and the mask of {plan.name} is for {label.shape}; "
            f"install another version of {_PACKAGES[plan.photo.package]}"
        )
    supports, queries = (tuple(_shot(image, label, box) for box in boxes) for boxes in (plan.supports, plan.queries))
    return Scene(plan.name, plan.title, supports, queries, plan.photo.source, plan.photo.licence)


def _located(photo: Photo) -> Path:
    spec = importlib.util.find_spec(photo.package)  # where the package is, without importing it
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"{_PACKAGES[photo.package]} is not installed, and photographs of the gallery come with it; "
            f"run: pip install {' '.join(_PACKAGES.values())}"
        )
    return Path(spec.submodule_search_locations[0]) / photo.path


def _shot(image: Pixels, label: Pixels, box: Crop) -> Shot:
    part = np.s_[box.top : box.top + box.height, box.left : box.left + box.width]
    zoom = -(-_SHORTEST // min(box.height, box.width))
    if zoom == 1:
        return Shot(image[part].copy(), label[part].copy())
    size = (box.width * zoom, box.height * zoom)
    enlarged = np.array(Image.fromarray(image[part]).resize(size, Image.Resampling.BICUBIC))
    marked, unknown = (
        np.asarray(Image.fromarray((label[part] == value).astype(np.uint8) * 255).resize(size, Image.Resampling.BILINEAR)) > 127
        for value in (1, IGNORE)
    )  # smooth contours, where the nearest pixel would leave steps
    return Shot(enlarged, np.where(unknown, IGNORE, marked).astype(np.uint8))
