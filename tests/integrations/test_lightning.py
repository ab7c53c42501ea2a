"""The Lightning callback counts the steps of the optimizer, stores what a plain loop stores, and resumes."""

import pickle

import pytest
import torch
from torch import nn

pytest.importorskip("lightning")

import lightning
import pytorch_lightning
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lit import Lit, contents, loader, plain, same, trainer, warnings

from snapens import CyclicCosine, Ensemble, Snapshots, StepDecay
from snapens.errors import ArgumentError, MismatchError, StoreError
from snapens.integrations.lightning import SnapshotCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*`val_dataloader`"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
]
SAVING = {"enable_checkpointing": True}
SCHEDULE = CyclicCosine(12, 2)
"""Three epochs of four batches: the first cycle ends in the middle of the second epoch."""


def test_snapshots_and_rates_are_those_of_a_plain_loop_with_the_same_seed():
    expected_model = Lit(dropout=0.3)
    expected = plain(SCHEDULE, model=expected_model, batches=loader(shuffle=True))
    model, callback = Lit(dropout=0.3), SnapshotCallback(2, store=None)
    trainer(callback).fit(model, loader(shuffle=True))
    assert same(contents(callback.ensembler.snapshots), expected)
    assert model.rates == [0.1 * SCHEDULE(step) for step in range(12)]


@pytest.mark.parametrize("package", [lightning.pytorch, pytorch_lightning])
def test_both_names_of_lightning_accept_the_callback(package):
    class Module(package.LightningModule):
        training_step, forward, loss, configure_optimizers = (
            lambda self, batch, index: self.loss(batch),
            Lit.forward,
            Lit.loss,
            Lit.configure_optimizers,
        )

    model = Module()
    model.net, model.dropout = Lit().net, nn.Identity()
    callback = SnapshotCallback(2, store=None)
    trainer(callback, package=package).fit(model, loader())
    assert same(contents(callback.ensembler.snapshots), plain(SCHEDULE))


def test_accumulated_batches_are_one_step():
    callback = SnapshotCallback(2, store=None)
    trainer(callback, accumulate_grad_batches=2).fit(Lit(), loader())
    assert same(contents(callback.ensembler.snapshots), plain(CyclicCosine(6, 2), accumulate=2))


def test_gradient_clipping_comes_before_the_step_as_in_a_plain_loop():
    callback = SnapshotCallback(schedule=StepDecay(12, 3), store=None)
    trainer(callback, gradient_clip_val=0.01).fit(Lit(), loader())
    assert same(contents(callback.ensembler.snapshots), plain(StepDecay(12, 3), clip=0.01))


def test_bfloat16_stores_the_float32_weights(caplog):
    callback = SnapshotCallback(2, store=None)
    run = trainer(callback, precision="bf16-mixed")
    run.fit(Lit(), loader(), loader())
    assert warnings(caplog) == []
    assert 0 <= run.callback_metrics["snapens/val_error"] <= 1
    assert callback.ensembler.snapshots.load(12)["net.head.weight"].dtype == torch.float32


def half_precision():
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0))


def test_a_step_that_the_gradient_scaler_skips_counts():
    class Overflow(Lit):
        def training_step(self, batch, index):
            return self.loss(batch) * (float("inf") if index == 1 else 1)

    callback = SnapshotCallback(2, store=None)
    trainer(callback, plugins=[half_precision()]).fit(Overflow(), loader())
    assert callback.ensembler.snapshots.steps == (6, 12)


class Manual(Lit):
    """Manual optimization with an optimizer for the body and one for the head; the head is stepped every time."""

    every = 1
    raw = False

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        body, head = self.optimizers(use_pl_optimizer=not self.raw)
        self.manual_backward(self.loss(batch))
        head.step()
        if (index + 1) % self.every == 0:
            body.step()
            self.rates.append(body.param_groups[0]["lr"])
            body.zero_grad()
        head.zero_grad()

    def configure_optimizers(self):
        head = list(self.net.head.parameters())
        body = [p for p in self.net.parameters() if all(p is not one for one in head)]
        return torch.optim.SGD(body, lr=0.1), torch.optim.SGD(head, lr=0.01)


@pytest.mark.parametrize("raw", [False, True])
def test_manual_optimization_counts_the_steps_of_the_chosen_optimizer(raw):
    model, callback = Manual(), SnapshotCallback(3, store=None)
    model.raw = raw
    trainer(callback).fit(model, loader())
    assert callback.ensembler.snapshots.steps == (4, 8, 12)
    assert model.rates == [0.1 * CyclicCosine(12, 3)(step) for step in range(12)]
    assert model.trainer.optimizers[1].param_groups[0]["lr"] == 0.01


