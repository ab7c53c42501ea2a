"""The model card: a Markdown file beside an exported ensemble that describes it and how to run it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

from .. import __version__
from ..combination import Combination
from ..errors import shortened
from ..outputs import Outputs
from ..prediction import Prediction
from ..storage import durable
from .graph import Graph

ONNX, PROGRAM = "ONNX graph", "torch.export program"
LICENCE = ("## Licence", "Not stated. Add the licence of the model and of its training data here.")
_PARTS = {"test": "test set", "held_out": "held-out examples"}


@dataclass(frozen=True)
class About:
    """The contents of a model card that the ensemble itself does not provide.

    - `network`: the architecture, in words.
    - `data`: the training data, in words.
    - `classes`: their names, in the order of the outputs.
    - `outputs`: the members' outputs for labelled examples, from which the quality is computed.
    - `input_format`: what the inputs are, in words: units, order of channels, normalisation.
    """

    network: str = ""
    data: str = ""
    classes: Sequence[str] = ()
    outputs: Sequence[Outputs] = ()
    input_format: str = ""


def write(
    path: Path, graph: Graph, combination: Combination, about: About | None, kind: str, more: Sequence[Path] = ()
) -> Path:
    """Write the card of an exported file, which may need `more` files, and return its path."""
    about = about or About()
    sections = (
        [f"# {path.stem}", f"A Snapshot Ensemble as one {kind}: `{path.name}`."],
        ["## Model", model(combination, about, graph.output), *_exit(combination)],
        ["## Quality", *quality(combination, about.outputs, graph.prefixes)],
        ["## Inputs and outputs", *_ports(graph, about)],
        ["## How to run it", _code(path, graph, kind)],
        ["## Files", _files([path, *more], kind)],
        LICENCE,
    )
    return durable.write(card_path(path), text(sections))


def card_path(path: Path) -> Path:
    """The path of the card of an exported file."""
    return path.with_name(f"{path.name}.md")


def text(sections: Iterable[Iterable[str]]) -> bytes:
    """The content of a card: sections of paragraphs."""
    return ("\n\n".join(paragraph for section in sections for paragraph in section) + "\n").encode()


def model(combination: Combination, about: About, output: str) -> str:
    """The list that describes the members; `output` is the kind of the prediction."""
    members = zip(combination.members, combination.weights or combination.shares, strict=True)
    snapshots = _count(len(combination.members), "snapshot")
    runs = _count(len({run for run, _ in combination.members}), "training run")
    tempered = f", then the temperature {combination.temperature:g}" if combination.temperature != 1 else ""
    what = "outputs" if output == "mean" else "probabilities"
    tempered += ", then the logarithm" if output == "log_probabilities" else ""
    lines = [
        f"Network: {about.network or 'not stated'}",
        f"Training data: {about.data or 'not stated'}",
        f"Classes: {_listed(about.classes)}",
        f"Members: {snapshots} of {runs}",
        f"Step × weight of each member, oldest first: {', '.join(f'{step} × {w:g}' for (_, step), w in members)}",
        f"Prediction: the weighted mean of the members' {what}{tempered}",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _exit(combination: Combination) -> Iterator[str]:
    if combination.exit_threshold is not None:
        yield (
            f"The combination also has the exit threshold {combination.exit_threshold:g}. This file does not use "
            "it: an exported graph has no early exit. In snapens, `Ensemble.predict` has early exit; in a file with "
            "prefixes, you can choose the number of members."
        )


def quality(combination: Combination, outputs: Sequence[Outputs], prefixes: bool = False) -> Iterator[str]:
    """The paragraphs about the quality of all members, or also of the newest 1, 2, … (`prefixes`)."""
    outputs = [one for one in outputs if set(combination.members) <= set(one.members)]
    complete, rows = replace(combination, exit_threshold=None), []
    for one in outputs:
        part = _PARTS.get(one.part or "", f"part {one.part!r}" if one.part else "examples of unknown origin")
        for m in range(1 if prefixes else len(combination.members), len(combination.members) + 1):
            newest = replace(complete, members=complete.members[-m:], weights=complete.weights[-m:])
            score, n = Prediction.of(one, newest).score, len(one.labels)
            rows.append(f"| {part} | {n:,} | {m} | {100 * score.error:.2f} % | {score.nll:.4f} | {score.ece:.4f} |")
    if not rows:
        yield "Not stated: there are no outputs of these members for labelled examples."
        return
    yield "\n".join(
        ["| measured on | n | newest members | error | NLL, nats | ECE |", "|---|---|---|---|---|---|", *rows]
    )
    yield (
        "NLL is the mean negative log-likelihood; ECE is the expected calibration error in 15 bins. The values are "
        "computed from the outputs that the members had after training, not from this file."
    )
    if any(one.part == "held_out" for one in outputs):
        yield (
            "Held-out examples were not trained on, but the combination may have been fitted on them: "
            "their values may then be too good."
        )


def _ports(graph: Graph, about: About) -> Iterator[str]:
    lines = ["| | name | type | shape |", "|---|---|---|---|"]
    lines += [
        f"| input | `{name}` | {_type(tensor)} | {_shape(tensor, 0 if name in graph.batch_inputs else None)} |"
        for name, tensor in graph.example.items()
    ]
    axis = 1 if graph.prefixes else 0
    lines += [
        f"| output | `{name}` | {_type(value)} | {_shape(value, axis)} |" for name, value in graph.outputs.items()
    ]
    yield "\n".join(lines)
    yield f"Input format: {about.input_format or 'that of the network; not stated'}."
    if graph.prefixes:
        yield (
            "Row m − 1 of an output is the prediction of the newest m members; the last row is that of all members. "
            "All rows have the same temperature."
        )


def _code(path: Path, graph: Graph, kind: str) -> str:
    name, *others = graph.outputs
    if kind == ONNX:
        imports, load = "import numpy as np\nimport onnxruntime", f'onnxruntime.InferenceSession("{path.name}")'
        zeros, call = 'np.zeros({}, dtype="{}")', f'graph.run(["{name}"], inputs)[0]'
    else:
        imports, load = "import torch", f'torch.export.load("{path.name}").module()'
        zeros, call = "torch.zeros({}, dtype=torch.{})", f'graph(**inputs)["{name}"]' if others else "graph(**inputs)"
    lines = [imports, "", f"graph = {load}", "inputs = {  # your batch instead of zeros"]
    for key, tensor in graph.batch(1).items():
        lines.append(f'    "{key}": {zeros.format(tuple(tensor.shape), _type(tensor))},')
    lines += ["}", f"prediction = {call}", "print(prediction[-1])" if graph.prefixes else "print(prediction)"]
    return "\n".join(["```python", *lines, "```"])


def _files(paths: Sequence[Path], kind: str) -> str:
    lines = ["| name | bytes | SHA-256 |", "|---|---|---|"]
    for path in paths:
        found = durable.digest(path)
        lines.append(f"| `{path.name}` | {found.bytes:,} | `{found.sha256}` |")
    versions = [f"snapens {__version__}", f"torch {torch.__version__}"]
    if kind == ONNX:
        versions += [f"{name} {metadata.version(name)}" for name in ("onnx", "onnxruntime")]
    return "\n".join([*lines, "", f"Made with {', '.join(versions)}."])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number > 1)}"


def _listed(classes: Sequence[str]) -> str:
    # names are text of a user: a card is Markdown, where some characters have a meaning
    names = [re.sub(r"([\\`*_<>\[\]|])", r"\\\1", " ".join(str(name).split())) for name in classes]
    return f"{len(names)}: {shortened(names, limit=100)}" if names else "not stated"


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: Tensor, batch_axis: int | None) -> str:
    return f"({', '.join('batch' if axis == batch_axis else str(size) for axis, size in enumerate(tensor.shape))})"
