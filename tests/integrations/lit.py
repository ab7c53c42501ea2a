"""A small LightningModule, a Trainer without output, and the plain loop to compare with."""

import logging

import pytest

pytest.importorskip("lightning")

import lightning
import torch
from conftest import Net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from snapens import SnapshotEnsembler

QUIET = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "logger": False,
}


class Lit(lightning.LightningModule):
    """A classifier with automatic optimization."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.net = Net()
        self.dropout = nn.Dropout(dropout)
        self.rates = []

    def forward(self, x):
        return self.net(self.dropout(x))

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch, index):
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return self.loss(batch)

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch))

    test_step = validation_step

    def predict_step(self, batch, index):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def loader(batches=4, **options):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6 * batches, 4, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=6, **options)


def trainer(*callbacks, package=lightning, **options):
    return package.Trainer(**{**QUIET, "callbacks": list(callbacks), "max_epochs": 3, **options})


def plain(schedule, *, model=None, batches=None, accumulate=1, clip=None, **options):
    """The snapshots of a plain loop over three epochs."""
    model = model or Lit()
    optimizer = model.configure_optimizers()
    ensembler = SnapshotEnsembler(model, optimizer, schedule, **options)
    for _ in range(3):
        for k, batch in enumerate(batches or loader(), 1):
            (model.loss(batch) / accumulate).backward()
            if k % accumulate == 0:
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
                ensembler.step()
    return contents(ensembler.snapshots)


def contents(snapshots):
    return {step: snapshots.load(step) for step in snapshots.steps}


def same(found, expected):
    """Whether two runs have the same snapshots, bit for bit."""
    assert expected
    return found.keys() == expected.keys() and all(
        found[step].keys() == tensors.keys() and all(torch.equal(found[step][n], t) for n, t in tensors.items())
        for step, tensors in expected.items()
    )


def warnings(caplog):
    """The warnings that snapens logged."""
    return [r.getMessage() for r in caplog.records if r.name == "snapens" and r.levelno >= logging.WARNING]
