"""Activation: how the scores of a member become probabilities, and for which scores a softmax is wrong."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from .errors import ArgumentError

Activation = Literal["softmax"] | Callable[[Tensor], Tensor] | None
"""None: the scores themselves are averaged."""
ONE_LOGIT = (
    "for one logit, load the snapshots into a subclass of the model whose forward() returns "
    "torch.nn.functional.pad(logit, (1, 0)) for logits of shape (batch, 1), with activation='softmax'"
)


def probabilities(scores: Tensor, activation: Activation, dim: int) -> Tensor:
    """The probabilities, in float32 or wider."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if activation == "softmax":
        return scores.softmax(dim)
    return scores if activation is None else activation(scores)


def log_probabilities(scores: Tensor, activation: Activation) -> Tensor:
    """The logarithms of the probabilities (examples, classes), in float16 on the CPU."""
    if activation == "softmax":
        found = scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)
    else:
        given = probabilities(scores, activation, -1)
        require_classes(given)
        require_sums(given, -1, "outputs", "for regression or several labels, evaluate ensemble.members")
        found = given.log()
    return found.half().cpu()


def require_sums(found: Tensor, dim: int, purpose: str, remedy: str) -> None:
    """Reject values that are not probabilities of classes: these sum to 1 along `dim`."""
    if not torch.allclose(sums := found.sum(dim), torch.ones_like(sums), atol=1e-2):
        raise ArgumentError(
            f"activation must return probabilities that sum to 1 over the classes for {purpose}, "
            f"got sums from {sums.min():.4g} to {sums.max():.4g}: {remedy}"
        )


def require_classes(found: Tensor) -> None:
    """Reject activated scores with one value per example: outputs and uncertainty need one per class."""
    if found.shape[-1] == 1:
        raise ArgumentError(
            f"model must return a score for each class, got one score per example, of shape {tuple(found.shape)}: "
            f"{ONE_LOGIT}; for regression, evaluate ensemble.members, because outputs and uncertainty need a classifier"
        )


def check_softmax(scores: Any, dim: int, *, values: bool = True) -> bool:
    """Reject scores for which a softmax is wrong: a single score per example, and scores that are probabilities.

    The scores are a tensor, or a dictionary of tensors. Returns whether the values were checked. Reading them waits for
    the device, so they are not checked without `values`, nor while a graph is compiled, traced or captured. The values
    of a single row are not checked, because its logits can sum to 1 by chance.
    """
    if torch.jit.is_tracing():  # type: ignore[no-untyped-call, attr-defined]  # its sizes are tensors
        return False
    found: dict[Any, Tensor] = {None: scores} if isinstance(scores, Tensor) else scores
    for key, tensor in found.items():
        batched = tensor.ndim > 1 or (tensor.ndim == 1 and torch._C._are_functorch_transforms_active())  # vmap
        if not batched or tensor.shape[dim] < 2:
            raise ArgumentError(
                f"model must return a batch with two or more scores along dim={dim} for activation='softmax', got "
                f"shape {tuple(tensor.shape)}{_of_entry(key)}: pass activation=torch.sigmoid "
                "for one logit, or activation=None for regression; for one example, pass a batch of one, x[None]"
            )
    if not values or torch.compiler.is_compiling():
        return False
    if any(tensor.is_cuda for tensor in found.values()) and torch.cuda.is_current_stream_capturing():
        return False
    if any(tensor.numel() < 2 * tensor.shape[dim] for tensor in found.values()):
        return False
    try:
        wrong = [key for key, tensor in found.items() if are_probabilities(tensor, dim)]
    except RuntimeError:  # a tensor without values: under vmap, or fake
        return False
    if wrong:
        others = "" if wrong[0] is None else ", or name its scores 'logits', so that only these are used"
        raise ArgumentError(
            "activation must be None for a model that returns probabilities, got 'softmax' for outputs that sum to 1 "
            f"along dim={dim}{_of_entry(wrong[0])}: pass activation=None, or remove the softmax from the model{others}"
        )
    return True


def _of_entry(key: str | None) -> str:
    return "" if key is None else f" for {key!r}"


def are_probabilities(scores: Tensor, dim: int) -> bool:
    """Whether all values are positive and sum to 1 along `dim`."""
    precision = torch.finfo(scores.dtype).eps if scores.is_floating_point() else 0.0
    sums = scores.float().sum(dim)
    return bool((scores >= 0).all() & ((sums - 1).abs() <= max(precision, 1e-5)).all())  # half precision rounds more
