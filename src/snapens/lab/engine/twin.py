"""Twin: the network that a GPU trains, with weights rounded to bfloat16 once per step instead of once per layer.

Autocast casts every weight in the forward pass and every gradient in the backward pass, one small kernel
each: of the 1,719 kernels in a step of ResNet-110, at least a sixth did that or counted batches (a profile on an H200).
The twin has bfloat16 weights for convolutions and linear layers and shares everything else with its
original, so that the results are those of autocast; three kernels over all tensors replace the many small ones.
"""

import torch
from torch import Tensor, nn

_ROUNDED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class Twin:
    """A working copy of `original`, made from `network`, another instance of the same architecture."""

    def __init__(self, original: nn.Module, network: nn.Module) -> None:
        self.network = network
        self._originals: list[Tensor] = []
        self._rounded: list[Tensor] = []
        self._counts: list[Tensor] = []
        uses: dict[int, int] = {}
        for _, parameter in original.named_parameters(remove_duplicate=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
        for module, copy in zip(original.modules(), network.modules(), strict=True):
            for name, parameter in module.named_parameters(recurse=False):
                if isinstance(module, _ROUNDED) and uses[id(parameter)] == 1 and parameter.dtype == torch.float32:
                    rounded = nn.Parameter(parameter.detach().to(torch.bfloat16), parameter.requires_grad)
                    self._originals.append(parameter)
                    self._rounded.append(rounded)
                    setattr(copy, name, rounded)
                else:
                    setattr(copy, name, parameter)
            for name, buffer in module.named_buffers(recurse=False):
                setattr(copy, name, buffer)
            if isinstance(copy, nn.BatchNorm2d) and copy.momentum is not None and copy.num_batches_tracked is not None:
                self._counts.append(copy.num_batches_tracked)
                copy.num_batches_tracked = None  # all counters are updated together
        self._gradients = [torch.zeros_like(parameter) for parameter in self._originals]

    @torch.no_grad()
    def hand_over_gradients(self) -> None:
        """After a backward pass: move the twin's gradients to the originals, in float32."""
        buffers, gradients = [], []
        for parameter, buffer, rounded in zip(self._originals, self._gradients, self._rounded, strict=True):
            if rounded.grad is not None:  # the parameter is neither frozen nor unused
                buffers.append(buffer)
                gradients.append(rounded.grad)
                parameter.grad, rounded.grad = buffer, None
        if gradients:
            torch._foreach_copy_(buffers, gradients)
        if self._counts:
            torch._foreach_add_(self._counts, 1)

    @torch.no_grad()
    def take_over_weights(self) -> None:
        """After the originals have changed: update the rounded weights."""
        if self._rounded:
            torch._foreach_copy_(self._rounded, self._originals)
