"""Graph: an ensemble as one module with named inputs, as it is exported, and the check of what was exported."""

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..batches import arguments, each
from ..ensemble import Ensemble
from ..errors import ArgumentError, ExportError, SnapensError

_CONSTANTS = (bool, int, float, str, type(None))


class Graph(nn.Module):
    """Maps named tensors to the prediction of an ensemble; with `prefixes`, to those of its newest 1, 2, … m members.

    `example` is a batch of inputs for the model, as for `Ensemble.predict`: a tensor, a tuple, or a mapping of keyword
    arguments. Its tensors become the inputs, and other values constants. They are named after the parameters
    of the model's `forward`, or `inputs` names them. The first dimension of each tensor that has as many rows as the
    first tensor is the batch; its size is dynamic. If the ensemble has a `preprocess` module, these are its inputs.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        example: Any,
        *,
        inputs: Sequence[str] | None = None,
        prefixes: bool = False,
    ) -> None:
        super().__init__()
        _require_exportable(ensemble)
        # only the members in use; the ensemble may hold others, which must not become a part of the file
        self.members = nn.ModuleList(ensemble.members)
        self.preprocess = ensemble.preprocess
        self.prefixes, self.output = prefixes, "mean" if ensemble.activation is None else ensemble.output
        self._ensemble = (ensemble,)  # in a tuple: not a child
        args, kwargs = arguments(example, torch.device("cpu"))
        values: dict[int | str, Any] = dict([*enumerate(args), *kwargs.items()])
        self._constants = {place: value for place, value in values.items() if not isinstance(value, Tensor)}
        tensors = {place: value.detach() for place, value in values.items() if isinstance(value, Tensor)}
        first = ensemble.members[-1] if self.preprocess is None else self.preprocess
        self._places = _named(tensors, first, inputs)
        self.example = {name: tensors[place] for name, place in self._places.items()}
        _require_arguments(self._constants, self.example)
        lengths = {name: len(tensor) for name, tensor in self.example.items() if tensor.ndim}
        self.batch_size = next(filter(None, lengths.values()))
        self.batch_inputs = {name for name, length in lengths.items() if length == self.batch_size}
        if self.batch_size == 1:  # torch.export treats a size of 1 as fixed
            self.example, self.batch_size = self.batch(2), 2
        self.__dict__["forward"] = self._forward()
        self.outputs = self._tried()
        if both := self.example.keys() & self.outputs.keys():
            raise ArgumentError(f"inputs must not have the name of an output, got {min(both)!r}: choose another name")

    def batch(self, size: int) -> dict[str, Tensor]:
        """Inputs with another number of rows, which are those of the example, repeated as needed."""
        index = torch.arange(size).flip(0) % self.batch_size
        return {name: value[index] if name in self.batch_inputs else value for name, value in self.example.items()}

    def predicted(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The predictions by name."""
        with torch.no_grad():
            return self.by_name(self(**inputs))

    def by_name(self, found: Any) -> dict[str, Tensor]:
        """The result as "probabilities", "log_probabilities" or "mean" (without an activation), or as a mapping."""
        return {self.output: found} if isinstance(found, Tensor) else found

    def traced(self) -> ExportedProgram:
        """The graph as a program of `torch.export`, called by the names of its inputs."""
        batch = Dim("batch")
        shapes = {name: {0: batch} if name in self.batch_inputs else None for name in self.example}
        with quiet():
            try:
                return torch.export.export(self, (), self.example, dynamic_shapes=shapes, strict=False)
            except Exception as error:  # torch.export raises many types
                raise ExportError(
                    f"model must be traceable by torch.export with a dynamic batch size, got {brief(error)}: "
                    "its forward() must not depend on the values of the inputs or on the batch size"
                ) from error

    def check(self, predict: Callable[[dict[str, Tensor]], Sequence[Tensor]], tolerance: float) -> None:
        """Compare the predictions of an exported graph with PyTorch, for the example and for two other batch sizes."""
        for size in (self.batch_size, 1, self.batch_size + 1):
            inputs = self.batch(size)
            try:
                found = predict(inputs)
            except Exception as error:  # a runtime raises its own types
                raise ExportError(
                    f"the exported graph must accept {size} examples, got {brief(error)}: "
                    "forward() of the model must accept every batch size"
                ) from error
            for (name, expected), values in zip(self.predicted(inputs).items(), found, strict=True):
                scale = max(1.0, float(expected.abs().max()))
                difference = float((values - expected).abs().max()) / scale if values.shape == expected.shape else None
                if difference is None or not difference <= tolerance:  # NaN is rejected too
                    what = f"a difference of {difference:.3g}" if difference is not None else f"{tuple(values.shape)}"
                    raise ExportError(
                        f"{name} of the exported graph must equal those of PyTorch within {tolerance:g}, "
                        f"got {what} for {size} examples: raise tolerance if this is rounding"
                    )

    def _forward(self) -> Callable[..., Any]:
        """The function that torch.export traces: it reads the names of the inputs from the signature."""

        def forward(**inputs: Tensor) -> Any:
            values = self._constants | {place: inputs[name] for name, place in self._places.items()}
            args = tuple(values[place] for place in range(sum(isinstance(place, int) for place in values)))
            kwargs = {place: value for place, value in values.items() if isinstance(place, str)}
            if not self.prefixes:
                return self._ensemble[0](*args, **kwargs)
            found = [prediction for _, prediction in self._ensemble[0].anytime(*args, **kwargs)]
            return each(lambda *tensors: torch.stack(tensors), *found)

        kind = inspect.Parameter.KEYWORD_ONLY
        forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in self._places])  # type: ignore[attr-defined]
        return forward

    def _tried(self) -> dict[str, Tensor]:
        """The predictions for the example."""
        try:
            return self.predicted(self.example)
        except SnapensError:
            raise
        except Exception as error:  # a model raises anything
            shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in self.example.items())
            raise ArgumentError(
                f"example must be a batch that the model accepts, got {shapes} ({brief(error)}): "
                "pass the inputs of one batch, without labels"
            ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the warnings of torch's exporters about torch itself and about packages that are not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _require_exportable(ensemble: Ensemble) -> None:
    if not isinstance(ensemble, Ensemble):
        raise ArgumentError(f"ensemble must be an Ensemble, got {type(ensemble).__name__}")
    if not ensemble.resident:
        raise ArgumentError(
            "ensemble must be resident, because all members are in one graph, got resident=False: "
            "build it with resident=True"
        )
    devices = {str(tensor.device) for tensor in (*ensemble.parameters(), *ensemble.buffers())}
    if devices - {"cpu"}:
        raise ArgumentError(f"ensemble must be on the CPU, got {', '.join(sorted(devices))}: call ensemble.cpu()")


def _require_arguments(constants: Mapping[int | str, Any], tensors: Mapping[str, Tensor]) -> None:
    for place, value in constants.items():
        if not isinstance(value, _CONSTANTS):
            raise ArgumentError(
                f"example must consist of tensors, numbers and strings, got a {type(value).__name__} as argument "
                f"{place!r}: pass a model that takes tensors"
            )
    if not any(tensor.ndim and len(tensor) for tensor in tensors.values()):
        raise ArgumentError("example must contain a tensor with at least one row, got none: pass one batch of inputs")


def _named(tensors: Mapping[int | str, Tensor], module: nn.Module, given: Sequence[str] | None) -> dict[str, int | str]:
    """Name -> position or keyword of each tensor."""
    parameters = inspect.signature(module.forward).parameters.values()
    positional = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    names = [
        place if isinstance(place, str) else positional[place] if place < len(positional) else f"input_{place}"
        for place in tensors
    ]
    if given is not None:
        if isinstance(given, str) or len(given) != len(names):
            raise ArgumentError(
                f"inputs must be {len(names)} names, one per tensor of the example ({', '.join(names)}), got {given!r}"
            )
        names = list(given)
    if len(set(names)) < len(names) or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise ArgumentError(f"inputs must be distinct names of letters, digits and _, got {names}")
    return dict(zip(names, tensors, strict=True))


def brief(error: BaseException) -> str:
    """The type and the first line of an error."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
