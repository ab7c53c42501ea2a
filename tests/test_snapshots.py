import errno
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from snapens import Snapshots
from snapens.errors import ArgumentError, DamagedError, LockedError, NonFiniteError, StoreError
from snapens.storage import durable, manifest, tensorfile
from snapens.storage.tensorfile import About, Spec
from snapens.weights import tensors


@pytest.fixture(params=["memory", "folder"])
def store(request, tmp_path):
    opened = Snapshots(None if request.param == "memory" else tmp_path / "run")
    opened.open_to_write()
    return opened


@pytest.fixture
def folder(tmp_path):
    opened = Snapshots(tmp_path / "run")
    opened.open_to_write()
    return opened


def state(seed: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((3, 2), seed), "count": torch.tensor(int(seed))}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def files(store: Snapshots) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (store.path / "snapshots").iterdir()}


# what is kept


def test_snapshots_come_back_as_they_were(store):
    for step in (4, 8, 12):
        store.commit(step, state(step))
    assert store.steps == (4, 8, 12)
    assert all(equal(store.load(step), state(step)) for step in store.steps)


def test_a_snapshot_is_a_copy_and_so_is_what_is_loaded(store):
    live = state(1.0)
    store.commit(4, live)
    live["weight"].zero_()
    store.load(4)["weight"].zero_()
    assert equal(store.load(4), state(1.0))


def test_tied_channels_last_and_sliced_tensors_are_kept(store):
    base = torch.randn(2, 3, 4, 4)
    odd = {
        "a": base,
        "tied": base,
        "last": base.to(memory_format=torch.channels_last),
        "slice": base[:, 1:],
        "turned": base.transpose(0, 1),
        "empty": torch.empty(0),
        "scalar": torch.tensor(3.0),
    }
    store.commit(4, odd)
    store.commit(8, odd)
    assert equal(store.load(4), odd)
    assert equal(store.load(8), odd)


def test_tensors_that_wrap_others_are_not_taken_for_tied():
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            inside = [arg.inner if isinstance(arg, Wrapper) else arg for arg in args]
            result = function(*inside, **(kwargs or {}))
            return Wrapper(result) if function is torch.ops.aten.detach.default else result

    store = Snapshots()
    store.commit(1, {"a": Wrapper(torch.zeros(2)), "b": Wrapper(torch.ones(2))})
    assert store.load(1)["b"].tolist() == [1, 1]


def test_what_does_not_change_is_stored_once_whatever_was_frozen(folder):
    base, adapter = torch.randn(500_000), torch.randn(10)
    for step in (1, 2, 3):
        folder.commit(step, {"base": base, "tied": base, "adapter": adapter + step})
    sizes = list(files(folder).values())
    assert max(sizes) > 2_000_000
    assert sorted(sizes)[1] < 1000
    thawed = base + 1
    folder.commit(4, {"base": thawed, "tied": thawed, "adapter": adapter})  # gradual unfreezing
    folder.commit(5, {"base": thawed, "tied": thawed, "adapter": adapter})
    assert equal(Snapshots(folder.path).load(3), {"base": base, "tied": base, "adapter": adapter + 3})
    assert equal(Snapshots(folder.path).load(5), {"base": thawed, "tied": thawed, "adapter": adapter})
    assert sum(files(folder).values()) < 4_010_000


def test_in_memory_too_what_does_not_change_is_held_once():
    store, base = Snapshots(), torch.randn(10)
    store.commit(1, {"base": base, "adapter": torch.zeros(1)})
    store.commit(2, {"base": base, "adapter": torch.ones(1)})
    assert store.entries(1)["base"] == store.entries(2)["base"]
    assert store.entries(1)["adapter"] != store.entries(2)["adapter"]


def test_content_decides_and_minus_zero_is_not_zero(store):
    store.commit(1, {"w": torch.tensor([0.0])})
    store.commit(2, {"w": torch.tensor([-0.0])})
    assert torch.signbit(store.load(2)["w"]).item()


def test_bf16_storage_halves_floats_and_leaves_counts_alone(tmp_path):
    store = Snapshots(tmp_path, dtype=torch.bfloat16)
    store.open_to_write()
    weight = torch.randn(1000)
    store.commit(1, {"w": weight, "half": weight.half(), "n": torch.tensor(2**40)})
    loaded = store.load(1)
    assert loaded["w"].dtype == torch.bfloat16
    assert torch.equal(loaded["w"], weight.to(torch.bfloat16))
    assert loaded["half"].dtype == torch.float16
    assert loaded["n"] == 2**40


