"""What a plain loop over examples finds, and what a reader of a page sees."""

import re

import numpy as np


def score(means, labels):
    """Error, NLL and ECE of (examples, classes), one example at a time."""
    wrong, nll, bins = 0, 0.0, {}
    for p, label in zip(means, labels, strict=True):
        wrong += int(np.argmax(p) != label)
        nll -= np.log(p[label])
        place = min(max(int(np.ceil(p.max() * 15)) - 1, 0), 14)
        bins.setdefault(place, []).append((np.argmax(p) == label) - p.max())
    return wrong / len(labels), nll / len(labels), sum(abs(sum(gaps)) for gaps in bins.values()) / len(labels)


def words(html):
    """The text that a reader sees."""
    visible = html.partition("</style>")[2].partition("<script")[0]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", visible)).replace("&nbsp;", " ")
