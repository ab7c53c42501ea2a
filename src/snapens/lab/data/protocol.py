"""The interface of a data set that the engine uses, for any kind of example."""

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
    """Labelled examples: the training, held-out or test examples of a data set."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class indices (examples,)."""

    def __len__(self) -> int:
        """The number of examples."""


class Data(Protocol):
    """A data set in the memory of the host, or in files."""

    @property
    def name(self) -> str:
        """The name of the data set."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""

    @property
    def train(self) -> Part:
        """The training examples."""

    @property
    def test(self) -> Part:
        """The test examples."""

    @property
    def held_out(self) -> Part | None:
        """Examples for later choices, such as the combination of the members; None if there are none."""

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The default transforms, for a recipe that does not specify any."""

    @property
    def inputs(self) -> Mapping[str, int]:
        """The keyword argument of a network that describes an example: `channels` of an image, `features` of a row."""

    def hold_out(self, count: int, seed: int) -> Self:
        """Move `count` training examples, drawn by `seed`, to `held_out`."""

    def described(self) -> dict[str, Any]:
        """The classes, the preprocessing, and the size and digest of each part, as JSON for the run folder."""

    def pixels(self, indices: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """The pixels of some test images, for the report; None if examples are not images."""

    def file_name(self, index: int) -> str | None:
        """The path of a test example, relative to the folder of the data; None if it is not a file."""

    def place(self, device: "torch.device", padding: int | None) -> "Placed":
        """The data set on a device, where several runs can read it; `padding` is that of the recipe."""


class Placed(Protocol):
    """A data set on a device.

    A step reads `rows`: the whole training set or, if that does not fit, a buffer for one batch.
    """

    @property
    def data(self) -> Data:
        """The data set."""

    @property
    def device(self) -> "torch.device":
        """The device that holds the data."""

    @property
    def crop(self) -> Crop:
        """How training examples are cropped before the transforms."""

    @property
    def resident(self) -> bool:
        """Whether the device holds all training examples; otherwise they are streamed."""

    @property
    def rows(self) -> "Tensor":
        """All training examples in the form in which the device holds them."""

    @property
    def labels(self) -> "Tensor":
        """The labels of all training examples, on the device."""

    def buffer(self, batch: int) -> "Tensor":
        """An empty tensor for the rows of one batch, if they are streamed."""

    def read(self, indices: NDArray[np.int64], draws: NDArray[np.float32]) -> NDArray[Any]:
        """Some rows, read by the host; `draws` are their random numbers."""

    def take(self, rows: "Tensor", indices: "Tensor", targets: "Tensor", draws: "Tensor", inside: bool) -> Batch:
        """Some of the rows as a batch, cropped by their first random numbers; `inside`: with `Batch.inside`."""

    def finish(self, inputs: "Tensor") -> "Tensor":
        """The inputs of the network, from the transformed inputs of a batch."""

    @property
    def evaluation_batch(self) -> int:
        """The number of examples per batch of an evaluation."""

    def batches(self, part: Part) -> "Iterator[Tensor]":
        """The inputs of the network for all examples of a part, in order, without transforms."""