def test_a_commit_visits_one_tensor_at_a_time_and_a_nan_leaves_no_file(folder):
    visited = []

    class Visited(dict):
        def __getitem__(self, name):
            visited.append(name)
            return super().__getitem__(name)

    folder.commit(4, Visited({"b": torch.zeros(2), "a": torch.ones(3, dtype=torch.float64)}))
    assert visited == ["a", "b"]  # in the order of the file: wide types first
    before = files(folder)
    bad = {"a": torch.ones(3), "b": torch.tensor([torch.nan]), "c": torch.ones(1), "d": torch.tensor([torch.inf])}
    with pytest.raises(NonFiniteError, match="at step 8 in b, d: lower the rate"):
        folder.commit(8, bad)
    assert files(folder) == before


def test_a_name_is_reserved_before_its_snapshot_is_committed(folder):
    name = folder.reserve(4)
    assert folder.reserve(4) == name
    folder.commit(4, state(1))
    assert folder.identity["snapshots"] == {4: name}
    assert folder.reserve(8) != folder.reserve(12)


@pytest.mark.parametrize(("failing", "same"), [("step-", True), ("manifest.json", False)])
def test_a_name_stays_reserved_until_a_manifest_may_have_it(folder, monkeypatch, failing, same):
    name, publish = folder.reserve(4), durable.publish

    def full(path, content):
        written = publish(path, content)
        if path.name.startswith(failing):
            raise OSError(errno.ENOSPC, "No space left on device")
        return written

    monkeypatch.setattr(durable, "publish", full)
    with pytest.raises(StoreError, match="No space left"):
        folder.commit(4, state(1))
    monkeypatch.undo()
    folder.commit(4, state(2))
    assert (folder.identity["snapshots"] == {4: name}) == same
    assert equal(Snapshots(folder.path).load(4), state(2))
    assert len(files(folder)) == 1


def test_a_partial_snapshot_says_so(folder):
    folder.commit(4, state(1), partial=True)
    folder.commit(8, state(2))
    assert [record.partial for record in manifest.read(folder.path).value.snapshots] == [True, False]


def test_the_manifest_grows_by_the_snapshot_and_not_by_its_tensors(folder):
    frozen = {f"layer{k}": torch.full((2,), float(k)) for k in range(100)}
    for step in (1, 2):
        folder.commit(step, {**frozen, "w": torch.full((1,), float(step))})
    before = (folder.path / "manifest.json").stat().st_size
    folder.commit(3, {**frozen, "w": torch.full((1,), 3.0)})
    assert (folder.path / "manifest.json").stat().st_size - before < 250
    assert equal(Snapshots(folder.path).load(3), {**frozen, "w": torch.full((1,), 3.0)})


def test_a_tensor_under_a_name_that_only_an_earlier_snapshot_had_is_not_stored_again(folder):
    long, weight = "a" * 500, torch.ones(1000)
    folder.commit(1, {long: weight, "b": weight})
    folder.commit(2, {"b": weight, "tied": weight})
    assert equal(Snapshots(folder.path).load(2), {"b": weight, "tied": weight})
    assert min(files(folder).values()) < 4000


def test_tied_names_are_loaded_as_one_tensor(store):
    weight = torch.ones(3)
    store.commit(4, {f"name{k}": weight for k in range(8000)})
    loaded = store.load(4)
    assert len(loaded) == 8000
    assert len({id(tensor) for tensor in loaded.values()}) == 1


def test_a_snapshot_file_is_plain_safetensors(folder, net):
    folder.commit(4, tensors(net))
    (path,) = (folder.path / "snapshots").iterdir()
    read = safetensors.torch.load_file(path)
    assert torch.equal(read["head.weight"], net.head.weight)
    manifest = json.loads((folder.path / "manifest.json").read_text())
    (record,) = manifest["snapshots"]
    assert (record["file"], record["digest"]["bytes"]) == (path.name, path.stat().st_size)


# readers


