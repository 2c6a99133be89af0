"""Answers to viewers, each worked out once for a version of the folder, however many ask for it at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

MOST = 256  # answers that are kept; viewers can ask for any client of any run


class Answers:
    def __init__(self, most: int = MOST) -> None:
        self._most, self._lock = most, threading.Lock()
        self._version, self._kept = -1, dict[str, Future[bytes]]()

    def get(self, version: int, key: str, make: Callable[[], bytes]) -> bytes:
        """The answer of this version; an error reaches all who asked meanwhile, and is not kept."""
        answer, is_new = self._entry(version, key)
        if is_new:
            try:
                answer.set_result(make())
            except BaseException as error:
                self._drop(key, answer)
                answer.set_exception(error)
        return answer.result()

    def _entry(self, version: int, key: str) -> tuple[Future[bytes], bool]:
        with self._lock:
            if version > self._version:
                self._version, self._kept = version, {}
            elif version < self._version:  # it was looked up just before a change: nobody else will ask for it
                return Future(), True
            if key in self._kept:
                return self._kept[key], False
            if len(self._kept) >= self._most:
                del self._kept[next(iter(self._kept))]
            answer = self._kept[key] = Future()
            return answer, True

    def _drop(self, key: str, answer: Future[bytes]) -> None:
        with self._lock:
            if self._kept.get(key) is answer:
                del self._kept[key]
