"""What happens under FSDP2 (`fully_shard`) in two processes; see `two_ranks.py`."""

import contextlib
import re
import resource
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from conftest import Net
from rank_models import SCHEDULE, batches, equal, fill, mesh, mlp, rejected, same, sgd, sharded, train, whole
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from snapens import Ensemble, SnapshotEnsembler, Snapshots, fresh_weights, noisy_weights
from snapens.errors import ArgumentError, NonFiniteError, StoreError
from snapens.restarts import add_noise
from snapens.weights import tensors


def a_snapshot_is_what_torch_gathers(rank, path, wrap=lambda model: model, **options):
    model = sharded(**options)
    model.mix.weight.requires_grad_(False)  # frozen and tied: stored once, and in the first file only
    wrapped, optimizer = wrap(model), sgd(model)
    model.eval()(torch.randn(6, 4))  # this leaves the outer group of parameters unsharded
    ensembler = SnapshotEnsembler(wrapped, optimizer, SCHEDULE, store=path / "run")
    model.train()
    for step in (2, 4):
        train(wrapped, ensembler, 2)
        found, expected = Snapshots(path / "run").load(step), whole(model)
        if rank == 0:  # buffers are those of rank 0
            equal(found, expected)
        assert found["mix.weight"].data_ptr() == found["again.weight"].data_ptr()
    places = [Snapshots(path / "run").entries(step) for step in (2, 4)]
    assert places[0]["mix.weight"] == places[1]["again.weight"]
    assert places[0]["head.weight"] != places[1]["head.weight"]


def a_compiled_model_is_unwrapped(rank, path):
    a_snapshot_is_what_torch_gathers(rank, path, lambda model: torch.compile(model, backend="eager"))


def a_mesh_may_have_two_dimensions(rank, path):
    a_snapshot_is_what_torch_gathers(
        rank, path, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "parts"))
    )


def a_mesh_of_two_dimensions_and_some_processes_needs_a_group(rank, path):
    part = DeviceMesh("cpu", [[0]], mesh_dim_names=("copies", "parts"))
    if rank == 0:
        model = fully_shard(nn.Linear(2, 2), mesh=part)
        rejected(ArgumentError, lambda: SnapshotEnsembler(model, sgd(model), SCHEDULE), "process_group must be given")


def parameters_may_be_plain_tensors(rank, path):
    model = same(Net())
    fully_shard(model.module, mesh=mesh())
    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, process_group=dist.group.WORLD)
    train(model, ensembler, 2)
    expected = whole(model)
    if rank == 0:
        equal(ensembler.snapshots.load(2), expected)


def a_narrow_dtype_is_that_of_the_store(rank, path):
    """Mixed precision does not change the parameters, which stay float32."""
    model = fully_shard(mlp().float(), mesh=mesh(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    narrow = Snapshots(path / "run", dtype=torch.bfloat16)
    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=narrow)
    train(model, ensembler, 2)
    expected = whole(model)
    assert expected["0.weight"].dtype == torch.float32
    equal(Snapshots(path / "run").load(2), {name: value.bfloat16() for name, value in expected.items()})


def snapshots_equal_those_of_ddp(rank, path):
    """Bit for bit: with two ranks, both divide the sum of the gradients by two, which is exact."""
    found = {}
    for kind, wrap in (("ddp", DistributedDataParallel), ("fsdp", sharded)):
        torch.manual_seed(0)
        model = wrap(Net(classes=5))
        torch.manual_seed(1 + rank)
        ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=path / kind)
        train(model, ensembler, 4)
        found[kind] = [Snapshots(path / kind).load(step) for step in (2, 4)]
    for ddp, fsdp in zip(found["ddp"], found["fsdp"], strict=True):
        equal(fsdp, ddp)


def training_agrees_with_one_process(rank, path):
    """In float64, where only the order of sums differs: 4 steps of a few hundred roundings of 1e-16."""
    one, two = mlp(), fully_shard(mlp(), mesh=mesh())
    alone = SnapshotEnsembler(one, sgd(one), SCHEDULE)
    together = SnapshotEnsembler(two, sgd(two), SCHEDULE, store=path / "run")
    train(one, alone, batches())
    train(two, together, batches().chunk(2, dim=1)[rank])
    for step in (2, 4):
        found = Snapshots(path / "run").load(step)
        torch.testing.assert_close(found, alone.snapshots.load(step), rtol=1e-12, atol=1e-13)


