"""Packs as tasks of Ray, with a Ray that calls tasks in this process; tests/cli/test_sweep.py has a real one."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch

from snapens.errors import ArgumentError, DataError, SnapensError
from snapens.lab import data
from snapens.lab.engine import cluster as cluster_module
from snapens.lab.engine.cluster import Cluster, Work, connect, train_pack
from snapens.lab.engine.pack import packs, prepare, train
from snapens.lab.records.followed import Followed
from snapens.lab.records.run import Run


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class TaskCancelledError(RayError):
    pass


class FakeRay:
    """Tasks are indices of `results`: a task returns its result or raises it; a pending one ends when cancelled."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, TaskCancelledError=TaskCancelledError)

    def __init__(self, *results, machines=()):
        self.results, self.cancelled, self.options = list(results), [], None
        self.machines = [{"Alive": True, "Resources": machine} for machine in machines]

    def nodes(self):
        return self.machines

    def remote(self, **options):
        self.options = options
        tasks = iter(range(len(self.results)))
        return lambda function: SimpleNamespace(remote=lambda *arguments: next(tasks))

    def wait(self, tasks, timeout):
        ready = [task for task in tasks if self.results[task] is not None or task in self.cancelled]
        return ready[:1], tasks

    def get(self, task):
        if task in self.cancelled:
            raise TaskCancelledError
        if isinstance(self.results[task], Exception):
            raise self.results[task]
        return self.results[task]

    def cancel(self, task):
        self.cancelled.append(task)


def plan(count):
    return [[(tiny.recipe(seed=seed), f"run-{seed}")] for seed in range(count)]


def test_failures_are_collected_as_tasks_end_whatever_their_reason():
    lost, odd = RayError("the machine was lost\nmore"), RayTaskError(KeyError("seed"))
    ray = FakeRay({}, {Path("run-1"): "loss must be finite"}, lost, odd)
    found = list(Cluster(ray).train(plan(4), Work("cpu", threads=2)))
    assert [failures for failures in found if failures] == [
        {Path("run-1"): "loss must be finite"},
        {Path("run-2"): "RayError: the machine was lost"},
        {Path("run-3"): "KeyError: 'seed'"},
    ]
    assert ray.options == {"num_cpus": 2, "num_gpus": 0, "max_retries": 3}


def test_a_task_on_a_gpu_has_one_of_its_own():
    ray = FakeRay({})
    list(Cluster(ray).train(plan(1), Work("cuda")))
    assert ray.options["num_gpus"] == 1


def test_the_tasks_that_are_left_are_cancelled_once_when_training_stops():
    ray = FakeRay({}, None, None)
    assert list(Cluster(ray).train(plan(3), Work("cpu"), stop=lambda: True)) == [{}, {}, {}]
    assert ray.cancelled == [1, 2]