def test_manual_accumulation_counts_steps_and_not_batches():
    model, callback = Manual(), SnapshotCallback(3, store=None, total_steps=6)
    model.every = 2
    trainer(callback).fit(model, loader())
    assert callback.ensembler.snapshots.steps == (2, 4, 6)
    assert model.rates == [0.1 * CyclicCosine(6, 3)(step) for step in range(6)]
    other = SnapshotCallback(3, store=None, optimizer=1)
    trainer(other).fit(model, loader())
    assert other.ensembler.snapshots.steps == (4, 8, 12)


def test_manual_accumulation_without_total_steps_is_an_error_after_the_first_epoch():
    model = Manual()
    model.every = 2
    with pytest.raises(ArgumentError, match="4 batches took 2 steps of the optimizer"):
        trainer(SnapshotCallback(3, store=None)).fit(model, loader())


class Twice(Manual):
    def training_step(self, batch, index):
        super().training_step(batch, index)
        super().training_step(batch, index)


def test_two_steps_in_a_batch_have_their_own_rates():
    model, callback = Twice(), SnapshotCallback(2, store=None, total_steps=24)
    trainer(callback).fit(model, loader())
    assert model.rates == [0.1 * CyclicCosine(24, 2)(step) for step in range(24)]
    assert callback.ensembler.snapshots.steps == (12, 24)


@pytest.mark.parametrize("bad", [{2}, {3}, {2, 3}])
def test_every_skipped_step_of_a_batch_counts(bad):
    class Overflow(Twice):
        losses = 0

        def loss(self, batch):
            self.losses += 1
            return super().loss(batch) * (float("inf") if self.losses in bad else 1)

    callback = SnapshotCallback(2, store=None, total_steps=24)
    trainer(callback, plugins=[half_precision()]).fit(Overflow(), loader())
    assert callback.ensembler.snapshots.steps == (12, 24)


def test_two_callbacks_schedule_two_optimizers_and_resume(tmp_path):
    def both(epochs, **options):
        model, callbacks = Manual(), [SnapshotCallback(2, store=None, optimizer=k, total_steps=12) for k in (0, 1)]
        run = trainer(*callbacks, max_epochs=epochs)
        run.fit(model, loader(), **options)
        run.save_checkpoint(tmp_path / "last.ckpt")
        return model, [contents(callback.ensembler.snapshots) for callback in callbacks]

    _, whole = both(3)
    both(1)
    model, resumed = both(3, ckpt_path=tmp_path / "last.ckpt")
    assert all(map(same, resumed, whole))
    assert [o.param_groups[0]["initial_lr"] for o in model.trainer.optimizers] == [0.1, 0.01]


