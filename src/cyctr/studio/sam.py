"""SAM, if its weights are here: clicks with it, and fetching the weights while the page tells of it."""

import importlib.util
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from cyctr.backbones.weights import REFINERS, cache
from cyctr.errors import CyctrError
from cyctr.inference.clicker import EncodedImage, shared
from cyctr.studio.events import Events
from cyctr.studio.refusals import RefusedError
from cyctr.studio.smart import Clicked, Corners, Point
from cyctr.types import Pixels
from cyctr.words import one_line

_NAME = "sam2-tiny"
_REMEMBERED = 6  # photos: encoding one takes seconds


class Sam:
    """The network for clicks; its weights may come while the server runs."""

    def __init__(self, events: Events) -> None:
        self._events, self._entry = events, REFINERS[_NAME]
        self._lock = threading.Lock()
        self._fetching, self._bytes = False, 0
        self._problem: str | None = None
        self._encoded: OrderedDict[object, EncodedImage] = OrderedDict()

    @property
    def ready(self) -> bool:
        """Whether it can be asked."""
        return importlib.util.find_spec("onnxruntime") is not None and cache.cached(self._entry) is not None

    def values(self) -> dict[str, Any]:
        """What the page knows of it."""
        return {
            "ready": self.ready,
            "fetching": self._fetching,
            "bytes": self._bytes,
            "size": self._entry.size,
            "licence": self._entry.licence,
            "problem": self._problem,
        }

    def fetch(self) -> dict[str, Any]:
        """Begins to fetch the weights."""
        if importlib.util.find_spec("onnxruntime") is None:
            raise RefusedError("onnxruntime is not installed, which SAM needs; run: pip install 'cyctr[sam]'")
        with self._lock:
            if not self.ready and not self._fetching:
                self._fetching, self._bytes, self._problem = True, 0, None
                threading.Thread(target=self._fetch, name="cyctr-studio-sam", daemon=True).start()
        return self.values()

    def propose(
        self, key: object, pixels: Pixels, points: Sequence[Point], outside: Sequence[Point], box: Corners | None
    ) -> Clicked:
        """The mask of what was clicked; arguments as of `smart.propose`.

        Args:
            key: of the photo and its version: it is encoded once.
            pixels: (H, W, 3).
            points: on the thing.
            outside: beside it.
            box: around it.
        """
        if not self.ready:
            raise RefusedError("SAM's weights are not here; fetch them first, or click without")
        clicker = shared(_NAME)
        with self._lock:
            image = self._encoded.get(key)
        if image is None:
            image = clicker.encode(pixels)
            with self._lock:
                self._encoded[key] = image
                while len(self._encoded) > _REMEMBERED:
                    self._encoded.popitem(last=False)
        found = clicker.masks(image, points=points, outside=outside, box=box)
        best = found[0]
        return Clicked(np.ascontiguousarray(best.mask), round(best.score, 3))

    def _fetch(self) -> None:
        def progress(count: int) -> None:
            self._bytes = count
            self._events.publish("sam", self.values())

        try:
            cache.get(self._entry, progress)
        except (CyctrError, OSError) as error:
            self._problem = one_line(error)
        self._fetching = False
        self._events.publish("sam", self.values())
