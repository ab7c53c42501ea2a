"""What the documentation shows of the ledger is what the ledger says."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def results():
    spec = importlib.util.spec_from_file_location("results", ROOT / "docs/results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_table_is_stale(results):
    for path, text in results.texts().items():
        assert path.read_text() == text, f"{path.name} is not what results/ says: run `make results`"


def test_no_picture_is_stale(results):
    for path, content in results.pictures().items():
        words = re.findall(r">([^<]+)</text>", content.decode())
        assert len(words) > 10
        assert re.findall(r">([^<]+)</text>", path.read_text()) == words, f"{path.name}: run `make results`"
