r"""Where runs are executed: this process, local processes, or a Ray cluster; all by joblib."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import joblib

__all__ = ["EXECUTORS", "ExecutorError", "execute_all"]


class ExecutorError(Exception):
    """An executor can't be used; the message says why, and what to install or start."""


def execute_all(
    executor: str, work: Callable[[Any], Any], jobs: Iterable[Any], workers: int
) -> Iterator[Any]:
    """Yields ``work(job)`` for each job as it is done, in any order.

    Args:
        executor: Key in ``EXECUTORS``.
        work: A function of a module, for other processes have to import it.
        jobs: Its arguments.
        workers: How many run at a time.
    """
    if executor not in EXECUTORS:
        raise ExecutorError(f"unknown executor {executor!r}; there are {', '.join(EXECUTORS)}")
    with EXECUTORS[executor](workers) as parallel:
        yield from parallel(joblib.delayed(work)(job) for job in jobs)


def _parallel(workers: int) -> joblib.Parallel:
    # One job a task, and none sent ahead of time: a run is long, and what is done is to be seen.
    return joblib.Parallel(
        n_jobs=workers, return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs"
    )


@contextlib.contextmanager
def _in_process(workers: int) -> Iterator[joblib.Parallel]:
    with joblib.parallel_config(backend="sequential"):
        yield _parallel(1)


@contextlib.contextmanager
def _processes(workers: int) -> Iterator[joblib.Parallel]:
    with joblib.parallel_config(backend="loky"):
        yield _parallel(workers)


@contextlib.contextmanager
def _ray(workers: int) -> Iterator[joblib.Parallel]:
    try:
        import ray
        from ray.util.joblib.ray_backend import RayBackend
    except ImportError as error:
        raise ExecutorError(
            "the executor 'ray' needs Ray: pip install 'whitenorm[ray]'"
        ) from error

    if workers < 2:
        # joblib would quietly run a single worker's jobs in this process.
        raise ExecutorError(f"the executor 'ray' needs 2 workers or more (--jobs), got {workers}")

    class Backend(RayBackend):
        # Ray's pool calls back as results come, which is all that this takes; the class it is
        # derived from says no on behalf of multiprocessing's pool.
        supports_return_generator = True

    joblib.register_parallel_backend("whitenorm-ray", Backend)
    started = not ray.is_initialized()
    if started:
        # RAY_ADDRESS names a running cluster; without it one is started here for the while.
        local = {"num_cpus": workers, "include_dashboard": False}
        ray.init(
            log_to_driver=False,
            logging_level="error",
            **({} if "RAY_ADDRESS" in os.environ else local),
        )
    try:
        with joblib.parallel_config(backend="whitenorm-ray"):
            yield _parallel(workers)
    finally:
        if started:
            ray.shutdown()


EXECUTORS: dict[str, Callable[[int], contextlib.AbstractContextManager[joblib.Parallel]]] = {
    "in-process": _in_process,
    "processes": _processes,
    "ray": _ray,
}