@pytest.mark.parametrize(
    ("machines", "device", "threads", "expected"),
    [
        ([{"CPU": 8.0}, {"CPU": 3.0}], "auto", 2, ("cpu", 5)),
        ([{"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0}], "auto", 1, ("cuda", 4)),
        ([{"CPU": 8.0, "GPU": 4.0}], "auto", 4, ("cuda", 2)),
        ([{"CPU": 8.0, "GPU": 4.0}], "cpu", 4, ("cpu", 2)),
        ([{"CPU": 8.0, "GPU": 1.0}], "cuda", 1, ("cuda", 1)),
    ],
)
def test_a_task_uses_a_gpu_or_some_cores_of_one_machine(machines, device, threads, expected):
    assert Cluster(FakeRay(machines=machines)).capacity(device, threads) == expected


@pytest.mark.parametrize(
    ("device", "threads", "message"),
    [
        ("cuda", 1, "device must be available, got cuda, but Ray finds no GPU: use cpu or auto"),
        ("cpu", 5, "threads must be at most 4, the CPU cores of the largest machine of Ray, got 5"),
        ("cpu", 0, "threads must be at least 1, got 0"),
    ],
)
def test_a_task_that_no_machine_can_run_is_rejected(device, threads, message):
    with pytest.raises(ArgumentError, match=message):
        Cluster(FakeRay(machines=[{"CPU": 4.0}, {"CPU": 2.0}])).capacity(device, threads)


def started(monkeypatch, init):
    """A module `ray` whose `init` is this function; the list has a word for each shutdown."""
    ended = []
    private = SimpleNamespace(
        worker=SimpleNamespace(_worker_logs_enabled=True), ray_constants=SimpleNamespace(ENABLE_RAY_CLUSTER=True)
    )
    module = SimpleNamespace(init=init, shutdown=lambda: ended.append("shutdown"), _private=private)
    monkeypatch.setitem(sys.modules, "ray", module)
    return ended


def test_a_local_ray_that_would_listen_on_the_network_is_ended_at_once(monkeypatch):
    ended = started(monkeypatch, lambda **options: {"node_ip_address": "192.0.2.7"})
    with pytest.raises(SnapensError, match=r"must listen on 127\.0\.0\.1 only, got 192\.0\.2\.7"), connect():
        pass
    assert ended == ["shutdown"]


def test_a_local_ray_has_a_token_and_sends_no_statistics_and_the_environment_is_restored(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    before, handler, here = dict(os.environ), signal.getsignal(signal.SIGTERM), Path.cwd()
    seen = {}

    def init(**options):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray does
        seen.update(os.environ, folder=Path.cwd(), options=options)
        return {"node_ip_address": "127.0.0.1"}

    started(monkeypatch, init)
    with connect():
        assert signal.getsignal(signal.SIGTERM) == handler
    assert seen["RAY_AUTH_MODE"] == "token"
    assert len(seen["RAY_AUTH_TOKEN"]) == 64
    assert seen["RAY_USAGE_STATS_ENABLED"] == "0"
    assert str(seen["folder"]) == seen["options"]["_temp_dir"] != str(here)
    assert not seen["folder"].exists()
    assert (dict(os.environ), Path.cwd()) == (before, here)


def test_an_error_of_ray_while_it_starts_is_ours(monkeypatch):
    def init(**options):
        raise RuntimeError("Version mismatch")

    ended = started(monkeypatch, init)
    with (
        pytest.raises(SnapensError, match="Ray must start or be reachable, got RuntimeError: Version mismatch"),
        connect(),
    ):
        pass
    assert ended == ["shutdown"]


def test_auto_is_the_address_in_the_environment(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with (
        pytest.raises(ArgumentError, match=r"running Ray cluster, as HOST:PORT or auto, got '127\.0\.0\.1:1'"),
        connect("auto"),
    ):
        pass


@pytest.fixture
def worker(monkeypatch):
    """Where a task may run: it reads the tiny data, and changes neither the path nor the threads of the tests."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(data, "load", lambda name, root: tiny.data())
    yield
    torch.set_num_threads(threads)


def test_a_task_trains_its_pack_measures_curves_and_names_what_failed(tmp_path, worker):
    jobs = [(tiny.recipe(lr=lr), tmp_path / str(lr)) for lr in (0.05, 1e30)]
    found = train_pack(jobs, Work("cpu", modules=tmp_path, curves=True))
    assert found.keys() == {tmp_path / "1e+30"}
    assert "loss must be finite" in found[tmp_path / "1e+30"]
    assert Run(tmp_path / "0.05").curves() is not None
    assert sys.path[-1] == str(tmp_path)


def test_a_pack_that_cannot_be_prepared_fails_with_all_its_runs(tmp_path, worker):
    jobs = [(tiny.recipe(batch=batch), tmp_path / str(batch)) for batch in (8, 41)]
    reason = "batch must be at most the 40 training examples, got 41: use a smaller batch, or hold out fewer examples"
    assert train_pack(jobs, Work("cpu")) == {tmp_path / "8": reason, tmp_path / "41": reason}


def reject(name, data):
    raise DataError(f"{name} has {len(data.train)} images")


def test_a_task_checks_its_data(tmp_path, worker):
    found = train_pack([(tiny.recipe(), tmp_path / "run")], Work("cpu", check=reject))
    assert found == {tmp_path / "run": "tiny has 40 images"}


def test_a_cancelled_task_saves_its_states_and_the_next_one_continues(tmp_path, worker, monkeypatch):
    jobs, handler = [(tiny.recipe(), tmp_path / "run")], signal.getsignal(signal.SIGINT)
    steps = iter(range(100))
    advance = cluster_module.pack.Training.advance

    def interrupted(training):
        advance(training)
        if next(steps) == 0:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(cluster_module.pack.Training, "advance", interrupted)
    assert train_pack(jobs, Work("cpu", curves=True)) == {}
    assert 0 < Run(tmp_path / "run").state().completed < 20
    assert signal.getsignal(signal.SIGINT) == handler
    assert train_pack(jobs, Work("cpu", curves=True)) == {}
    train(prepare([(tiny.recipe(), tmp_path / "whole")], tiny.load, torch.device("cpu")))
    ours, whole = (Run(tmp_path / name).snapshots for name in ("run", "whole"))
    assert all(tiny.equal(ours.load(step), whole.load(step)) for step in (10, 20))
    assert train_pack(jobs, Work("cpu")) == {}  # nothing is left


@pytest.mark.parametrize(
    ("jobs", "largest", "devices", "expected"),
    [
        ("abc", 1, 1, ["a", "b", "c"]),
        ("abcdefghij", 8, 1, ["abcde", "fghij"]),
        ("abcd", 8, 2, ["ab", "cd"]),
        ("abc", 8, 5, ["a", "b", "c"]),
        ("abcdef", 2, 2, ["ab", "cd", "ef"]),
    ],
)
def test_jobs_are_divided_evenly_and_no_device_is_left_without_one(jobs, largest, devices, expected):
    assert packs(jobs, largest, devices) == expected


def test_a_followed_run_shows_what_its_log_says(tmp_path):
    run = Followed(tiny.recipe(), tmp_path / "run")
    assert not run.refresh()
    [training] = prepare([(tiny.recipe(), tmp_path / "run")], tiny.load, torch.device("cpu"))
    train([training], stop=lambda: training.completed >= 7)
    assert run.refresh()
    assert (run.completed, run.total_steps, run.epoch, run.finished) == (5, 20, 1.0, False)
    assert not run.refresh()
    train(prepare([(tiny.recipe(), tmp_path / "run")], tiny.load, torch.device("cpu"), resume=True))
    assert run.refresh()
    assert (run.completed, run.total_steps, run.epoch, run.finished) == (20, 20, 4.0, True)
    assert run.images_per_second > 0  # although it was too fast to be measured
    assert run.log.loss == [line["loss"] for line in Run(tmp_path / "run").log() if "loss" in line][-1]
    (tmp_path / "run/log.jsonl").write_text("damaged\n\n")
    assert run.refresh()  # no error: the process that trains reports it
