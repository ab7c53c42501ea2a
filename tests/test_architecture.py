"""Who may import whom; docs/tour.md draws the same picture."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src/snapens"
ROOMS = {
    "errors": set(),
    "storage": {"storage"},
    "core": {"core", "storage"},
    "combine": {"core", "combine"},
    "export": {"core", "storage", "export"},
    "integrations": {"core", "storage", "export", "integrations"},
    "predict": {"core", "predict"},
    "lab/recipe": {"core", "storage", "lab/recipe"},
    "lab/data": {"core", "storage", "lab/recipe", "lab/data"},
    "lab/nets": {"core", "lab/recipe", "lab/nets"},
    "lab/records": {"core", "storage", "lab/recipe", "lab/nets", "lab/records"},
    "lab/engine": {"core", "storage", "predict", "lab/recipe", "lab/data", "lab/nets", "lab/records", "lab/engine"},
    "lab/paper": {"core", "storage", "lab/recipe", "lab/records", "lab/paper"},
    "report": {"core", "storage", "combine", "lab/recipe", "lab/records", "lab/paper", "report"},
}
"""Each room, and the rooms that it may import from; all may import the errors, and the command line everything."""
PACKAGES = {"cli": {"torch", "rich", "tyro"}, "integrations": {"torch", "numpy", "sklearn"}}  # others: torch, numpy
KERNELS = (SOURCE / "lab/nets/dense/kernels.py", SOURCE / "predict/kernels.py")  # imported where there is a GPU


def room(module):
    """The folder that a module is in, two levels deep in the lab; the files beside the folders are the core."""
    if module[0] == "lab":
        return "/".join(module[:2])
    return module[0] if module[0] == "errors" or (SOURCE / module[0]).is_dir() else "core"


def imports(path):
    """The rooms, and the packages of others, that a file imports when it runs."""
    ours, theirs = set(), set()
    here = path.relative_to(SOURCE).parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = (*here[: len(here) - node.level], *(node.module.split(".") if node.module else ()))
            ours |= {room((*base, alias.name)) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            theirs.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            theirs |= {alias.name.split(".")[0] for alias in node.names}
    return ours, theirs - set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_the_architecture_allows(path):
    here = path.relative_to(SOURCE).with_suffix("").parts
    ours, theirs = imports(path)
    if room(here) in ROOMS and here != ("__main__",):
        assert ours <= ROOMS[room(here)] | {"errors"}
    assert theirs <= ({"torch", "triton"} if path in KERNELS else PACKAGES.get(here[0], {"torch", "numpy"}))


def test_there_is_one_training_loop_and_the_plain_ones_of_the_benchmark_and_the_estimators():
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if "loss.backward()" in path.read_text()}
    assert found == {"lab/engine/step.py", "lab/engine/bench.py", "integrations/sklearn.py"}


def test_only_the_command_line_prints():
    for path in SOURCE.rglob("*.py"):
        code = ast.parse(path.read_text())
        called = {node.func.id for node in ast.walk(code) if isinstance(node, ast.Call) and hasattr(node.func, "id")}
        assert "print" not in called, path


def test_the_package_and_its_schedules_load_without_torch():
    code = "import sys, snapens; snapens.CyclicCosine(4, 2); dir(snapens); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_combination_is_fitted_without_torch():
    code = "import sys; from snapens import combine; combine.fit; assert 'torch' not in sys.modules"
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
