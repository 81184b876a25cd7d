"""Draws -> Episodes: files are read and resized in threads, each once, ahead of the network that waits for them."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from cyctr.config import InputConfig
from cyctr.datasets.dataset import Pool
from cyctr.episodes.sampler import Draw, Sampler
from cyctr.images.geometry import fit_image, fit_label, padding_of, planes
from cyctr.types import Episode

_MEMORY = 3 * 2**30  # bytes of prepared images that are kept: all of a fold's test images, many times over
_AHEAD = 2  # batches that are made ready while the network works


class Memo:
    """Remembers the tensors of the latest calls, up to so many bytes. Threads may share it."""

    def __init__(self, limit: int = _MEMORY) -> None:
        self._limit, self._held = limit, 0
        self._kept: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def __call__(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gives, or gave for this key before."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._held += made.nbytes
                while self._held > self._limit and len(self._kept) > 1:
                    self._held -= self._kept.popitem(last=False)[1].nbytes
        return made


@dataclass(frozen=True, eq=False)
class Batch:
    """Episodes as a network is tested on them.

    Attributes:
        draws: what was drawn.
        episode: the images as the network sees them, with the query's labels at that size.
        truths: (H, W) uint8 for each query, at its own size.
    """

    draws: tuple[Draw, ...]
    episode: Episode
    truths: tuple[Tensor, ...]


class TestEpisodes:
    """Episodes of a pool for measuring: resized and padded, nothing random about their pixels."""

    __test__ = False  # not a test, whatever pytest thinks

    def __init__(
        self,
        pool: Pool,
        sampler: Sampler,
        config: InputConfig,
        memo: Memo | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
            pool: where images and labels are read.
            sampler: gives the draw of an episode's number.
            config: how they are resized.
            memo: shared by several of these over one pool, an image is read once for all.
            device: where the tensors shall be; an image travels there once.
        """
        self.pool, self.sampler, self.config = pool, sampler, config
        self.memo, self.device = memo or Memo(), device or torch.device("cpu")

    def load(self, numbers: Sequence[int]) -> Batch:
        """The episodes of these numbers."""
        return self._stacked(tuple(self.sampler(number) for number in numbers))

    def _stacked(self, draws: tuple[Draw, ...]) -> Batch:
        supports = [[self._image(i) for i in draw.supports] for draw in draws]
        support_labels = [[self._label(i, draw.category) for i in draw.supports] for draw in draws]
        truths = tuple(self._truth(draw.query, draw.category) for draw in draws)
        images = torch.stack([self._image(draw.query) for draw in draws])
        episode = Episode(
            torch.stack([torch.stack(shots) for shots in supports]),
            torch.stack([torch.stack(shots) for shots in support_labels]),
            images,
            torch.stack([self._label(draw.query, draw.category) for draw in draws]),
            padding_of([(truth.shape[-2], truth.shape[-1]) for truth in truths], self.config, images.device),
            trusted=True,
        )
        return Batch(draws, episode, truths)

    def batches(self, numbers: Iterable[int], size: int, workers: int) -> Iterator[Batch]:
        """All episodes of these numbers in order, `size` at a time; the same whatever the number of workers."""
        order = list(numbers)
        pieces = [order[start : start + size] for start in range(0, len(order), size)]
        if not pieces:
            return
        with ThreadPoolExecutor(max(1, workers)) as readers, ThreadPoolExecutor(_AHEAD) as stackers:

            def submit(piece: list[int]) -> Future[Batch]:
                # the readers fill the memo, image by image; the stacker then finds all of it there
                draws = tuple(self.sampler(number) for number in piece)
                wanted = sorted({(i, d.category) for d in draws for i in (d.query, *d.supports)})
                reads = [readers.submit(self._read, *pair) for pair in wanted if not self._has(*pair)]
                return stackers.submit(self._stacked_after, reads, draws)

            waiting = deque(submit(piece) for piece in pieces[:_AHEAD])
            try:
                for piece in pieces[_AHEAD:]:
                    ready = waiting.popleft().result()
                    waiting.append(submit(piece))
                    yield ready
                while waiting:
                    yield waiting.popleft().result()
            finally:
                readers.shutdown(wait=False, cancel_futures=True)
                stackers.shutdown(wait=False, cancel_futures=True)

    def _stacked_after(self, reads: Iterable[Future[None]], draws: tuple[Draw, ...]) -> Batch:
        for read in reads:
            read.result()
        return self._stacked(draws)

    def _read(self, i: int, category: int) -> None:
        self._image(i)
        self._label(i, category)

    def _has(self, i: int, category: int) -> bool:
        keys = (("image", i, self.config), ("label", i, category, self.config))
        return all((*key, self.device) in self.memo for key in keys)

    def _image(self, i: int) -> Tensor:
        return self._kept(("image", i, self.config), lambda: fit_image(planes(self.pool.image(i)), self.config))

    def _truth(self, i: int, category: int) -> Tensor:
        return self._kept(("truth", i, category), lambda: torch.from_numpy(self.pool.label(i, category)))

    def _label(self, i: int, category: int) -> Tensor:
        return self._kept(("label", i, category, self.config), lambda: self._fitted(i, category))

    def _fitted(self, i: int, category: int) -> Tensor:
        label = torch.from_numpy(self.pool.label(i, category))
        self._kept(("truth", i, category), lambda: label)  # read once for both
        return fit_label(label, self.config)

    def _kept(self, key: tuple[Hashable, ...], make: Callable[[], Tensor]) -> Tensor:
        return self.memo((*key, self.device), lambda: make().to(self.device))
