"""Support images and masks, then any number of queries -> masks. The public API."""

import hashlib
import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cyctr import pretrained
from cyctr.backbones.weights import CATALOGUE
from cyctr.backbones.weights import cache as weights
from cyctr.checkpoint import describe_checkpoint, load_checkpoint
from cyctr.config import InputConfig
from cyctr.devices import choose_device, episodes_together, half_pays
from cyctr.errors import ConfigError, DataError
from cyctr.images.edges import edge_maps, enlarge, follow
from cyctr.images.geometry import fit_image, fit_label, padding_of, planes, restore, restore_rows
from cyctr.images.imaging import image_size
from cyctr.inference.cleaning import clean
from cyctr.inference.clicker import EncodedImage, shared
from cyctr.inference.confidence import CALIBRATIONS, UNKNOWN, calibration_name, confidence, resemblance
from cyctr.inference.inputs import ImageLike, MaskLike, to_image, to_label
from cyctr.inference.matching import WEIGHT, balanced
from cyctr.inference.result import ImageResult, Segmentation
from cyctr.inference.supports.encoded import EncodedSupport, read_support
from cyctr.inference.tiles import Canvas, Window, around, closer, strips, windows
from cyctr.methods.cyctr import CyCTR
from cyctr.types import IGNORE, Prediction

Pixels = NDArray[np.uint8]
T = TypeVar("T")
Complain = Callable[[int, DataError], None]
Resemblance = dict[Window, list[float]]
Sharpen = Callable[[NDArray[np.float32], float], NDArray[np.float32]]
_REFINER = "sam2-tiny"
_MOST_TOGETHER = 32  # images on a GPU: more gain little
_MOST_WINDOWS = 8  # of tiled images, likewise: these are large, and their answers take memory too
_MOST_PIXELS = 2**26  # of images that are held together: six of twelve megapixels
_READERS = 4
_CLOSER_SHOT = 0.8  # side of a window around a labelled thing that becomes a further shot, in that of the image
_CLOSER_LOOK = 0.6  # likewise around what was found: smaller, for this is a second look, and takes as long as the first
_NEAR_PEAK = 0.8  # of the largest probability: where nothing is above the threshold, this is looked at


class Settings(TypedDict, total=False):
    """How images are segmented; all may be left out."""

    threshold: float
    tile: int | None
    overlap: float
    flip: bool
    scales: Sequence[float]
    smallest: int
    fill_holes: bool
    votes: float | None
    drop_absent: bool
    edges: bool
    zoom: bool
    refine: str | None


