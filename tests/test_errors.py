"""The pages about errors: each class is described, and each quoted message occurs in the code."""

import ast
import re
from pathlib import Path

import pytest

from snapens import errors

ROOT = Path(__file__).parent.parent
CLASSES = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
PLACEHOLDER = "\0"


def sections():
    """The text about each class, by its name."""
    _, *parts = re.split(r"^## `(\w+)`$", (ROOT / "docs/reference/errors.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_page_describes_every_class_and_no_other():
    assert sorted(sections()) == sorted(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_a_section_says_when_it_is_raised_what_to_do_and_which_error_it_is(name):
    when, remedy = sections()[name].split("**What to do:**")
    assert when.strip()
    assert remedy.strip()
    parent = CLASSES[name].__base__
    assert parent in (Exception, errors.SnapensError) or f"`{parent.__name__}`" in when


def literals(tree):
    """The texts in the code, with a placeholder for each value that is inserted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sdg]", PLACEHOLDER, node.value)


def quoted():
    """The messages in headings of the page; … stands for a part that varies."""
    return re.findall(r"^### `(.+)`$", (ROOT / "docs/how-to/troubleshooting.md").read_text(), re.MULTILINE)


def occurs(message, texts):
    """Whether the fixed parts of a message occur in one text, in order, separated by inserted values."""
    between = rf"[^{PLACEHOLDER}]*?{PLACEHOLDER}.*?"
    pattern = between.join(re.escape(part) for part in message.strip("… ").split("…"))
    return any(re.search(pattern, text, re.DOTALL) for text in texts)


def test_every_message_of_the_troubleshooting_page_occurs_in_the_code():
    paths = (ROOT / "src/snapens").rglob("*.py")
    texts = [text for path in paths for text in literals(ast.parse(path.read_text()))]
    messages = quoted()
    assert len(messages) > 20
    assert [message for message in messages if not occurs(message, texts)] == []


def test_a_message_that_the_code_does_not_have_is_noticed():
    texts = [f"last must be between 1 and {PLACEHOLDER} (the number of members), got {PLACEHOLDER}: lower it"]
    assert occurs("last must be between 1 and … (the number of members), got …", texts)
    assert not occurs("last must be between 1 and … (the number of snapshots), got …", texts)
    assert not occurs("last must be … 1 and", texts)  # nothing is inserted there