def test_reading_creates_nothing_and_needs_no_lock(folder):
    folder.commit(4, state(1))
    before = sorted(str(path) for path in folder.path.rglob("*"))
    folder.path.chmod(0o555)
    code = (
        "import sys; from snapens import Snapshots as S; s = S(sys.argv[1]); print(s.steps, s.load(4)['count'].item())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder.path)], capture_output=True, text=True, check=True)
    folder.path.chmod(0o755)
    assert done.stdout.strip() == "(4,) 1"
    assert sorted(str(path) for path in folder.path.rglob("*")) == before


def test_opening_a_missing_folder_to_read_creates_nothing(tmp_path):
    with pytest.raises(StoreError, match=r"must be a folder that holds manifest.json, got .*typo: check the path"):
        Snapshots(tmp_path / "typo").steps  # noqa: B018
    assert list(tmp_path.iterdir()) == []


def test_a_reader_sees_each_commit(folder):
    reader = Snapshots(folder.path)
    assert reader.steps == ()
    folder.commit(4, state(1))
    assert reader.steps == (4,)


def test_a_reader_cannot_write(folder):
    with pytest.raises(StoreError, match="open for reading only"):
        Snapshots(folder.path).commit(4, state(1))


# writers


def test_a_folder_with_snapshots_is_rejected_unless_resumed(folder):
    folder.commit(4, state(1))
    folder.close()
    with pytest.raises(StoreError, match=r"holds those of steps 4: choose another, or pass resume=True"):
        Snapshots(folder.path).open_to_write()
    again = Snapshots(folder.path)
    again.open_to_write(resume=True)
    again.commit(8, state(2))
    assert again.steps == (4, 8)


def test_a_second_writer_in_the_process_is_rejected_until_the_first_closes(folder):
    with pytest.raises(LockedError, match=r"one writer.*this process"):
        Snapshots(folder.path).open_to_write(resume=True)
    folder.close()
    Snapshots(folder.path).open_to_write()


def test_a_rejection_leaves_no_lock_behind(folder):
    folder.commit(4, state(1))
    folder.close()
    with pytest.raises(StoreError) as kept_alive:
        Snapshots(folder.path).open_to_write()
    Snapshots(folder.path).open_to_write(resume=True)
    assert kept_alive.tb is not None


OTHER = "import sys; from snapens import Snapshots; Snapshots(sys.argv[1]).open_to_write(resume=True)"


def test_a_second_writer_in_another_process_is_rejected_and_the_first_named(folder):
    done = subprocess.run([sys.executable, "-c", OTHER, str(folder.path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        f"LockedError: store must have one writer, but {folder.path} is being written by process {os.getpid()}"
        in done.stderr
    )
    remedy = "under DDP pass the wrapped model, or process_group=torch.distributed.group.WORLD\n"
    assert done.stderr.endswith("wait until it ends or choose another folder; " + remedy)


def test_a_forked_worker_does_not_keep_the_lock_alive(tmp_path):
    code = """
import os, sys
from snapens import Snapshots
store = Snapshots(sys.argv[1])
store.open_to_write()
if os.fork() == 0:
    sys.stdin.read()  # outlives the writer, until the test closes this pipe
os._exit(0)
"""
    worker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE)
    assert worker.wait() == 0
    Snapshots(tmp_path).open_to_write()
    worker.stdin.close()


def test_a_lock_lost_to_another_descriptor_is_taken_again_before_a_commit(folder):
    open(folder.path / "writer.lock").close()  # what shutil.copytree does, and POSIX drops the lock
    folder.commit(4, state(1))
    done = subprocess.run([sys.executable, "-c", OTHER, str(folder.path)], capture_output=True, text=True, check=False)
    assert "LockedError" in done.stderr


def test_a_forked_worker_cannot_commit(tmp_path):
    code = """
import os, sys, torch
from snapens import Snapshots
from snapens.errors import LockedError
store = Snapshots(sys.argv[1])
store.open_to_write()
if (child := os.fork()) == 0:
    try:
        store.commit(4, {"w": torch.ones(1)})
    except LockedError:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
store.commit(4, {"w": torch.ones(1)})
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_a_lock_that_the_system_cannot_give_is_no_second_writer(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(durable.fcntl, "lockf", no_locks)
    with pytest.raises(StoreError, match=r"store .* could not be written \(.*No locks available") as caught:
        Snapshots(tmp_path).open_to_write()
    assert not isinstance(caught.value, LockedError)


def test_a_manifest_that_another_process_replaced_is_not_overwritten(folder):
    folder.commit(4, state(1))
    other = manifest.Manifest(manifest.read(folder.path).value.snapshots[:0]).encode(folder.identity["run"])
    (folder.path / "manifest.json").write_bytes(other)  # what a second writer does after shutil.copytree dropped a lock
    with pytest.raises(StoreError, match=r"one writer, but another process changed .*manifest\.json: stop the other"):
        folder.commit(8, state(2))
    assert (folder.path / "manifest.json").read_bytes() == other


def test_a_manifest_that_another_process_replaces_during_a_commit_is_not_overwritten(folder, monkeypatch):
    folder.commit(4, state(1))
    other, stream = manifest.Manifest().encode(folder.identity["run"]), tensorfile.stream

    def slow(*args):
        digest = stream(*args)
        (folder.path / "manifest.json").write_bytes(other)
        return digest

    monkeypatch.setattr(tensorfile, "stream", slow)
    with pytest.raises(StoreError, match=r"one writer, but another process changed .*manifest\.json: stop the other"):
        folder.commit(8, state(2))
    assert (folder.path / "manifest.json").read_bytes() == other


def test_a_second_writer_is_rejected_while_the_first_is_still_opening(tmp_path, monkeypatch):
    path, lockf = tmp_path / "writer.lock", durable.fcntl.lockf

    def second(*args):  # as another thread of the process would
        with pytest.raises(LockedError, match="this process"):
            durable.WriterLock(path)
        lockf(*args)

    monkeypatch.setattr(durable.fcntl, "lockf", second)
    lock = durable.WriterLock(path)
    monkeypatch.undo()
    lock.release()
    durable.WriterLock(path).release()


def test_a_lock_file_that_was_removed_is_made_and_locked_again_before_a_commit(folder):
    (folder.path / "writer.lock").unlink()
    folder.commit(4, state(1))
    done = subprocess.run([sys.executable, "-c", OTHER, str(folder.path)], capture_output=True, text=True, check=False)
    assert "LockedError" in done.stderr


def test_a_commit_is_rejected_if_another_process_locked_the_file_that_replaced_the_lock(folder):
    (folder.path / "writer.lock").unlink()
    code = f"{OTHER}; print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    code = code.replace("Snapshots(sys.argv[1]).open", "store = Snapshots(sys.argv[1]); store.open")
    with subprocess.Popen([sys.executable, "-c", code, str(folder.path)], **pipes) as other:
        other.stdout.readline()
        with pytest.raises(LockedError, match=f"is being written by process {other.pid}"):
            folder.commit(4, state(1))
        other.stdin.close()
    folder.commit(4, state(1))


@pytest.mark.parametrize("name", ["writer.lock", "snapshots"])
def test_a_symbolic_link_that_leads_out_of_a_run_folder_is_rejected_and_not_written_through(tmp_path, name):
    outside = tmp_path / "outside"
    if name == "snapshots":
        outside.mkdir()
        (outside / "step-000000004-0123456789ab.safetensors").write_bytes(b"mine")
    else:
        outside.write_bytes(b"mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(outside)
    with pytest.raises(StoreError, match=rf"{name} must be a (regular file|folder), got a symbolic link"):
        Snapshots(tmp_path / "run").open_to_write()
    mine = outside / "step-000000004-0123456789ab.safetensors" if name == "snapshots" else outside
    assert mine.read_bytes() == b"mine"
    (tmp_path / "run" / name).unlink()
    Snapshots(tmp_path / "run").open_to_write()


def test_a_folder_that_becomes_a_symbolic_link_between_two_commits_is_not_written_through(folder, tmp_path):
    folder.commit(4, state(1))
    (folder.path / "snapshots").rename(tmp_path / "outside")
    (folder.path / "snapshots").symlink_to(tmp_path / "outside")
    before = sorted((tmp_path / "outside").iterdir())
    with pytest.raises(StoreError, match="snapshots must be a folder, got a symbolic link: replace it by the folder"):
        folder.commit(8, state(2))
    assert sorted((tmp_path / "outside").iterdir()) == before
    (folder.path / "snapshots").unlink()
    (tmp_path / "outside").rename(folder.path / "snapshots")
    folder.commit(8, state(2))


def test_a_lock_that_is_a_link_to_itself_is_rejected(tmp_path):
    (tmp_path / "writer.lock").symlink_to("writer.lock")
    with pytest.raises(DamagedError, match=r"writer\.lock must be a regular file, got a symbolic link: remove"):
        Snapshots(tmp_path).open_to_write()


def test_a_lock_that_is_a_hard_link_to_another_file_is_rejected_and_not_overwritten(tmp_path):
    (tmp_path / "outside").write_bytes(b"mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/writer.lock").hardlink_to(tmp_path / "outside")
    with pytest.raises(DamagedError, match=r"writer\.lock must hold the number of a process, got another content"):
        Snapshots(tmp_path / "run").open_to_write()
    assert (tmp_path / "outside").read_bytes() == b"mine"


def test_a_lock_is_released_even_if_the_system_reports_an_error_when_it_is_closed(folder, monkeypatch):
    close = os.close

    def failing(descriptor):
        close(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "close", failing)
    folder.close()
    monkeypatch.undo()
    folder.open_to_write()


def test_the_run_folder_itself_may_be_a_symbolic_link(tmp_path):
    (tmp_path / "large disk").mkdir()
    (tmp_path / "run").symlink_to("large disk")
    store = Snapshots(tmp_path / "run")
    store.open_to_write()
    store.commit(4, state(1))
    assert Snapshots(tmp_path / "large disk").steps == (4,)


def test_a_fifo_in_place_of_the_lock_is_rejected_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "writer.lock")
    with pytest.raises(DamagedError, match=r"writer\.lock must be a regular file"):
        Snapshots(tmp_path).open_to_write()


def test_a_manifest_that_the_disk_cannot_find_is_not_replaced_by_an_empty_one(folder, monkeypatch):
    folder.close()
    found = Path.stat

    def broken(path, **options):
        if path.name == "manifest.json":
            raise OSError(errno.EIO, "Input/output error")
        return found(path, **options)

    monkeypatch.setattr(Path, "stat", broken)
    before = (folder.path / "manifest.json").read_bytes()
    with pytest.raises(StoreError, match=r"manifest\.json could not be read .*Input/output error") as caught:
        Snapshots(folder.path).open_to_write()
    assert not isinstance(caught.value, DamagedError)
    assert (folder.path / "manifest.json").read_bytes() == before


def test_a_new_run_folder_and_its_new_parents_are_synced_into_the_folder_around_them(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def noting(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    Snapshots(tmp_path / "runs/a").open_to_write()
    around = [path.stat().st_ino for path in (tmp_path, tmp_path / "runs", tmp_path / "runs/a")]
    assert synced[:3] == around


def test_a_store_opened_by_hand_is_rejected_like_a_folder_unless_resumed(store):
    store.commit(4, state(1))
    with pytest.raises(StoreError, match="without snapshots"):
        store.open_to_write()
    store.commit(8, state(2))  # and is as open as before


def test_a_path_is_meant_from_where_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Snapshots("run")
    store.open_to_write()
    monkeypatch.chdir("/")
    store.commit(4, state(1))
    assert Snapshots(tmp_path / "run").steps == (4,)


def test_a_file_is_no_folder_of_snapshots(tmp_path):
    (tmp_path / "weights.pt").touch()
    with pytest.raises(StoreError, match=r"must be a folder that holds manifest\.json"):
        Snapshots(tmp_path / "weights.pt").steps  # noqa: B018


def test_steps_only_rise(store):
    store.commit(4, state(1))
    with pytest.raises(ArgumentError, match="step must be greater than 4, the last committed step, got 4"):
        store.commit(4, state(2))
    with pytest.raises(ArgumentError, match=r"step must be one of \(4,\), got 5"):
        store.load(5)


def test_going_back_replaces_later_snapshots_and_the_next_commit_removes_their_files(folder):
    for step in (4, 8, 12):
        folder.commit(step, state(step))
    folder.rewind(5)
    assert folder.steps == (4,)
    assert Snapshots(folder.path).steps == (4, 8, 12)  # nothing is lost before there is something new
    folder.commit(8, state(80))
    assert folder.steps == Snapshots(folder.path).steps == (4, 8)
    assert equal(Snapshots(folder.path).load(8), state(80))
    assert len(files(folder)) == 2


def test_going_back_in_memory():
    store = Snapshots()
    for step in (4, 8):
        store.commit(step, state(step))
    store.rewind(4)
    assert store.steps == (4,)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2])
def test_a_nan_or_infinity_is_never_committed(store, bad, dtype):
    store.commit(4, state(1))
    weight = torch.ones(100).to(dtype)
    weight[7] = bad
    with pytest.raises(NonFiniteError, match="at step 8 in w: lower the rate"):
        store.commit(8, {"w": weight, "fine": torch.ones(1)})
    assert store.steps == (4,)


def test_finite_weights_whose_sum_overflows_are_committed(store):
    store.commit(4, {"w": torch.full((10,), 60_000.0, dtype=torch.float16), "v": torch.full((4,), 3e38)})
    assert store.steps == (4,)


def test_storing_in_a_type_too_narrow_is_rejected_like_an_infinity():
    store = Snapshots(dtype=torch.float16)
    with pytest.raises(NonFiniteError):
        store.commit(4, {"w": torch.tensor([1e6])})
    with pytest.raises(ArgumentError, match="dtype must be a floating-point type"):
        Snapshots(dtype=torch.int8)


# damage


def damaged(folder: Snapshots, change) -> pytest.ExceptionInfo:
    for step in (4, 8):
        folder.commit(step, state(step))
    path = next((folder.path / "snapshots").glob("step-000000008-*"))
    change(path)
    reader = Snapshots(folder.path)
    assert equal(reader.load(4), state(4))
    with pytest.raises(DamagedError) as caught:
        reader.load(8)
    assert str(path) in str(caught.value)
    return caught


def test_a_truncated_snapshot_is_rejected_and_the_others_are_read(folder):
    caught = damaged(folder, lambda path: path.write_bytes(path.read_bytes()[:-1]))
    assert "truncated or altered" in str(caught.value)


def test_a_snapshot_with_one_bit_changed_is_rejected(folder):
    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)

    assert "it was altered" in str(damaged(folder, flip).value)


def test_a_snapshot_of_another_size_is_rejected_without_reading_it(folder, monkeypatch):
    folder.commit(4, state(1))
    (path,) = (folder.path / "snapshots").iterdir()
    os.truncate(path, 8 << 30)  # a hole: it takes no space, but reading it would take minutes
    monkeypatch.setattr(durable.hashlib, "file_digest", None)
    with pytest.raises(DamagedError, match="but it was truncated or altered"):
        Snapshots(folder.path).load(4)


def test_a_snapshot_that_is_gone_is_named(folder):
    assert "is listed in the manifest, but it is missing: restore the file" in str(damaged(folder, Path.unlink).value)


def test_a_snapshot_that_the_disk_cannot_read_is_not_said_to_be_damaged(folder, monkeypatch):
    folder.commit(4, state(4))
    reader = Snapshots(folder.path)
    assert reader.steps == (4,)
    opened = os.open

    def broken(path, *args):
        if str(path).endswith(".safetensors"):
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *args)

    monkeypatch.setattr(os, "open", broken)
    with pytest.raises(StoreError, match=r"could not be read \(.*Input/output error") as caught:
        reader.load(4)
    assert not isinstance(caught.value, DamagedError)


@pytest.mark.parametrize("place", [("step-000000004-0123456789ab.safetensors", "frozen"), (None, "other")])
def test_a_tensor_that_no_snapshot_holds_is_rejected(folder, place):
    for step in (4, 8):
        folder.commit(step, {"frozen": torch.ones(2), "w": torch.full((1,), step)})
    run, earlier, later = folder.identity["run"], *folder.identity["snapshots"].values()
    specs, about = {"frozen": Spec(torch.float32, (2,))}, About(run, "snapshot", 8)
    file, key = place[0] or earlier, place[1]
    items = [("frozen", (file, key))]
    digest = tensorfile.stream(folder.path / "snapshots" / later, specs, items, about, items)
    records = manifest.read(folder.path).value.snapshots
    altered = manifest.Manifest((records[0], replace(records[1], digest=digest)))
    (folder.path / "manifest.json").write_bytes(altered.encode(run))
    with pytest.raises(DamagedError, match=f"step 8 needs '{key}' of {file}, which is missing: restore the folder"):
        Snapshots(folder.path).load(8)


def test_a_snapshot_of_another_run_is_rejected_even_if_the_manifest_names_it(tmp_path, folder):
    other = Snapshots(tmp_path / "other")
    other.open_to_write()
    for store in (folder, other):
        store.commit(4, state(1))
    foreign = manifest.read(other.path).value.snapshots
    (name,) = files(other)
    (folder.path / "snapshots" / name).write_bytes((other.path / "snapshots" / name).read_bytes())
    (folder.path / "manifest.json").write_bytes(manifest.Manifest(foreign).encode(folder.identity["run"]))
    with pytest.raises(DamagedError, match=rf"{name} must be of About\(run='{folder.identity['run']}'"):
        Snapshots(folder.path).load(4)


def test_a_damaged_snapshot_stops_a_resumed_run_at_its_start(folder):
    folder.commit(4, state(4))
    folder.close()
    next((folder.path / "snapshots").iterdir()).write_bytes(b"")
    again = Snapshots(folder.path)
    again.open_to_write(resume=True)
    with pytest.raises(DamagedError):
        again.rewind(4)


# a full disk, and a disk that fails


def test_a_write_beyond_the_limit_loses_nothing_and_can_be_repeated(tmp_path):
    code = """
import resource, signal, sys, torch
from snapens import Snapshots
from snapens.errors import StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Snapshots(sys.argv[1]); store.open_to_write()
store.commit(4, {"w": torch.ones(1000)})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    store.commit(8, {"w": torch.zeros(100_000)})
except StoreError as error:
    print(error)
print(len(list((store.path / "snapshots").iterdir())), Snapshots(sys.argv[1]).load(4)["w"].sum().item())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.commit(8, {"w": torch.zeros(100_000)})
print(Snapshots(sys.argv[1]).steps)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    message, left, after = done.stdout.strip().splitlines()
    assert f"the snapshot of step 8 in {tmp_path} could not be written" in message
    assert "File too large" in message
    assert "earlier files are intact: free disk space" in message
    assert left == "1 1000.0"
    assert after == "(4, 8)"


def test_what_a_failed_commit_left_is_removed_before_the_next_is_written(folder, monkeypatch):
    folder.commit(4, state(4))
    names = ("step-000000008-0123456789ab.safetensors", "step-000000008-0123456789ab.safetensors.part")
    left = [folder.path / "snapshots" / name for name in (*names, names[0] + ".ba9876543210.part")]
    left += [folder.path / f"{name}.ba9876543210.part" for name in ("manifest.json", "manifest.previous.json")]
    own = [folder.path / "snapshots/step-000000008.safetensors", folder.path / "report.html.ba9876543210.part"]
    for path in (*left, *own):
        path.touch()
    seen, publish = [], durable.publish
    monkeypatch.setattr(durable, "publish", lambda *args: seen.append([p.exists() for p in left]) or publish(*args))
    folder.commit(8, state(8))
    assert seen == [[False] * 5] * 3
    assert all(path.exists() for path in own)  # names that a commit does not use


@pytest.mark.parametrize(
    ("lost", "remedy"),
    [
        (["manifest.json"], "copy manifest.previous.json to manifest.json"),
        (["manifest.json", "manifest.previous.json"], "restore it"),
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_a_lost_manifest_is_not_begun_anew(folder, lost, remedy, resume):
    folder.commit(4, state(4))
    folder.close()
    for name in lost:
        (folder.path / name).unlink()
    with pytest.raises(DamagedError) as caught:
        Snapshots(folder.path).open_to_write(resume)
    assert f"contains snapshots, but manifest.json is missing: {remedy}, or" in str(caught.value)
    assert not (folder.path / "manifest.json").exists()
    assert len(list((folder.path / "snapshots").iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"store .*run could not be written \(.*File exists.*or choose another folder"):
        Snapshots(tmp_path / "file" / "run").open_to_write()


def test_a_file_that_cannot_be_removed_does_not_undo_a_commit(folder, monkeypatch, caplog):
    for step in (4, 8):
        folder.commit(step, state(step))
    folder.rewind(4)

    def reject(path, **_):
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(Path, "unlink", reject)
    folder.commit(8, state(80))
    assert "could not be removed" in caplog.text
    assert equal(Snapshots(folder.path).load(8), state(80))


def test_two_writers_of_one_name_never_publish_a_mixture(tmp_path):
    first, second = bytes(100_000), bytes([1]) * 100_000

    def chunks():
        yield first[:50_000]
        assert durable.publish(tmp_path / "a", [second]).bytes == 100_000
        assert (tmp_path / "a").read_bytes() == second
        yield first[50_000:]

    durable.publish(tmp_path / "a", chunks())
    assert (tmp_path / "a").read_bytes() == first
    assert len(list(tmp_path.iterdir())) == 1


def test_publish_does_not_write_through_a_link_and_says_what_is_in_the_file(tmp_path, monkeypatch):
    (tmp_path / "outside").write_bytes(b"mine")
    monkeypatch.setattr(durable, "unique", lambda: "0123456789ab")
    (tmp_path / "a.0123456789ab.part").symlink_to(tmp_path / "outside")
    with pytest.raises(FileExistsError):
        durable.publish(tmp_path / "a", [b"some"])
    assert (tmp_path / "outside").read_bytes() == b"mine"


def test_weights_that_change_during_a_commit_give_a_snapshot_that_can_be_read(folder, monkeypatch):
    weight, fsync = torch.zeros(1000), os.fsync

    def changing(descriptor):
        weight.add_(1)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", changing)
    folder.commit(4, {"w": weight})
    assert Snapshots(folder.path).load(4)["w"].unique().tolist() == [0]


def test_publish_leaves_no_temporary_file_when_it_fails(tmp_path):
    def chunks():
        yield b"some"
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError, match="the source failed"):
        durable.publish(tmp_path / "a", chunks())
    assert list(tmp_path.iterdir()) == []


def test_publish_says_what_it_wrote(tmp_path):
    written = durable.publish(tmp_path / "a", [b"a", memoryview(b"bc")])
    assert (tmp_path / "a").read_bytes() == b"abc"
    assert written == durable.digest(tmp_path / "a")
    assert (
        written.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )  # FIPS 180-2, appendix B


def test_of_many_tensors_that_are_not_finite_five_are_named():
    bad = {f"w{k}": torch.tensor([float("nan")]) for k in range(7)}
    with pytest.raises(NonFiniteError, match="at step 4 in w0, w1, w2, w3, w4 and 2 more: lower the rate"):
        Snapshots().commit(4, bad)
    with pytest.raises(NonFiniteError, match="in w0, w1, w2, w3, w4: lower the rate"):
        Snapshots().commit(4, {name: bad[name] for name in list(bad)[:5]})


def test_snapshots_say_where_they_are(tmp_path):
    assert (repr(Snapshots()), repr(Snapshots(tmp_path))) == ("Snapshots()", f"Snapshots({str(tmp_path)!r})")


def test_weights_that_a_state_dict_gives_twice_are_stored_once():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    net[1].weight = net[0].weight
    snapshots = Snapshots()
    snapshots.commit(4, net.state_dict())
    found = snapshots.entries(4)
    assert found["0.weight"] is found["1.weight"]
    assert found["0.bias"] is not found["1.bias"]


def test_weights_that_another_thread_changes_are_committed_as_they_were_checked(store):
    """A NaN that comes and goes is either rejected or not in the file."""
    weight, stop = torch.ones(1 << 16), threading.Event()

    def toggle():
        while not stop.is_set():
            weight.fill_(float("nan"))
            weight.fill_(1.0)

    thread = threading.Thread(target=toggle)
    thread.start()
    try:
        for step in range(1, 40):
            with suppress(NonFiniteError):
                store.commit(step, {"w": weight})
    finally:
        stop.set()
        thread.join()
    weight.fill_(1.0)
    store.commit(40, {"w": weight})
    assert all(store.load(step)["w"].isfinite().all() for step in store.steps)


def test_a_conjugate_view_is_stored_as_its_values(store):
    values = torch.tensor([1 + 2j, 3 - 1j])
    store.commit(1, {"w": values.conj()})
    assert torch.equal(store.load(1)["w"], torch.tensor([1 - 2j, 3 + 1j]))


def test_the_name_that_the_format_reserves_is_rejected(folder):
    with pytest.raises(ArgumentError, match="must not be named '__metadata__'"):
        folder.commit(1, {"__metadata__": torch.ones(1)})
    assert folder.steps == ()


def test_a_commit_succeeds_while_the_interpreter_shuts_down(tmp_path):
    code = f"""
import atexit, torch
from snapens import Snapshots
store = Snapshots({str(tmp_path)!r})
store.open_to_write()
atexit.register(lambda: store.commit(1, {{"w": torch.ones(3)}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert Snapshots(tmp_path).steps == (1,)
