"""What the Lightning callback stores and rejects."""

import gc
import signal
import sys

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

pytest.importorskip("lightning")
pytest.importorskip("pytorch_lightning")

import lightning
import torchmetrics
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    WeightAveraging,
)
from lit import Lit, contents, loader, plain, same, trainer, warnings

from snapens import CyclicCosine, Ensemble
from snapens.errors import ArgumentError, MissingPackageError
from snapens.integrations import lightning as integration
from snapens.integrations.lightning import SnapshotCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*`val_dataloader`"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
]
SCHEDULE = CyclicCosine(12, 2)


def averages(schedule, decay):
    """The average of the weights and buffers of a plain loop at each minimum, as Lightning's callback computes it."""
    model, found = Lit(), {}
    optimizer = model.configure_optimizers()
    mean = None
    for step, batch in enumerate([*loader()] * 3):
        optimizer.param_groups[0]["lr"] = 0.1 * schedule(step)
        model.loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        state = {name: value.clone() for name, value in model.state_dict().items()}
        mean = state if mean is None else {n: torch.lerp(mean[n].double(), state[n].double(), 1 - decay) for n in state}
        if step + 1 in schedule.snapshot_steps:
            found[step + 1] = mean
    return found


@pytest.mark.parametrize("average_first", [True, False])
def test_the_stored_average_is_current_in_either_order_of_the_callbacks(average_first):
    average = EMAWeightAveraging(decay=0.5)
    callback = SnapshotCallback(2, store=None, keep=average)
    trainer(*([average, callback] if average_first else [callback, average])).fit(Lit(), loader())
    expected, found = averages(SCHEDULE, 0.5), contents(callback.ensembler.snapshots)
    for step in (6, 12):
        for name, value in found[step].items():
            if value.is_floating_point():
                torch.testing.assert_close(value.double(), expected[step][name].double(), rtol=1e-5, atol=1e-6)
    assert callback.ensemble().steps == (6, 12)


def test_an_average_that_the_module_updates_too_late_gives_a_warning(caplog):
    class Late(Lit):
        def __init__(self):
            super().__init__()
            self.average = torch.optim.swa_utils.AveragedModel(self.net)

        def on_train_batch_end(self, outputs, batch, index):
            self.average.update_parameters(self.net)

    class Early(Late):
        def optimizer_step(self, *arguments):
            super().optimizer_step(*arguments)
            super().on_train_batch_end(None, None, None)

        def on_train_batch_end(self, outputs, batch, index):
            pass

    for kind in (Early, Late):
        trainer(SnapshotCallback(3, store=None, keep=lambda module: module.average)).fit(kind(), loader())
    assert [text.partition(", at")[0] for text in warnings(caplog)] == [
        f"the stored tensors changed after the snapshot of step {step}" for step in (4, 8, 12)
    ]


def test_a_run_with_an_average_resumes(tmp_path):
    class Save(lightning.Callback):
        def on_train_epoch_end(self, trainer, module):
            trainer.save_checkpoint(tmp_path / f"{trainer.current_epoch}.ckpt")

    def fit(**options):
        average = WeightAveraging()
        callback = SnapshotCallback(2, store=None, keep=average)
        trainer(callback, average, Save()).fit(Lit(), loader(), **options)
        return contents(callback.ensembler.snapshots)

    whole = fit()
    assert same(fit(ckpt_path=tmp_path / "0.ckpt"), whole)
    assert same(fit(ckpt_path=tmp_path / "1.ckpt"), whole)


def test_keep_may_be_a_module_or_a_function_of_the_module():
    callback = SnapshotCallback(2, store=None, keep=lambda module: module.net)
    trainer(callback).fit(Lit(), loader())
    expected = {
        step: {name.removeprefix("net."): value for name, value in tensors.items()}
        for step, tensors in plain(SCHEDULE).items()
    }
    assert same(contents(callback.ensembler.snapshots), expected)
    model = Lit()
    callback = SnapshotCallback(2, store=None, keep=model.net)
    trainer(callback).fit(model, loader())
    assert same(contents(callback.ensembler.snapshots), expected)

    def head(module):
        return {name: value for name, value in module.named_parameters() if "head" in name}

    callback = SnapshotCallback(2, store=None, keep=head)
    trainer(callback).fit(Lit(), loader())
    assert callback.ensembler.snapshots.load(12).keys() == {"net.head.weight", "net.head.bias"}
    assert callback.ensemble().steps == (6, 12)


def test_the_options_of_the_ensembler_are_passed_on():
    fresh = []
    callback = SnapshotCallback(2, store=None, on_restart=lambda ensembler: fresh.append(ensembler.completed))
    trainer(callback).fit(Lit(), loader())
    assert fresh == [6]


def test_the_members_of_a_compiled_module_are_its_snapshots():
    model, callback = Lit(), SnapshotCallback(2, store=None)
    trainer(callback).fit(torch.compile(model, backend="eager"), loader(), loader())
    x = next(iter(loader()))[0]
    found, compiled = callback.ensemble()(x), model.forward
    assert not torch.equal(callback.ensemble(last=1)(x), found)
    fresh = Lit()
    assert torch.equal(found, Ensemble(callback.ensembler.snapshots, fresh)(x))
    assert model.forward is compiled


def test_metrics_inside_the_module_are_not_part_of_a_snapshot():
    class Measured(Lit):
        def __init__(self):
            super().__init__()
            self.accuracy = torchmetrics.classification.MulticlassAccuracy(3)

        def validation_step(self, batch, index):
            self.accuracy(self(batch[0]), batch[1])
            self.log("accuracy", self.accuracy)

    callback = SnapshotCallback(2, store=None)
    trainer(callback).fit(Measured(), loader(), loader())
    assert same(contents(callback.ensembler.snapshots), plain(SCHEDULE))
    assert callback.ensemble().members[0].accuracy is not None


