"""`snapens export`: the ensemble of a run as one file."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from .combining import combination_of
from .messages import say
from .options import Flag, Folder, ImportNetwork, Place, arg

if TYPE_CHECKING:  # --help does not wait for torch
    from torch import Tensor

    from ..export import About
    from ..lab.recipe.preprocessing import Preprocessing
    from ..lab.records.run import Run

_MOST_NUMBERS = 16  # of a mean in the model card


@dataclass(frozen=True)
class Export:
    """Write the ensemble of a run as one file, with a model card beside it."""

    run: Folder
    """The run folder. The data set is not needed."""
    out: Place = None
    """The file, or a folder for it. By default it is in the run folder and has its name."""
    format: Literal["onnx", "program"] = "onnx"
    """onnx: for onnxruntime and other runtimes; program: for PyTorch (torch.export)."""
    last: Annotated[int | None, arg("INT")] = None
    """The number of the last snapshots to use, with equal weights. By default combination.json, or all snapshots."""
    prefixes: Flag = False
    """Return the predictions of the newest 1, 2, … snapshots, so that their number can be chosen at run time."""
    raw_inputs: Flag = False
    """Take raw examples (uint8 pixels, or rows of numbers); preprocessing becomes a part of the file."""
    tolerance: float = 1e-5
    """The largest accepted difference from the predictions of PyTorch."""
    import_network: ImportNetwork = False

    def __call__(self) -> int:
        """Write the file and its card, and print their paths."""
        from .. import export
        from ..lab.records.run import Run
        from .loader import import_network_of

        run = Run(self.run)
        import_network_of(run, self.import_network)
        combination = combination_of(run, self.last)
        if combination is not None and combination.exit_threshold is not None:
            say(
                "early exit is not part of the file: the file evaluates all of these members, so its predictions "
                "differ from those of `snapens predict`; --last 1 exports the last snapshot only"
            )
        trusted = self.import_network
        ensemble = run.ensemble(combination=combination, raw=self.raw_inputs, device="cpu", import_network=trusted)
        suffix = {"onnx": ".onnx", "program": ".pt2"}[self.format]
        path = self.out or run.path
        if path.is_dir():
            path /= f"{run.path.resolve().name}{suffix}"
        example = _raw_examples(run.preprocessing)
        write = export.to_onnx if self.format == "onnx" else export.to_program
        write(
            ensemble,
            example if self.raw_inputs else run.preprocessing.module()(example).contiguous(),
            path,
            inputs=["pixels" if self.raw_inputs else "images"] if example.ndim == 4 else ["rows"],
            prefixes=self.prefixes,
            tolerance=self.tolerance,
            about=_about(run, self.raw_inputs),
        )
        sys.stdout.write(f"{path}\n{export.card_path(path)}\n")
        return 0


def _raw_examples(preprocessing: "Preprocessing") -> "Tensor":
    """Two random examples, as a trace needs them and for the comparison with PyTorch."""
    import torch

    random = torch.Generator().manual_seed(0)
    features, size = len(preprocessing.mean), getattr(preprocessing, "size", None)
    if size is not None:
        return torch.randint(0, 256, (2, size, size, features), generator=random, dtype=torch.uint8)
    mean, deviation = (torch.tensor(numbers).double() for numbers in (preprocessing.mean, preprocessing.deviation))
    return mean + deviation * torch.randn(2, features, generator=random, dtype=torch.float64)


def _about(run: "Run", raw: bool) -> "About":
    from ..export import About

    parts = [part for part in ("held_out", "test") if run.has_outputs(part)]
    images = run.data.get("images", {}).get("train", {})
    trained = f", {images['count']:,} training examples" if "count" in images else ""
    return About(
        network=run.recipe.network.name,
        data=f"{run.recipe.dataset.name}{trained}",
        classes=tuple(map(str, run.data["classes"])),
        outputs=[run.outputs(part) for part in parts],
        input_format=_input_format(run.preprocessing, raw),
    )


def _input_format(preprocessing: "Preprocessing", raw: bool) -> str:
    size, crop = getattr(preprocessing, "size", None), getattr(preprocessing, "crop", 1)
    few = len(preprocessing.mean) <= _MOST_NUMBERS
    mean, deviation = (
        "(" + ", ".join(f"{number:g}" for number in numbers) + ")" if few else "of the run's recipe.json"
        for numbers in (preprocessing.mean, preprocessing.deviation)
    )
    normalised = f"minus the mean {mean}, divided by the deviation {deviation}"
    if size is None:
        return "rows of numbers; the graph standardises them" if raw else f"rows of numbers, {normalised}, per feature"
    cut = f"the square in the centre, with {crop:.3g} of the shorter side; " if crop < 1 else ""
    resized = f"{cut}resized to {size} × {size} pixels with bilinear interpolation"
    if raw:
        return f"uint8 pixels from 0 to 255, channels last, {resized}; the graph normalises them"
    return f"pixels from 0 to 255, {resized}, {normalised} per channel, channels first"
