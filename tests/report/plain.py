"""What a reader of a page sees."""

import re


def words(html):
    """The text that a reader sees."""
    visible = html.partition("</style>")[2].partition("<script")[0]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", visible)).replace("&nbsp;", " ")
