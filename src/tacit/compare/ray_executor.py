"""Ray as an executor of ``concurrent.futures``: Ray schedules the calls, on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from tacit.errors import TacitError


class RayExecutor(Executor):
    """Runs every call as a task of Ray.

    address: of a cluster; None: the one that RAY_ADDRESS names or that runs on this machine, else a new one here.
    """

    def __init__(self, address: str | None, *, threads: int, has_gpu: bool) -> None:
        try:
            import ray
        except ImportError as error:
            raise TacitError("executor='ray' needs Ray, which is not installed: pip install 'tacit[ray]'.") from error
        self._ray, self._references = ray, list[Any]()
        self._is_own = not ray.is_initialized()
        if self._is_own:
            ray.init(address, log_to_driver=False, logging_level="warning")
        self._options = {"num_cpus": threads, "num_gpus": int(has_gpu)}

    def put(self, value: object) -> Any:
        """Store ``value`` in the cluster once; an argument of ``submit`` that is the result stands for the value."""
        return self._ray.put(value)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        reference = self._ray.remote(**self._options)(fn).remote(*args, **kwargs)
        self._references.append(reference)
        future: Future[Any] = reference.future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            for reference in self._references:
                self._ray.cancel(reference)
        if self._is_own:
            self._ray.shutdown()
