"""ONNX files: they need a runtime such as onnxruntime, and no Python."""

import re
from collections.abc import Callable, Iterator, Sequence
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
    package("onnx", "export")
    package("onnxruntime", "export")
    package("onnxscript", "export")  # torch imports it
    if torch.__version__ < "2.7":  # compares versions, not texts
        raise ExportError(f"torch must be version 2.7 or later for ONNX, got {torch.__version__}: use to_program")
    path = Path(path)
    graph = Graph(ensemble, example, inputs=inputs, prefixes=prefixes)
    data = _written(_converted(graph), path, lambda file: graph.check(_runner(file), tolerance))
    card.write(path, graph, ensemble.combination, about, card.ONNX, data)
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


def _written(model: Any, path: Path, check: Callable[[str], None]) -> list[Path]:
    """Write a model of onnx_ir, which `check` reads before it gets its name; return the second file, if it has one."""
    data = _external(model, path)

    def write(file: BinaryIO) -> None:
        file.write(package("onnx_ir", "export").to_proto(model).SerializeToString())
        file.flush()
        check(file.name)

    try:
        durable.write(path, write)
    except BaseException:
        for file in data:
            file.unlink(missing_ok=True)
        raise
    of_this_path = re.compile(re.escape(path.name) + r"\.[0-9a-f]{12}\.data")
    durable.sweep(path.parent, of_this_path, [file.name for file in data])  # those of the file that was replaced
    return data


def _external(model: Any, path: Path) -> list[Path]:
    """Move the tensors of a large model to a second file with a name never used before, and return its path, if any."""
    values = [value for value in model.graph.initializers.values() if value.const_value is not None]
    if sum(value.const_value.nbytes for value in values) <= _MOST_BYTES:
        return []
    data, external = path.with_name(f"{path.name}.{durable.unique()}.data"), package("onnx_ir", "export").ExternalTensor
    tensors = [value.const_value for value in values]
    durable.write(data, _aligned(tensors))
    offset = 0
    for value, tensor in zip(values, tensors, strict=True):
        value.const_value = external(
            data.name, offset, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=value.name, base_dir=path.parent
        )
        offset += tensor.nbytes + -tensor.nbytes % _ALIGNED_BYTES
    return [data]


def _aligned(tensors: Sequence[Any]) -> Iterator[bytes]:
    for tensor in tensors:
        yield tensor.tobytes()
        yield bytes(-tensor.nbytes % _ALIGNED_BYTES)


def _runner(path: str) -> Callable[[dict[str, Tensor]], list[Tensor]]:
    """The file in onnxruntime, as a function of a batch."""
    runtime = package("onnxruntime", "export")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    try:
        package("onnx", "export").checker.check_model(path, full_check=True)
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # both raise their own types
        raise ExportError(f"model must be one that onnxruntime can load, got {brief(error)}: use to_program") from error
    return lambda batch: [torch.from_numpy(x) for x in session.run(None, {k: v.numpy() for k, v in batch.items()})]