@dataclass(frozen=True)
class _Plan:
    """Checked settings.

    Attributes:
        threshold: a pixel is of the class above this probability.
        tile: side in pixels of the windows a large image is cut into; none looks at the whole image at once.
        overlap: share of its side that a window has in common with the next.
        flip: also look at the mirror image, and take the mean.
        scales: of the network's input size, to take the mean of.
        smallest: pixels of the smallest region that stays.
        fill_holes: what a region encloses belongs to it.
        votes: weight of plain matching beside the network: 0 is the network alone, 1 matching alone; None is a half.
        drop_absent: the mask is empty where the class is probably not in the image at all.
        edges: the answer follows the edges of the image.
        zoom: what was found is looked at again, closer, where it is small.
        refine: "sam" sharpens the outlines of what was found, by a network of its own.
    """

    threshold: float = 0.5
    tile: int | None = None
    overlap: float = 0.25
    flip: bool = False
    scales: Sequence[float] = (1.0,)
    smallest: int = 0
    fill_holes: bool = False
    votes: float | None = None
    drop_absent: bool = False
    edges: bool = True
    zoom: bool = True
    refine: str | None = None

    def __post_init__(self) -> None:
        _check_number("threshold", self.threshold)
        if not 0 < self.threshold < 1:
            raise ConfigError(f"threshold is {self.threshold}; expected a probability between 0 and 1")
        for name in ("overlap", "smallest", *(() if self.votes is None else ("votes",))):
            _check_number(name, getattr(self, name))
        for name in ("flip", "fill_holes", "drop_absent", "edges", "zoom"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected True or False")
        if self.refine not in (None, "sam"):
            raise ConfigError(f"refine is {self.refine!r}; expected 'sam' or None")
        check_tile(self.tile)
        if not 0 <= self.overlap <= 0.9:
            raise ConfigError(f"overlap is {self.overlap}; expected a share of the tile from 0 to 0.9")
        if not isinstance(self.scales, list | tuple):
            raise ConfigError(f"scales are {self.scales!r}; expected several numbers, such as (0.75, 1, 1.25)")
        for scale in self.scales:
            _check_number("scales", scale)
        if not self.scales or not all(0.25 <= scale <= 4 for scale in self.scales):
            raise ConfigError(f"scales are {tuple(self.scales)}; expected some from 0.25 to 4, such as (0.75, 1, 1.25)")
        if self.votes is not None and not 0 <= self.votes <= 1:
            raise ConfigError(f"votes is {self.votes}; expected a weight from 0 (the network alone) to 1 (matching alone)")
        if not isinstance(self.smallest, int) or self.smallest < 0:
            raise ConfigError(f"smallest is {self.smallest}; expected a whole number of pixels, 0 for all")

    def views(self, size: tuple[int, int]) -> Iterator["_View"]:
        """What is looked at of an image."""
        for scale in self.scales:
            for window in windows(size, self.tile, self.overlap):
                for mirrored in (False, True) if self.flip else (False,):
                    yield _View(window, scale, mirrored)


class _View(NamedTuple):
    window: Window
    scale: float
    mirrored: bool


class Segmenter:
    """Finds in images what a few labelled ones show. It keeps nothing between calls: threads may share it."""

    def __init__(
        self, model: CyCTR, size: int = 473, device: str | torch.device = "auto", precision: str = "auto", name: str = "network"
    ) -> None:
        """Prepares a network for inference; it cannot be trained any more.

        Args:
            model: a trained network.
            size: height and width of what it sees; best what it was trained on.
            device: "auto" takes a GPU where there is one.
            precision: "auto" is bfloat16 on a GPU and on a CPU that has it, float32 elsewhere; or "float32", "bfloat16".
            name: of the network, for messages.
        """
        if precision not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"precision is {precision!r}; expected auto, float32 or bfloat16")
        self.device = choose_device(str(device))
        self.half = half_pays(self.device) if precision == "auto" else precision == "bfloat16"
        if isinstance(size, bool) or not isinstance(size, int) or not 64 <= size <= 4096:
            raise ConfigError(f"size is {size!r}; expected 64 to 4096 pixels, best what the network was trained on")
        self.name, self.input = name, InputConfig(size)
        self.digest = _digest(model)
        self.model = model.to(self.device).accelerate()

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path | None = None,
        *,
        device: str | torch.device = "auto",
        precision: str = "auto",
        size: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> "Segmenter":
        """One of the networks that come with the package, or a checkpoint. Its backbone is fetched where it is not here yet.

        Args:
            name: "lite0" (the default, light) or "resnet50", or the path of a checkpoint.
            device: "auto" takes a GPU where there is one.
            precision: "auto" is bfloat16 on a GPU and on a CPU that has it, float32 elsewhere.
            size: of what the network sees; by default what it was trained on.
            progress: told the bytes that have arrived, of how many, while a backbone is fetched.
        """
        if name is not None and not isinstance(name, str | os.PathLike):
            raise ConfigError(f"name is {name!r}; expected {' or '.join(pretrained.NAMES)}, or the path of a checkpoint")
        path = pretrained.find(pretrained.DEFAULT if name is None else str(name))
        device = choose_device(str(device))
        config, _ = describe_checkpoint(path)
        entry = CATALOGUE.get(config.model.backbone.weights or "")
        if entry is not None and weights.cached(entry) is None:
            weights.get(entry, lambda done: progress(done, entry.size) if progress else None)
        model, _ = load_checkpoint(path)
        return cls(model, config.training.augmentation.size if size is None else size, device, precision, path.stem)

    def encode_support(
        self,
        images: ImageLike | Sequence[ImageLike],
        masks: MaskLike | Sequence[MaskLike],
        *,
        name: str = "object",
        class_id: int | None = None,
        tile: int | None = None,
    ) -> EncodedSupport:
        """Learns a class from labelled images, in one pass and without training.

        Args:
            images: K of them, or one: paths, PIL images, arrays or tensors, of any size.
            masks: one for each: the same kinds of things, or `Polygons`, or a `Box`.
            name: of the class.
            class_id: the value of the class in masks that hold several.
            tile: cut a window of so many pixels around the object from each: for queries that are looked at in such tiles.
        """
        check_tile(tile)
        if not isinstance(name, str) or not name:
            raise ConfigError(f"name is {name!r}; expected that of the class, such as 'cup'")
        images, masks = _listed(images), _listed(masks)
        if not images or len(images) != len(masks):
            raise DataError(f"{len(images)} images and {len(masks)} masks; expected one mask for each of one or more images")
        shots = [_read_shot(*pair, place, class_id) for place, pair in enumerate(zip(images, masks, strict=True))]
        whole = [self._fitted(pixels, label, around(label, tile)) for pixels, label in shots]
        _warn_of_full(name, torch.stack([label for _, label in whole]), tile)
        near = [None if tile else closer(label == 1, _CLOSER_SHOT) for _, label in shots]
        looks = [self._fitted(*shot, window) for shot, window in zip(shots, near, strict=True) if window]
        seen, labels = (torch.stack(parts) for parts in zip(*whole, *looks, strict=True))
        return self._encoded(name, seen, labels, tile, len(looks))

    def load_support(self, path: str | Path) -> EncodedSupport:
        """The support of a file that `EncodedSupport.save` wrote, encoded for this network."""
        stored = read_support(path)
        size = self.input.size
        if stored.images.shape[-1] != size:
            raise DataError(
                f"{path}: was made for inputs of {stored.images.shape[-1]} pixels, this network takes {size}; "
                "save it again from the images"
            )
        return self._encoded(stored.name, stored.images, stored.labels, stored.tile, stored.closer)

    def segment(self, image: ImageLike, support: EncodedSupport, **settings: Unpack[Settings]) -> Segmentation:
        """Where the class of a support is in an image; settings as in `segment_many`."""
        self.check_support(support)
        (result,) = self.segment_many([image], {support.name: support}, **settings)
        return result.classes[support.name]

    def segment_many(
        self,
        images: Iterable[ImageLike],
        supports: Mapping[str, EncodedSupport] | EncodedSupport,
        *,
        batch: int | None = None,
        complain: Complain | None = None,
        **settings: Unpack[Settings],
    ) -> Iterator[ImageResult]:
        """Where each class is in each image, in the order of the images; each is encoded once for all classes.

        Args:
            images: as many as there are; they are read ahead a little, and forgotten when their result is given.
            supports: by the name of the class; or one alone.
            batch: how many are looked at together; by default as suits the device.
            complain: told the number and the problem of an image that cannot be read, which is then left out.
            **settings: threshold (0.5), tile (none; pixels), overlap (0.25), flip (False), scales ((1.0,)), smallest (0;
                pixels), fill_holes (False), votes (0.5; of plain matching), drop_absent (False), edges
                (True), zoom (True; a second look at what is small), refine
                (none; or "sam"): see docs/segmenter.md.

        Yields:
            a result at the image's own size.
        """
        plan = _planned(settings)
        if isinstance(images, str | os.PathLike | Image.Image | Tensor):
            raise DataError(f"images are {type(images).__name__}; expected several: use segment for one, or put it in a list")
        if not isinstance(images, Iterable):
            raise DataError(f"images are {images!r}; expected several images or paths")
        own = _by_name(supports)
        if not own:
            raise ConfigError("supports hold no class; expected at least one: encode_support makes it")
        for support in own.values():
            self.check_support(support)
            _compare_tiles(support, plan.tile)
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise ConfigError(f"batch is {batch!r}; expected a whole number of images, at least 1")
        prepare_refiner(plan.refine)  # missing weights are said before anything is looked at
        ready = {name: support.to(self.device) for name, support in own.items()}
        return self._run(images, ready, plan, batch or self._together(own.values(), plan), complain)

    def _together(self, supports: Collection[EncodedSupport], plan: _Plan) -> int:
        """How many images to look at together, as suits the device."""
        shots, area = max(len(support.images) for support in supports), (self.input.size * max(plan.scales) / 473) ** 2
        most = _MOST_TOGETHER if plan.tile is None else _MOST_WINDOWS
        return min(most, episodes_together(self.device, shots, len(supports), area))

    def _run(
        self,
        images: Iterable[ImageLike],
        supports: Mapping[str, EncodedSupport],
        plan: _Plan,
        batch: int,
        complain: Complain | None,
    ) -> Iterator[ImageResult]:
        with ThreadPoolExecutor(_READERS) as readers:
            ahead = _read_ahead(readers, images, 2 * batch, complain)
            for chunk in _held_together(ahead, batch):
                yield from self._results(chunk, supports, plan, batch)
                chunk.clear()  # before the next is read

    def _results(
        self,
        chunk: Sequence[tuple[int, ImageLike, Pixels]],
        supports: Mapping[str, EncodedSupport],
        plan: _Plan,
        batch: int,
    ) -> Iterator[ImageResult]:
        """The results of images that are looked at together; nothing of them is kept while the next are looked at."""
        answers = self._answers([pixels for _, _, pixels in chunk], supports, plan, batch)
        for (place, source, pixels), (probabilities, confidences) in zip(chunk, answers, strict=True):
            own = zip(supports, probabilities, confidences, strict=True)
            sharpen = _sharpener(pixels) if plan.refine else None
            found = {name: _finished(pixels, probability, sure, plan, sharpen) for name, probability, sure in own}
            del own, pixels, probabilities, sharpen
            yield ImageResult(source, place, found, plan.smallest)
            del found

    @torch.inference_mode()
    def _answers(
        self, images: Sequence[Pixels], supports: Mapping[str, EncodedSupport], plan: _Plan, batch: int
    ) -> Iterator[tuple[list[NDArray[np.float32]], list[float]]]:
        """For each image, of each class: (H, W) probability, and the confidence that it is there."""
        sizes = [(image.shape[0], image.shape[1]) for image in images]
        canvases = [Canvas(size, len(supports), self.device) for size in sizes]
        seen: list[list[Resemblance]] = [[{} for _ in supports] for _ in images]
        views = sorted(((place, view) for place, size in enumerate(sizes) for view in plan.views(size)), key=_input_scale)
        for group in _batched(views, batch):
            for part in _of_one_scale(group):
                config = InputConfig(_scaled(self.input.size, part[0][1].scale))
                seen_parts = [self._part(images[place], view) for place, view in part]
                inputs = torch.stack([fit_image(pixels, config) for pixels in seen_parts])
                shown = [(view.window.height, view.window.width) for _, view in part]
                padding = padding_of(shown, config, self.device)
                inside = ~padding
                predictions = list(self._predictions(inputs, padding, supports))
                pairs = zip(predictions, supports.values(), strict=True)
                blended = [self.blended(prediction, support, plan.votes) for prediction, support in pairs]
                maps = edge_maps(inputs, torch.stack(blended, 1), inside) if plan.edges else None
                for number, (place, view) in enumerate(part):
                    for rows in strips(view.window):
                        if maps is None:
                            answers = (_restored(values[number], view, config, rows) for values in blended)
                        else:
                            answers = (_followed(linear, seen_parts[number], view, config, rows) for linear in maps[number])
                        canvases[place].add(view.window, answers, rows)
                del seen_parts  # of large images these are large, and this function waits for whoever uses its answers
                alike = torch.stack([_resemblance(prediction, inside) for prediction in predictions], 1)  # (B, classes)
                for (place, view), values in zip(part, alike.tolist(), strict=True):  # here the host waits for the device
                    for of_class, value in zip(seen[place], values, strict=True):
                        of_class.setdefault(view.window, []).append(value)
        found = [[mean.cpu().numpy() for mean in canvas.means()] for canvas in canvases]
        if plan.zoom and plan.tile is None:
            for number, (name, support) in enumerate(supports.items()):
                self._look_closer(images, [of_image[number] for of_image in found], name, support, plan, batch)
        for probabilities, of_image in zip(found, seen, strict=True):
            yield probabilities, [self._confidence(*one) for one in zip(supports.values(), of_image, strict=True)]

    def _look_closer(
        self,
        images: Sequence[Pixels],
        probabilities: Sequence[NDArray[np.float32]],
        name: str,
        support: EncodedSupport,
        plan: _Plan,
        batch: int,
    ) -> None:
        """Puts a second look at what was found of a class, where that is small, in place of the first."""
        levels = [min(plan.threshold, _NEAR_PEAK * float(values.max())) for values in probabilities]
        near = [closer(values > level, _CLOSER_LOOK) for values, level in zip(probabilities, levels, strict=True)]
        chosen = [(image, values, window) for image, values, window in zip(images, probabilities, near, strict=True) if window]
        parts = [image[window.slices] for image, _, window in chosen]
        looks = self._answers(parts, {name: support}, replace(plan, zoom=False), batch)
        for (_, values, window), ((again,), _) in zip(chosen, looks, strict=True):
            values[window.slices] = again

    def _part(self, image: Pixels, view: _View) -> Tensor:
        """(3, height, width) uint8 of a view, where the network is."""
        rows, columns = view.window.slices
        pixels = image[rows, columns]
        large = len(strips(view.window)) > 1  # then a copy takes much memory
        part = (torch.from_numpy(pixels).permute(2, 0, 1) if large else planes(pixels)).to(self.device)
        return part.flip(-1) if view.mirrored else part

    def _predictions(self, inputs: Tensor, padding: Tensor, supports: Mapping[str, EncodedSupport]) -> Iterator[Prediction]:
        """What the network answers for each class; the inputs are encoded once."""
        with self.precision():
            query = self.model.encode_query(inputs, padding)
            for support in supports.values():
                yield self.model.answer(query, support.encoded)

    def blended(self, prediction: Prediction, support: EncodedSupport, votes: float | None = None) -> Tensor:
        """(B, S, S) the mean of what the network says and of what the support's tokens say by themselves."""
        weight = WEIGHT if votes is None else votes
        plain = self.matched(prediction, support) if weight else None
        return prediction.probability if plain is None else torch.lerp(prediction.probability, plain, weight)

    def matched(self, prediction: Prediction, support: EncodedSupport) -> Tensor | None:
        """(B, S, S) what the support's tokens say by themselves, in plain matching; none of a network without votes."""
        if prediction.votes is None:
            return None
        size = (prediction.logits.shape[-2], prediction.logits.shape[-1])
        shares = balanced(prediction.votes, support.encoded).mean(1, keepdim=True)  # (B, 1, h, w)
        return self.model.backbone.grid.upsample(shares, size)[:, 0]

    def _confidence(self, support: EncodedSupport, seen: Resemblance) -> float:
        """That the class is somewhere in the image: in the window that resembles it most."""
        backbone = self.model.config.backbone
        calibration = CALIBRATIONS.get(calibration_name(backbone), UNKNOWN)
        return confidence(max(sum(values) / len(values) for values in seen.values()), support.shots, calibration)

    def _fitted(self, pixels: Pixels, label: Pixels, window: Window) -> tuple[Tensor, Tensor]:
        """A window of an image and its label as the network sees them."""
        rows, columns = window.slices
        part = torch.from_numpy(np.ascontiguousarray(label[rows, columns]))
        return fit_image(planes(pixels[rows, columns]), self.input), fit_label(part, self.input)

    @torch.inference_mode()
    def _encoded(self, name: str, images: Tensor, labels: Tensor, tile: int | None, closer: int) -> EncodedSupport:
        sampled = self.model.config.sampling.tokens_per_shot * (len(images) - closer)  # as many as without the closer looks
        with self.precision():
            queries = self.model.encode_query(images.to(self.device), (labels == IGNORE).to(self.device))
            encoded = self.model.label(queries, labels[None].to(self.device), None, max(2, sampled // len(images)))
        return EncodedSupport(name, images, labels, encoded, self.digest, tile, closer)

    def precision(self) -> AbstractContextManager[object]:
        """The context in which the network computes."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext()

    def check_support(self, support: EncodedSupport) -> None:
        """Raises DataError for what this segmenter did not encode."""
        if not isinstance(support, EncodedSupport):
            raise DataError(f"a support is {type(support).__name__}; expected what encode_support gives")
        if support.model != self.digest:
            raise DataError(f"support {support.name!r} was encoded by another network than {self.name}; encode it anew")


def prepare_refiner(refine: str | None) -> None:
    """Loads the network that `refine` asks for, if any; raises where its weights or its package are missing."""
    if refine is not None:
        shared(_REFINER)


def _read_shot(image: ImageLike, mask: MaskLike, place: int, class_id: int | None) -> tuple[Pixels, Pixels]:
    """(H, W, 3) pixels and the (H, W) label of a labelled image."""
    pixels = to_image(image, f"images[{place}]")
    return pixels, to_label(mask, (pixels.shape[0], pixels.shape[1]), class_id, f"masks[{place}]")


def _warn_of_full(name: str, labels: Tensor, tile: int | None) -> None:
    """Warns where all of an image is marked: nothing shows then what is not of the class."""
    full = [place for place, label in enumerate(labels, 1) if not bool((label == 0).any())]
    remedy = "mark the object alone" if tile is None else f"mark the object alone, or take a larger tile than {tile}"
    if full:
        which = f"mask {full[0]}" + (f" and {len(full) - 1} more" if len(full) > 1 else "")
        warnings.warn(
            f"support {name!r}: {which} of {len(labels)} leaves no background, so that all of an image may be taken for it; "
            f"{remedy}",
            stacklevel=3,
        )


def _by_name(supports: object) -> dict[str, EncodedSupport]:
    """One support, or several by name; anything else is refused."""
    if isinstance(supports, EncodedSupport):
        return {supports.name: supports}
    if isinstance(supports, Mapping):
        return dict(supports)
    given = type(supports).__name__
    raise DataError(f"supports are {given}; expected one, or several by name: {{one.name: one for one in supports}}")


def _planned(settings: Settings) -> _Plan:
    unknown = sorted(settings.keys() - Settings.__annotations__.keys())
    if unknown:
        raise ConfigError(f"setting {unknown[0]!r} does not exist; expected {', '.join(Settings.__annotations__)}")
    return _Plan(**settings)


def check_settings(settings: Settings) -> None:
    """Raises ConfigError for settings that `segment_many` would refuse."""
    _planned(settings)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} is {value!r}; expected a number")


def check_tile(tile: int | None) -> None:
    """Raises ConfigError for a tile that is no whole number, or too small to show anything."""
    if tile is not None and not isinstance(tile, int):
        raise ConfigError(f"tile is {tile!r}; expected a whole number of pixels, or none for whole images")
    if tile is not None and tile < 64:
        raise ConfigError(f"tile is {tile}; expected at least 64 pixels, or none for whole images")


def _compare_tiles(support: EncodedSupport, tile: int | None) -> None:
    """Warns where things are not as large in the support as in what is looked at."""
    if support.tile == tile:
        return
    is_cut = "is of whole images" if support.tile is None else f"was cut in windows of {support.tile} pixels"
    looked = "whole images are looked at" if tile is None else f"images are looked at in windows of {tile}"
    same = "no tile" if support.tile is None else f"tile {support.tile}"
    other = "without one" if tile is None else f"with tile {tile}"
    warnings.warn(
        f"support {support.name!r} {is_cut}, and {looked}: things differ in size; use {same}, or make the support {other}",
        stacklevel=3,
    )


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]


def _read_ahead(
    readers: ThreadPoolExecutor, images: Iterable[ImageLike], count: int, complain: Complain | None
) -> Iterator[tuple[int, ImageLike, Pixels]]:
    """Each image that can be read with its number, in order, at most `count` read before they are asked for, fewer if large."""
    source = ((place, image, _area_of(image)) for place, image in enumerate(images))
    waiting: deque[tuple[int, ImageLike, int, Future[Pixels]]] = deque()
    upcoming = next(source, None)
    try:
        while waiting or upcoming is not None:
            while upcoming is not None and len(waiting) < count:
                place, image, area = upcoming
                if waiting and sum(one[2] for one in waiting) + area > _MOST_PIXELS:
                    break
                waiting.append((place, image, area, readers.submit(to_image, image, f"images[{place}]")))
                upcoming = next(source, None)
            place, image, _, future = waiting.popleft()
            try:
                pixels = future.result()
            except DataError as error:
                if complain is None:
                    raise
                complain(place, error)
                continue
            del future
            yield place, image, pixels
            del pixels  # before a large one is read, which takes more memory than it has
    finally:
        for *_, future in waiting:
            future.cancel()


def _area_of(image: ImageLike) -> int:
    """Pixels of an image that is not read yet; 0 where that fails, as whoever reads it will say."""
    if isinstance(image, str | os.PathLike):
        try:
            height, width = image_size(Path(os.fsdecode(image)))
        except DataError:
            return 0
        return height * width
    size = image.size if isinstance(image, Image.Image) else getattr(image, "shape", ())
    return math.prod(size)


def _held_together(
    images: Iterable[tuple[int, ImageLike, Pixels]], count: int
) -> Iterator[list[tuple[int, ImageLike, Pixels]]]:
    """Lists of `count` images, the last one shorter, and those of large images too."""
    chunk: list[tuple[int, ImageLike, Pixels]] = []
    for one in images:
        chunk.append(one)
        if len(chunk) == count or sum(_area(pixels) for _, _, pixels in chunk) >= _MOST_PIXELS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _area(pixels: Pixels) -> int:
    return pixels.shape[0] * pixels.shape[1]


def _batched(items: Iterable[T], count: int) -> Iterator[list[T]]:
    """Lists of `count` items, the last one shorter."""
    rest = iter(items)
    while part := list(islice(rest, count)):
        yield part


def _input_scale(view: tuple[int, _View]) -> float:
    return view[1].scale


def _of_one_scale(group: Sequence[tuple[int, _View]]) -> Iterator[list[tuple[int, _View]]]:
    """A group, which is sorted by scale, in parts of one scale each."""
    for scale in dict.fromkeys(view.scale for _, view in group):
        yield [one for one in group if one[1].scale == scale]


def _scaled(size: int, scale: float) -> int:
    """An input size near a multiple of the network's, of 8 n + 1 pixels as its own."""
    return size if scale == 1 else 8 * max(8, round(size * scale / 8)) + 1


def _restored(values: Tensor, view: _View, config: InputConfig, rows: slice) -> Tensor:
    """Some rows of (S, S) of a view -> (height, width) of its window."""
    back = _enlarged(values[None], view, config, rows)[0]
    return back.flip(-1) if view.mirrored else back


def _followed(maps: Tensor, part: Tensor, view: _View, config: InputConfig, rows: slice) -> Tensor:
    """Some rows of (4, s, s) linear maps of a view and its (3, height, width) pixels -> (height, width) of its window."""
    whole = _enlarged(enlarge(maps[None], config.size)[0], view, config, rows)
    back = follow(whole, part[:, rows])
    return back.flip(-1) if view.mirrored else back


def _enlarged(maps: Tensor, view: _View, config: InputConfig, rows: slice) -> Tensor:
    """Some rows of (C, S, S) maps of a view -> (C, height, width) of its window."""
    size = (view.window.height, view.window.width)
    return restore(maps, size, config) if rows == slice(None) else restore_rows(maps, size, config, rows)


def _resemblance(prediction: Prediction, inside: Tensor) -> Tensor:
    """(B,) how much the answers are like what the support marks."""
    assert prediction.similarity is not None
    return resemblance(prediction.probability, prediction.similarity, inside)


def _sharpener(image: Pixels) -> Sharpen:
    """What sharpens the answers for an image, which is encoded once, and only if anything is marked in it."""
    clicker = shared(_REFINER)

    @cache
    def encoded() -> EncodedImage:
        return clicker.encode(image)

    def sharpen(probability: NDArray[np.float32], threshold: float) -> NDArray[np.float32]:
        return clicker.refine(encoded(), probability, threshold) if (probability > threshold).any() else probability

    return sharpen


def _finished(
    image: Pixels, probability: NDArray[np.float32], sure: float, plan: _Plan, sharpen: Sharpen | None
) -> Segmentation:
    found = Segmentation(probability, np.zeros(probability.shape, bool), sure, image)
    if plan.drop_absent and not found.present:
        return found
    if sharpen is not None:
        probability = sharpen(probability, plan.threshold)
    mask = clean(probability > plan.threshold, plan.smallest, plan.fill_holes)
    return replace(found, probability=probability, mask=mask)


def _digest(model: CyCTR) -> str:
    """A checksum by which a support knows its network; the head that only training uses may be missing from a checkpoint."""
    total = hashlib.sha256(repr(model.config).encode())
    for name, value in sorted(model.state_dict().items()):
        if name.startswith("auxiliary."):
            continue
        total.update(name.encode())
        total.update(np.ascontiguousarray(value.detach().cpu().float().numpy()).tobytes())
    return total.hexdigest()[:16]
