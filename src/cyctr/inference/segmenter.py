"""Labelled images of a class, then any number of images -> masks. The public API.

`Segmenter` says what happens to an image: `reading_ahead` reads it, `looking` asks the network, `finishing` makes the mask.
"""

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from cyctr import pretrained
from cyctr.backbones.weights import CATALOGUE, cache
from cyctr.checkpoint import describe_checkpoint, load_checkpoint
from cyctr.devices import choose_device, episodes_together
from cyctr.errors import ConfigError, DataError
from cyctr.inference.confidence import confidence
from cyctr.inference.feature_cache import FeatureCache
from cyctr.inference.finishing import finished, prepare_refiner, sharpener
from cyctr.inference.inputs import ImageLike, MaskLike
from cyctr.inference.looking import Seen, look
from cyctr.inference.predictor import Predictor
from cyctr.inference.reading_ahead import Read, Unreadable, in_chunks
from cyctr.inference.result import ImageResult, Segmentation
from cyctr.inference.segment_options import SegmentOptions
from cyctr.inference.supports.encoded import EncodedSupport, read_support
from cyctr.inference.supports.reading import LabelledClasses
from cyctr.inference.supports.shots import Shots
from cyctr.methods.base import Method
from cyctr.methods.untrained import check_untrained, open_untrained
from cyctr.words import counted

OnBytes = Callable[[int, int], None]
"""Told the bytes that have arrived, and how many there are."""
_MOST_TOGETHER = 32  # images on a GPU: more gain little
_MOST_WINDOWS = 8  # of tiled images, likewise: these are large, and their answers take memory too


