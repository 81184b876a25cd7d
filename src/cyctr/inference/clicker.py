"""SAM 2: an image is encoded once, and then asked for the masks of points, of a box, or of a rough mask."""

import importlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from cyctr.backbones.weights import REFINERS, cache
from cyctr.errors import ConfigError, DataError
from cyctr.inference.cleaning import components
from cyctr.inference.inputs import ImageLike, to_image

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Point = tuple[float, float]

_SIDE, _MASK = 1024, 256  # of the image and of masks, inside the network
_MEAN, _STD = np.array((0.485, 0.456, 0.406), np.float32), np.array((0.229, 0.224, 0.225), np.float32)
_NEGATIVE, _POSITIVE, _TOP_LEFT, _BOTTOM_RIGHT = 0, 1, 2, 3
_FAINTEST = 1e-4  # probability in a mask prompt
_STRONGEST = 10.0  # log odds where nothing of a part is
_AGREES = 0.5  # IoU with what it refines, from which a mask is kept
_MOST_PARTS = 8  # of a mask that are refined, the largest
_LEAST = 8  # places of the small grid that a part must have


@dataclass(frozen=True, eq=False, repr=False)
class EncodedImage:
    """An image that can be asked for masks any number of times.

    Attributes:
        size: (height, width) of the image.
        embeddings: by the decoder's name of each.
    """

    size: tuple[int, int]
    embeddings: dict[str, Floats]


@dataclass(frozen=True, eq=False, repr=False)
class Proposal:
    """A mask for a prompt.

    Attributes:
        probability: (H, W) float32, at the size of the image.
        score: the IoU that the network expects of it.
    """

    probability: Floats
    score: float

    @property
    def mask(self) -> Bools:
        """(H, W)."""
        return self.probability > 0.5


