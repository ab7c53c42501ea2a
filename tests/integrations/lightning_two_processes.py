"""Run by test_lightning_ddp.py: Lightning starts this script again as its second process."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from lit import Lit, contents, loader, same, trainer
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from snapens import CyclicCosine, SnapshotEnsembler, Snapshots
from snapens.errors import ArgumentError, StoreError
from snapens.integrations.lightning import SnapshotCallback

SCHEDULE = CyclicCosine(12, 2)


class Sharded(Lit):
    """Under FSDP2."""

    def configure_model(self):
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


def fit(store, epochs=3, save=None, kind=Lit, strategy="ddp", **options):
    callback = SnapshotCallback(2, store=store, total_steps=12, validate=kind is Lit)
    run = trainer(callback, max_epochs=epochs, devices=2, strategy=strategy)
    run.fit(kind(), loader(8), loader(4), **options)
    if save:
        run.save_checkpoint(save)
    return run, callback


def plain(store):
    model = DistributedDataParallel(Lit())
    optimizer = model.module.configure_optimizers()
    ensembler = SnapshotEnsembler(model, optimizer, SCHEDULE, store=store)
    sampler = DistributedSampler(loader(8).dataset)  # Lightning's choice for training data
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader(8, sampler=sampler):
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            ensembler.step()
    dist.barrier()
    return contents(Snapshots(store))


def parameters(found):
    """Without the buffers, of which a distributed checkpoint saves those of any rank."""
    names = dict(Lit().named_parameters()).keys()
    return {step: {name: tensors[name] for name in names} for step, tensors in found.items()}


def main(folder):
    torch.set_num_threads(1)
    run, callback = fit(folder / "whole")
    expected = plain(folder / "plain")
    assert same(contents(Snapshots(folder / "whole")), expected)
    assert callback.ensemble().steps == (6, 12)
    values = [None, None]
    dist.all_gather_object(values, float(run.callback_metrics["snapens/val_error"]))
    assert values[0] == values[1]

    fit(folder / "stopped", epochs=1, save=folder / "first.ckpt")
    fit(folder / "stopped", ckpt_path=folder / "first.ckpt")
    assert same(contents(Snapshots(folder / "stopped")), expected)

    def sharded(**options):
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        return fit(folder / "sharded", kind=Sharded, strategy=strategy, **options)[1]

    sharded(epochs=1, save=folder / "sharded.ckpt")
    callback = sharded(ckpt_path=folder / "sharded.ckpt")
    assert same(parameters(contents(Snapshots(folder / "sharded"))), parameters(expected))
    assert callback.ensemble(model=Lit()).steps == (6, 12)

    with pytest.raises(StoreError, match=r"pass ckpt_path= to trainer.fit"):
        fit(folder / "whole")

    _, callback = fit(None)
    if run.global_rank == 0:
        assert same(contents(callback.ensembler.snapshots), expected)
    else:
        with pytest.raises(ArgumentError, match="got memory, which only rank 0 has"):
            callback.ensemble()
    (folder / f"rank {run.global_rank} has finished").touch()
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
