"""Work on all cores whose results do not depend on their number: every piece on one thread, answers in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(work: Callable[[Item], Found], items: Iterable[Item], cores: int | None = None) -> Iterator[Found]:
    """``map(work, items)`` on ``cores`` (all of them), each with one thread inside torch.

    No more pieces are begun than there are cores, so that no more answers wait to be taken.
    """
    cores = available_cores() if cores is None else cores
    if cores == 1:
        with one_thread():
            yield from map(work, items)
        return
    waiting: deque[Future[Found]] = deque()
    try:
        for item in items:
            if len(waiting) == cores:
                yield waiting.popleft().result()
            waiting.append(_pool(os.getpid(), cores).submit(work, item))
        while waiting:
            yield waiting.popleft().result()
    finally:  # after a failure or Ctrl-C no piece goes on in the background
        for future in waiting:
            if not future.cancel():
                future.exception()


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside every tensor operation; as many as before afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=2)
def _pool(process: int, cores: int) -> ThreadPoolExecutor:
    """Of this process: a forked one has none of the threads."""
    import torch

    return ThreadPoolExecutor(cores, "core", initializer=torch.set_num_threads, initargs=(1,))
