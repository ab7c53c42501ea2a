"""How an ensemble reads, holds and shares the tensors of its members."""

import copy
import functools
import io
import sys
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from members import X, mean_of, trained
from torch import nn

from snapens import Combination, Ensemble, Snapshots
from snapens.combine.soup import Soups
from snapens.errors import ArgumentError, DamagedError, MismatchError
from snapens.weights import tensors


def test_bf16_snapshots_load_into_a_float32_model(make_net, resident):
    store, networks = trained(make_net, dtype=torch.bfloat16)
    ensemble = Ensemble(store, make_net(), resident=resident)
    assert ensemble(X).dtype == torch.float32
    torch.testing.assert_close(ensemble(X).double(), mean_of(networks), atol=0.02, rtol=0)


def test_predict_loads_each_member_once(make_net, tmp_path, monkeypatch):
    store, _ = trained(make_net, path=tmp_path)
    ensemble = Ensemble(store, make_net(), resident=False)
    reads, read = [], type(store.entries(4)["head.weight"]).read
    monkeypatch.setattr("snapens.storage.tensorfile.Stored.read", lambda self: reads.append(self.name) or read(self))
    ensemble.predict([X] * 50)
    assert reads.count("head.weight") == 2  # the newest is loaded already; the other two are read once


def test_streaming_reads_only_tensors_that_differ(tmp_path, monkeypatch):
    store = Snapshots(tmp_path)
    store.open_to_write()
    for step in (1, 2, 3):
        store.commit(
            step,
            {
                "0.weight": torch.ones(4, 4),
                "0.bias": torch.zeros(4),
                "1.weight": torch.ones(2, 4) * step,
                "1.bias": torch.zeros(2),
            },
        )
    ensemble = Ensemble(store, nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), resident=False)
    reads, read = [], type(store.entries(1)["0.bias"]).read
    monkeypatch.setattr("snapens.storage.tensorfile.Stored.read", lambda self: reads.append(self.name) or read(self))
    ensemble(X)
    assert reads == ["1.weight", "1.weight"]
    assert len(ensemble._replicas) == 1


def test_models_with_compiled_children_can_be_loaded(make_net):
    store, networks = trained(make_net)
    model = make_net()
    model.mix = torch.compile(model.mix, backend="eager")
    torch.testing.assert_close(Ensemble(store, model)(X).double(), mean_of(networks), atol=1e-6, rtol=0)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.act = nn.Linear(4, 4), nn.Linear(4, 3), nn.ReLU()
        self.clip = torch.compile(torch.relu, backend="eager")

    def encode(self, x):
        return self.clip(self.act(self.a(x)))

    def forward(self, x):
        return self.b(self.encode(x))


def compile_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")


def compile_method(model):
    model.encode = torch.compile(model.encode, backend="eager")


def compile_forward_of_a_child(model):
    model.a.forward = torch.compile(model.a.forward, backend="eager")


def replace_forward(model):
    before = model.forward
    model.forward = lambda x: before(x / 2)


def hook_that_refers_to_the_model(model):
    model.b.register_forward_hook(lambda module, inputs, output: model.act(output))


def lambda_that_refers_to_a_method(model):
    encode = model.encode
    model.twice = lambda x: encode(encode(x))


def hook_of_a_script(model):
    hook = "lambda module, inputs, output: model.act(output)"
    exec(f"model.b.register_forward_hook({hook})", {"model": model})  # where the model is a global


def default_argument(model):
    model.twice = lambda x, layer=model.a: layer(x)


def functions_in_containers(model):
    model.steps = [{"first": lambda x: model.a(x)}]


def partial_of_a_function(model):
    model.twice = functools.partial(lambda x: model.a(x))


def function_with_a_parameter(model):
    weight = model.b.weight
    model.twice = lambda x: x @ weight.T


def function_in_a_function(model):
    inner = lambda x: model.a(x)  # noqa: E731
    model.twice = lambda x: inner(x)


def nested_function_of_a_script(model):
    exec("model.twice = lambda x: [model.a(one) for one in (lambda: [x])()][0]", {"model": model})


def weak_reference(model):
    model.b.parent = weakref.ref(model)


