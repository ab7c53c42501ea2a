"""EnsembleModel: an ensemble as a Transformers model, for `generate` and for the Trainer's evaluation."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from types import MethodType
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from ...ensemble import Ensemble
from ...errors import ArgumentError
from ...extras import package
from ...pool import logarithm

transformers = package("transformers", "hf")
GenerationMixin: Any = transformers.GenerationMixin
PreTrainedModel: Any = transformers.PreTrainedModel
CausalLMOutput: Any = package("transformers.modeling_outputs", "hf").CausalLMOutput


class EnsembleModel(PreTrainedModel, GenerationMixin):  # type: ignore[misc]  # their types are not known
    """An ensemble of classifiers or causal language models, with the interface of a Transformers model.

    `logits` are the logarithm of the mean of the members' softmax (batch, classes) or (batch, time, vocabulary), so
    their softmax is that mean. With `labels`, `loss` is the mean negative log-likelihood; -100 is ignored. So
    `Trainer(EnsembleModel(ensemble), arguments).evaluate(dataset)` measures the ensemble, and `generate` of a language
    model works token by token, without a cache of keys and values. The members are resident in memory.
    """

    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True  # each member has its own attention
    accepts_loss_kwargs = False  # the loss is a mean; otherwise the Trainer multiplies it by the number of processes

    def __init__(self, ensemble: Ensemble) -> None:
        if not isinstance(ensemble, Ensemble) or not ensemble.resident:
            raise ArgumentError(
                f"ensemble must be an Ensemble of resident members, got {ensemble!r}: build it with resident=True"
            )
        if ensemble.activation != "softmax" or ensemble.dim != -1:
            raise ArgumentError(
                "ensemble must average the softmax over the last dimension, got "
                f"activation={ensemble.activation!r} and dim={ensemble.dim}: call the ensemble itself"
            )
        newest: Any = ensemble.members[-1]
        config = deepcopy(getattr(newest, "config", None))
        if not isinstance(config, transformers.PreTrainedConfig) or config.is_encoder_decoder:
            raise ArgumentError(
                "ensemble must have members that are classifiers or causal language models of Transformers, got "
                f"{type(newest).__name__}: call the ensemble itself"
            )
        super().__init__(config)
        self.ensemble = ensemble
        self.forward = MethodType(_with_arguments_of(newest), self)  # type: ignore[method-assign]
        generation = getattr(newest, "generation_config", None)
        self._causal = generation is not None
        if generation is not None:
            self.generation_config = deepcopy(generation)
            self.generation_config.use_cache = False
            self.prepare_inputs_for_generation = newest.prepare_inputs_for_generation  # such as the positions
        self.eval()

    def forward(self, *args: Any, labels: Tensor | None = None, **inputs: Any) -> Any:
        """The logarithm of the mean of the members' softmax, as `logits`; other arguments are those of the members."""
        if self._causal:
            inputs["use_cache"] = False
        found = self.ensemble(*args, **inputs)
        if not isinstance(found, Tensor):
            raise ArgumentError(
                f"ensemble must have members that return logits, got {', '.join(found)}: call the ensemble itself"
            )
        if self.ensemble.output == "probabilities":
            found = logarithm(found)
        return CausalLMOutput(loss=None if labels is None else self._loss(found, labels), logits=found)

    def save_pretrained(self, *_: Any, **__: Any) -> None:
        """Raise an error, because no class could load the folder."""
        raise ArgumentError(
            "EnsembleModel must not be saved by save_pretrained() or push_to_hub(), because no class can load what "
            "they write: use save_ensemble(folder, ensemble)"
        )

    push_to_hub = save_pretrained  # otherwise it creates a repository before it saves

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self._causal:  # the scores at a position are those of the next token
            logits, labels = logits[:, :-1], labels[:, 1:]
        return cross_entropy(logits.flatten(0, -2), labels.flatten().to(logits.device))


def _with_arguments_of(member: Any) -> Callable[..., Any]:
    """`forward` with the signature of a member's, because the Trainer drops the inputs that are not in it."""
    base = member.get_base_model() if hasattr(member, "get_base_model") else member

    def forward(self: EnsembleModel, *args: Any, **inputs: Any) -> Any:
        return EnsembleModel.forward(self, *args, **inputs)

    forward.__signature__ = inspect.signature(type(base).forward)  # type: ignore[attr-defined]
    return forward
