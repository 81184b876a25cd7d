"""How sure we are that the class is in the query at all.

Few-shot networks learn from queries that hold the class, so they mark something in any image, and are about as certain of it.
What tells the two apart is whether the marked place is the kind of thing that the support marks: by the ImageNet classifier of
the backbone (`kinship`), or, where there is none we know, by features that were never trained to segment (`resemblance`).
`experiments/presence.py` and `experiments/confidence.py` measure how often that is right, and make the numbers below.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cyctr.config import BackboneConfig
from cyctr.errors import DataError

_PEAK_SHARE = 0.5  # of the largest probability: what has more is looked at. Of a clear answer this is the mask.
_BEST_SHARE = 0.1  # of what is looked at: the most similar tenth decides, since masks hold parts that resemble nothing
_EXPECTED = 0.8  # share of images that hold the class: people look for things where these are
_MOST_SHOTS = 5  # the most that was measured: more shots count as these


@dataclass(frozen=True)
class Calibration:
    """The logistic regression from resemblance to confidence, for the features of one backbone.

    Attributes:
        bias: the log odds at resemblance 0 with one shot.
        slope: log odds for each unit of resemblance.
        per_log_shot: log odds for each unit of ln K. The mean of several shots is closer to every image, of its class or not.
    """

    bias: float
    slope: float
    per_log_shot: float


CALIBRATIONS: Mapping[str, Calibration] = {
    "resnet50-keras": Calibration(bias=-6.65, slope=20.17, per_log_shot=-0.66),
    "resnet50-keras, tuned": Calibration(bias=-6.08, slope=15.64, per_log_shot=-0.74),
    "efficientnet-lite0": Calibration(bias=-3.11, slope=13.97, per_log_shot=-0.62),
}
"""Of resemblance, by the name of the backbone (`calibration_name`): cosines of different features are not comparable."""

OF_KINSHIP: Mapping[str, Calibration] = {
    "efficientnet-lite0": Calibration(bias=-3.63, slope=8.79, per_log_shot=0.0),
}
"""Of the root of kinship (`cyctr.inference.kinship`), likewise. `experiments/presence.py` makes these numbers."""

UNKNOWN = Calibration(bias=-5.0, slope=17.0, per_log_shot=-0.4)
"""For other backbones: between those that were measured, so that the order of images means more than the number."""


def calibration_name(backbone: BackboneConfig) -> str:
    """What decides which numbers are right for a backbone: its weights, and whether they were tuned."""
    return f"{backbone.weights or ''}{', tuned' if backbone.tuned else ''}"


def confidence(resemblance: float, shots: int, calibration: Calibration) -> float:
    """The probability that the query holds the class, if four of five queries did.

    Args:
        resemblance: of the answer, as the function of that name gives it; or its kinship, with a calibration `OF_KINSHIP`.
        shots: K.
        calibration: of the network's backbone, one of `CALIBRATIONS`.

    Returns:
        A number in [0, 1]. Below 0.5 the class is probably not there.
    """
    if shots < 1:
        raise DataError(f"shots is {shots}; expected at least 1")
    odds = calibration.bias + calibration.slope * resemblance + calibration.per_log_shot * math.log(min(shots, _MOST_SHOTS))
    odds += math.log(_EXPECTED / (1 - _EXPECTED))  # calibrations are made as if it were there as often as not
    return 0.5 * (1 + math.tanh(odds / 2))  # the logistic function, which cannot overflow


def resemblance(probability: Tensor, similarity: Tensor, inside: Tensor) -> Tensor:
    """How similar the most similar tenth of each answer is, at least, to what the support marks.

    Args:
        probability: (B, H, W) of foreground, the network's own.
        similarity: (B, H, W) `Prediction.similarity`.
        inside: (B, H, W) bool, false for padding; some of each is true.

    Returns:
        (B,) cosines in [-1, 1], where the maps are: nothing waits for them.
    """
    shapes = [tuple(maps.shape) for maps in (probability, similarity, inside)]
    if len(set(shapes)) > 1 or probability.numel() == 0:
        raise DataError("probability is {}, similarity {}, inside {}; expected maps of one size".format(*shapes))
    looked = probability.masked_fill(~inside, -1).flatten(1)
    answer = looked >= _PEAK_SHARE * looked.amax(1, keepdim=True).clamp_min(0)  # never empty, whatever the mask is
    most = math.ceil(_BEST_SHARE * (answer.shape[1] - 1)) + 1
    best = similarity.float().flatten(1).masked_fill(~answer, -math.inf).topk(most).values  # (B, most), falling
    place = _BEST_SHARE * (answer.sum(1, keepdim=True) - 1).clamp_min(0).double()  # between two of them
    lower, upper = (best.gather(1, index.long()) for index in (place.floor(), place.ceil()))
    return torch.lerp(lower, upper, (place % 1).float())[:, 0]
