"""Finding latent classes: the background of the training images, grouped by what the backbone says of it."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cyctr.backbones.backbone import Backbone
from cyctr.datasets.dataset import OnProgress
from cyctr.episodes.image_store import Pair, Store
from cyctr.episodes.latent import UNDECIDED, Regions
from cyctr.seeding import Stream, random_bits
from cyctr.training.whole_images import BATCH, whole_images
from cyctr.types import IGNORE

_CELLS = 32  # of each image that are grouped
_RIM = 2  # cells
_ROUNDS = 20
_STEP = 4  # pixels of the network's input from one cell of a map to the next


@torch.no_grad()
def mine(
    store: Store,
    pairs: Sequence[Pair],
    images: Sequence[int],
    backbone: Backbone,
    count: int,
    size: int,
    unsure: float = 0.0,
    progress: OnProgress | None = None,
) -> Regions:
    """Groups the background cells of images by their high-level features, and says which group each place is of.

    Args:
        store: where the images are.
        pairs: all labelled pairs; what they mark is no background.
        images: where to look.
        backbone: of the features.
        count: how many groups.
        size: of the network's input.
        unsure: share of the background of all images that is left undecided, where a second group is almost as near.
        progress: told how many images are seen, of twice as many.
    """
    cells, seen = [], 0
    batch = BATCH[backbone.mean.device.type]
    for pixels, labels, _ in whole_images(store, pairs, images, size, batch):
        high = backbone(pixels).maps[-1]
        free = _inner(backbone.grids[-1].cells(labels, (high.shape[-2], high.shape[-1]))).flatten(1)  # (B, hw)
        luck = random_bits(torch.arange(len(free), device=free.device) + seen, free.shape[1])
        chosen = torch.where(free, luck, -1).topk(min(_CELLS, free.shape[1])).indices  # (B, cells)
        vectors = F.normalize(high.flatten(2).transpose(1, 2).float(), dim=-1)  # (B, hw, C)
        picked = vectors.gather(1, chosen[..., None].expand(-1, -1, vectors.shape[-1]))
        cells.append(picked[free.gather(1, chosen)])
        seen += len(free)
        if progress is not None:
            progress(seen, 2 * len(images))
    centres = group(torch.cat(cells), count)
    if not len(centres):
        return _nothing()
    maps, margins, steps, sizes = [], [], [], []
    for pixels, labels, pictures in whole_images(store, pairs, images, size, batch):
        nearest, margin = _nearest(backbone, pixels, centres)
        known = labels[:, ::_STEP, ::_STEP]
        maps.append(torch.where(known == IGNORE, UNDECIDED, nearest.masked_fill(known == 1, 0)).byte())
        margins.append(margin.half())
        steps.append(_STEP * pictures.sizes.amax(1).double() / size)
        sizes.append(pictures.sizes)
        seen += len(labels)
        if progress is not None:
            progress(seen, 2 * len(images))
    with torch.autocast(centres.device.type, enabled=False):  # on a CPU it joins no float16
        decided = _without_unsure(torch.cat(maps), torch.cat(margins), unsure)
    return Regions(images, decided, torch.cat(steps), torch.cat(sizes), len(centres))


def _nothing() -> Regions:
    """The regions of no image."""
    maps, sizes = torch.zeros(0, 1, 1, dtype=torch.uint8), torch.zeros(0, 2, dtype=torch.int64)
    return Regions([], maps, torch.zeros(0, dtype=torch.float64), sizes, 0)


def _nearest(backbone: Backbone, pixels: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Of each place, int64 1 + the centre that it is most like, and how much more so than the next: (B, s, s) each."""
    vectors = F.normalize(backbone(pixels).maps[-1].float(), dim=1)
    with torch.autocast(vectors.device.type, enabled=False):
        likeness = F.avg_pool2d(torch.einsum("kc,bchw->bkhw", centres, vectors), 3, 1, 1)  # without specks
    places = backbone.grids[-1].upsample(likeness, (pixels.shape[-2], pixels.shape[-1]))[..., ::_STEP, ::_STEP]
    best = places.topk(min(2, len(centres)), dim=1)  # of one centre, its own next
    return best.indices[:, 0] + 1, best.values[:, 0] - best.values[:, -1]


def _without_unsure(maps: Tensor, margins: Tensor, share: float) -> Tensor:
    """The maps (n, s, s) with this share of all that is of a group undecided: the places of the smallest margins."""
    grouped = (maps != 0) & (maps != UNDECIDED)
    ranked = margins[grouped].sort().values
    if not len(ranked):
        return maps
    return maps.masked_fill(grouped & (margins < ranked[int(share * len(ranked))]), UNDECIDED)


def group(vectors: Tensor, count: int) -> Tensor:
    """(count, C) centres of unit length: k-means by cosine, from a fixed start, the same each time.

    Args:
        vectors: (n, C) of unit length.
        count: how many groups; fewer where there are fewer vectors.
    """
    start = Stream("latent", count).choose(len(vectors), min(count, len(vectors)))
    centres = vectors[torch.tensor(start, dtype=torch.int64, device=vectors.device)]
    for _ in range(_ROUNDS if start else 0):
        with torch.autocast(vectors.device.type, enabled=False):
            nearest = (vectors @ centres.T).argmax(1)
            total = F.one_hot(nearest, len(centres)).to(vectors.dtype).T @ vectors  # (count, C)
        empty = total.norm(dim=1, keepdim=True) < 1e-6
        centres = torch.where(empty, centres, F.normalize(total, dim=1))
    return centres


def _inner(cells: Tensor) -> Tensor:
    """(B, h, w) bool: background that is no neighbour of the image's rim, where features speak of the rim."""
    undecided = F.pad((cells == IGNORE).float(), (_RIM,) * 4, value=1.0)
    return (cells == 0) & (F.max_pool2d(undecided, 2 * _RIM + 1, 1) == 0)
