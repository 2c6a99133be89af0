"""A Ray cluster: a run is a task of one core. A node that dies gives its runs to the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedapa.errors import InputError
from fedapa.sweep import parcel
from fedapa.sweep.dispatch import Lost
from fedapa.sweep.parcel import Item, Parcel


class RayPlace:
    """One core of the cluster; Ray chooses which."""

    def __init__(self, ray: Any, number: int) -> None:
        self.name, self._ray = f"ray task {number}", ray
        # A lost run is tried again by the dispatch, which knows whether its folder is shared.
        self._task = ray.remote(num_cpus=1, max_retries=0)(parcel.play)
        self._stream: Any = None

    def play(self, sent: Parcel) -> Iterator[Item]:
        try:
            self._stream = self._task.options(num_returns="streaming").remote(sent)
            for reference in self._stream:
                yield self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise Lost(str(error).strip().partition("\n")[0]) from error
        finally:
            self._stream = None

    def stop(self) -> None:
        if self._stream is not None:
            self._ray.cancel(self._stream, force=True)


def places(address: str, jobs: int | None) -> Sequence[RayPlace]:
    """``jobs`` places, or one per core of the cluster at ``address`` ("" is the one of this machine)."""
    ray = _import()
    try:
        if not ray.is_initialized():
            ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        said = str(error).strip().partition("\n")[0]
        raise InputError(
            f"no Ray cluster at {address or 'this machine'}: {said}", "start one: ray start --head"
        ) from None
    cores = int(ray.cluster_resources().get("CPU", 0))
    if cores < 1:
        raise InputError("the Ray cluster has no core", "start a node: ray start --address=HEAD")
    return [RayPlace(ray, number) for number in range(1, 1 + (jobs or cores))]


def _import() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed", "pip install 'fedapa[ray]'") from None
    return ray
