"""TrainingStep: one optimizer step as a function of what lies on the device, run as it is or as one CUDA graph."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from torch.nn.modules.batchnorm import _BatchNorm

from ...errors import ArgumentError, MismatchError
from ...schedule import Schedule
from ...weights import tensors
from .. import nets
from ..nets.dropout import KeyedDropout
from ..recipe.recipe import Recipe
from .feed import Feed, Placed
from .twin import Twin

_WARM_UP_STEPS = 3


class TrainingStep:
    """A network, its optimizer, and all that a step reads: batches, rates, the count of steps done.

    Calling it takes a step. Nothing in it waits for the device, and whatever changes from step to
    step is a tensor that stays at its place: on a CPU the function runs as written, on a GPU it is
    captured once and replayed. `losses` (total_steps,) receives the loss of every step.
    """

    def __init__(self, recipe: Recipe, placed: Placed, schedule: Schedule) -> None:
        self.recipe, self.placed, self.device = recipe, placed, placed.device
        self.network = self._placed(cycle=0)
        self.feed = Feed(placed, recipe.seed, recipe.batch)
        self.completed = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.losses = torch.zeros(schedule.total_steps, device=self.device)
        rates = [recipe.lr * schedule(step) for step in range(schedule.total_steps)]
        self._rates = torch.tensor(rates, dtype=torch.float32, device=self.device)
        self._key = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._stream = (recipe.seed ^ recipe.seed >> 31) % (1 << 31) << 32  # the key's upper half; steps are the lower
        self._keyed = [module for module in self.network.modules() if isinstance(module, KeyedDropout)]
        for module in self._keyed:
            module.key = self._key
        self._twin = Twin(self.network, self._placed(cycle=0)) if self.device.type == "cuda" else None
        self._live = self._twin.network if self._twin else self.network
        self.optimizer = torch.optim.SGD(
            self.network.parameters(),
            lr=torch.tensor(recipe.lr, device=self.device),
            momentum=recipe.momentum,
            nesterov=True,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        self._names = {parameter: name for name, parameter in self.network.named_parameters()}
        for parameter in self._names:  # the first step is then like every other: 0 × momentum + gradient
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, step: int) -> None:
        """Take the step after `step` completed ones; on a GPU it is queued, not waited for."""
        self.feed.prepare(step)
        if self._graph is None:
            self._step()
        else:
            self._graph.replay()

    def rehearse(self, stream: torch.cuda.Stream | None) -> None:
        """Take a step and evaluate a batch, to see that both work; on a GPU also compile and record the step.

        To be called in the context of `stream`. Weights and counts are afterwards what they were.
        """
        # detached: a copy that is part of the autograd graph would tie the parameters to another stream
        before = {name: tensor.detach().clone() for name, tensor in self.state().items()}
        self.feed.prepare(0)
        if stream is None:
            self._step()
        else:
            self._graph = self._recorded(stream)
        self.load(before)
        images = next(self.placed.batches(self.placed.data.test))  # on a GPU as many as ever: they take memory too
        found = self.log_probabilities([images if stream is not None else images[:2]])
        if found.shape[1:] != (classes := len(self.placed.data.classes),):
            raise ArgumentError(
                f"network {self.recipe.network!r} must have {classes} outputs an image, got {tuple(found.shape[1:])}"
            )
        self.release()

    def release(self) -> None:
        """Give back what an evaluation took of the device: another run's is next."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _recorded(self, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        for block in nets.blocks(self._live):
            block.forward = MethodType(_compiled(type(block).forward), block)
        graph = torch.cuda.CUDAGraph()
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            for _ in range(_WARM_UP_STEPS):  # compiles, and chooses the convolutions' algorithms
                self.completed.zero_()
                self._step()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._step()
        return graph

    def state(self) -> dict[str, Tensor]:
        """All that a step changes, as it lies on the device."""
        momentum = {f"momentum.{name}": self._momentum(parameter) for parameter, name in self._names.items()}
        weights = {f"network.{name}": tensor for name, tensor in tensors(self.network).items()}
        return {**weights, **momentum, "losses": self.losses, "completed": self.completed}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Set what a step changes, in place: the graph knows the tensors by their address."""
        own = self.state()
        if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in own):
            raise MismatchError("state must be that of the recipe's network, got other tensors")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
        self._follow()

    def restart(self, cycle: int) -> None:
        """Fresh weights, those of (seed, cycle), and a fresh optimizer."""
        fresh = tensors(self._built(cycle))
        with torch.no_grad():
            for name, tensor in tensors(self.network).items():
                tensor.copy_(fresh[name])
            for parameter in self._names:
                self._momentum(parameter).zero_()
        self._follow()

    @torch.no_grad()
    def log_probabilities(self, batches: Iterable[Tensor]) -> Tensor:
        """Of the network as it is now, in eval mode: (examples, classes), float16, on the CPU."""
        self.network.eval()
        try:
            found = [self._log_probabilities(batch) for batch in batches]
        finally:
            self.network.train()
        return torch.cat(found).cpu()

    @torch.no_grad()
    def estimate_statistics(self, images: int) -> None:
        """Give BatchNorm the plain average of its statistics over so many augmented images, without dropout."""
        norms = [module for module in self.network.modules() if isinstance(module, _BatchNorm)]
        momenta = [norm.momentum for norm in norms]
        self.network.eval()
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # torch's word for a plain average
                norm.train()
            for batch in self.feed.sample(images):
                with self._precision():
                    self.network(batch)
        finally:
            self.network.train()
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum

    def _log_probabilities(self, images: Tensor) -> Tensor:
        with self._precision():
            outputs = self.network(images)
        return log_softmax(outputs.float(), dim=1).half()

    def _step(self) -> None:
        images, labels = self.feed.read(self.completed)
        self.optimizer.param_groups[0]["lr"].copy_(self._rates.index_select(0, self.completed)[0])
        if self._keyed:
            self._key.copy_(self.completed + self._stream)
        with self._precision():
            loss = cross_entropy(self._live(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._twin:
            self._twin.hand_over_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._follow()
        self.losses.index_copy_(0, self.completed, loss.detach().float().view(1))
        self.completed += 1

    def _follow(self) -> None:
        if self._twin:
            self._twin.take_over_weights()

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        buffer: Tensor = self.optimizer.state[parameter]["momentum_buffer"]
        return buffer

    def _placed(self, cycle: int) -> nn.Module:
        network = self._built(cycle).to(self.device)
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    def _built(self, cycle: int) -> nn.Module:
        data = self.placed.data
        return nets.of(self.recipe, len(data.classes), data.channels, cycle).train()


@cache
def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward function of a repeated block; what it is compiled to is shared by all blocks of equal shape."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 256)  # DenseNet-100's layers
    return torch.compile(forward, dynamic=False)