def decorated_hook(model):
    @functools.wraps(torch.relu)
    def hook(module, inputs, output):
        return model.act(output)

    model.b.register_forward_pre_hook(functools.wraps(hook)(lambda module, inputs: None))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (compile_forward, "'forward'"),
        (compile_method, "'encode'"),
        (compile_forward_of_a_child, "'a.forward'"),
        (replace_forward, "'forward'"),
        (hook_that_refers_to_the_model, "'b._forward_hooks'"),
        (lambda_that_refers_to_a_method, "'twice'"),
        (hook_of_a_script, "'b._forward_hooks'"),
        (decorated_hook, "'b._forward_pre_hooks'"),
        (default_argument, "'twice'"),
        (functions_in_containers, "'steps'"),
        (partial_of_a_function, "'twice'"),
        (function_with_a_parameter, "'twice'"),
        (function_in_a_function, "'twice'"),
        (nested_function_of_a_script, "'twice'"),
        (weak_reference, "'b.parent'"),
    ],
)
def test_a_model_whose_copies_would_use_the_live_weights_is_rejected(change, name):
    store, networks = trained(Encoder)
    model = Encoder()
    change(model)
    with pytest.raises(
        ArgumentError, match=f"model must have no attribute or hook that refers to .*, got {name}, .*: use mode"
    ):
        Ensemble(store, model)
    with pytest.raises(ArgumentError, match="pass another instance of the architecture"):
        Soups(model, store, held_out=[])
    torch.testing.assert_close(Ensemble(store, Encoder())(X).double(), mean_of(networks), atol=1e-6, rtol=0)


def test_methods_that_a_copy_uses_with_its_own_weights_are_accepted():
    store, networks = trained(Encoder)
    model = Encoder()
    model.compile(backend="eager")
    model.forward = model.forward  # bound, and copied as such
    model.a.forward = types.MethodType(lambda self, x: nn.Linear.forward(self, x), model.a)
    model.b.forward = functools.partial(nn.Linear.forward, model.b)
    model.act.forward = torch.nn.functional.relu
    half = 1.0
    model.a.register_forward_hook(lambda module, inputs, output: output * half + later)
    for name in ("full_backward_hook", "state_dict_pre_hook", "load_state_dict_post_hook"):  # not called in forward()
        getattr(model, f"register_{name}")(lambda *_: model)
    ensemble = Ensemble(store, model)
    later = 0.0
    torch.testing.assert_close(ensemble(X).double(), mean_of(networks), atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_tensors_that_forward_computed_are_copied_with_the_model():
    """Of the old weight_norm, and an activation in an attribute: `deepcopy` rejects tensors with a gradient."""

    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.utils.weight_norm(nn.Linear(4, 3))

        def forward(self, x):
            self.seen = self.a(x)
            return self.seen

    torch.manual_seed(0)
    model, store, expected = Keeps(), Snapshots(), []
    for step in (1, 2):
        with torch.no_grad():
            model.a.weight_v.add_(torch.randn(3, 4))
        store.commit(step, {name: tensor.clone() for name, tensor in model.state_dict().items()})
        expected.append(model(X).detach().softmax(-1))
    ensemble = Ensemble(store, model)
    torch.testing.assert_close(ensemble(X), torch.stack(expected).mean(0))
    model.view = model.a.weight_v[0]  # it would still be the live weight
    with pytest.raises(ArgumentError, match=r"model must support copy.deepcopy, got Only Tensors created explicitly"):
        Ensemble(store, model)


def test_a_frozen_base_of_wrapped_tensors_is_copied():
    """As of quantised models: such a tensor has no memory of its own."""
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor

    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            weight = torch.arange(16.0).view(4, 4)
            self.base = nn.Parameter(two_tensor(weight, weight), requires_grad=False)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            self.seen = self.head(x @ self.base.a)
            return self.seen

    model, store = Keeps(), Snapshots()
    store.commit(1, {name: value.detach().clone() for name, value in model.head.named_parameters("head")})
    model(X).sum().backward()  # leaves a tensor with a gradient function
    ensemble = Ensemble(store, model, strict=False)
    torch.testing.assert_close(ensemble(X), model(X).softmax(-1).detach())


def test_resident_members_share_what_their_snapshots_share():
    store, frozen, thawed = Snapshots(), torch.randn(8, 4), torch.randn(8, 4)
    for step, base in ((1, frozen), (2, frozen), (3, thawed)):
        store.commit(
            step, {"0.weight": base, "0.bias": torch.zeros(8), "1.weight": torch.randn(2, 8), "1.bias": torch.randn(2)}
        )
    ensemble = Ensemble(store, nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))
    first, second, third = (tensors(replica) for replica in ensemble._replicas)  # newest first
    assert second["0.weight"] is third["0.weight"] is not first["0.weight"]
    assert first["0.bias"] is third["0.bias"]
    assert first["1.weight"] is not second["1.weight"]
    assert torch.equal(first["0.weight"], thawed)
    moved = ensemble.to(torch.float64)(X.double())
    each = [
        torch.nn.functional.linear(torch.nn.functional.linear(X, s["0.weight"]), s["1.weight"], s["1.bias"]).softmax(-1)
        for s in map(store.load, (1, 2, 3))
    ]
    torch.testing.assert_close(moved, torch.stack(each).mean(0).double(), atol=1e-6, rtol=0)


