"""Functions for `on_restart` of a `SnapshotEnsembler`, which is called when a new cycle begins."""

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from .ensembler import SnapshotEnsembler
from .errors import ArgumentError, MismatchError
from .shards import assign, gathered
from .weights import check_real, layers, tensors


def reset_momentum(ensembler: SnapshotEnsembler) -> None:
    """For `on_restart`: clear the optimizer's state (momentum, moments, counts)."""
    ensembler.optimizer.state.clear()


def fresh_weights(factory: Callable[[], nn.Module]) -> Callable[[SnapshotEnsembler], None]:
    """For `on_restart`: begin each cycle with the weights of a new `factory()` and an empty optimizer state.

    This gives the paper's SingleCycle ensemble. Under DDP and FSDP2, all ranks use the weights of rank 0. The module
    passed as `keep` starts from the same weights, and an `AveragedModel` counts from 0 again.
    """
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ArgumentError(
            f"factory must be a function or class that builds a new model, got {factory!r}: pass Net, not Net()"
        )

    def restart(ensembler: SnapshotEnsembler) -> None:
        fresh, live = tensors(factory()), tensors(ensembler.model)
        check_real(fresh)
        trained = {id(tensor) for tensor in live.values()}
        copies = {name: tensor for name, tensor in ensembler.kept().items() if id(tensor) not in trained}
        if _shapes(fresh) != _shapes(live):
            raise MismatchError(
                "factory must build the architecture of the trained model, got other tensor names or shapes"
            )
        if not _shapes(copies).items() <= _shapes(live).items():
            raise MismatchError(
                "keep must have the tensors of the model for fresh_weights to restart it, got other names or shapes: "
                "pass the averaged model itself, such as keep=ema.module"
            )
        for name, tensor in live.items():
            whole = fresh[name].detach().to(tensor.device).contiguous()
            ensembler.ranks.broadcast(whole)
            assign(tensor, whole)
            if name in copies:
                assign(copies[name], whole)
        for layer in layers(ensembler.keep) if isinstance(ensembler.keep, nn.Module) else ():
            if isinstance(layer, AveragedModel):
                layer.n_averaged.zero_()
        reset_momentum(ensembler)

    return restart


def noisy_weights(scale: float, seed: int = 0) -> Callable[[SnapshotEnsembler], None]:
    """For `on_restart`: begin each cycle with noise on the weights, so that it ends in another minimum.

    Normally distributed noise is added to every parameter with two or more dimensions; norms and biases are not
    changed. Its standard deviation is `scale` times the root mean square of the parameter. It depends on `seed` and the
    step only, so a resumed run repeats it, and all ranks add the same noise. A module passed as `keep` is not changed.
    """
    if not 0 < scale < math.inf:
        raise ArgumentError(f"scale must be a finite number greater than 0, got {scale!r}")

    def restart(ensembler: SnapshotEnsembler) -> None:
        add_noise(ensembler.model.parameters(), scale, seed, ensembler.completed)

    return restart


@torch.no_grad()
def add_noise(parameters: Iterable[Tensor], scale: float, seed: int, step: int) -> None:
    """Add the noise of (seed, step) to the parameters with two or more dimensions, in place."""
    state = np.random.SeedSequence(seed, spawn_key=(step,)).generate_state(1, np.uint64)
    generator = torch.Generator("cpu").manual_seed(int(state[0]))
    for parameter in parameters:
        if parameter.requires_grad and parameter.dim() > 1:
            whole = gathered(parameter)
            noise = torch.randn(whole.shape, generator=generator, device="cpu").to(whole)
            assign(parameter, whole + scale * whole.square().mean().sqrt() * noise)


def _shapes(named: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in named.items()}
