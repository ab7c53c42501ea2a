"""The validation metrics of the ensemble that the Lightning callback logs at each minimum."""

import math

import pytest
import torch
from torch.utils.data import DataLoader

pytest.importorskip("lightning")

from lightning.pytorch.loggers import Logger
from lit import Lit, contents, loader, same, trainer, warnings

from snapens.integrations.lightning import SnapshotCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
]


class Recorder(Logger):
    """Remembers what was logged, and at which step."""

    name, version = "recorder", 0

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append({**metrics, "step": step})

    def log_hyperparams(self, *_):
        pass


def test_the_validation_error_and_nll_of_the_ensemble_are_logged_at_each_minimum():
    class Scaled(Lit):
        """Normalises on the device: the ensemble has to see what the validation step sees."""

        def on_after_batch_transfer(self, batch, index):
            if self.trainer.validating:
                return [batch[0] * 2, batch[1]]
            return batch

    logger = Recorder()
    callback = SnapshotCallback(2, store=None)
    run = trainer(callback, logger=logger, check_val_every_n_epoch=5, limit_val_batches=2)
    run.fit(Scaled(), loader(), loader(3))
    rows = [row for row in logger.rows if "snapens/val_error" in row]
    assert [row["step"] for row in rows] == [6, 12]
    x = torch.cat([x * 2 for x, _ in loader(3)])[:12]
    y = torch.cat([y for _, y in loader(3)])[:12]
    for row, last in zip(rows, (1, 2), strict=True):
        stored = contents(callback.ensembler.snapshots)
        mean = torch.zeros(12, 3)
        for step in (6, 12)[:last]:
            model = Lit().eval()
            model.load_state_dict(stored[step])
            mean += model(x).detach().softmax(1) / last
        assert math.isclose(row["snapens/val_error"], (mean.argmax(1) != y).float().mean(), abs_tol=1e-6)
        assert math.isclose(row["snapens/val_nll"], -mean[range(12), y].log().mean(), abs_tol=1e-3)
    assert run.callback_metrics["snapens/val_error"] == pytest.approx(rows[-1]["snapens/val_error"])


def test_evaluating_the_ensemble_does_not_change_the_training():
    found = []
    for validate in (True, False):
        callback = SnapshotCallback(3, store=None, validate=validate)
        model = Lit(dropout=0.5)
        run = trainer(callback)
        run.fit(model, loader(shuffle=True), loader())
        found.append(contents(callback.ensembler.snapshots))
        assert ("snapens/val_error" in run.callback_metrics) == validate
        assert model.training
    assert same(*found)


class Dicts(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        x, y = loader().dataset[index]
        return {"image": x, "class": y}


class OnDicts(Lit):
    def validation_step(self, batch, index):
        pass


def test_batches_of_another_kind_are_evaluated_with_inputs_and_targets_or_give_one_warning(caplog):
    run = trainer(SnapshotCallback(3, store=None))
    run.fit(OnDicts(), loader(), DataLoader(Dicts(), batch_size=6))
    assert "snapens/val_error" not in run.callback_metrics
    (warning,) = warnings(caplog)
    assert "the validation metrics of the ensemble are not logged (" in warning
    assert "pass functions of a batch as inputs= and targets=, or validate=False" in warning
    run = trainer(SnapshotCallback(3, store=None, inputs=lambda b: b["image"], targets=lambda b: b["class"]))
    run.fit(OnDicts(), loader(), DataLoader(Dicts(), batch_size=6))
    assert 0 <= run.callback_metrics["snapens/val_error"] < 1
    assert len(warnings(caplog)) == 1


class Quiet(Lit):
    def validation_step(self, batch, index, dataloader_idx=0):
        pass


class Formless(Quiet):
    forward = torch.nn.Module.forward

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("kind", "loaders", "words"),
    [
        (Quiet, [loader(), loader()], "must have one validation loader, got 2"),
        (Quiet, loader(shuffle=True), "use shuffle=False"),
        (Formless, loader(), 'missing the required "forward" function'),
    ],
)
@pytest.mark.filterwarnings("ignore:.*shuffling enabled")
def test_what_cannot_be_evaluated_gives_one_warning(kind, loaders, words, caplog):
    trainer(SnapshotCallback(3, store=None)).fit(kind(), loader(), loaders)
    (warning,) = warnings(caplog)
    assert words in warning
