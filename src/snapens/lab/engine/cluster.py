"""Packs of runs as Ray tasks, on this machine or on a cluster: Ray schedules the tasks and repeats lost ones.

with connect(address=None) as cluster:
    for failures in cluster.train(packs, Work("cpu"), stop):
        ...
"""

import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ...errors import ArgumentError, SnapensError
from ...extras import package
from .. import data
from ..data.protocol import Data
from ..recipe.recipe import Recipe
from . import pack
from .device import keep_freed_memory
from .pack import Job

_LOOPBACK = "127.0.0.1"
_POLL_SECONDS, _CONNECT_SECONDS = 1.0, 5.0
_RETRIES = 3  # of a task whose process or machine was lost
_OBJECT_STORE_BYTES = 80 << 20  # near the smallest that Ray accepts: tasks exchange recipes and short texts

Failures = dict[Path, str]
"""Run folder -> the reason why the run failed."""


@dataclass(frozen=True)
class Work:
    """How a task trains its pack. All machines of the cluster must have the folders under the same absolute paths."""

    device: str
    threads: int = 1
    data: Path | None = None
    """The folder with the data sets; None: the cache folder of each machine."""
    modules: Path | None = None
    """The folder from which the user's own networks are imported."""
    curves: bool = False
    """Whether the errors between snapshots are measured at the end."""
    check: Callable[[str, Data], object] | None = None
    """Rejects a data set by its name and content. It is sent to the workers, so it must be a function of a module."""

    def load(self, recipe: Recipe) -> Data:
        """Read the data set of a recipe."""
        name = recipe.dataset.name
        found = data.load(name, self.data)
        if self.check is not None:
            self.check(name, found)
        return found


class Cluster:
    """A connection to Ray."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def capacity(self, device: str, threads: int) -> tuple[str, int]:
        """The device of a task ("cuda" or "cpu"; "auto" is a GPU if there is one), and how many tasks run at a time.

        A task uses `threads` CPU cores, and one GPU if its device is "cuda".
        """
        if threads < 1:
            raise ArgumentError(f"threads must be at least 1, got {threads}")
        machines = [machine["Resources"] for machine in self._ray.nodes() if machine["Alive"]]
        has_gpu = any(machine.get("GPU", 0) >= 1 for machine in machines)
        if device == "cuda" and not has_gpu:
            raise ArgumentError("device must be available, got cuda, but Ray finds no GPU: use cpu or auto")
        device = "cuda" if has_gpu and device != "cpu" else "cpu"
        slots = [int(machine.get("CPU", 0)) // threads for machine in machines]
        if device == "cuda":
            slots = [min(slot, int(machine.get("GPU", 0))) for slot, machine in zip(slots, machines, strict=True)]
        if not sum(slots):
            most = max((int(machine.get("CPU", 0)) for machine in machines), default=0)
            raise ArgumentError(
                f"threads must be at most {most}, the CPU cores of the largest machine of Ray, got {threads}: use fewer"
            )
        return device, sum(slots)

    def train(
        self, packs: Sequence[Sequence[Job]], work: Work, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Failures]:
        """Train each pack as one task; yields, at least every second, the failures of the tasks that have ended.

        When `stop` returns true, tasks save the state of their runs and end. Finished runs stay as they are, and
        others continue from the state in their folder.
        """
        gpus = 1 if work.device == "cuda" else 0
        remote = self._ray.remote(num_cpus=work.threads, num_gpus=gpus, max_retries=_RETRIES)(train_pack)
        left = {remote.remote([(recipe, Path(path)) for recipe, path in jobs], work): jobs for jobs in packs}
        cancelled = False
        while left:
            ended, _ = self._ray.wait(list(left), timeout=_POLL_SECONDS)
            yield {path: reason for task in ended for path, reason in self._failures(task, left.pop(task)).items()}
            if not cancelled and stop():
                cancelled = True
                for task in left:
                    self._ray.cancel(task)

    def _failures(self, task: Any, jobs: Sequence[Job]) -> Failures:
        try:
            found: Failures = self._ray.get(task)
            return found
        except self._ray.exceptions.TaskCancelledError:
            return {}
        except self._ray.exceptions.RayTaskError as error:
            reason = f"{type(error.cause).__name__}: {error.cause}"
        except self._ray.exceptions.RayError as error:  # the process or the machine was lost too often
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return {Path(path): reason for _, path in jobs}


@contextmanager
def connect(address: str | None = None) -> Iterator[Cluster]:
    """Connect to the Ray cluster at an address (HOST:PORT, or "auto" for the running one).

    Without an address, Ray is started on this machine, for this connection only. It listens on the loopback interface
    only, and requires a token that only its own processes have.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    with ExitStack() as stack:
        # short, because Ray creates sockets in it
        folder = stack.enter_context(TemporaryDirectory(prefix="snapens-", dir="/tmp", ignore_cleanup_errors=True))
        options: dict[str, Any] = {"address": address}
        loopback = address is None or address.startswith(_LOOPBACK)
        if loopback:  # Ray would replace the address by that of the network interface
            stack.enter_context(_environment({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}))
        if address is None:
            stack.enter_context(_environment(_local_settings()))
            options = {
                "address": "local",
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "_node_ip_address": _LOOPBACK,
                "_temp_dir": folder,
            }
        else:
            _require_reachable(address)
            # if another program listens there, one attempt of about 40 seconds; Ray would make 20
            stack.enter_context(_environment({"RAY_NUM_REDIS_GET_RETRIES": "1"}))
        ray = package("ray", "ray")
        ray._private.ray_constants.ENABLE_RAY_CLUSTER &= not loopback  # if Ray was imported before
        ray._private.worker._worker_logs_enabled = False  # Ray's own messages about a lost process
        stack.callback(ray.shutdown)
        _start(ray, folder, options)
        yield Cluster(ray)


