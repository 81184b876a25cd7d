"""Fitting what recognises training classes: ridge regression from backbone features to their labels, without gradients."""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cyctr.backbones.backbone import Backbone
from cyctr.episodes.image_store import Pair, Store
from cyctr.seeding import Stream, random_bits
from cyctr.training.whole_images import BATCH, whole_images
from cyctr.types import IGNORE

_IMAGES = 400  # that are looked at
_CELLS = 500  # of each
_RIDGE = 0.1  # of the mean square of a feature
OnImages = Callable[[], None]
_FIRST = 2  # the label of the first class: a cell that is labelled 1 has a meaning of its own


def choose_images(holders: Mapping[int, Sequence[int]], classes: Sequence[int], key: Sequence[str | int]) -> list[int]:
    """Some images of each class in turn, as a function of the key alone, in order.

    Args:
        holders: the images of each class.
        classes: which ones.
        key: another one, other images.
    """
    stream = Stream("familiar", *key)
    chosen: dict[int, None] = {}
    orders = {number: iter(stream.choose(len(holders[number]), len(holders[number]))) for number in classes}
    while orders and len(chosen) < _IMAGES:
        for number in list(orders):
            place = next(orders[number], None)
            if place is None:
                del orders[number]
            elif len(chosen) < _IMAGES:
                chosen[holders[number][place]] = None
    return sorted(chosen)


@torch.no_grad()
def fit_familiar(
    store: Store,
    pairs: Sequence[Pair],
    images: Sequence[int],
    classes: Sequence[int],
    backbone: Backbone,
    size: int,
    on_batch: OnImages | None = None,
) -> Tensor:
    """(classes, 1 + C) the weights of `Familiar` with which the labels of the images are met best.

    Args:
        store: where the images are.
        pairs: all labelled pairs; whatever those of the classes do not mark is background.
        images: what to learn from, each of one of the classes.
        classes: to be recognised, a row for each.
        backbone: of the features.
        size: of the network's input.
        on_batch: called before each batch of images.
    """
    rows = {number: place for place, number in enumerate(classes)}
    width = 1 + sum(backbone.channels)
    device = backbone.mean.device
    gram, target = torch.zeros(width, width, device=device), torch.zeros(width, len(rows), device=device)
    seen = 0
    own = [pair for pair in pairs if pair[1] in rows]
    batches = whole_images(store, own, images, size, BATCH[device.type], lambda number: _FIRST + rows[number])
    for pixels, labels, _ in batches:
        if on_batch is not None:
            on_batch()
        features = backbone(pixels)
        cells = backbone.grid.cells(labels, (features.maps[0].shape[-2], features.maps[0].shape[-1])).flatten(1)  # (B, hw)
        luck = random_bits(torch.arange(len(cells), device=device) + seen, cells.shape[1])
        luck = torch.where(cells == IGNORE, -1, luck)
        chosen = luck.topk(min(_CELLS, cells.shape[1]))
        maps = torch.cat(features.maps, 1).flatten(2).transpose(1, 2).float()  # (B, hw, C)
        picked = maps.gather(1, chosen.indices[..., None].expand(-1, -1, maps.shape[-1]))[chosen.values >= 0]  # (n, C)
        truth = cells.gather(1, chosen.indices)[chosen.values >= 0].long() - _FIRST
        with torch.autocast(device.type, enabled=False):
            inputs = F.pad(picked, (1, 0), value=1.0)  # (n, 1 + C)
            gram += inputs.T @ inputs
            target += inputs.T @ F.one_hot(truth.clamp_min(-1) + 1, len(rows) + 1)[:, 1:].to(inputs.dtype)
        seen += len(cells)
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(width, device=device)
    return torch.linalg.solve((gram + ridge).double(), target.double()).float().T
