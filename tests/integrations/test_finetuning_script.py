"""`bench/finetuning.py` on a tiny model and a few texts, and the table of its results."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from snapens.errors import ArgumentError

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from pages import finetuning  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402

transformers.utils.logging.disable_progress_bar()
SCRIPT = Path(__file__).parents[2] / "bench/finetuning.py"
WORDS = ("[PAD]", "[UNK]", "red", "green", "blue", "a", "the", "very")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """The folder of a tiny model, with train.csv and test.csv: the category is the colour in the text."""
    folder, random = tmp_path_factory.mktemp("finetuning"), np.random.default_rng(0)
    words = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(WORDS), pad_token_id=0, max_position_embeddings=16, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    for part, rows in (("train", 60), ("test", 12)):
        lines = [f"{' '.join(random.choice(WORDS[5:], 2))} {WORDS[2 + k % 3]},{WORDS[2 + k % 3]}" for k in range(rows)]
        (folder / f"{part}.csv").write_text("\n".join(["text,category", *lines]) + "\n")
    return folder


@pytest.fixture
def script(task, tmp_path, monkeypatch):
    def called(*arguments):
        out = tmp_path / "results.jsonl"
        places = ["--data", str(task), "--model", str(task), "--out", str(out)]
        origin = ["--commit", "abc", "--hardware", "a CPU"]
        monkeypatch.setattr("sys.argv", ["finetuning.py", *places, *origin, "--epochs", "3", *arguments])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return [json.loads(line) for line in out.read_text().splitlines()]

    return called


def test_every_schedule_is_trained_once_per_rate_and_seed(script):
    options = ("--ways", "cosine", "fresh-3", "--lr", "0.01", "--shots", "4")
    found = script(*options)
    assert [(line["way"], line["lr"], line["seed"]) for line in found] == [("cosine", 0.01, 0), ("fresh-3", 0.01, 0)]
    assert {(line["shots"], line["epochs"], line["batch"], line["commit"]) for line in found} == {(4, 3, 32, "abc")}
    for line in found:
        for part, examples in (("held_out", 30), ("test", 12)):
            for members in ("last", "all"):
                wrong = line[part][members]["error_percent"] * examples / 100
                assert wrong == pytest.approx(round(wrong), abs=1e-3)
    assert found[0]["test"]["last"] == found[0]["test"]["all"]  # one snapshot
    assert found[1]["test"]["last"] != found[1]["test"]["all"]
    assert script(*options) == found
    assert script(*options[:2], *options[3:-1], "2")[:2] == found
    assert len(script(*options[:2], *options[3:-1], "2")) == 3  # fewer examples are a new run


def test_the_linear_schedule_is_that_of_the_trainer():
    linear = runpy.run_path(str(SCRIPT))["Linear"](7)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = transformers.get_linear_schedule_with_warmup(optimizer, 0, 7)
    for step in range(7):
        assert linear(step) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    assert (linear.snapshot_steps, linear.restart_steps) == ((7,), ())


def test_training_and_held_out_examples_are_balanced_and_do_not_overlap(task):
    names = runpy.run_path(str(SCRIPT))
    found = names["Task"](task, task)
    labels = [row["labels"] for row in found.held_out]
    assert np.bincount(labels).tolist() == [10, 10, 10]
    for seed in (0, 1):
        rows = found.training(seed, 4)
        assert np.bincount([row["labels"] for row in rows]).tolist() == [4, 4, 4]
        assert not any(row is other for row in rows for other in found.held_out)
    assert found.training(0, 4) != found.training(1, 4)
    assert found.training(1, 4) == found.training(1, 4)


def line(way, lr, seed, held_out, test, nll=1.0, last=None):
    score = {"error_percent": test, "nll": 9.0, "calibrated_nll": nll}
    alone = score if last is None else {**score, "error_percent": last}
    chosen = {"all": {"error_percent": held_out, "nll": held_out / 10}}
    return {
        "way": way,
        "lr": lr,
        "seed": seed,
        "seconds": 1.0,
        "held_out": chosen,
        "test": {"all": score, "last": alone},
    }


def test_the_rate_of_each_schedule_is_chosen_on_the_held_out_examples(tmp_path):
    lines = [
        line("cosine", 1e-4, 0, held_out=20.0, test=10.0),
        line("cosine", 5e-4, 0, held_out=18.0, test=22.0),
        line("cosine", 5e-4, 1, held_out=30.0, test=24.0),
        line("snapshot-3", 1e-4, 0, held_out=17.0, test=20.0, last=21.0),
        line("snapshot-3", 1e-4, 1, held_out=17.0, test=23.0, last=25.0),
    ]
    path = tmp_path / "study.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    study = finetuning.read(path)
    assert study.of("cosine").lr == 5e-4
    assert study.of("cosine").error.values == (22.0, 24.0)
    assert study.of("snapshot-3").last.values == (21.0, 25.0)
    assert study.of("snapshot-3") - study.of("cosine") == "−1.50 ± 0.71"  # 20 - 22 and 23 - 24
    assert study.table.splitlines()[2:] == [
        "| one cosine | 1 | 0.0005 | 23.00 ± 1.41 | 23.00 ± 1.41 | 1.000 ± 0.000 |",
        "| Snapshot Ensemble, M = 3 | 3 | 0.0001 | 23.00 ± 2.83 | **21.50 ± 2.12** | 1.000 ± 0.000 |",
    ]
    with pytest.raises(ArgumentError, match="unknown way 'grow'"):
        study.of("grow")
