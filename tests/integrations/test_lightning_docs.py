"""The code of docs/how-to/lightning.md runs as it is written."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning")

import lightning
from lit import Lit, loader

from snapens import Snapshots

PAGE = Path(__file__).parents[2] / "docs/how-to/lightning.md"


class Both(Lit):
    """One optimizer for the body of the network, and one for its head."""

    automatic_optimization = False

    def training_step(self, batch, index):
        self.manual_backward(self.loss(batch))
        if index % 2:
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net.mix, self.net.head)]


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*exists and is not empty")
@pytest.mark.filterwarnings("ignore:.*no last checkpoint available")
@pytest.mark.filterwarnings("ignore:.*`val_dataloader`")
@pytest.mark.filterwarnings("ignore:.*LeafSpec")
def test_every_block_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    monkeypatch.setattr(lightning, "Trainer", partial(lightning.Trainer, **quiet))
    names = {
        "LitClassifier": Lit,
        "module": Lit(),
        "train_loader": loader(),
        "val_loader": loader(),
        "x": torch.ones(2, 4),
    }
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for block in blocks:
        names["module"] = Lit()
        exec(block, names)
    assert torch.allclose(names["probabilities"].sum(1), torch.ones(2))
    assert names["ensemble"].steps == (48, 64, 80)
    assert [Snapshots(f"runs/{run}").steps for run in "abd"] == [(16, 32, 48, 64, 80)] * 3
    lightning.Trainer(max_epochs=20, callbacks=[names["snapshots"]]).fit(Both(), loader())  # the last block
    assert Snapshots("runs/e").steps == (8, 16, 24, 32, 40)
