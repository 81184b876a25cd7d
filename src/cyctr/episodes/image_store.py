"""Labelled images before anything random happens to them: all on the device, or read while the network works."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from cyctr.config import InputConfig
from cyctr.datasets.dataset import OnProgress, Pool
from cyctr.datasets.index import Index
from cyctr.datasets.parallel import in_threads
from cyctr.devices import free_memory
from cyctr.errors import DataError
from cyctr.images.geometry import Size, content_size, fit_image, fit_label, planes
from cyctr.transfer import to_device
from cyctr.types import Pixels

ANCHORS = 64  # points kept of each object: a crop is laid around one of them
_TOGETHER = 64  # labels whose anchors are found together
_AHEAD = 3  # batches that are read while the network works
_SHARE = {"cuda": 0.6, "cpu": 0.4}  # of the free memory that images may take
Pair = tuple[int, int]
"""An image, as its place in the pool, and a class."""


@dataclass(frozen=True, eq=False)
class Pictures:
    """Labelled images, each in the top left of a canvas that all share.

    Attributes:
        images: (n, 3, H, W) uint8.
        labels: (n, H, W) uint8 of 0, 1 and 255.
        sizes: (n, 2) int64 height and width of what the image fills.
        anchors: (n, A, 2) float64 the (x, y) of points on the object.
    """

    images: Tensor
    labels: Tensor
    sizes: Tensor
    anchors: Tensor


class Store(Protocol):
    """Where training finds its images."""

    def stream(self, plans: Iterable[Sequence[Pair]]) -> Iterator[Pictures]:
        """The pictures of each plan, in order, on the store's device."""
        ...


