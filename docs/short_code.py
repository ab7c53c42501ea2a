"""A hook of mkdocs: short code in a sentence gets a class, so that the style sheet can keep `--lr 0.1` on one line."""

import re

CHARACTERS = 26
"""Longer code may break: it would not fit into a narrow column."""


def on_page_content(html: str, **_: object) -> str:
    return re.sub(rf"<code>(?=[^<]{{1,{CHARACTERS}}}</code>)", '<code class="short">', html)