def _start(ray: Any, folder: str, options: dict[str, Any]) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with chdir(folder):  # the current folder is the first in the path of workers: nothing in it may be imported
            found = ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise SnapensError(f"Ray must start or be reachable, got {type(error).__name__}: {error}") from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray sets its own
    if options["address"] == "local" and found["node_ip_address"] != _LOOPBACK:
        raise SnapensError(
            f"a local Ray must listen on {_LOOPBACK} only, got {found['node_ip_address']}: install another version of "
            "ray, or give the address of a cluster"
        )


def train_pack(jobs: Sequence[Job], work: Work) -> Failures:
    """In a worker: start or resume the runs of a pack, and train them until the task is cancelled."""
    torch.set_num_threads(work.threads)
    if work.device == "cpu":
        keep_freed_memory()
    if work.modules is not None and str(work.modules) not in sys.path:
        sys.path.append(str(work.modules))
    try:
        trainings = pack.prepare(
            pack.unfinished(jobs, curves=work.curves),
            work.load,
            torch.device(work.device),
            resume=True,
        )
    except SnapensError as error:
        return {Path(path): str(error) for _, path in jobs}
    cancelled: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: cancelled.append(number))  # Ray's signal to cancel
    try:
        pack.train(trainings, stop=lambda: bool(cancelled))
    finally:
        signal.signal(signal.SIGINT, handler)
    if work.curves and not cancelled:
        pack.measure_between(trainings)
    return {training.run.path: str(training.failure) for training in trainings if training.failure is not None}


def _local_settings() -> dict[str, str]:
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # otherwise Ray would write one to the user's home
    }


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables; processes that are started inside inherit them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _require_reachable(address: str) -> None:
    """Reject an address where nothing listens; Ray itself would try for minutes."""
    address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"ray must be the address of a running Ray cluster, as HOST:PORT or auto, got {address!r} ({error}): "
            "`ray start --head` prints the address; without an address, Ray is started on this machine"
        ) from error
