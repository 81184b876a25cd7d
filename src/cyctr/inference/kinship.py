"""Whether a region shows the same kind of thing as the support, asked of the ImageNet classifier of the backbone.

A thing of a class that ImageNet lacks still excites the classes that are like it. Two regions of one class excite the same
ones, and the hundred likeliest say enough: how much the others are excited differs from picture to picture.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from cyctr.backbones.recognition import Recogniser

_TENTH = 0.1  # of the classes: the likeliest, which count
_CELLS = 256  # of an answer that are looked at, the most probable ones


def excited(scores: Tensor) -> Tensor:
    """(..., classes) by how much the likeliest tenth of the classes exceed the rest, of unit length; the rest is 0."""
    count = max(1, round(_TENTH * scores.shape[-1]))
    least = scores.topk(count + 1, dim=-1).values[..., -1:] if count < scores.shape[-1] else scores.amin(-1, keepdim=True)
    return F.normalize((scores - least).clamp_min(0), dim=-1)


def kind_of_support(recogniser: Recogniser, high: Tensor, foreground: Tensor) -> Tensor:
    """What kind of thing K labelled images show.

    Args:
        recogniser: of the backbone.
        high: (K, C, h, w) its last features.
        foreground: (K, h, w) bool; some of at least one image.

    Returns:
        (classes,) from `excited`, of the mean over images.
    """
    means = [
        recogniser.describe(one.flatten(1).T[marked.flatten()]).mean(0)
        for one, marked in zip(high, foreground, strict=True)
        if bool(marked.any())
    ]
    return excited(recogniser.scores(torch.stack(means).mean(0)))


def kinship(recogniser: Recogniser, high: Tensor, probability: Tensor, kind: Tensor) -> Tensor:
    """How much what was found is of the kind of thing that the support shows.

    Args:
        recogniser: of the backbone.
        high: (B, C, h, w) last features of the queries.
        probability: (B, h, w) of the class; 0 beyond the image.
        kind: from `kind_of_support`.

    Returns:
        (B,) roots of cosines, from 0 to 1; the root spreads the small ones, where most absent things are.
    """
    flat = probability.float().flatten(1).nan_to_num()  # (B, hw)
    weight, place = flat.topk(min(_CELLS, flat.shape[1]), dim=1)  # (B, N)
    weight = torch.where(weight >= 0.5 * weight[:, :1], weight, 0).square().clamp_min(1e-12)
    cells = high.flatten(2).transpose(1, 2).gather(1, place[..., None].expand(-1, -1, high.shape[1]))  # (B, N, C)
    described = recogniser.describe(cells)  # (B, N, W)
    mean = (described * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)
    return (excited(recogniser.scores(mean)) @ kind).clamp_min(0).sqrt()
