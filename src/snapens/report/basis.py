"""The basis of the findings: which examples they are from, and what these examples may be used for."""

from ..combine.held_out import FEW_EXAMPLES
from .evidence import Evidence


def basis(evidence: Evidence) -> str:
    """Which examples the findings are based on, and what they may be used for."""
    noun, use = evidence.noun, choosing(evidence)
    if evidence.part == "test":
        return f"The findings describe the {evidence.examples:,} test {noun}, because no {noun} were held out. {use}"
    if not evidence.tested:
        return f"The findings, like all numbers on this page, are based on {evidence.examples:,} held-out {noun}. {use}"
    other = f"Statements about the test error are based on the test {noun}."
    return f"The findings are based on {evidence.examples:,} held-out {noun}. {use} {other}"


def choosing(evidence: Evidence) -> str:
    """Whether m and the number of cycles may be chosen on these examples, and what to do if not."""
    if evidence.part == "test":
        remedy = 'save outputs with part="held_out"' if evidence.own_loop else "train with --held-out N"
        return f"Do not use them to choose m or the number of cycles: {remedy} and write the report again."
    if evidence.examples < FEW_EXAMPLES:
        return f"These are too few to choose m or the number of cycles: hold out at least {FEW_EXAMPLES}."
    return "You may use them to choose m or the number of cycles."
