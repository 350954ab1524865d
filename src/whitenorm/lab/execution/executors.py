r"""Where runs are executed: this process, local processes, or a Ray cluster; all by joblib."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import joblib

from whitenorm.lab.lookup import look_up


class ExecutorError(Exception):
    """An executor can't be used; the message says why, and what to install or start."""


def execute_all(
    executor: str, work: Callable[[Any], Any], jobs: Iterable[Any], workers: int
) -> Iterator[Any]:
    """Yields ``work(job)`` for each job as it is done, in any order; ``workers`` at a time.

    Other processes have to import ``work``, so it is a function of a module.
    """
    try:
        backend = look_up(EXECUTORS, "executor", executor)
    except ValueError as error:
        raise ExecutorError(str(error)) from None
    with backend(workers):
        # A run is long: each is a task of its own and is handed out when a worker is free.
        parallel = joblib.Parallel(
            n_jobs=workers, return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs"
        )
        yield from parallel(joblib.delayed(work)(job) for job in jobs)


@contextlib.contextmanager
def _ray(workers: int) -> Iterator[None]:
    try:
        import ray
        from ray.util.joblib.ray_backend import RayBackend
    except ImportError as error:
        raise ExecutorError("executor 'ray' needs Ray: pip install 'whitenorm[ray]'") from error
    if workers < 2:
        # joblib would quietly run a single worker's jobs in this process.
        raise ExecutorError(f"the executor 'ray' needs 2 workers or more (--jobs), got {workers}")
    # RayBackend inherits False from joblib's backend for multiprocessing. But Ray's pool calls
    # back for each result, and a generator needs no more.
    backend = type("RayBackend", (RayBackend,), {"supports_return_generator": True})
    joblib.register_parallel_backend("whitenorm-ray", backend)
    started = not ray.is_initialized()
    if started:
        # RAY_ADDRESS names a running cluster; without it one is started here, and ended below.
        options: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False}
        if "RAY_ADDRESS" in os.environ:
            options = {}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    try:
        with joblib.parallel_config(backend="whitenorm-ray"):
            yield
    finally:
        if started:
            ray.shutdown()


EXECUTORS: dict[str, Callable[[int], contextlib.AbstractContextManager[Any]]] = {
    "in-process": lambda workers: joblib.parallel_config(backend="sequential"),
    "processes": lambda workers: joblib.parallel_config(backend="loky"),
    "ray": _ray,
}