def test_a_damaged_snapshot_matters_only_to_an_ensemble_that_needs_it(make_net, tmp_path):
    _, networks = trained(make_net, path=tmp_path)
    next((tmp_path / "snapshots").glob("step-000000004-*")).write_bytes(b"")
    ensemble = Ensemble.load(tmp_path, make_net(), last=2)
    torch.testing.assert_close(ensemble(X).double(), mean_of(networks[1:]), atol=1e-6, rtol=0)
    with pytest.raises(DamagedError):
        ensemble.last = 3
    assert ensemble.last == 2


def test_an_interrupted_read_does_not_change_members_that_share_tensors(monkeypatch):
    store, shared = Snapshots(), torch.randn(8, 4)
    for step, base in ((1, torch.randn(8, 4)), (2, shared), (3, shared)):
        store.commit(step, {"0.weight": base, "1.weight": torch.randn(2, 8)})
    ensemble = Ensemble(store, nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 2, bias=False)), last=1)
    before, ((run, _),) = ensemble(X), ensemble.combination.members

    def interrupt(entry):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(store.entries(2)["1.weight"]), "read", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ensemble.last = 2
    ensemble.combination = Combination(((run, 1), (run, 3)))
    ensemble.last = 1
    assert torch.equal(ensemble(X), before)


def test_an_ensemble_built_in_inference_mode_works_outside_it(make_net, resident):
    store, _ = trained(make_net)
    with torch.inference_mode():
        ensemble = Ensemble(store, make_net(), resident=resident)
        inside = ensemble(X)
    assert torch.equal(ensemble(X), inside)


def test_more_members_are_read_when_last_is_raised(make_net, tmp_path):
    store, networks = trained(make_net, path=tmp_path)
    ensemble = Ensemble(store, make_net(), last=1)
    assert len(ensemble._replicas) == 1
    ensemble.last = 3
    torch.testing.assert_close(ensemble(X).double(), mean_of(networks), atol=1e-6, rtol=0)


def test_a_member_that_cannot_be_read_is_never_used_in_part(make_net, tmp_path):
    store, networks = trained(make_net, path=tmp_path)
    ensemble = Ensemble(store, make_net(), resident=False)
    damaged = next((tmp_path / "snapshots").glob("step-000000008-*"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedError):
        ensemble(X)
    damaged.write_bytes(content)
    torch.testing.assert_close(ensemble(X).double(), mean_of(networks), atol=1e-6, rtol=0)


def edited(make_net, change):
    store, _ = trained(make_net, steps=(4,))
    state = store.load(4)
    change(state)
    store.commit(8, state)
    return store


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("head.bias"), "of the snapshot of step 8, got missing head.bias"),
        (lambda s: s.update(more=torch.ones(1)), "got extra more"),
        (lambda s: s.update({"head.bias": torch.ones(4)}), r"got head.bias has shape \(4,\), the model's is \(3,\)"),
        (lambda s: s.update({"head.bias": torch.ones(3, dtype=torch.int64)}), "head.bias has dtype torch.int64"),
        (lambda s: s.update({"norm.num_batches_tracked": torch.tensor(1, dtype=torch.int32)}), "dtype torch.int32"),
        (lambda s: s.update({"mix.weight": torch.ones(8, 8)}), "mix.weight is tied to again.weight in the model only"),
    ],
)
def test_a_snapshot_of_another_architecture_is_rejected_with_the_difference(make_net, change, words):
    with pytest.raises(MismatchError, match=words):
        Ensemble(edited(make_net, change), make_net())


