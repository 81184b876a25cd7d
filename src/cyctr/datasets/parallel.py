"""One function on many things in threads: reading and decoding files leave Python's lock, so threads are enough."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_threads(function: Callable[[int], T], count: int, progress: Callable[[int, int], None] | None = None) -> Iterator[T]:
    """What a function gives for 0 to count - 1, in that order; what has not begun at the first exception never does.

    Args:
        function: called from as many threads as this process may use cores.
        count: how often.
        progress: told now and then, and at the end, how many of how many are done.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(cores) as workers:
        try:
            for done, result in enumerate(workers.map(function, range(count)), 1):
                yield result
                if progress is not None and (done % 16 == 0 or done == count):
                    progress(done, count)
        except BaseException:  # of the function, or of whoever takes the results
            workers.shutdown(wait=False, cancel_futures=True)
            raise
