"""TrainingStep: one optimizer step as a function of tensors on the device, called directly or as one CUDA graph."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from ...activation import are_probabilities
from ...batchnorm import estimated_statistics, norms
from ...errors import ArgumentError, MismatchError
from ...restarts import add_noise
from ...schedule import Schedule
from ...weights import tensors
from .. import nets
from ..data.protocol import Placed
from ..nets.dropout import KeyedDropout
from ..recipe.batch import Batch
from ..recipe.recipe import Recipe
from .ascent import Ascent
from .feed import Feed, transforms_of
from .network import accelerated, compile_blocks, precision
from .norms import SynchronisedNorms
from .teacher import Folders, prepared
from .twin import Twin
from .world import World

_WARM_UP_STEPS = 3
_FORMAT_1_MOMENTUM = "momentum."


class TrainingStep:
    """A network, its optimizer, and everything that a step reads: batches, rates, the number of completed steps.

    Calling it takes a step. It does not wait for the device, and everything that changes from step to step
    is a tensor whose address does not change: on a CPU the function is called directly, on a GPU it is
    captured once and replayed. `losses` (total_steps,) receives the loss of every step. `kept` is the
    network whose weights are evaluated and stored: the trained network, or its average. The folder of
    the objective's teacher, if it has one, must be among `teachers`.

    The processes of `world` each train on a part of every batch. They average gradients and losses, so that all of
    them have the same weights.
    """

    def __init__(
        self, recipe: Recipe, placed: Placed, schedule: Schedule, teachers: Folders = (), world: World | None = None
    ) -> None:
        self.recipe, self.placed, self.device, self.world = recipe, placed, placed.device, world or World()
        self._active_world = self.world
        part = self.world.part(recipe.budget.batch)
        self.world.check(recipe)
        self.network = self._network_on_device()
        self.kept = self.network if recipe.averaging is None else self._network_on_device()
        named = zip(tensors(self.kept).values(), tensors(self.network).values(), strict=True)
        pairs = {id(kept): (kept.detach(), live.detach()) for kept, live in named}.values()  # tied tensors once
        self._averaged = [pair for pair in pairs if pair[0].is_floating_point()]
        self._counted = [pair for pair in pairs if not pair[0].is_floating_point()]
        self._objective = prepared(recipe.objective, placed, teachers)
        self.transforms = transforms_of(recipe, placed.data)
        self.feed = Feed(placed, self.transforms, recipe.seed, recipe.budget.batch, part)
        self.completed = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.losses = torch.zeros(schedule.total_steps, device=self.device)
        self._key = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._stream = (recipe.seed ^ recipe.seed >> 31) % (1 << 31) << 32  # the key's upper half; steps are the lower
        self._keyed = [module for module in self.network.modules() if isinstance(module, KeyedDropout)]
        for module in self._keyed:
            module.key = self._key
        self._twin = Twin(self.network, self._network_on_device()) if self.device.type == "cuda" else None
        self._live = self._twin.network if self._twin else self.network
        synchronised = self.world.group is not None and recipe.batchnorm_parts == 1 and norms(self._live)
        self._norms = SynchronisedNorms(self._live) if synchronised else None
        self._parameters = dict(self.network.named_parameters())
        self.optimizer = recipe.optimizer.build(self._parameters, self.device)
        factors = [schedule(step) for step in range(schedule.total_steps)]
        self._rates = [  # of each group, at every step
            torch.tensor([group["initial_lr"] * factor for factor in factors], dtype=torch.float32, device=self.device)
            for group in self.optimizer.param_groups
        ]
        recipe.optimizer.create_state(self.optimizer)
        self._ascent = None if recipe.sharpness is None else Ascent(self.network, recipe.sharpness)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, step: int) -> None:
        """Take the step after `step` completed steps; on a GPU the step is only queued."""
        with self.world.failing_alone():
            self.feed.prepare(step)
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()

    def rehearse(self, stream: torch.cuda.Stream | None) -> None:
        """Take a step and evaluate a batch, to check that both work; on a GPU also compile and capture the step.

        Call it in the context of `stream`. It leaves weights and counts unchanged. With several processes, a first step
        without communication finds the errors of single processes, which all of them then raise.
        """
        # detached: a copy that is part of the autograd graph would tie the parameters to another stream
        before = {name: tensor.detach().clone() for name, tensor in self.state().items()}
        if stream is None or self.world.group is not None:
            self.world.agree(self._step_alone)
        if stream is not None:
            with self.world.failing_alone():
                self._graph = self._captured(stream)
        self.load(before)
        inputs = next(self.placed.batches(self.placed.data.test))  # on a GPU a whole batch: it needs memory too
        self.world.agree(lambda: self._evaluate(inputs if stream is not None else inputs[:2]))
        self.release()

    def _step_alone(self) -> None:
        """Take a step without communication."""
        self._active_world = World()
        try:
            self.feed.prepare(0)
            self._step()
        finally:
            self._active_world = self.world

    def _evaluate(self, inputs: Tensor) -> None:
        """Check that the network has one output per class, before softmax."""
        [found] = self._outputs([inputs])
        name = self.recipe.network.name
        if found.shape[1:] != (classes := len(self.placed.data.classes),):
            raise ArgumentError(
                f"network {name!r} must have {classes} outputs per example, got {tuple(found.shape[1:])}"
            )
        if classes > 1 and are_probabilities(found, 1):
            raise ArgumentError(f"network {name!r} must return logits, got probabilities: remove its last softmax")

    def release(self) -> None:
        """Free the memory of an evaluation for other runs."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _captured(self, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        self.feed.prepare(0)
        if self._norms is None:  # the compiler does not support their communication
            compile_blocks(self._live)
        graph = torch.cuda.CUDAGraph()
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            for _ in range(_WARM_UP_STEPS):  # compile, and choose the algorithms of the convolutions
                self.completed.zero_()
                self._step()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._step()
        return graph

    def state(self) -> dict[str, Tensor]:
        """Everything that a step changes: the tensors themselves, on the device."""
        weights = {f"network.{name}": tensor for name, tensor in tensors(self.network).items()}
        if self.kept is not self.network:
            weights |= {f"average.{name}": tensor for name, tensor in tensors(self.kept).items()}
        optimizer = {
            f"optimizer.{key}.{name}": tensor
            for name, parameter in self._parameters.items()
            for key, tensor in self.optimizer.state[parameter].items()
        }
        return {**weights, **optimizer, "losses": self.losses, "completed": self.completed}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Set everything that a step changes, in place: a captured step refers to the tensors by their address."""
        own = self.state()
        state = {_current_name(name): tensor for name, tensor in state.items()}
        if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in own):
            raise MismatchError("state must be that of the recipe's network, got other tensors")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
        self._follow()

    def share(self) -> None:
        """Set everything that a step changes to what rank 0 has."""
        if self.world.group is not None:
            self.world.share([tensor.detach() for tensor in self.state().values()])
            self._follow()

    def restart(self, cycle: int) -> None:
        """Start from the fresh weights of (seed, cycle) and a fresh optimizer."""
        fresh = tensors(self._built(cycle))
        with torch.no_grad():
            for network in {self.network, self.kept}:
                for name, tensor in tensors(network).items():
                    tensor.copy_(fresh[name])
        self.recipe.optimizer.reset(self.optimizer)
        self._follow()

    @torch.no_grad()
    def continue_cycle(self) -> None:
        """Begin a cycle with the current weights: add noise and reset the average, as the recipe requires."""
        method, averaging = self.recipe.method, self.recipe.averaging
        if method.restart_noise:
            add_noise(self._parameters.values(), method.restart_noise, self.recipe.seed, int(self.completed))
            self._follow()
        if averaging is not None and averaging.at_restart == "reset":
            for kept, live in (*self._averaged, *self._counted):
                kept.copy_(live)

    def log_probabilities(self, batches: Iterable[Tensor]) -> Tensor:
        """The predictions of the kept network in eval mode: (examples, classes), float16, on the CPU."""
        return torch.cat([log_softmax(outputs.float(), dim=1).half() for outputs in self._outputs(batches)]).cpu()

    @torch.no_grad()
    def _outputs(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """The outputs of the kept network in eval mode for each batch."""
        self.kept.eval()
        try:
            for batch in batches:
                with precision(self.device):
                    outputs = self.kept(batch)
                yield outputs
        finally:
            self.kept.train()

    def estimate_statistics(self, examples: int) -> None:
        """Set the BatchNorm statistics of `kept` to plain averages over augmented examples, without dropout."""
        with estimated_statistics(self.kept):
            for inputs in self._whole_feed.sample(examples):
                with precision(self.device):
                    self.kept(inputs)

    def _step(self) -> None:
        batch = self.feed.read(self.completed)
        for group, rates in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"].copy_(rates.index_select(0, self.completed)[0])
        if self._keyed:
            self._key.copy_(self.completed + self._stream)
        loss = self._gradients(batch) if self._ascent is None else self._gradients_uphill(batch, self._ascent)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._follow()
        self._average()
        self.losses.index_copy_(0, self.completed, loss)
        self.completed += 1

    def _gradients(self, batch: Batch) -> Tensor:
        """Compute the mean gradients of all processes, and return their mean loss."""
        with precision(self.device), self._synchronised():
            loss = self._objective(self._live(batch.inputs), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._twin:
            self._twin.hand_over_gradients()
        loss = loss.detach().float().view(1)
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        self._active_world.average([*gradients, loss])
        return loss

    def _gradients_uphill(self, batch: Batch, ascent: Ascent) -> Tensor:
        """The same, at weights that were moved to a higher loss."""
        with ascent.uphill(self._gradients, batch):
            self._follow()
            return self._gradients(batch)

    def _follow(self) -> None:
        if self._twin:
            self._twin.take_over_weights()

    def _synchronised(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._norms is None else self._norms.across(self._active_world)

    @cached_property
    def _whole_feed(self) -> Feed:
        """The feed of all rows of each batch, for what one process does alone."""
        if self.world.count == 1:
            return self.feed
        return Feed(self.placed, self.transforms, self.recipe.seed, self.recipe.budget.batch)

    def _average(self) -> None:
        """Move the average towards the trained weights; counts are copied."""
        if self.recipe.averaging is None:
            return
        self.recipe.averaging.update([kept for kept, _ in self._averaged], [live for _, live in self._averaged])
        if self._counted:
            torch._foreach_copy_([kept for kept, _ in self._counted], [live for _, live in self._counted])

    def _network_on_device(self) -> nn.Module:
        network = self._built(cycle=0).to(self.device)
        for module in network.modules():
            if isinstance(module, KeyedDropout):
                module.part = self.world.rank
        # the kernels of a network compute BatchNorm and dropout for a whole batch
        return accelerated(network, self.recipe.network.name, kernels=self.world.group is None)

    def _built(self, cycle: int) -> nn.Module:
        data = self.placed.data
        return nets.of(self.recipe, len(data.classes), data.inputs, cycle).train()


def _current_name(name: str) -> str:
    """The current name of a tensor in a state; format 1 had only one optimizer."""
    if name.startswith(_FORMAT_1_MOMENTUM):
        return f"optimizer.momentum_buffer.{name.removeprefix(_FORMAT_1_MOMENTUM)}"
    return name