@pytest.mark.parametrize(
    ("change", "strict", "offered"),
    [
        (lambda s: s.pop("head.bias"), True, True),
        (lambda s: s.update({"head.bias": torch.ones(4)}), True, False),
        (lambda s: s.update({"head.bias": torch.ones(4)}), False, False),
        (lambda s: (s.pop("head.bias"), s.update(more=torch.ones(1))), True, False),
    ],
)
def test_strict_false_is_offered_only_where_it_helps(make_net, change, strict, offered):
    store = Snapshots()
    state = make_net().state_dict()
    change(state)
    store.commit(4, state)
    with pytest.raises(MismatchError, match="build that architecture") as found:
        Ensemble(store, make_net(), strict=strict)
    assert ("strict=False" in str(found.value)) == offered


@pytest.mark.parametrize("device", ["cuda:99", torch.device("cuda:99"), "gpu"])  # no machine has 100 GPUs
def test_a_device_that_torch_cannot_use_is_rejected_with_the_reason_of_torch(make_net, tmp_path, device):
    trained(make_net, path=tmp_path / "run")
    with pytest.raises(
        ArgumentError, match=rf"device must be available, got {device}, but torch .* \(.+\): use device='cpu'"
    ):
        Ensemble.load(tmp_path / "run", make_net(), device=device)


def test_a_long_list_of_differences_is_shortened(make_net):
    store = Snapshots()
    store.commit(1, {f"t{k}": torch.ones(1) for k in range(30)})
    with pytest.raises(MismatchError, match="and 31 more"):
        Ensemble(store, make_net())


def with_heads(make, path):
    """A store of three snapshots that hold only some tensors, a model, and the networks that they make together."""
    store, model, networks = Snapshots(path), make(), []
    store.open_to_write()
    for step in (4, 8, 12):
        heads = {name: torch.rand_like(model.state_dict()[name]) for name in ("head.weight", "head.bias")}
        store.commit(step, heads, partial=True)
        network = copy.deepcopy(model)
        network.load_state_dict({**model.state_dict(), **store.load(step)})
        networks.append(network.eval())
    return store, model, networks


def test_the_tensors_that_snapshots_lack_come_from_the_model(make_net, path, resident):
    store, model, networks = with_heads(make_net, path)
    ensemble = Ensemble(store, model, strict=False, resident=resident)
    for expected in (networks, networks[-2:], networks):
        ensemble.last = len(expected)
        with torch.no_grad():
            torch.testing.assert_close(ensemble(X).double(), mean_of(expected))


def test_resident_members_share_the_tensors_of_the_model(make_net):
    store, model, _ = with_heads(make_net, None)
    members = Ensemble(store, model, strict=False).members
    assert len({id(member.module.weight) for member in members}) == 1
    assert len({id(member.norm.running_mean) for member in members}) == 1
    assert len({id(member.head.weight) for member in members}) == 3
    assert members[0].module.weight is not model.module.weight


def test_snapshots_of_some_tensors_are_rejected_by_default(make_net):
    store, model, _ = with_heads(make_net, None)
    with pytest.raises(MismatchError, match=r"missing again.weight.*strict=False"):
        Ensemble(store, model)


def test_a_tensor_that_the_model_lacks_is_rejected_without_strict_too(make_net):
    store, _, _ = with_heads(make_net, None)
    with pytest.raises(MismatchError, match=r"extra head.bias"):
        Ensemble(store, nn.Linear(2, 2), strict=False)


def test_snapshots_that_lack_different_tensors_are_rejected(make_net):
    store, model, _ = with_heads(make_net, None)
    store.commit(16, tensors(make_net()))
    with pytest.raises(MismatchError, match="lack the same tensors for strict=False, but that of step 16"):
        Ensemble(store, model, strict=False)


def test_threads_that_predict_at_the_same_time_do_not_mix_up_members(make_net, resident):
    store, networks = trained(make_net)
    ensemble, inputs = Ensemble(store, make_net(), resident=resident), [X * k for k in range(8)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads interrupt each other
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda x: ensemble.predict([x]), inputs * 25))
    finally:
        sys.setswitchinterval(before)
    for k, probabilities in enumerate(found):
        torch.testing.assert_close(probabilities.double(), mean_of(networks, inputs[k % 8]), atol=1e-6, rtol=0)


def test_an_ensemble_can_be_copied_and_pickled(make_net, resident):
    store, networks = trained(make_net)
    ensemble = Ensemble(store, make_net(), resident=resident)
    file = io.BytesIO()
    torch.save(ensemble, file)
    file.seek(0)
    for same in (copy.deepcopy(ensemble), torch.load(file, weights_only=False)):
        torch.testing.assert_close(same.predict([X]).double(), mean_of(networks), atol=1e-6, rtol=0)
