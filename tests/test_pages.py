"""The code of every page of the documentation runs, its commands are accepted, and its links lead somewhere."""

import re
import shlex
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from markdown.extensions.toc import slugify
from pages import readme
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from snapens.cli import Train, _command
from snapens.errors import SnapensError

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
OWN_TEST = {
    f"docs/how-to/{name}.md"
    for name in ("lightning", "hugging-face", "scikit-learn", "other-frameworks", "many-runs", "ddp-and-fsdp2")
}
"""Pages whose code another test runs."""
FENCE = re.compile(r"^( *)(```+)(\w*)[^\n]*\n(.*?)^\1\2 *$", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: \S.*? -->\s*\Z")
LINK = re.compile(r"\]\(<?([^)>\s]+)>?(?: \"[^\"]*\")?\)|(?:href|src|srcset)=\"([^\"]+)\"")


class Net(nn.Module):
    """What pages call Net: (batch, 8) -> (batch, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


def stand_ins():
    """The names that a page may use without defining them."""
    x = torch.randn(48, 8)
    data = TensorDataset(x, x[:, :3].argmax(1))
    x = torch.randn(240, 8)  # one half is enough to fit a combination
    held_out = TensorDataset(x, x[:, :3].argmax(1))
    model = Net()
    return {
        "__name__": "page",
        "Net": Net,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "loss": nn.CrossEntropyLoss(),
        "loader": DataLoader(data, batch_size=8),
        "held_out_loader": DataLoader(held_out, batch_size=16),
        "test_loader": DataLoader(data, batch_size=16),
        "epochs": 5,
        "x": data.tensors[0][:8],
        "y": data.tensors[1][:8],
    }


def blocks(text, *languages) -> Iterator[tuple[int, str]]:
    """The first line and the code of each block in one of these languages that is not marked as not run."""
    for found in FENCE.finditer(text):
        if found[3] in languages and not NOT_RUN.search(text, 0, found.start()):
            yield text.count("\n", 0, found.start(4)) + 1, textwrap.dedent(found[4])


def before(diff):
    """The old version of the code in a diff."""
    return "".join(f"{line[1:]}\n" for line in diff.splitlines() if not line.startswith("+"))


def after(diff):
    """The new version of the code in a diff."""
    return "".join(f"{line[1:]}\n" for line in diff.splitlines() if not line.startswith("-"))


def ran(code, line, names, page) -> str | None:
    """Run code that begins at a line of a page; return the error, if there is one."""
    try:
        exec(compile("\n" * (line - 1) + code, page, "exec"), names)
    except SyntaxError as error:
        return f"{page}:{error.lineno}: {error.msg}"
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == page]
        return f"{page}:{lines[-1]}: {type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize(
    "page", [name for name in NAMES if name not in OWN_TEST and "```" in (ROOT / name).read_text()]
)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, names = (ROOT / page).read_text(), stand_ins()
    for line, code in sorted([*blocks(text, "python", "py"), *blocks(text, "diff")]):
        is_diff = text.splitlines()[line - 2].strip().startswith("```diff")
        if error := ran(after(code) if is_diff else code, line, names, page):
            pytest.fail(error, pytrace=False)


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/own-loop.md"])
def test_both_versions_of_a_diff_are_complete(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ((line, diff),) = blocks((ROOT / page).read_text(), "diff")
    for version in (before, after):
        if error := ran(version(diff), line, stand_ins(), page):
            pytest.fail(f"{version.__name__}: {error}", pytrace=False)


def test_the_program_for_a_small_folder_gives_each_class_ten_test_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = {f"{name}/{k}.jpg" for name, count in (("cat", 25), ("dog", 40)) for k in range(count)}
    for image in images:
        path = tmp_path / "photos" / image
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image.encode())
    _, code = next(blocks((ROOT / "docs/how-to/own-images.md").read_text(), "python"))
    exec(code, {})
    assert sorted(path.read_text() for path in Path("split").rglob("*.jpg")) == sorted(images)
    assert [len(list(Path("split/test", name).iterdir())) for name in ("cat", "dog")] == [10, 10]


def commands(code) -> Iterator[tuple[int, list[str]]]:
    """The arguments of every call of snapens in a shell script, and the line that the call is in."""
    for found in re.finditer(r"(?:\\\n|.)+", code):
        number = code.count("\n", 0, found.start())
        lexer = shlex.shlex(found[0].replace("\\\n", " "), posix=True, punctuation_chars=";&|()<>")
        lexer.whitespace_split = True
        words = list(lexer)
        while words:
            end = next((k for k, word in enumerate(words) if set(word) <= set(";&|")), len(words))
            call, words = words[:end], words[end + 1 :]
            while call and (call[0] == "$" or re.match(r"\w+=", call[0])):
                del call[0]
            if call[:1] == ["snapens"]:
                yield number, call[1:]
            elif "-m" in call and call[call.index("-m") + 1 :][:1] == ["snapens"]:
                yield number, call[call.index("-m") + 2 :]


@pytest.mark.parametrize("page", [name for name in NAMES if "snapens " in (ROOT / name).read_text()])
def test_the_commands_of_a_page_are_accepted(page, capsys):
    errors = []
    for first, code in blocks((ROOT / page).read_text(), "sh", "bash", "console", "shell"):
        for line, arguments in commands(code):
            try:
                command = _command(arguments)
                if isinstance(command, Train):
                    command.settings.recipe()
            except SystemExit as end:
                if end.code:
                    reason = " ".join(re.sub(r"[^\w\s.,:;'\"()/=-]", " ", capsys.readouterr().err).split())
                    errors.append(f"{page}:{first + line}: snapens {shlex.join(arguments)}: {reason}")
            except SnapensError as error:
                errors.append(f"{page}:{first + line}: snapens {shlex.join(arguments)}: {error}")
    if errors:
        pytest.fail("\n".join(errors), pytrace=False)


def test_the_command_of_the_modern_recipe_trains_the_run_whose_error_is_shown():
    _, code = next(blocks((ROOT / "README.md").read_text().split("<!-- modern:")[1], "sh"))
    [(_, arguments)] = commands(code)
    assert _command(arguments).settings.recipe() == readme.MODERN


def without_code(text):
    """The text with as many lines, without blocks of code, inline code and comments."""
    for pattern in (FENCE.pattern, r"<!--.*?-->", r"(`+)(?!`).*?(?<!`)\1(?!`)"):
        text = re.sub(pattern, lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    return text


def anchors(text) -> set[str]:
    """The anchors of a page: headings as mkdocs names them, those given by hand, and names that mkdocstrings adds."""
    headings = re.findall(r"^#+ +(.+?) *#*$", re.sub(FENCE, "", text), re.MULTILINE)
    given = {name for heading in headings for name in re.findall(r"\{[^}]*#([\w-]+)", heading)}
    plain = [re.sub(r"\{[^}]*\} *$|\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading) for heading in headings]
    return {slugify(heading, "-") for heading in plain} | given | set(re.findall(r"(?:id|name)=\"([^\"]+)\"", text))


def dead(page, target) -> str | None:
    """Why a link leads nowhere, if it does."""
    path, _, anchor = target.partition("#")
    place = page.parent / path if path else page
    if not place.exists():
        return "no such file"
    if page.is_relative_to(ROOT / "docs") and not place.resolve().is_relative_to(ROOT / "docs"):
        return "not in docs/, so the site does not have it"
    if anchor and place.suffix == ".md":
        text = place.read_text()
        documented = re.findall(r"^::: ([\w.]+)", text, re.MULTILINE)
        if anchor not in anchors(text) and not any(anchor.startswith(name) for name in documented):
            return f"no heading #{anchor}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_within_the_project_resolves(page):
    errors = []
    for number, line in enumerate(without_code(page.read_text()).splitlines(), 1):
        for target in (one or other for one, other in LINK.findall(line)):
            if not re.match(r"[a-z]+:", target) and (reason := dead(page, target)):
                errors.append(f"{page.relative_to(ROOT)}:{number}: {target}: {reason}")
    if errors:
        pytest.fail("\n".join(errors), pytrace=False)


@pytest.mark.parametrize("page", sorted(OWN_TEST))
def test_a_page_that_is_left_out_here_has_a_test_of_its_own(page):
    assert (ROOT / page).exists()
    others = [path for path in Path(__file__).parent.rglob("*.py") if path != Path(__file__)]
    assert any(f'"{page}"' in path.read_text() for path in others)


def test_a_block_has_the_line_of_the_page_and_is_left_out_only_with_a_reason():
    text = "a\n\n```python\nx = 1\n```\n- b\n\n  ```python\n  y = 1\n  ```\n<!-- not run: slow -->\n```python\nz\n```\n"
    assert list(blocks(text, "python")) == [(4, "x = 1\n"), (9, "y = 1\n")]
    assert [line for line, _ in blocks(text.replace("not run: slow", "not run:"), "python")] == [4, 9, 13]


def test_an_error_in_the_code_names_the_page_and_the_line():
    assert ran("a = 1\na / 0\n", 7, {}, "docs/a.md") == "docs/a.md:8: ZeroDivisionError: division by zero"
    assert ran("a = (\n", 7, {}, "docs/a.md").startswith("docs/a.md:7: ")


def test_every_call_of_snapens_in_a_script_is_found():
    script = "cd a && snapens demo  # x\nA=1 torchrun -m snapens train \\\n  --seed 1 | tee log\necho a\n$ snapens\n"
    assert list(commands(script)) == [(0, ["demo"]), (1, ["train", "--seed", "1"]), (4, [])]


def test_dead_links_and_anchors_are_found(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("# One `step`\n\n```\n# no heading\n```\n## Two {#second}\n")
    assert anchors(page.read_text()) == {"one-step", "two", "second"}
    assert [dead(page, target) for target in ("#one-step", "a.md#second", "")] == [None] * 3
    assert (dead(page, "b.md"), dead(page, "#no-heading")) == ("no such file", "no heading #no-heading")
