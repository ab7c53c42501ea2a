"""Optimizers: how a step changes the weights."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .value import Value, require, require_at_least

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Optimizer(Value, ABC):
    """One of torch's optimizers, with parameter groups that each have their own learning rate."""

    lr: float
    """The peak learning rate."""
    weight_decay: float
    decays: Literal["all", "weights"] = "all"
    """all: every parameter decays, as in the paper; weights: norms and biases do not."""

    def check(self) -> None:
        """The rate is positive; the decay is at least 0."""
        require(0 < self.lr < float("inf"), "lr", "be a finite number greater than 0", self.lr)
        require_at_least(0, weight_decay=self.weight_decay)

    @abstractmethod
    def build(self, parameters: "Mapping[str, nn.Parameter]", device: "torch.device") -> "torch.optim.Optimizer":
        """The optimizer of the named parameters; its rates are tensors, so that a captured step can change them."""

    def create_state(self, optimizer: "torch.optim.Optimizer") -> None:
        """Create the state of the optimizer before the first step, so that all steps are alike and can be captured.

        An optimizer creates its state when it takes a step. This step has zero gradients, rate and decay, so it
        changes no weight.
        """
        import torch

        decays = [group.get("weight_decay") for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"].zero_()
            group["weight_decay"] = 0.0
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        self.reset(optimizer)

    def reset(self, optimizer: "torch.optim.Optimizer") -> None:
        """Reset the state, in place, to its values before the first step: zeros, unless a subclass overrides this."""
        for state in optimizer.state.values():
            for tensor in state.values():
                tensor.zero_()

    def groups(self, parameters: "Mapping[str, nn.Parameter]", device: "torch.device") -> list[dict[str, Any]]:
        """The parameters in groups, each with its peak rate and its decay."""
        import torch

        decayed, others = list(parameters.values()), []
        if self.decays == "weights":  # only convolutions and linear layers; norms and biases have one dimension
            decayed = [parameter for parameter in parameters.values() if parameter.dim() > 1]
            others = [parameter for parameter in parameters.values() if parameter.dim() <= 1]
        return [
            {
                "params": group,
                "lr": torch.tensor(self.lr, device=device),
                "initial_lr": float(self.lr),
                "weight_decay": decay,
            }
            for group, decay in ((decayed, self.weight_decay), (others, 0.0))
            if group
        ]


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with Nesterov momentum, as in the paper."""

    lr: float = 0.1
    weight_decay: float = 1e-4
    momentum: float = 0.9

    def check(self) -> None:
        """Momentum is between 0 and 1."""
        super().check()
        require(0 < self.momentum < 1, "momentum", "be more than 0 and less than 1", self.momentum)

    def build(self, parameters: "Mapping[str, nn.Parameter]", device: "torch.device") -> "torch.optim.Optimizer":
        """torch's SGD, with one kernel for all parameters."""
        import torch

        return torch.optim.SGD(self.groups(parameters, device), momentum=self.momentum, nesterov=True, fused=True)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    lr: float = 1e-3
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999

    def check(self) -> None:
        """The betas are at least 0 and less than 1."""
        super().check()
        for name in ("beta1", "beta2"):
            require(0 <= getattr(self, name) < 1, name, "be at least 0 and less than 1", getattr(self, name))

    def build(self, parameters: "Mapping[str, nn.Parameter]", device: "torch.device") -> "torch.optim.Optimizer":
        """torch's AdamW, with one kernel for all parameters."""
        import torch

        captured = device.type == "cuda"
        return torch.optim.AdamW(
            self.groups(parameters, device), betas=(self.beta1, self.beta2), fused=True, capturable=captured
        )


OPTIMIZERS: dict[str, type[Optimizer]] = {"adamw": AdamW, "sgd": SGD}
Optimizer.kinds = OPTIMIZERS