def a_nan_in_one_shard_is_found_on_all_ranks(rank, path):
    model = sharded()
    if rank == 1:
        fill(model, "head.bias", torch.nan)
    rejected(NonFiniteError, lambda: SnapshotEnsembler(model, sgd(model), SCHEDULE), "at step 0 in head.bias")
    fill(model, "head.bias", 0.0)
    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=path / "run")
    train(model, ensembler, 1)
    if rank == 1:
        fill(model, "module.bias", torch.inf, slice(1))
        fill(model, "head.bias", torch.nan)
    rejected(NonFiniteError, ensembler.step, "at step 2 in module.bias, head.bias")
    assert ensembler.completed == 1
    assert Snapshots(path / "run").steps == ()
    fill(model, "module.bias", 0.0)
    fill(model, "head.bias", 0.0)
    assert ensembler.step() == 2
    skipping = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=path / "skipped", on_nonfinite="skip")
    train(model, skipping, 1)
    fill(model, "module.bias", torch.inf if rank == 1 else 0.0)
    assert skipping.step() is None
    assert skipping.completed == 2
    assert Snapshots(path / "skipped").steps == ()


def an_error_of_the_writer_is_raised_on_all_ranks(rank, path):
    """The operating system rejects the write of a tensor in the middle of the file."""
    model = sharded(same(Net(width=64)))  # 16 KiB in `mix.weight`, which is followed by the head
    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=path / "run")
    train(model, ensembler, 1)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    rejected(StoreError, ensembler.step, "could not be written")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert Snapshots(path / "run").steps == ()
    assert ensembler.step() == 2
    expected = whole(model)
    if rank == 0:
        equal(Snapshots(path / "run").load(2), expected)


def an_interrupt_of_the_writer_is_raised_on_all_ranks(rank, path):
    model = sharded()
    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=path / "run")
    train(model, ensembler, 1)
    append = ensembler.snapshots._store.append

    def interrupt(step, specs, visited, tied, partial):
        next(visited)
        raise KeyboardInterrupt

    ensembler.snapshots._store.append = interrupt  # only rank 0 calls it
    rejected(KeyboardInterrupt, ensembler.step)
    ensembler.snapshots._store.append = append
    assert ensembler.step() == 2
    dist.barrier()
    assert Snapshots(path / "run").steps == (2,)


def ranks_with_other_tensors_are_rejected(rank, path):
    model = sharded()

    def keep():
        named = dict(model.named_parameters())
        return dict(sorted(named.items(), reverse=rank == 1))

    rejected(
        ArgumentError,
        lambda: SnapshotEnsembler(model, sgd(model), SCHEDULE, keep=keep),
        "same order on all ranks, got head.bias, .* and norm.weight, ",
    )

    def fail():
        return {} if rank == 0 else {}["missing on rank 1"]

    rejected(KeyError, lambda: SnapshotEnsembler(model, sgd(model), SCHEDULE, keep=fail), "missing on rank 1")


def a_sharded_average_is_kept(rank, path):
    model, ema = sharded(), sharded()
    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=path / "run", keep=ema)
    train(model, ensembler, 1)
    with torch.no_grad():
        for name, tensor in tensors(ema).items():
            tensor.copy_(tensors(model)[name])
    expected = whole(ema)
    train(model, ensembler, 1)
    if rank == 0:
        equal(Snapshots(path / "run").load(2), expected)


def a_function_selects_sharded_tensors(rank, path):
    model = sharded()

    def keep():  # a state dict is detached, so that tied tensors are two objects
        return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("module")}

    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=path / "run", keep=keep)
    train(model, ensembler, 2)
    expected = whole(model)
    if rank == 0:
        equal(Snapshots(path / "run").load(2), {name: expected[name] for name in keep()})
    base = Net(classes=5)
    member = ensembler.ensemble(model=base).members[0].state_dict()
    assert torch.equal(member["module.weight"], base.module.weight)
    assert torch.equal(member["head.weight"], expected["head.weight"])


