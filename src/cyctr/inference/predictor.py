"""A network ready to answer: on its device, at its precision, with what it can do beside segmenting."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cyctr.backbones.recognition import load_recogniser
from cyctr.config import InputConfig, changed
from cyctr.devices import choose_device, half_pays
from cyctr.errors import ConfigError
from cyctr.images.geometry import fit_image, fit_label, seen_planes
from cyctr.inference.confidence import CALIBRATIONS, OF_KINSHIP, UNKNOWN, calibration_name, resemblance
from cyctr.inference.feature_cache import FeatureCache
from cyctr.inference.kinship import kind_of_support, kinship
from cyctr.inference.likeness import likeness_map, mean_foreground
from cyctr.inference.matching import WEIGHT, balanced
from cyctr.inference.supports.encoded import EncodedSupport
from cyctr.inference.tiles import Window
from cyctr.methods.base import LimitsSupport, MatchesPlainly, Method
from cyctr.methods.table import METHODS, name_of
from cyctr.types import Features, Pixels, Prediction


class Answer(NamedTuple):
    """What a network says of B views and one class.

    Attributes:
        probability: (B, S, S) of being of the class, plain matching included.
        likeness: (B,) how like the class what was found is, as `Predictor.calibration` reads it.
    """

    probability: Tensor
    likeness: Tensor


class Predictor:
    """A network for inference; it cannot be trained any more."""

    def __init__(self, model: Method[Any], size: int, device: str | torch.device, precision: str) -> None:
        """Moves the network to its device and makes it fast; arguments as of `Segmenter`."""
        if precision not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"precision is {precision!r}; expected auto, float32 or bfloat16")
        self.device = choose_device(str(device))
        self.half = half_pays(self.device) if precision == "auto" else precision == "bfloat16"
        if isinstance(size, bool) or not isinstance(size, int) or not 64 <= size <= 4096:
            raise ConfigError(f"size is {size!r}; expected 64 to 4096 pixels, best what the network was trained on")
        self.input = InputConfig(size)
        self.digest = _digest(model)
        self.model = model.to(self.device).accelerate()
        self.cache: FeatureCache | None = None
        name = calibration_name(model.config.backbone)
        self.recogniser = load_recogniser(model.backbone) if name in OF_KINSHIP else None
        if self.recogniser is not None:
            self.recogniser.to(self.device)
        self.calibration = CALIBRATIONS.get(name, UNKNOWN) if self.recogniser is None else OF_KINSHIP[name]

    def precision(self) -> AbstractContextManager[object]:
        """The context in which the network computes."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext()

    def fitted(self, pixels: Pixels, label: Pixels, window: Window) -> tuple[Tensor, Tensor]:
        """A window of an image and its label as the network sees them."""
        part = torch.from_numpy(np.ascontiguousarray(label[window.slices]))
        return fit_image(seen_planes(pixels[window.slices]), self.input), fit_label(part, self.input)

    @torch.inference_mode()
    def encode(self, images: Tensor, labels: Tensor, closer: int, negatives: int = 0) -> tuple[Any, Tensor, Tensor | None]:
        """What the method makes of labelled images, (1, C) the mean foreground of their deepest features, and their `kind`.

        Args:
            images: (K + closer + negatives, 3, S, S) uint8.
            labels: (K + closer + negatives, S, S) uint8.
            closer: how many of the images, after the K labelled ones, are closer looks at these.
            negatives: how many of the images, the last ones, show nothing of the class.
        """
        model, own = self.model, labels[None].to(self.device)
        marked = len(images) - negatives
        with self.precision():
            features = self.features(images.to(self.device))
            if isinstance(model, LimitsSupport):  # the marked images have no more than without the closer looks
                encoded = model.encode_within(features, own, marked - closer, negatives)
            else:
                encoded = model.encode_support(features, own)
            mean = mean_foreground(features, own, model.backbone.grids[-1])
        if self.recogniser is None:
            return encoded, mean, None
        deepest = features.maps[-1]
        cells = model.backbone.grids[-1].cells(own[0], (deepest.shape[-2], deepest.shape[-1]), True)
        return encoded, mean, kind_of_support(self.recogniser, deepest, cells == 1)

    def answers(
        self, inputs: Tensor, padding: Tensor, supports: Iterable[EncodedSupport], votes: float | None
    ) -> Iterator[Answer]:
        """The answers to (B, 3, S, S) views for each class; the views are encoded once.

        Args:
            inputs: of one size.
            padding: (B, S, S) bool, beyond the images.
            supports: one for each class.
            votes: weight of plain matching; None is the usual one.
        """
        with self.precision():
            query = self.prepared(inputs)
            predictions = [(*self.predicted(query, support, padding), support) for support in supports]
        for prediction, similarity, support in predictions:
            found = self.blended(prediction, support, votes)
            yield Answer(found, self._likeness(query, prediction, similarity, support, found, padding))

    def prepared(self, inputs: Tensor) -> Features:
        """What no support changes of (B, 3, S, S) views."""
        return self.model.prepare(self.features(inputs))

    def features(self, images: Tensor) -> Features:
        """The backbone's features of (B, 3, S, S) images, from the cache where there is one and it knows them."""
        if self.cache is None:
            return self.model.backbone(images)
        return self.cache.features(images, f"{self.digest} {self.half}", self.model.backbone)

    def predicted(
        self, query: Features, support: EncodedSupport, padding: Tensor, explain: bool = False
    ) -> tuple[Prediction, Tensor]:
        """The method's own answer, and (B, S, S) how like the class each place is, by features that nothing was learned for."""
        size = (padding.shape[-2], padding.shape[-1])
        prediction = self.model.predict(query, support.encoded, size, padding, explain)
        return prediction, likeness_map(query, support.mean_foreground, self.model.backbone.grids[-1], size)

    def blended(self, prediction: Prediction, support: EncodedSupport, votes: float | None = None) -> Tensor:
        """(B, S, S) the mean of what the network says and of what the support's tokens say by themselves."""
        weight = WEIGHT if votes is None else votes
        plain = self.matched(prediction, support) if weight else None
        return prediction.probability if plain is None else torch.lerp(prediction.probability, plain, weight)

    def _likeness(
        self,
        query: Features,
        prediction: Prediction,
        similarity: Tensor,
        support: EncodedSupport,
        found: Tensor,
        padding: Tensor,
    ) -> Tensor:
        """(B,) how like the class what was found is."""
        if self.recogniser is None or support.kind is None:
            return resemblance(prediction.probability, similarity, ~padding)
        deepest = query.maps[-1]
        inside = found.masked_fill(padding, 0)[:, None]
        cells = F.adaptive_avg_pool2d(inside, (deepest.shape[-2], deepest.shape[-1]))[:, 0]
        return kinship(self.recogniser, deepest, cells, support.kind)

    def matched(self, prediction: Prediction, support: EncodedSupport) -> Tensor | None:
        """(B, S, S) what the support's tokens say by themselves, in plain matching; None for a method without it."""
        found = self.model.matching(prediction, support.encoded) if isinstance(self.model, MatchesPlainly) else None
        if found is None:
            return None
        size = (prediction.logits.shape[-2], prediction.logits.shape[-1])
        odds = balanced(found.votes, found, labelled=len(support.images) - support.negatives).logit(1e-6)  # (B, n, h, w)
        shares = odds.mean(1, keepdim=True).sigmoid()  # (B, 1, h, w)
        return self.model.backbone.grid.upsample(shares, size)[:, 0]


def _digest(model: Method[Any]) -> str:
    """A checksum by which a support knows its network; what only training uses may be missing from a checkpoint."""
    name = name_of(type(model))
    total = hashlib.sha256((json.dumps(changed(model.config)) + (name if name not in METHODS else "")).encode())
    for name, value in sorted(model.state_dict().items()):
        if name.startswith(model.training_only):
            continue
        total.update(name.encode())
        total.update(np.ascontiguousarray(value.detach().cpu().float().numpy()).tobytes())
    return total.hexdigest()[:16]