@dataclass(frozen=True)
class _Frame:
    """Reads pairs of a pool onto one common canvas."""

    pool: Pool
    longest: int | None
    sizes: Mapping[int, Size]
    height: int
    width: int

    @classmethod
    def around(cls, pool: Pool, index: Index, images: Sequence[int], longest: int | None) -> "_Frame":
        sizes = {i: (int(index.sizes[i, 0]), int(index.sizes[i, 1])) for i in images}
        if longest is not None:
            config = InputConfig(longest)
            sizes = {i: content_size(size, config) if max(size) > longest else size for i, size in sizes.items()}
        return cls(pool, longest, sizes, max(size[0] for size in sizes.values()), max(size[1] for size in sizes.values()))

    def read(self, pair: Pair) -> Pictures:
        """One picture."""
        image, label = torch.from_numpy(self.image(pair[0])).permute(2, 0, 1), torch.from_numpy(self.label(pair))
        size = (label.shape[0], label.shape[1])
        rest = (0, self.width - size[1], 0, self.height - size[0])
        padded = F.pad(label, rest)
        return Pictures(F.pad(image, rest), padded, torch.tensor(size), self.anchors([pair], padded[None])[0])

    def image(self, i: int) -> Pixels:
        """(h, w, 3)."""
        return self._checked(i, self._small(self.pool.image(i)))

    def label(self, pair: Pair) -> Pixels:
        """(h, w)."""
        return self._checked(pair[0], self._small(self.pool.label(*pair)))

    def anchors(self, pairs: Sequence[Pair], labels: Tensor) -> Tensor:
        """(n, A, 2) float64 points spread evenly over the marked pixels, in reading order.

        Args:
            pairs: whose labels they are.
            labels: (n, H, W) uint8.
        """
        marked = (labels == 1).flatten(1)  # (n, HW)
        if not (present := marked.any(1)).all():
            key = self.pool.keys[pairs[int(present.int().argmin())][0]]
            raise DataError(f"{key}: marks no pixel of its class any more; was its mask changed? start again")
        place, width = spread(marked), labels.shape[-1]
        return torch.stack([place % width, place // width], -1).double() + 0.5

    def _small(self, pixels: Pixels) -> Pixels:
        """An image or a label whose longest side has at most `longest` pixels."""
        size = (pixels.shape[0], pixels.shape[1])
        if self.longest is None or max(size) <= self.longest:
            return pixels
        config = InputConfig(self.longest)
        height, width = content_size(size, config)
        if pixels.ndim == 2:
            return fit_label(torch.from_numpy(pixels), config)[:height, :width].numpy()
        return fit_image(planes(pixels), config)[:, :height, :width].permute(1, 2, 0).numpy()

    def _checked(self, i: int, pixels: Pixels) -> Pixels:
        expected = self.sizes[i]
        if pixels.shape[:2] != expected:
            raise DataError(
                f"{self.pool.keys[i]}: is {pixels.shape[0]} x {pixels.shape[1]} pixels, and was {expected[0]} x {expected[1]} "
                "when it was indexed; was it changed? start again"
            )
        return pixels


def spread(marked: Tensor) -> Tensor:
    """(n, A) int64: places spread evenly over the true ones of each row of (n, m) bool, in their order."""
    running = marked.cumsum(1, dtype=torch.int32)  # how many up to here
    steps = torch.linspace(0, 1, ANCHORS, device=marked.device, dtype=torch.float64)
    wanted = (steps * (running[:, -1:] - 1)).round().int() + 1  # (n, A)
    return torch.searchsorted(running, wanted)


class ResidentStore:
    """Every picture on the device, decoded once: an image once, a label for each of its classes."""

    def __init__(self, canvas: _Frame, pairs: Sequence[Pair], device: torch.device, progress: OnProgress | None = None) -> None:
        self.device = device
        rows_of: dict[int, list[int]] = {}
        for row, (image, _) in enumerate(pairs):
            rows_of.setdefault(image, []).append(row)
        images = list(rows_of)
        place = {image: row for row, image in enumerate(images)}
        self._rows = {pair: row for row, pair in enumerate(pairs)}
        self._image_of = torch.tensor([place[image] for image, _ in pairs])
        size = (canvas.height, canvas.width)
        self._images = torch.zeros(len(images), 3, *size, dtype=torch.uint8, device=device)
        self._labels = torch.zeros(len(pairs), *size, dtype=torch.uint8, device=device)

        def load(number: int) -> None:
            """One image and all its labels."""
            pixels = canvas.image(images[number])
            height, width = pixels.shape[:2]
            self._images[number, :, :height, :width] = torch.from_numpy(pixels).to(device).permute(2, 0, 1)
            for row in rows_of[images[number]]:
                self._labels[row, :height, :width] = torch.from_numpy(canvas.label(pairs[row])).to(device)

        for _ in in_threads(load, len(images), progress):
            pass
        self._sizes = torch.tensor([canvas.sizes[image] for image, _ in pairs]).to(device)
        pieces = [slice(start, start + _TOGETHER) for start in range(0, len(pairs), _TOGETHER)]
        self._anchors = torch.cat([canvas.anchors(pairs[piece], self._labels[piece]) for piece in pieces])

    def stream(self, plans: Iterable[Sequence[Pair]]) -> Iterator[Pictures]:
        """The pictures of each plan, in order."""
        for plan in plans:
            chosen = torch.tensor([self._rows[pair] for pair in plan])
            rows, images = to_device(torch.stack([chosen, self._image_of[chosen]]), self.device)
            yield Pictures(self._images[images], self._labels[rows], self._sizes[rows], self._anchors[rows])


class StreamingStore:
    """Pictures read by threads, a few batches ahead of the network, for data that does not fit the device."""

    def __init__(self, canvas: _Frame, device: torch.device, workers: int) -> None:
        self.device, self._canvas, self._workers = device, canvas, workers

    def stream(self, plans: Iterable[Sequence[Pair]]) -> Iterator[Pictures]:
        """The pictures of each plan, in order."""
        with ThreadPoolExecutor(self._workers) as readers:
            waiting: deque[list[Future[Pictures]]] = deque()
            try:
                for plan in plans:
                    waiting.append([readers.submit(self._canvas.read, pair) for pair in plan])
                    if len(waiting) > _AHEAD:
                        yield self._gather(waiting.popleft())
                while waiting:
                    yield self._gather(waiting.popleft())
            finally:
                readers.shutdown(wait=False, cancel_futures=True)

    def _gather(self, reads: Sequence[Future[Pictures]]) -> Pictures:
        found = [read.result() for read in reads]
        parts = ([getattr(one, name) for one in found] for name in ("images", "labels", "sizes", "anchors"))
        return Pictures(*(to_device(torch.stack(part), self.device) for part in parts))


def open_store(
    pool: Pool,
    index: Index,
    pairs: Sequence[Pair],
    device: torch.device,
    longest: int | None = None,
    resident: bool | None = None,
    workers: int | None = None,
    progress: OnProgress | None = None,
) -> ResidentStore | StreamingStore:
    """The store that suits the device.

    Args:
        pool: where images are read.
        index: of the pool.
        pairs: all (image, class) pairs that will be asked for.
        device: where the pictures shall be.
        longest: larger images are made so small that their longest side has this many pixels.
        resident: whether all of them shall lie on the device; by default where they take no more than about half of the
            memory that is free there.
        workers: threads that read otherwise; by default one per core.
        progress: told while all are read.
    """
    images = sorted({image for image, _ in pairs})
    canvas = _Frame.around(pool, index, images, longest)
    if resident is None:
        needed = canvas.height * canvas.width * (3 * len(images) + len(pairs))
        resident = needed <= _SHARE[device.type] * free_memory(device)
    if resident:
        return ResidentStore(canvas, pairs, device, progress)
    return StreamingStore(canvas, device, workers or os.cpu_count() or 2)
