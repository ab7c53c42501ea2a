"""What the engine needs of a data set, whatever its examples are."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ..recipe.batch import Batch, Transform
from .augment import Crop

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Part(Protocol):
    """Labelled examples: what is trained on, held out or tested on."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """(examples,) class indices."""

    def __len__(self) -> int:
        """How many there are."""


class Data(Protocol):
    """A data set, on the host."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""

    @property
    def train(self) -> Part:
        """What is trained on."""

    @property
    def test(self) -> Part:
        """What is tested on."""

    @property
    def held_out(self) -> Part | None:
        """What is set aside for whatever is chosen later; None: nothing."""

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """Those of a recipe that names none."""

    @property
    def inputs(self) -> Mapping[str, int]:
        """What a network's factory needs to know of an example: `channels` of an image, `features` of a row."""

    def hold_out(self, count: int, seed: int) -> Self:
        """Set `count` training examples aside, drawn by `seed`."""

    def described(self) -> dict[str, Any]:
        """What a later reader of a run needs to prepare an example and to name its class, as JSON."""

    def pixels(self, indices: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """Some test images, to be shown; None where examples are not images."""

    def file_name(self, index: int) -> str | None:
        """The file of a test example, relative to the folder of the data; None where it has no file."""

    def place(self, device: "torch.device", padding: int | None) -> "Placed":
        """The data set on a device, for as many runs as read it; `padding` is that of the recipe."""


class Placed(Protocol):
    """A data set on a device.

    A step reads `rows`, either the whole training set or, where that does not fit, a buffer of one batch.
    """

    @property
    def data(self) -> Data:
        """The data set."""

    @property
    def device(self) -> "torch.device":
        """Where it lies."""

    @property
    def crop(self) -> Crop:
        """How training examples are cropped before the transforms."""

    @property
    def resident(self) -> bool:
        """Whether the training examples lie on the device; otherwise they are streamed."""

    @property
    def rows(self) -> "Tensor":
        """All training examples as they lie on the device."""

    @property
    def labels(self) -> "Tensor":
        """The labels of all training examples, on the device."""

    def buffer(self, batch: int) -> "Tensor":
        """Room for the rows of one batch, where they are streamed."""

    def read(self, indices: NDArray[np.int64], draws: NDArray[np.float32]) -> NDArray[Any]:
        """Some rows, read on the host."""

    def take(self, rows: "Tensor", indices: "Tensor", targets: "Tensor", draws: "Tensor", inside: bool) -> Batch:
        """Some of the rows as a batch, cropped by the first numbers; with `Batch.inside` if a transform needs it."""

    def finish(self, inputs: "Tensor") -> "Tensor":
        """What the network is given, from the inputs of a batch."""

    @property
    def evaluation_batch(self) -> int:
        """How many examples are evaluated at once."""

    def batches(self, part: Part) -> "Iterator[Tensor]":
        """All examples of a part in order, as the network is given them, without transforms."""