class Segmenter:
    """Finds in images what a few labelled ones show. It keeps nothing between calls: threads may share it.

    segmenter = Segmenter.from_pretrained()
    cup = segmenter.encode_support("cup.jpg", "cup-mask.png", name="cup")
    segmenter.segment("table.jpg", cup).save("table-cup.png")
    """

    def __init__(
        self,
        model: Method[Any],
        size: int = 473,
        device: str | torch.device = "auto",
        precision: str = "auto",
        name: str = "network",
    ) -> None:
        """Prepares a network for inference; it cannot be trained any more.

        Args:
            model: a trained network, of any method.
            size: height and width of what it sees; best what it was trained on.
            device: "auto" takes a GPU where there is one.
            precision: "auto" is bfloat16 on a GPU and on a CPU that has it, float32 elsewhere; or "float32", "bfloat16".
            name: of the network, for messages.
        """
        self.name = name
        self.network = Predictor(model, size, device, precision)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path | None = None,
        *,
        device: str | torch.device = "auto",
        precision: str = "auto",
        size: int | None = None,
        progress: OnBytes | None = None,
    ) -> "Segmenter":
        """One of the networks that come with the package, or a checkpoint. Its backbone is fetched where it is not here yet.

        Args:
            name: "lite0" (the default, light) or "resnet50", or the path of a checkpoint.
            device: "auto" takes a GPU where there is one.
            precision: "auto" is bfloat16 on a GPU and on a CPU that has it, float32 elsewhere.
            size: of what the network sees; by default what it was trained on.
            progress: told the bytes that have arrived, and how many there are, while a backbone is fetched.
        """
        if name is not None and not isinstance(name, str | os.PathLike):
            raise ConfigError(f"name is {name!r}; expected {' or '.join(pretrained.NAMES)}, or the path of a checkpoint")
        path = pretrained.find(pretrained.DEFAULT if name is None else str(name))
        device = choose_device(str(device))
        config, _ = describe_checkpoint(path)
        _fetch(config.model.backbone.weights, progress)
        model, _ = load_checkpoint(path)
        return cls(model, config.training.augmentation.size if size is None else size, device, precision, path.stem)

    @classmethod
    def from_method(
        cls,
        name: str,
        *,
        weights: str = "efficientnet-lite0",
        device: str | torch.device = "auto",
        precision: str = "auto",
        size: int | None = None,
        progress: OnBytes | None = None,
    ) -> "Segmenter":
        """A method that needs no training: a reference such as "prototype", or a class of your own.

        Args:
            name: "prior" or "prototype", with a variant as in "prior:0.6", or "package.module:Class".
            weights: of its backbone: a name of the catalogue.
            device: as of `from_pretrained`; `precision` and `progress` likewise.
            precision: see there.
            size: of what the method sees; by default what its recipe says.
            progress: see there.
        """
        device = choose_device(str(device))
        check_untrained(name, weights)
        _fetch(weights, progress)
        model = open_untrained(name, weights)
        usual: int = type(model).Config().training.augmentation.size
        return cls(model, usual if size is None else size, device, precision, name)

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        return self.network.device

    @property
    def digest(self) -> str:
        """A checksum of the network: a support knows by it who encoded it."""
        return self.network.digest

    def remember_features(self, folder: str | Path, most: int = 4 * 2**30) -> None:
        """Keeps backbone features in a folder, which may be removed at any time: an image that was seen costs less then.

        Args:
            folder: holds nothing else; it is made if need be.
            most: bytes of all files, of which the oldest go first.
        """
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise ConfigError(f"most is {most!r}; expected a number of bytes")
        self.network.cache = FeatureCache(Path(folder), most)

    def encode_support(
        self,
        images: ImageLike | Sequence[ImageLike],
        masks: MaskLike | Sequence[MaskLike],
        *,
        name: str = "object",
        class_id: int | None = None,
        tile: int | None = None,
        negatives: ImageLike | Sequence[ImageLike] = (),
    ) -> EncodedSupport:
        """Learns a class from labelled images, in one pass and without training.

        Args:
            images: K of them, or one: paths, PIL images, arrays or tensors, of any size.
            masks: one for each: the same kinds of things, or `Polygons`, or a `Box`. Where others mark something, an image
                whose mask is 0 everywhere is a negative.
            name: of the class.
            class_id: the value of the class in masks that hold several.
            tile: cut a window of so many pixels around the object from each: for queries that are looked at in such tiles.
            negatives: images that show nothing of the class, such as things that were taken for it: all of them is background.
        """
        images, masks, negatives = _listed(images), _listed(masks), _listed(negatives)
        shots = Shots(self.network.fitted, tile, bool(negatives))
        if not isinstance(name, str) or not name:
            raise ConfigError(f"name is {name!r}; expected that of the class, such as 'cup'")
        if negatives and not images:
            raise DataError(
                f"{counted(len(negatives), 'negative')} and no labelled image; expected one or more that show the class"
            )
        if not images or len(images) != len(masks):
            raise DataError(f"{len(images)} images and {len(masks)} masks; expected one mask for each of one or more images")
        shots.read(images, masks, class_id)
        return self._learned(name, shots, negatives)

    def encode_supports(
        self,
        found: LabelledClasses,
        *,
        tile: int | None = None,
        negatives: ImageLike | Sequence[ImageLike] = (),
        complain: Callable[[str], None] | None = None,
    ) -> dict[str, EncodedSupport]:
        """Learns every class that `read_supports` has found, by name.

        Args:
            found: what `read_supports` gives.
            tile: as in `encode_support`.
            negatives: images that show none of the classes; a finished support in a file takes no more of them.
            complain: told of each labelled image that cannot be read any more, and is left out; by default a warning.
        """
        told, without = complain or partial(warnings.warn, stacklevel=2), _listed(negatives)
        finished = [given for given in found.classes.values() if isinstance(given, Path)]
        if finished and without:
            raise ConfigError(
                f"{finished[0]}: is a finished support, to which no negatives are added; give the folder it was made of"
            )
        encoded = {}
        for name, given in found.classes.items():
            if isinstance(given, Path):
                encoded[name] = self.load_support(given)
                continue
            shots = Shots(self.network.fitted, tile, bool(without))
            shots.read_files(name, given, told)
            encoded[name] = self._learned(name, shots, without)
        return encoded

    def load_support(self, path: str | Path) -> EncodedSupport:
        """The support of a file that `EncodedSupport.save` wrote, encoded for this network."""
        stored = read_support(path)
        size = self.network.input.size
        if stored.images.shape[-1] != size:
            raise DataError(
                f"{path}: was made for inputs of {stored.images.shape[-1]} pixels, this network takes {size}; "
                "save it again from the images"
            )
        return self._encoded(stored.name, stored.images, stored.labels, stored.tile, stored.closer, stored.negatives)

    def segment(self, image: ImageLike, support: EncodedSupport, **options: Any) -> Segmentation:
        """Where the class of a support is in an image; options as in `segment_many`."""
        self.check_support(support)
        (result,) = self.segment_many([image], {support.name: support}, **options)
        return result.classes[support.name]

    def segment_many(
        self,
        images: Iterable[ImageLike],
        supports: Mapping[str, EncodedSupport] | EncodedSupport,
        *,
        batch: int | None = None,
        complain: Unreadable | None = None,
        **options: Any,
    ) -> Iterator[ImageResult]:
        """Where each class is in each image, in the order of the images; each is encoded once for all classes.

        Args:
            images: as many as there are; they are read ahead a little, and forgotten when their result is given.
            supports: by the name of the class; or a single one.
            batch: how many are looked at together; by default as suits the device.
            complain: told the number and the problem of an image that cannot be read, which is then left out.
            **options: fields of `SegmentOptions`, such as threshold=0.4: see docs/segmenter.md.

        Yields:
            a result at the image's own size.
        """
        chosen = SegmentOptions().changed(options)
        if chosen.drop_absent == "auto":
            chosen = replace(chosen, drop_absent=self.network.recogniser is not None)
        if isinstance(images, str | os.PathLike | Image.Image | Tensor):
            raise DataError(f"images are {type(images).__name__}; expected several: use segment for one, or put it in a list")
        if not isinstance(images, Iterable):
            raise DataError(f"images are {images!r}; expected several images or paths")
        own = _by_name(supports)
        if not own:
            raise ConfigError("supports hold no class; expected at least one: encode_support makes it")
        for support in own.values():
            self.check_support(support)
            support.warn_of_tile(chosen.tile)
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise ConfigError(f"batch is {batch!r}; expected a whole number of images, at least 1")
        prepare_refiner(chosen.refine)  # missing weights are said before anything is looked at
        ready = {name: support.to(self.device) for name, support in own.items()}
        return self._results(images, ready, chosen, batch or self._together(own.values(), chosen), complain)

    def check_support(self, support: EncodedSupport) -> None:
        """Raises DataError for what this segmenter did not encode."""
        if not isinstance(support, EncodedSupport):
            raise DataError(f"a support is {type(support).__name__}; expected what encode_support gives")
        if support.model != self.digest:
            raise DataError(f"support {support.name!r} was encoded by another network than {self.name}; encode it again")

    def _learned(self, name: str, shots: Shots, negatives: Sequence[ImageLike]) -> EncodedSupport:
        """The support of labelled images, and of negatives that are not read yet."""
        shots.read_negatives(negatives)
        shots.warn_of_full(name)
        return self._encoded(name, *shots.looks, shots.tile, len(shots.near), len(shots.without))

    def _encoded(
        self, name: str, images: Tensor, labels: Tensor, tile: int | None, closer: int, negatives: int
    ) -> EncodedSupport:
        encoded, mean, kind = self.network.encode(images, labels, closer, negatives)
        return EncodedSupport(name, images, labels, encoded, mean, self.digest, tile, closer, negatives, kind)

    def _together(self, supports: Collection[EncodedSupport], options: SegmentOptions) -> int:
        """How many images to look at together, as suits the device."""
        shots = max(len(support.images) for support in supports)
        area = (self.network.input.size * max(options.scales) / 473) ** 2
        most = _MOST_TOGETHER if options.tile is None else _MOST_WINDOWS
        return min(most, episodes_together(self.device, shots, len(supports), area))

    def _results(
        self,
        images: Iterable[ImageLike],
        supports: Mapping[str, EncodedSupport],
        options: SegmentOptions,
        batch: int,
        complain: Unreadable | None,
    ) -> Iterator[ImageResult]:
        for chunk in in_chunks(images, batch, complain):
            yield from self._chunk_results(chunk, supports, options, batch)
            chunk.clear()  # before the next is read

    def _chunk_results(
        self, chunk: Sequence[Read], supports: Mapping[str, EncodedSupport], options: SegmentOptions, batch: int
    ) -> Iterator[ImageResult]:
        """The results of images that are looked at together; nothing of them is kept while the next are looked at."""
        looks = look(self.network, [one.pixels for one in chunk], supports, options, batch)
        for one in chunk:
            yield self._result(one, next(looks), supports, options)  # without a name here, which would keep it meanwhile

    def _result(
        self, read: Read, seen: Sequence[Seen], supports: Mapping[str, EncodedSupport], options: SegmentOptions
    ) -> ImageResult:
        sharpen = sharpener(read.pixels) if options.refine else None
        found = {}
        for (name, support), of_class in zip(supports.items(), seen, strict=True):
            sure = confidence(of_class.likeness, support.shots, self.network.calibration)
            found[name] = finished(read.pixels, of_class.probability, sure, options, sharpen)
        return ImageResult(read.source, read.place, found, options.smallest)


def _fetch(name: str | None, progress: OnBytes | None) -> None:
    """Fetches weights of the catalogue that are not here yet."""
    entry = CATALOGUE.get(name or "")
    if entry is not None and cache.cached(entry) is None:
        cache.get(entry, lambda done: progress(done, entry.size) if progress else None)


def _by_name(supports: object) -> dict[str, EncodedSupport]:
    """One support, or several by name; anything else is refused."""
    if isinstance(supports, EncodedSupport):
        return {supports.name: supports}
    if isinstance(supports, Mapping):
        return dict(supports)
    given = type(supports).__name__
    raise DataError(f"supports are {given}; expected one, or several by name: {{one.name: one for one in supports}}")


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]
