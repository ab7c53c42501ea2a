import threading
from contextlib import suppress

import numpy as np
import pytest
import torch
from states import equal, files, state

from snapens import Snapshots
from snapens.errors import ArgumentError, NonFiniteError, StoreError
from snapens.storage import manifest


@pytest.fixture(params=["memory", "folder"])
def store(request, tmp_path):
    opened = Snapshots(None if request.param == "memory" else tmp_path / "run")
    opened.open_to_write()
    return opened


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


def test_in_memory_too_a_name_is_reserved_before_its_snapshot_is_committed():
    store = Snapshots()
    name = store.reserve(4)
    store.commit(4, state(1))
    assert store.identity["snapshots"] == {4: name}


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


def test_a_partial_snapshot_says_so(folder):
    folder.commit(4, state(1), partial=True)
    folder.commit(8, state(2))
    assert [record.partial for record in manifest.read(folder.path).value.snapshots] == [True, False]


def test_tied_names_are_loaded_as_one_tensor(store):
    weight = torch.ones(3)
    store.commit(4, {f"name{k}": weight for k in range(8000)})
    loaded = store.load(4)
    assert len(loaded) == 8000
    assert len({id(tensor) for tensor in loaded.values()}) == 1


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


def test_steps_only_rise(store):
    store.commit(4, state(1))
    with pytest.raises(ArgumentError, match="step must be greater than 4, the last committed step, got 4"):
        store.commit(4, state(2))
    with pytest.raises(ArgumentError, match=r"step must be one of \(4,\), got 5"):
        store.load(5)


def test_a_step_can_come_from_numpy_and_must_be_a_whole_number(store):
    store.commit(np.int64(4), state(1))  # NumPy's integers cannot be written as JSON
    assert [type(step) for step in store.steps] == [int]
    for wrong in (8.0, 0, "8"):
        with pytest.raises(ArgumentError, match="step must be a whole number of at least 1, got"):
            store.commit(wrong, state(2))


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


def test_storing_in_a_type_too_narrow_is_rejected_with_its_own_remedy():
    store = Snapshots(dtype=torch.float16)
    wide = {"fine": torch.ones(1), "w": torch.tensor([1e6])}  # the largest float16 is 65504
    with pytest.raises(
        NonFiniteError, match=r"torch\.float16, .* at step 4 in w: use Snapshots\(dtype=torch\.bfloat16"
    ):
        store.commit(4, wide)
    with pytest.raises(NonFiniteError, match=r"torch\.float16, .* at step 0 in w: "):
        store.check(wide)
    with pytest.raises(NonFiniteError, match="got NaN or infinity at step 4 in v: lower the rate"):
        store.commit(4, {**wide, "v": torch.tensor([torch.nan])})
    Snapshots(dtype=torch.bfloat16).commit(4, wide)
    with pytest.raises(ArgumentError, match="dtype must be a floating-point type"):
        Snapshots(dtype=torch.int8)


def test_of_many_tensors_that_are_not_finite_five_are_named():
    bad = {f"w{k}": torch.tensor([float("nan")]) for k in range(7)}
    with pytest.raises(NonFiniteError, match="at step 4 in w0, w1, w2, w3, w4, and 2 more: lower the rate"):
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


def test_a_conjugate_view_is_not_tied_to_its_base(tmp_path):
    values = torch.tensor([1 + 2j, 3 - 4j])
    store = Snapshots(tmp_path)
    store.open_to_write()
    store.commit(4, {"values": values, "conjugates": values.conj(), "imaginary": values.conj().imag})
    found = store.load(4)
    assert found["values"].tolist() == [1 + 2j, 3 - 4j]
    assert found["conjugates"].tolist() == [1 - 2j, 3 + 4j]
    assert found["imaginary"].tolist() == [-2, 4]


def test_snapshots_are_read_on_the_cpu_whatever_the_default_device_is(tmp_path):
    store = Snapshots(tmp_path)
    store.open_to_write()
    store.commit(4, {"w": torch.ones(3)})
    with torch.device("meta"):
        assert Snapshots(tmp_path).load(4)["w"].tolist() == [1, 1, 1]
