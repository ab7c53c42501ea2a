"""Who may import whom; docs/tour.md draws the same picture."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src/snapens"
ALLOWED = {
    "__init__": set(),
    "errors": set(),
    "extras": set(),
    "schedule": set(),
    "metrics": set(),
    "weights": set(),
    "batches": set(),
    "storage": {"storage"},
    "snapshots": {"storage"},
    "ensemble": {"batches", "snapshots", "weights"},
    "ensembler": {"ensemble", "schedule", "snapshots", "weights"},
    "lab": {"__version__", "ensembler", "extras", "lab", "metrics", "schedule", "snapshots", "storage", "weights"},
    "report": {"__version__", "extras", "lab", "metrics", "report", "storage"},
    "cli": {"__version__", "cli", "extras", "lab", "report", "storage"},
    "__main__": {"cli"},
}
PACKAGES = {"cli": {"torch", "rich", "tyro"}}  # all others: torch and numpy
KERNELS = SOURCE / "lab/nets/dense_kernels.py"  # imported where there is a GPU


def imports(path):
    """Top-level names of our own modules, and of the packages, that a file imports when it runs."""
    ours, theirs = set(), set()
    package = path.relative_to(SOURCE).parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level]
            ours |= {(*base, *(node.module or alias.name).split("."))[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            theirs.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            theirs |= {alias.name.split(".")[0] for alias in node.names}
    return ours, theirs - set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_the_architecture_allows(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    ours, theirs = imports(path)
    if room != "__init__":  # the public names, for type checkers
        assert ours <= ALLOWED[room] | {"errors"}
    assert theirs <= ({"torch", "triton"} if path == KERNELS else PACKAGES.get(room, {"torch", "numpy"}))


def test_the_report_reads_records_and_never_the_engine_or_the_networks():
    records = {"between", "entry", "gallery", "ledger", "outputs", "paper", "paper_figures", "recipe", "runs", "scores"}
    for path in (SOURCE / "report").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 2 and (node.module or "").split(".")[0] == "lab":
                rest = node.module.split(".")[1:2] or [alias.name for alias in node.names]
                assert {*rest} <= records, path


def test_there_is_one_training_loop_and_the_plain_one_it_is_timed_against():
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if "loss.backward()" in path.read_text()}
    assert found == {"lab/step.py", "lab/bench.py"}


def test_only_the_command_line_prints():
    for path in SOURCE.rglob("*.py"):
        code = ast.parse(path.read_text())
        called = {node.func.id for node in ast.walk(code) if isinstance(node, ast.Call) and hasattr(node.func, "id")}
        assert "print" not in called, path


def test_the_package_and_its_schedules_load_without_torch():
    code = "import sys, snapens; snapens.CyclicCosine(4, 2); dir(snapens); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_and_the_list_of_flags_do_not_wait_for_torch():
    code = "import sys; from snapens.cli import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass\n"
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True, capture_output=True)


def test_every_public_name_is_there_and_an_unknown_one_is_an_attribute_error():
    import snapens

    assert all(getattr(snapens, name).__name__ == name for name in snapens.__all__)
    assert set(snapens.__all__) <= set(dir(snapens))
    assert snapens.metrics.error([[1.0, 0.0]], [0]) == 0
    with pytest.raises(AttributeError, match="no attribute 'Snapshooter'"):
        snapens.Snapshooter  # noqa: B018