def fresh_weights_are_those_of_rank_0(rank, path):
    model, ema, made = sharded(), sharded(), []

    def factory():
        made.append(Net(classes=5))
        return made[-1]

    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, keep=ema, on_restart=fresh_weights(factory))
    torch.manual_seed(rank)
    train(model, ensembler, 2)
    torch.manual_seed(0)
    assert len(made) == 1
    expected = same(made[0]).state_dict()
    for found in (whole(model), whole(ema)):
        equal(found, expected)
    assert not ensembler.optimizer.state


def noise_is_that_of_the_whole_weights(rank, path):
    model, plain = sharded(), Net(classes=5)
    plain.load_state_dict(whole(model))
    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE)
    noisy_weights(0.1, seed=3)(ensembler)
    add_noise(plain.parameters(), 0.1, seed=3, step=0)
    equal(whole(model), plain.state_dict())
    ensembler.close()


def an_ensemble_needs_a_plain_model(rank, path):
    model = sharded()
    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=path / "run")
    x, states = torch.ones(2, 4), []
    for _ in range(2):
        train(model, ensembler, 2)
        states.append(Snapshots(path / "run").load(ensembler.completed))
    rejected(
        ArgumentError, ensembler.ensemble, r"must not be sharded, .*: pass a plain instance, such as .*model=Net\(\)"
    )
    rejected(ArgumentError, lambda: Ensemble.load(path / "run", model), "must not be sharded")
    member, expected = Net(classes=5).eval(), 0
    for state in states:
        member.load_state_dict(state)
        expected = expected + member(x).softmax(-1) / 2
    torch.testing.assert_close(ensembler.ensemble(model=Net(classes=5))(x), expected)
    assert ensembler.ensemble(model=Net(classes=5), last=1).steps == (4,)


def a_run_resumes_in_mid_cycle(rank, path):
    """From torch's own distributed checkpoint: the state of the ensembler, or only the step, continues the run."""
    inputs = batches()[:, rank::2]
    model = fully_shard(mlp(), mesh=mesh())
    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=path / "run")
    train(model, ensembler, inputs[:3])
    saved = dict(zip(("model", "optimizer"), get_state_dict(model, ensembler.optimizer), strict=True))
    dcp.save(saved, checkpoint_id=path / "checkpoint")
    state = ensembler.state_dict()
    train(model, ensembler, inputs[3:])
    expected = [Snapshots(path / "run").load(step) for step in (2, 4)]
    for resume in (lambda one: one.load_state_dict(state), lambda one: one.rewind(3)):
        model = fully_shard(mlp(), mesh=mesh())
        # before the checkpoint is loaded, so that the optimizer has a peak rate: torch loads only existing entries
        again = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=path / "run", resume=True)
        saved = dict(zip(("model", "optimizer"), get_state_dict(model, again.optimizer), strict=True))
        dcp.load(saved, checkpoint_id=path / "checkpoint")
        set_state_dict(model, again.optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        resume(again)
        train(model, again, inputs[3:])
        for step, snapshot in zip((2, 4), expected, strict=True):
            equal(Snapshots(path / "run").load(step), snapshot)


def the_code_of_the_docs_runs(rank, path):
    page = (Path(__file__).parent.parent / "docs/how-to/ddp-and-fsdp2.md").read_text()
    ddp, first, resume = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    generator = torch.Generator().manual_seed(rank)
    data = [(torch.randn(6, 4, generator=generator), torch.arange(6) % 5) for _ in range(4)]
    names = {"Net": partial(Net, classes=5), "mesh": mesh(), "batches": data}
    examples = TensorDataset(torch.randn(24, 4), torch.arange(24) % 5)
    with contextlib.chdir(path), patch("torch.cuda.is_available", return_value=False):
        start = "dist.init_process_group()\n"  # the group of the tests exists already
        assert start in ddp
        exec(ddp.replace(start, ""), names | {"dataset": examples, "epochs": 5})
        assert Snapshots("runs/ddp").steps == (1, 2, 3, 4, 5)
        exec(first, names)
        assert names["ensemble"].steps == (2, 4)
        exec(resume, names)
        assert names["ensembler"].completed == 4
        assert names["ensembler"].ensemble(model=Net(classes=5)).steps == (2, 4)
        assert [group["initial_lr"] for group in names["optimizer"].param_groups] == [0.1]
