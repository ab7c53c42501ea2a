"""The code of docs/how-to/hugging-face.md runs as it is written, with tiny models in local folders of those names."""

import re
from functools import partialmethod
from pathlib import Path

import pytest
import torch

from snapens import Snapshots

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("peft")
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs/how-to/hugging-face.md"
WORDS = ["[PAD]", "[UNK]", "the", "cat", "sat", "on", "a", "mat"]


def word_tokenizer():
    words = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def write_models():
    tiny = {"vocab_size": len(WORDS), "pad_token_id": 0}
    bert = transformers.BertConfig(
        **tiny, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=3
    )
    transformers.BertForSequenceClassification(bert).save_pretrained("bert-base-uncased")
    gpt2 = transformers.GPT2Config(**tiny, n_embd=8, n_layer=1, n_head=1, bos_token_id=None, eos_token_id=None)
    transformers.GPT2LMHeadModel(gpt2).save_pretrained("gpt2")


@pytest.fixture
def quiet(monkeypatch):
    """Arguments without a progress bar, on the CPU."""

    arguments = transformers.TrainingArguments
    quietly = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_strategy": "no"}
    monkeypatch.setattr(arguments, "__init__", partialmethod(arguments.__init__, **quietly))


def test_the_code_of_the_page_runs(tmp_path, monkeypatch, quiet, capsys):
    monkeypatch.chdir(tmp_path)
    transformers.utils.logging.disable_progress_bar()
    write_models()
    rows = torch.randint(2, len(WORDS), (16, 5))
    data = [{"input_ids": row, "labels": int(row.sum()) % 3} for row in rows]
    names = {
        "train_data": data,
        "test_data": data[:4],
        "input_ids": rows[:2],
        "texts": [{"input_ids": row.tolist()} for row in rows],
        "tokenizer": word_tokenizer(),
    }
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        exec(block, names)
    assert [Snapshots(f"runs/{run}").steps for run in "abc"] == [(4, 8, 12), (2, 4, 6), (2, 4, 6)]
    assert names["probabilities"].sum(-1) == pytest.approx([1, 1])
    assert "the cat" in capsys.readouterr().out
    assert names["ensemble"].steps == (2, 4, 6)