class Scheduled(Lit):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def test_a_scheduler_is_rejected_unless_the_callback_leaves_the_rate_alone():
    with pytest.raises(ArgumentError, match=r"must not return a scheduler, .*, got StepLR: return the optimizer only"):
        trainer(SnapshotCallback(2, store=None)).fit(Scheduled(), loader())
    callback = SnapshotCallback(2, store=None, drive_lr=False)
    model = Scheduled()
    trainer(callback).fit(model, loader())
    assert model.rates == pytest.approx([0.1] * 4 + [0.01] * 4 + [0.001] * 4)


def test_a_scheduler_outside_of_lightning_gives_the_warning_of_the_core(caplog):
    class Fighting(Lit):
        def on_train_batch_end(self, outputs, batch, index):
            self.trainer.optimizers[0].param_groups[0]["lr"] = 0.3

    trainer(SnapshotCallback(2, store=None)).fit(Fighting(), loader())
    (warning,) = warnings(caplog)
    assert "something else changed it to 0.3" in warning


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield from loader().dataset


def test_an_unknown_number_of_steps_must_be_given():
    endless = DataLoader(Endless(), batch_size=6)
    for options in ({"max_epochs": -1}, {"max_epochs": 2}):
        with pytest.raises(ArgumentError, match="total_steps must be given if the Trainer does not know"):
            trainer(SnapshotCallback(2, store=None), **options).fit(Lit(), endless)
    changing = GradientAccumulationScheduler({0: 1, 1: 2})
    with pytest.raises(ArgumentError, match=r"total_steps must be given .* changes the steps per epoch"):
        trainer(SnapshotCallback(2, store=None), changing).fit(Lit(), loader())
    with pytest.raises(ArgumentError, match="total_steps must be"):
        trainer(SnapshotCallback(2, store=None, total_steps=0)).fit(Lit(), loader())
    callback = SnapshotCallback(2, store=None)
    trainer(callback, max_epochs=-1, max_steps=4).fit(Lit(), endless)
    assert callback.ensembler.snapshots.steps == (2, 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "cycles or schedule must be given, but not both, got None and None"),
        ({"cycles": 2, "schedule": SCHEDULE}, "but not both"),
        ({"schedule": SCHEDULE, "total_steps": 12}, "total_steps must not be given together with a schedule"),
        ({"cycles": 2, "resume": True}, r"options must be among \['drive_lr', .*\], got \['resume'\]"),
    ],
)
def test_wrong_arguments_are_rejected_at_once(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        SnapshotCallback(store=None, **arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"optimizer": 1}, "optimizer must be an index from 0 to 0 .*, got 1"),
        ({"keep": 3}, "keep must be a module, a WeightAveraging callback or a function, got 3"),
        ({"keep": WeightAveraging()}, "keep must be a callback of the same Trainer"),
    ],
)
def test_wrong_arguments_are_rejected_when_the_training_starts(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        trainer(SnapshotCallback(2, store=None, **arguments)).fit(Lit(), loader())


def test_max_steps_of_several_optimizers_needs_total_steps():
    class Two(Lit):
        automatic_optimization = False

        def training_step(self, batch, index):
            self.manual_backward(self.loss(batch))
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()

        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), 0.1) for part in (self.net.head, self.net.mix)]

    with pytest.raises(ArgumentError, match="max_steps=8 counts the steps of all optimizers"):
        trainer(SnapshotCallback(2, store=None), max_steps=8).fit(Two(), loader())
    callback = SnapshotCallback(2, store=None, total_steps=4)
    trainer(callback, max_steps=8).fit(Two(), loader())
    assert callback.ensembler.snapshots.steps == (2, 4)


def test_a_training_that_stops_early_gives_one_warning(caplog):
    callback = SnapshotCallback(2, store=None, validate=False)
    stopping = EarlyStopping("val_loss", patience=1, mode="max", min_delta=10)
    trainer(callback, stopping, max_epochs=9).fit(Lit(), loader(), loader())
    assert callback.ensembler.completed < 36
    assert [text for text in warnings(caplog) if "without a snapshot of cycles 1, 2" in text] == warnings(caplog)

    class Interrupted(Lit):
        def on_train_batch_start(self, batch, index):
            if self.trainer.global_step == 7:
                raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit):
        trainer(SnapshotCallback(2, store=None)).fit(Interrupted(), loader())
    signal.signal(signal.SIGINT, before)  # Lightning ignores further interrupts
    assert "the training ended after step 7 of 12, without a snapshot of cycle 2:" in warnings(caplog)[1]
    del callback
    gc.collect()
    assert len(warnings(caplog)) == 2


def test_fast_dev_run_stores_nothing(tmp_path, caplog):
    trainer(SnapshotCallback(2, store=tmp_path / "run"), fast_dev_run=True).fit(Lit(), loader())
    assert not (tmp_path / "run").exists()
    assert warnings(caplog) == ["fast_dev_run: no snapshots are stored, and the learning rate is not changed"]


@pytest.mark.parametrize("imported", ["lightning.pytorch", "pytorch_lightning"])
def test_the_base_class_is_that_of_the_imported_package(imported, monkeypatch):
    other = {"lightning.pytorch": "pytorch_lightning", "pytorch_lightning": "lightning.pytorch"}[imported]
    monkeypatch.delitem(sys.modules, other, raising=False)
    (base,) = integration._callback_classes()
    assert base.__module__.startswith(imported)


def test_a_missing_lightning_is_named_with_the_command_that_installs_it(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(integration, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(MissingPackageError, match=r"lightning must be installed for this: pip install .*\[lightning\]"):
        integration._callback_classes()
