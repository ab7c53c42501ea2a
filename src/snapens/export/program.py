"""Programs of `torch.export`: they need torch, but neither snapens nor the code of the model."""

from collections.abc import Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..ensemble import Ensemble
from ..storage import durable
from . import card
from .graph import Graph, quiet


def to_program(
    ensemble: Ensemble,
    example: Any,
    path: str | PathLike[str] | None = None,
    *,
    inputs: Sequence[str] | None = None,
    prefixes: bool = False,
    tolerance: float = 1e-5,
    about: card.About | None = None,
) -> ExportedProgram:
    """Export an ensemble as a program of `torch.export`, and write it, with a model card beside it, if a path is given.

    The arguments are those of `to_onnx`. The program is called by the names of its inputs:
    `torch.export.load(path).module()(x=…)`.

    Examples:
        >>> from snapens import Snapshots
        >>> model, snapshots = torch.nn.Linear(4, 3), Snapshots()
        >>> snapshots.commit(8, model.state_dict())
        >>> program = to_program(Ensemble(snapshots, model), torch.zeros(2, 4))
        >>> program.module()(input=torch.zeros(7, 4)).shape
        torch.Size([7, 3])
    """
    graph = Graph(ensemble, example, inputs=inputs, prefixes=prefixes)
    program = graph.traced()
    program._example_inputs = None  # the file must not contain data of the user; torch 2.6 has no setter for None
    program.graph.eliminate_dead_code()  # torch 2.6 could not load the computations of dtypes
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # nor paths of this machine
    call = program.module()
    graph.check(lambda batch: list(graph.by_name(call(**batch)).values()), tolerance)
    if path is not None:
        with quiet():
            durable.write(Path(path), partial(torch.export.save, program))
        card.write(Path(path), graph, ensemble.combination, about, card.PROGRAM)
    return program
