"""A hook of mkdocs: the page maintain/contributing.md shows CONTRIBUTING.md, which is at the root for code hosts."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of a page; links to files outside docs/ become plain text, because the site does not have them."""
    if page.file.src_uri != "maintain/contributing.md":
        return markdown
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return re.sub(r"\[([^]]+)\]\((?!docs/|[a-z]+:|#)[^)]+\)", r"\1", text.replace("](docs/", "](../"))
