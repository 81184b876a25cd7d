"""Backbone features kept on disk, by what the network sees: an image that was seen costs no pass through the backbone."""

import hashlib
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cyctr.types import Features

_ENDING = ".features"
_CHECK = 4  # bytes of a checksum, before the tensors


class FeatureCache:
    """Files of features in a folder, which may be removed at any time. Threads may share it.

    Features of 32 bits are kept with 16, whether they are read or have just been made: an answer is the same either way.
    """

    def __init__(self, folder: Path, most: int = 4 * 2**30) -> None:
        """Opens a folder, which is made when something is kept.

        Args:
            folder: holds nothing else.
            most: bytes of all files; what was not asked for longest goes first.
        """
        self.folder, self.most = folder, most
        self.hits, self.misses = 0, 0
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        found = [entry for entry in os.scandir(folder) if entry.name.endswith(_ENDING)] if folder.is_dir() else []
        stats = sorted(((entry.stat(), entry.name) for entry in found), key=lambda pair: pair[0].st_mtime_ns)
        self._sizes.update((name, status.st_size) for status, name in stats)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        with self._lock:
            return sum(self._sizes.values())

    def features(self, images: Tensor, made_by: str, extract: Callable[[Tensor], Features]) -> Features:
        """The features of (B, 3, S, S) images, from files where they are known; the others are made together, and kept.

        Args:
            images: uint8.
            made_by: what else decides the features: a checksum of the network, and its precision.
            extract: makes features of some of the images.
        """
        names = [self._name(image, made_by) for image in images]
        found = [self._read(name, images.device) for name in names]
        missing = [place for place, one in enumerate(found) if one is None]
        self.hits, self.misses = self.hits + len(names) - len(missing), self.misses + len(missing)
        if missing:
            made = extract(images[missing] if len(missing) < len(names) else images)
            for number, place in enumerate(missing):
                found[place] = self._kept(names[place], made.one(number))
        return Features.join([one for one in found if one is not None])

    def clear(self) -> None:
        """Removes all files."""
        with self._lock:
            for name in self._sizes:
                self._remove(name)
            self._sizes.clear()

    def _name(self, image: Tensor, made_by: str) -> str:
        seen = hashlib.blake2b(f"{made_by} {tuple(image.shape)} {image.dtype}\n".encode(), digest_size=20)
        seen.update(image.contiguous().cpu().numpy().tobytes())
        return f"{seen.hexdigest()}{_ENDING}"

    def _read(self, name: str, device: torch.device) -> Features | None:
        """Features of a file; none where there is no such file, or it is damaged."""
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        path = self.folder / name
        try:
            content = path.read_bytes()
            if zlib.crc32(content[_CHECK:]).to_bytes(_CHECK, "big") != content[:_CHECK]:
                raise ValueError
            tensors = load(content[_CHECK:])
            os.utime(path)
        except (OSError, ValueError, SafetensorError):
            with self._lock:
                self._sizes.pop(name, None)
                self._remove(name)
            return None
        return _unpacked([tensors[str(place)].to(device) for place in range(len(tensors))])

    def _kept(self, name: str, features: Features) -> Features:
        """The features as a file gives them back, written to it if that is possible."""
        packed = [_packed(maps) for maps in features.maps]
        if not all(bool(maps.isfinite().all()) for maps in packed):
            return features
        content = save({str(place): maps.cpu() for place, maps in enumerate(packed)})
        draft = self.folder / f".{os.getpid()}.{threading.get_ident()}"
        with suppress(OSError):  # a full disk: it is made again the next time
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with draft.open("wb") as file:
                    file.write(zlib.crc32(content).to_bytes(_CHECK, "big"))
                    file.write(content)
                os.replace(draft, self.folder / name)
                self._note(name, len(content) + _CHECK)
            finally:
                draft.unlink(missing_ok=True)
        return _unpacked(packed)

    def _note(self, name: str, size: int) -> None:
        with self._lock:
            self._sizes[name] = size
            total = sum(self._sizes.values())
            while total > self.most and len(self._sizes) > 1:
                oldest, count = self._sizes.popitem(last=False)
                self._remove(oldest)
                total -= count

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            (self.folder / name).unlink()


def _packed(maps: Tensor) -> Tensor:
    """(1, C, h, w) -> (1, h, w, C) of 16 bits, as accelerated networks lay it out."""
    half = maps.half() if maps.dtype == torch.float32 else maps
    return half.permute(0, 2, 3, 1).contiguous()


def _unpacked(packed: list[Tensor]) -> Features:
    """The inverse, in 32 bits where it was; bfloat16 stays."""
    return Features(tuple((maps.float() if maps.dtype == torch.float16 else maps).permute(0, 3, 1, 2) for maps in packed))