def test_lbfgs_evaluates_its_closure_often_but_takes_one_step():
    class Second(Lit):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3)

    callback = SnapshotCallback(2, store=None)
    trainer(callback).fit(Second(), loader())
    assert callback.ensembler.completed == 12


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_run_that_was_stopped_in_a_cycle_continues_as_if_it_had_not(in_folder, tmp_path, caplog):
    store = tmp_path / "run" if in_folder else None
    for stop in (1, 2):
        model, callback = Lit(), SnapshotCallback(2, store=store, total_steps=12)
        run = trainer(callback, max_epochs=stop)
        run.fit(model, loader(), ckpt_path=tmp_path / "last.ckpt" if stop > 1 else None)
        run.save_checkpoint(tmp_path / "last.ckpt")
    assert warnings(caplog) == [
        f"the training ended after step {step} of 12, without a snapshot of {cycles}: continue it with "
        "trainer.fit(ckpt_path=...), or pass the number of optimizer steps as total_steps"
        for step, cycles in ((4, "cycles 1, 2"), (8, "cycle 2"))
    ]
    model, callback = Lit(), SnapshotCallback(2, store=store)
    run = trainer(callback)
    run.fit(model, loader(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    run.save_checkpoint(tmp_path / "last.ckpt")
    assert same(contents(callback.ensembler.snapshots), plain(SCHEDULE))
    assert model.rates == [0.1 * SCHEDULE(step) for step in range(8, 12)]
    again = SnapshotCallback(2, store=store)
    trainer(again).fit(Lit(), loader(), ckpt_path=tmp_path / "last.ckpt")  # there is nothing left to train
    assert same(contents(again.ensembler.snapshots), plain(SCHEDULE))


class Positioned:
    """A loader that knows its position, which Lightning stores in the middle of an epoch."""

    def __init__(self):
        self.batches, self.position = list(loader()), 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.position %= len(self.batches)
        while self.position < len(self.batches):
            self.position += 1
            yield self.batches[self.position - 1]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Stop(Callback):
    """Saves a checkpoint and fails at the end of a batch, before the snapshot callback's own hook."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise KeyError("stopped")


@pytest.mark.parametrize("step", [5, 6, 7])
def test_a_checkpoint_in_the_middle_of_an_epoch_continues_with_the_next_step(step, tmp_path):
    path = tmp_path / "stopped.ckpt"
    with pytest.raises(KeyError, match="stopped"):
        trainer(Stop(path, step), SnapshotCallback(2, store=tmp_path / "run")).fit(Lit(), Positioned())
    model, callback = Lit(), SnapshotCallback(2, store=tmp_path / "run")
    trainer(callback).fit(model, Positioned(), ckpt_path=path)
    assert model.rates == [0.1 * SCHEDULE(k) for k in range(step, 12)]
    assert same(contents(callback.ensembler.snapshots), plain(SCHEDULE))


@pytest.mark.filterwarnings("ignore:.*exists and is not empty")
def test_a_checkpoint_of_modelcheckpoint_continues_the_run(tmp_path):
    def saver():
        return ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)

    first = trainer(saver(), Stop(tmp_path / "x", 9), SnapshotCallback(2, store=tmp_path / "run"), **SAVING)
    with pytest.raises(KeyError, match="stopped"):
        first.fit(Lit(), loader())
    callback = SnapshotCallback(2, store=tmp_path / "run")
    trainer(callback, saver(), **SAVING).fit(Lit(), loader(), ckpt_path=tmp_path / "step=4.ckpt")
    assert same(contents(callback.ensembler.snapshots), plain(SCHEDULE))


def test_a_store_with_snapshots_is_rejected_without_a_checkpoint_and_another_schedule_with_one(tmp_path):
    run = trainer(SnapshotCallback(2, store=tmp_path / "run"))
    run.fit(Lit(), loader())
    run.save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(StoreError, match=r"with those of steps 6, 12: choose another store, or pass ckpt_path="):
        trainer(SnapshotCallback(2, store=tmp_path / "run")).fit(Lit(), loader())
    with pytest.raises(MismatchError, match="schedule must be that of the checkpoint"):
        trainer(SnapshotCallback(3, store=tmp_path / "run"), max_epochs=6).fit(
            Lit(), loader(), ckpt_path=tmp_path / "last.ckpt"
        )
    assert Snapshots(tmp_path / "run").steps == (6, 12)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_checkpoint_without_the_state_of_the_callback_does_not_restart_the_schedule(tmp_path):
    run = trainer(max_epochs=1)
    run.fit(Lit(), loader())
    run.save_checkpoint(tmp_path / "other.ckpt")
    with pytest.raises(MismatchError, match="got step 4 without it: use a new Trainer"):
        trainer(SnapshotCallback(2, store=None)).fit(Lit(), loader(), ckpt_path=tmp_path / "other.ckpt")


def test_validate_test_and_predict_leave_the_run_unchanged(tmp_path):
    callback = SnapshotCallback(2, store=tmp_path / "run")
    run, model = trainer(callback), Lit()
    run.validate(model, loader(), verbose=False)
    with pytest.raises(ArgumentError, match=r"trainer.fit\(\) first, or load the snapshots of a folder"):
        callback.ensemble()
    run.fit(model, loader())
    run.save_checkpoint(tmp_path / "last.ckpt")
    run.test(model, loader(), verbose=False, ckpt_path=tmp_path / "last.ckpt")
    run.predict(model, loader())
    assert same(contents(callback.ensembler.snapshots), plain(SCHEDULE))
    x = next(iter(loader()))[0]
    assert torch.equal(callback.ensemble()(x), Ensemble.load(tmp_path / "run", Lit())(x))


def test_the_learning_rate_monitor_shows_the_rate_that_was_used(tmp_path):
    model, monitor = Lit(), LearningRateMonitor(logging_interval="step")
    run = trainer(monitor, SnapshotCallback(2, store=None), logger=CSVLogger(tmp_path), log_every_n_steps=1)
    run.fit(model, loader())
    assert monitor.lrs["lr-SGD"] == model.rates == [0.1 * SCHEDULE(step) for step in range(12)]


def test_the_callback_can_be_sent_to_another_process():
    again = pickle.loads(pickle.dumps(SnapshotCallback(2, store=None)))
    trainer(again).fit(Lit(), loader())
    assert same(contents(again.ensembler.snapshots), plain(SCHEDULE))


@pytest.mark.parametrize("options", [{"max_epochs": -1}, {"min_epochs": 3}, {"min_steps": 10}])
def test_the_training_stops_after_the_last_step_of_the_schedule(options, caplog):
    callback = SnapshotCallback(2, store=None, total_steps=6)
    run = trainer(callback, **options)
    run.fit(Lit(), loader())
    assert (run.global_step, callback.ensembler.snapshots.steps) == (6, (3, 6))
    restored = {"min_epochs": run.fit_loop.min_epochs, "min_steps": run.fit_loop.epoch_loop.min_steps}
    assert all(restored[name] == least for name, least in options.items() if name in restored)  # for another fit()
    assert warnings(caplog) == []
