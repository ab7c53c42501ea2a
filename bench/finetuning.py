"""Fine-tunes a pretrained text model with different schedules: `python bench/finetuning.py --help`.

The data are two CSV files with the columns `text` and `category`, train.csv and test.csv, such as those of BANKING77
(PolyAI-LDN/task-specific-datasets on GitHub). The model is a folder with a pretrained encoder and its tokenizer. Each
seed draws its own training examples, a few per class; all seeds share the held-out examples, on which the learning rate
of each schedule is chosen. Every run has the same number of steps with the Hugging Face Trainer, and appends a line to
a JSON Lines file: the settings, the error in percent and the NLL of the last snapshot and of all snapshots together, on
the held-out and on the test examples; for the test examples, also the NLL with a temperature that is fitted on the
held-out ones. Runs whose settings the file already has are skipped.
"""

import argparse
import csv
import json
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from snapens import CyclicCosine, Outputs, Schedule, combine, fresh_weights
from snapens.integrations.transformers import SnapshotCallback
from snapens.prediction import Prediction

WAYS = ("linear", "cosine", "snapshot-3", "snapshot-5", "fresh-3")
"""The Trainer's default, one cosine, three or five cycles, and three cycles that each begin with pretrained weights."""
HELD_OUT_PER_CLASS = 10
MOST_TOKENS = 32


@dataclass(frozen=True)
class Linear(Schedule):
    """The rate falls in a straight line."""

    total_steps: int

    @property
    def snapshot_steps(self):
        return (self.total_steps,)

    @property
    def restart_steps(self):
        return ()

    def __call__(self, step):
        return 1 - step / self.total_steps


class Task:
    """The model, and the examples of a data set."""

    def __init__(self, data: Path, model: Path) -> None:
        self.model, self.tokenizer = model, AutoTokenizer.from_pretrained(model)
        train, test = (table(data / f"{part}.csv") for part in ("train", "test"))
        self.classes = sorted({row["category"] for row in train})
        self.test, pool = self._encoded(test), self._encoded(train)
        labels = np.array([row["labels"] for row in pool])
        order = np.random.default_rng(0).permutation(len(pool))
        held_out, rest = chosen(labels, order, HELD_OUT_PER_CLASS)
        self.held_out = [pool[k] for k in held_out]
        self._pool, self._labels, self._rest = pool, labels, rest

    def training(self, seed: int, shots: int) -> list[dict]:
        """The training examples of a seed."""
        order = np.random.default_rng([1, seed]).permutation(self._rest)
        return [self._pool[k] for k in chosen(self._labels, order, shots)[0]]

    def network(self) -> torch.nn.Module:
        """The pretrained encoder with a new head."""
        return AutoModelForSequenceClassification.from_pretrained(self.model, num_labels=len(self.classes))

    def batches(self, rows: list[dict]) -> list[dict]:
        """Batches of examples with similar lengths."""
        rows, collate = sorted(rows, key=lambda row: len(row["input_ids"])), DataCollatorWithPadding(self.tokenizer)
        return [collate(rows[k : k + 64]) for k in range(0, len(rows), 64)]

    def _encoded(self, rows: list[dict]) -> list[dict]:
        texts = self.tokenizer([row["text"] for row in rows], truncation=True, max_length=MOST_TOKENS)
        labels = [self.classes.index(row["category"]) for row in rows]
        return [{"input_ids": ids, "labels": label} for ids, label in zip(texts["input_ids"], labels, strict=True)]


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def chosen(labels: np.ndarray, order: np.ndarray, count: int) -> tuple[list[int], list[int]]:
    """The first `count` examples of each class in an order, and the others."""
    first = [k for label in np.unique(labels) for k in order[labels[order] == label][:count].tolist()]
    return first, sorted(set(order.tolist()) - set(first))


@dataclass(frozen=True)
class Settings:
    """What distinguishes the runs of a file."""

    way: str
    lr: float
    seed: int
    shots: int
    epochs: int
    batch: int


def run(task: Task, settings: Settings) -> dict:
    """Train and evaluate one run."""
    torch.manual_seed(settings.seed)
    rows, begun = task.training(settings.seed, settings.shots), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            learning_rate=settings.lr,
            num_train_epochs=settings.epochs,
            per_device_train_batch_size=settings.batch,
            train_sampling_strategy="group_by_length",
            seed=settings.seed,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        )
        steps = settings.epochs * -(-len(rows) // settings.batch)
        kind, _, cycles = settings.way.partition("-")
        callback = SnapshotCallback(
            schedule=Linear(steps) if kind == "linear" else CyclicCosine(steps, int(cycles or 1)),
            store=Path(folder) / "run",
            on_restart=fresh_weights(task.network) if kind == "fresh" else None,
        )
        collate = DataCollatorWithPadding(task.tokenizer)
        Trainer(task.network(), arguments, data_collator=collate, train_dataset=rows, callbacks=[callback]).train()
        seconds = time.monotonic() - begun
        held_out, test = (callback.ensemble().outputs(task.batches(rows)) for rows in (task.held_out, task.test))
    found = {"held_out": qualities(held_out), "test": qualities(test)}
    for name, members in (("last", 1), ("all", "all")):
        fitted = Prediction.of(test, combine.fit(held_out, members=members, exit_loss=None))
        found["test"][name]["calibrated_nll"] = round(fitted.score.nll, 5)
    return {**asdict(settings), "torch": torch.__version__, "seconds": round(seconds, 1), **found}


def qualities(outputs: Outputs) -> dict[str, dict[str, float]]:
    """The error in percent and the NLL of the last snapshot and of all snapshots."""
    scores = {"last": outputs.quality.last.scores[0], "all": outputs.quality.last.scores[-1]}
    return {
        name: {"error_percent": round(100 * score.error, 3), "nll": round(score.nll, 5)}
        for name, score in scores.items()
    }


def main() -> None:
    """Train the runs that the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of train.csv and test.csv")
    parser.add_argument("--model", type=Path, required=True, help="the folder of the pretrained model")
    parser.add_argument("--out", type=Path, required=True, help="the JSON Lines file")
    parser.add_argument("--commit", required=True, help="the commit of this script")
    parser.add_argument("--hardware", required=True, help="where the runs are trained, such as 'a 2-core CPU'")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--lr", nargs="+", type=float, default=[5e-4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--shots", type=int, default=10, help="training examples per class")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {Settings(**{field.name: line[field.name] for field in fields(Settings)}) for line in lines}
    task = Task(options.data, options.model)
    for seed, way, lr in product(options.seeds, options.ways, options.lr):
        settings = Settings(way, lr, seed, options.shots, options.epochs, options.batch)
        if settings not in done:
            found = {"commit": options.commit, "hardware": options.hardware, **run(task, settings)}
            with options.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(way, lr, seed, found["held_out"], flush=True)


if __name__ == "__main__":
    main()
