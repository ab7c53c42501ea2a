"""ONNX files: they need a runtime such as onnxruntime, and no Python."""

import re
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..ensemble import Ensemble
from ..errors import ExportError
from ..extras import package
from ..storage import durable
from . import card
from .graph import Graph, brief, quiet

_MOST_BYTES = 2_000_000_000  # a file of protocol buffers has at most 2 GiB; the graph itself needs some of them
_ALIGNED_BYTES = 4096  # so that a runtime can map each tensor


def to_onnx(
    ensemble: Ensemble,
    example: Any,
    path: str | PathLike[str],
    *,
    inputs: Sequence[str] | None = None,
    prefixes: bool = False,
    tolerance: float = 1e-5,
    about: card.About | None = None,
) -> Path:
    """Write an ensemble as one ONNX graph, with a model card beside it (the path and `.md`), and return the path.

    - `example` is a batch of inputs for the model, as for `Ensemble.predict`: a tensor, a tuple of arguments, or a
      mapping of keyword arguments. The batch size of the graph is dynamic. The example itself is not stored.
    - `inputs` names the inputs. By default they have the names of the model's arguments, or of those of the ensemble's
      `preprocess` module, which is a part of the graph.
    - The output is `probabilities` (batch, classes), with the weights and the temperature of the ensemble's
      combination; `mean` if the ensemble has no activation; the keys of the mapping that the model returns. All members
      are evaluated: a graph has no early exit.
    - With `prefixes`, the output is (members, batch, classes): row m − 1 is the prediction of the newest m members.
    - `about` adds to the model card what the ensemble does not contain: the data, the classes, measured outputs.

    The file is compared with PyTorch for three batch sizes before it gets its final name. A difference above
    `tolerance` (relative to the largest prediction, if that is above 1) is an `ExportError`. The file is written
    completely or not at all. Tensors that members share are stored once; tensors of more than 2 GB together are
    stored in a second file beside it.
    """
    onnx, runtime = package("onnx", "export"), package("onnxruntime", "export")
    package("onnxscript", "export")  # torch imports it
    path = Path(path)
    graph = Graph(ensemble, example, inputs=inputs, prefixes=prefixes)
    model = _converted(graph)
    data = _external(model, path)

    def write(file: BinaryIO) -> None:
        file.write(package("onnx_ir", "export").to_proto(model).SerializeToString())
        file.flush()
        session = _session(onnx, runtime, file.name)
        graph.check(lambda batch: _run(session, batch), tolerance)

    try:
        durable.write(path, write)
    except BaseException:
        if data is not None:
            data.unlink(missing_ok=True)
        raise
    durable.sweep(path.parent, _data_name(path), [data.name] if data else [])
    card.write(path, graph, ensemble.combination, about or card.About(), card.ONNX, [data] if data else [])
    return path


def _converted(graph: Graph) -> Any:
    """The graph as a model of onnx_ir."""
    program = graph.traced()
    with quiet():
        try:
            found = torch.onnx.export(
                program,
                input_names=list(graph.example),
                output_names=list(graph.outputs),
                dynamic_shapes={name: {0: "batch"} if name in graph.batch_inputs else None for name in graph.example},
                dynamo=True,
                optimize=True,  # which also stores tensors of equal content once
                verbose=False,
            )
        except Exception as error:  # an operator without an ONNX form, for example
            raise ExportError(
                f"model must consist of operators that ONNX supports, got {brief(_root(error))}: use to_program"
            ) from error
    assert found is not None  # None is returned only by the old exporter
    # stack traces contain paths of this machine
    package("onnx_ir.passes.common", "export").ClearMetadataAndDocStringPass()(found.model)
    return found.model


def _root(error: BaseException) -> BaseException:
    """The first error of a chain; the last one, from torch, contains mostly advice."""
    return error if error.__cause__ is None else _root(error.__cause__)


def _external(model: Any, path: Path) -> Path | None:
    """Move the tensors of a large model to a second file with a name never used before, and return its path."""
    values = [value for value in model.graph.initializers.values() if value.const_value is not None]
    if sum(value.const_value.nbytes for value in values) <= _MOST_BYTES:
        return None
    data, external = path.with_name(f"{path.name}.{durable.unique()}.data"), package("onnx_ir", "export").ExternalTensor
    tensors = [value.const_value for value in values]
    durable.write(data, _aligned(tensors))
    offset = 0
    for value, tensor in zip(values, tensors, strict=True):
        value.const_value = external(
            data.name, offset, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=value.name, base_dir=path.parent
        )
        offset += tensor.nbytes + -tensor.nbytes % _ALIGNED_BYTES
    return data


def _aligned(tensors: Sequence[Any]) -> Iterator[bytes]:
    for tensor in tensors:
        yield tensor.tobytes()
        yield bytes(-tensor.nbytes % _ALIGNED_BYTES)


def _data_name(path: Path) -> re.Pattern[str]:
    """The names of the second files of a path."""
    return re.compile(re.escape(path.name) + r"\.[0-9a-f]{12}\.data")


def _session(onnx: Any, runtime: Any, path: str) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    try:
        onnx.checker.check_model(path, full_check=True)
        return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # both raise their own types
        raise ExportError(f"model must be one that onnxruntime can load, got {brief(error)}: use to_program") from error


def _run(session: Any, batch: dict[str, Tensor]) -> list[Tensor]:
    return [torch.from_numpy(found) for found in session.run(None, {k: v.numpy() for k, v in batch.items()})]
