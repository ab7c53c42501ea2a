"""What the documentation shows of the ledger is what the ledger says."""

import importlib.util
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


def test_every_picture_can_be_drawn_and_is_there(results):
    for path, content in results.pictures().items():
        assert content.startswith(b"<?xml")
        assert path.read_bytes().startswith(b"<?xml"), path