class Clicker:
    """Masks for points, boxes and rough masks. It keeps nothing between calls: threads may share it.

    clicker = Clicker.from_pretrained()
    image = clicker.encode("photo.jpg")              # seconds, once
    best = clicker.masks(image, points=[(120, 80)])[0]
    """

    def __init__(self, encoder: bytes, decoder: bytes, threads: int | None = None) -> None:
        """Prepares the two networks.

        Args:
            encoder: the bytes of its ONNX file.
            decoder: likewise.
            threads: by default those of torch.
        """
        try:
            runtime: Any = importlib.import_module("onnxruntime")
        except ImportError as error:
            raise ConfigError("onnxruntime is not installed, which SAM needs; run: pip install 'cyctr[sam]'") from error
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        self._encoder, self._decoder = (
            runtime.InferenceSession(one, options, providers=providers) for one in (encoder, decoder)
        )

    @classmethod
    def from_pretrained(cls, name: str = "sam2-tiny", threads: int | None = None) -> "Clicker":
        """The network of that name, which `cyctr weights get` has fetched.

        Raises:
            WeightsError: it is not here.
        """
        if name not in REFINERS:
            raise ConfigError(f"name is {name!r}; expected {' or '.join(REFINERS)}")
        state = cache.load(REFINERS[name])
        return cls(state["encoder"].numpy().tobytes(), state["decoder"].numpy().tobytes(), threads)

    def encode(self, image: ImageLike) -> EncodedImage:
        """Prepares an image: a path, a PIL image, an array or a tensor, of any size."""
        pixels = to_image(image)
        whole = Image.fromarray(pixels).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
        inputs = ((np.asarray(whole, np.float32) / 255 - _MEAN) / _STD).transpose(2, 0, 1)[None]
        names = [output.name for output in self._encoder.get_outputs()]
        found = self._encoder.run(names, {"image": np.ascontiguousarray(inputs)})
        return EncodedImage((pixels.shape[0], pixels.shape[1]), dict(zip(names, found, strict=True)))

    def masks(
        self,
        image: EncodedImage,
        *,
        points: Sequence[Point] = (),
        outside: Sequence[Point] = (),
        box: tuple[float, float, float, float] | None = None,
        mask: NDArray[Any] | None = None,
    ) -> list[Proposal]:
        """Three masks of what is prompted for, the one of the highest score first.

        Args:
            image: from `encode`.
            points: (x, y) in pixels, on the thing.
            outside: (x, y) in pixels, beside it.
            box: left, top, right, bottom in pixels, around it.
            mask: (H, W) bool, or a probability: roughly where it is.
        """
        height, width = image.size
        if not len(points) and box is None and mask is None:
            raise ConfigError("there is no prompt; expected points on the thing, a box around it, or a mask")
        corners = [] if box is None else [(box[0], box[1]), (box[2], box[3])]
        for x, y in [*points, *outside, *corners]:
            if not (0 <= x <= width and 0 <= y <= height):
                raise ConfigError(f"the place is {x:g},{y:g}; expected x up to {width} and y up to {height}")
        if mask is not None and mask.shape != image.size:
            raise DataError(f"mask is {mask.shape}, image is {image.size}; resize one to match the other")
        kinds = [_POSITIVE] * len(points) + [_NEGATIVE] * len(outside) + [_TOP_LEFT, _BOTTOM_RIGHT] * bool(corners)
        places = np.array([*points, *outside, *corners], np.float32).reshape(-1, 2) * (_SIDE / width, _SIDE / height)
        odds = None if mask is None else _log_odds(_resized(mask.astype(np.float32), (_MASK, _MASK)))
        logits, scores = self._decoded(image, places, kinds, odds)
        order = np.argsort(-scores, kind="stable")
        return [Proposal(_probability(logits[place], image.size), float(scores[place])) for place in order]

    def refine(self, image: EncodedImage, probability: Floats, threshold: float = 0.5) -> Floats:
        """A probability whose connected parts above the threshold have sharper outlines.

        Each part is asked for by its box and by itself. The mask that SAM thinks best takes its place if the two agree;
        otherwise the part stays as it was.

        Args:
            image: from `encode`.
            probability: (H, W), of the image's size.
            threshold: a pixel is marked above it.
        """
        if probability.shape != image.size:
            raise DataError(f"probability is {probability.shape}, image is {image.size}; resize one to match the other")
        small = _resized(probability, (_MASK, _MASK))
        odds = _log_odds(small) - _log_odds(np.float32(threshold))  # above 0 where it is marked
        parts, large = components(odds > 0), components(probability > threshold)
        found = probability.copy()
        kept = np.zeros((_MASK, _MASK), bool)
        masks: list[Floats] = []
        for number in range(1, min(int(parts.max()), _MOST_PARTS) + 1):
            part = parts == number
            if part.sum() < _LEAST:
                break  # they come the largest first
            best = self._agreeing(image, part, odds)
            if best is not None:
                kept |= part
                masks.append(best)
        if not masks:
            return found
        whole = _nearest(kept, image.size)
        found[np.isin(large, np.unique(large[whole & (large > 0)]))] = 0  # all of a part that was replaced
        for logits in masks:
            own = _probability(logits, image.size)
            marked = own > 0.5
            found[marked] = np.maximum(own[marked], threshold + 1e-3)  # marked, whatever the threshold
        return found

    def _agreeing(self, image: EncodedImage, part: Bools, odds: Floats) -> Floats | None:
        """The logits of the best mask for a part; none where the two do not agree."""
        rows, columns = (np.flatnonzero(part.any(axis=1 - axis)) for axis in (0, 1))
        scale = _SIDE / _MASK
        box = np.array([[columns[0], rows[0]], [columns[-1] + 1, rows[-1] + 1]], np.float32) * scale
        near = np.where(_grown(part), odds, -_STRONGEST).astype(np.float32)
        logits, scores = self._decoded(image, box, [_TOP_LEFT, _BOTTOM_RIGHT], near)
        best = logits[scores.argmax()]
        agreed = (part & (best > 0)).sum() / (part | (best > 0)).sum()
        return best if agreed >= _AGREES else None

    def _decoded(
        self, image: EncodedImage, places: NDArray[Any], kinds: Sequence[int], odds: Floats | None
    ) -> tuple[Floats, Floats]:
        """(3, s, s) log odds and (3,) scores for (n, 2) places in the network's pixels."""
        if not len(kinds):  # the decoder wants a place; one of this kind says nothing
            places, kinds = np.zeros((1, 2)), [-1]
        given = {
            **image.embeddings,
            "point_coords": places[None].astype(np.float32),
            "point_labels": np.array([kinds], np.float32),
            "mask_input": np.zeros((1, 1, _MASK, _MASK), np.float32) if odds is None else odds[None, None],
            "has_mask_input": np.array([odds is not None], np.float32),
        }
        masks, scores = self._decoder.run(["masks", "iou_predictions"], given)
        return masks[0], scores[0]


_loaded: dict[str, Clicker] = {}
_door = threading.Lock()


def shared(name: str) -> Clicker:
    """The network of that name, loaded once for all that ask."""
    with _door:
        if name not in _loaded:
            _loaded[name] = Clicker.from_pretrained(name)
        return _loaded[name]


def _log_odds(probability: Floats | np.float32) -> Floats:
    clear = np.clip(probability, _FAINTEST, 1 - _FAINTEST)
    return np.log(clear / (1 - clear))


def _resized(values: Floats, size: tuple[int, int]) -> Floats:
    return F.interpolate(torch.from_numpy(values)[None, None], size, mode="bilinear", antialias=True)[0, 0].numpy()


def _probability(logits: Floats, size: tuple[int, int]) -> Floats:
    """(H, W) of an image."""
    whole = F.interpolate(torch.from_numpy(logits)[None, None], size, mode="bilinear")[0, 0]
    return whole.sigmoid().numpy()


def _nearest(mask: Bools, size: tuple[int, int]) -> Bools:
    return F.interpolate(torch.from_numpy(mask)[None, None].float(), size)[0, 0].numpy() > 0


def _grown(part: Bools, by: int = 8) -> Bools:
    """A part and what is near it."""
    near = F.max_pool2d(torch.from_numpy(part)[None].float(), 2 * by + 1, 1, by)
    return near[0].numpy() > 0
