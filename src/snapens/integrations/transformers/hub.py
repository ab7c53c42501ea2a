"""Ensembles in the folder layout of the Hub: Transformers and PEFT can also load each member alone."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...combination import Combination
from ...ensemble import Ensemble
from ...errors import ArgumentError, StoreError
from ...export import card
from ...extras import package
from ...snapshots import Snapshots
from ...storage import durable, sealed
from ...weights import tensors
from .callback import trainable

transformers = package("transformers", "hf")

_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
}


def save_ensemble(
    folder: str | PathLike[str], ensemble: Ensemble, *, tokenizer: Any = None, about: card.About | None = None
) -> Path:
    """Save an ensemble of Transformers or PEFT models in a new folder, which can be uploaded to the Hub.

    Each member has a folder of its own, as `save_pretrained` writes it; a member of a PEFT ensemble is an adapter. The
    new folder also contains the configuration of the model, `combination.json`, a model card (`about` completes it)
    and, if given, the files of the tokenizer. All tensors are in safetensors files.
    """
    path = Path(folder).absolute()
    _check(ensemble)
    newest: Any = ensemble.members[-1]
    base = newest.get_base_model() if _is_peft(newest) else newest
    config = deepcopy(base.config)
    config.architectures = [type(base).__name__]
    with _new_folder(path) as part:
        for name, member in zip(_names(ensemble.combination), ensemble.members, strict=True):
            _save(member, part / name)
        config.save_pretrained(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        run = ensemble.combination.members[-1][0]
        durable.write(part / "combination.json", sealed.encode("combination", run, asdict(ensemble.combination)))
        durable.write(part / "README.md", _card(path.name, newest, base, ensemble, about or card.About()))
    return path


def load_ensemble(folder: str | PathLike[str], *, base: nn.Module | None = None, **options: Any) -> Ensemble:
    """The ensemble in a folder that `save_ensemble` wrote, with its combination; `options` are those of `Ensemble`.

    The members of a PEFT ensemble share the base model. It is loaded by the name in the configuration of the adapters,
    or given as `base`; PEFT adds its layers to it. Members keep their step numbers, or are numbered 1 … m if these do
    not ascend, for example because the members come from several runs.
    """
    path = Path(folder)
    combination = _combination(path)
    members = [path / name for name in _names(combination)]
    adapters = (members[0] / "adapter_config.json").is_file()
    if base is not None and not adapters:
        raise ArgumentError(f"base must not be given for {path}, which contains whole models: remove it")
    steps = [step for _, step in combination.members]
    if steps != sorted(set(steps)):
        steps = list(range(1, len(steps) + 1))
    snapshots = Snapshots()
    for step, model in zip(steps, (_adapted(path, members, base) if adapters else _whole(path, members)), strict=True):
        snapshots.commit(step, trainable(model) if adapters else tensors(model), partial=adapters)
    if options.get("last") is None and options.get("combination") is None:
        options["combination"] = replace(combination, members=snapshots.members)
    return Ensemble(snapshots, model, strict=not adapters, **options)


def _whole(path: Path, members: list[Path]) -> Iterator[nn.Module]:
    architecture = _architecture(_config(path))
    for member in members:
        with _readable(member):
            model, found = architecture.from_pretrained(member, use_safetensors=True, output_loading_info=True)
        _check_complete(member, found["missing_keys"])  # missing tensors would be random
        yield model


def _adapted(path: Path, members: list[Path], base: nn.Module | None) -> Iterator[nn.Module]:
    """The base model with the adapter of each member in turn."""
    peft, config = package("peft", "hf"), _config(path)
    if base is None:
        if (name := peft.PeftConfig.from_pretrained(members[0]).base_model_name_or_path) is None:
            raise ArgumentError(f"base must be given, because {path} names no base model for its adapters: pass it")
        base = _architecture(config).from_pretrained(name, config=config, use_safetensors=True)
    for member in members:
        with _readable(member):  # PEFT would read a pickle instead
            (member / "adapter_model.safetensors").stat()
    model = peft.PeftModel.from_pretrained(base, members[0], is_trainable=True)
    for member in members:
        with _readable(member):
            weights = peft.load_peft_weights(member, device="cpu")
        _check_complete(
            member, peft.get_peft_model_state_dict(model, save_embedding_layers=False).keys() - weights.keys()
        )
        peft.set_peft_model_state_dict(model, weights)
        yield model


def _config(path: Path) -> Any:
    with _readable(path):
        return transformers.AutoConfig.from_pretrained(path)


def _architecture(config: Any) -> Any:
    """The class that a configuration names."""
    name = next(iter(config.architectures or ()), None)
    if (found := getattr(transformers, str(name), None)) is None:
        raise StoreError(
            f"config.json must name a class of transformers, got {name!r}: load each member with from_pretrained() of "
            "its own class"
        )
    return found


def _combination(path: Path) -> Combination:
    file = path / "combination.json"
    if (content := durable.find(file)) is None:
        raise StoreError(
            f"folder must be one that save_ensemble wrote, got {path} without combination.json: "
            "use Ensemble.load for a run folder"
        )
    return sealed.decode(file, content, "combination", Combination).value


def _check(ensemble: Ensemble) -> None:
    if not isinstance(ensemble, Ensemble):
        raise ArgumentError(f"ensemble must be an Ensemble, got {ensemble!r}")
    if ensemble.activation != "softmax" or ensemble.dim != -1:
        raise ArgumentError(
            "ensemble must average the softmax over the last dimension, because load_ensemble does so, got "
            f"activation={ensemble.activation!r} and dim={ensemble.dim}: use the defaults"
        )
    if ensemble.output != "probabilities":
        raise ArgumentError(
            f"ensemble must have output='probabilities', because this setting is not saved, got {ensemble.output!r}: "
            "build it with the default, and pass output= to load_ensemble"
        )
    if ensemble.preprocess is not None:
        raise ArgumentError("ensemble must have no preprocess module, which would not be saved: remove it")
    newest: Any = ensemble.members[-1]
    if not hasattr(newest, "save_pretrained") or not hasattr(newest, "config"):
        raise ArgumentError(
            f"ensemble must have members of Transformers or PEFT, got {type(newest).__name__}: see snapens.export"
        )
    adapters = list(getattr(newest, "peft_config", ()))
    if adapters and (not _is_peft(newest) or adapters != ["default"]):
        raise ArgumentError(
            f"ensemble must have one adapter per member, made by peft.get_peft_model, got {adapters} in a "
            f"{type(newest).__name__}: remove the others"
        )
    if adapters and newest.peft_config["default"].is_prompt_learning:
        raise ArgumentError(
            "ensemble must have adapters of weights, because PEFT cannot load prompts for training, got "
            f"{newest.peft_config['default'].peft_type.value}: use the run folder and Ensemble.load"
        )
    if adapters and (changed := _changed_buffer(ensemble.members)) is not None:
        raise ArgumentError(
            f"ensemble must have members with the same buffers of the base, which an adapter does not contain, got "
            f"several values of {changed}: name its layer in modules_to_save, or train with this layer in eval mode"
        )


def _changed_buffer(members: Sequence[nn.Module]) -> str | None:
    """The name of a buffer of the base that differs between members, such as a statistic of BatchNorm."""
    first, *others = map(tensors, members)
    buffers = (name for name, value in first.items() if not isinstance(value, nn.Parameter))
    base = (name for name in buffers if ".modules_to_save." not in name)
    return next((name for name in base if not all(torch.equal(first[name], one[name]) for one in others)), None)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError, package("safetensors", "hf").SafetensorError) as error:
        raise StoreError(f"{path} must contain a model in safetensors files, got {error}: restore it") from error


def _check_complete(path: Path, missing: Iterable[str]) -> None:
    if names := sorted(missing):
        raise StoreError(f"{path} must contain all tensors of its model, but {names[0]} is missing: restore it")


def _save(member: Any, path: Path) -> None:
    if _is_peft(member):
        member.save_pretrained(path, save_embedding_layers=False)  # "auto" reads a file of the base from the Hub
        (path / "README.md").unlink()  # PEFT writes an empty model card
    else:
        member.save_pretrained(path)


def _is_peft(model: nn.Module) -> bool:
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def _names(combination: Combination) -> list[str]:
    """The folders of the members, oldest first."""
    return [f"member-{k:02}" for k in range(1, len(combination.members) + 1)]


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """A folder that gets its name when it is complete."""
    if path.exists() and (not path.is_dir() or durable.listed(path)):
        raise ArgumentError(f"folder must be new or empty, got {path}: choose another folder, or remove it")
    part = path.with_name(f"{path.name}.{durable.unique()}.part")
    with durable.writing(path):
        try:
            durable.make_folder(part)
            yield part
            if path.is_dir():
                path.rmdir()
            part.rename(path)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise


def _card(name: str, newest: Any, base: Any, ensemble: Ensemble, about: card.About) -> bytes:
    """The model card, with the metadata that the Hub reads."""
    kind = type(base).__name__
    labels = getattr(base.config, "id2label", None) if kind.endswith("Classification") else None
    about = replace(about, network=about.network or kind, classes=about.classes or list((labels or {}).values()))
    of_peft = _is_peft(newest)
    source = newest.peft_config["default"].base_model_name_or_path if of_peft else None
    data = package("huggingface_hub", "hf").ModelCardData(
        library_name="peft" if of_peft else "transformers",
        pipeline_tag=next((task for end, task in _TASKS.items() if kind.endswith(end)), None),
        base_model=None if source is None or Path(source).exists() else source,
        tags=["snapens", "snapshot-ensemble"],
    )
    what = "adapters of one base model" if of_peft else "models"
    sections = (
        [f"---\n{data.to_yaml()}\n---", f"# {name}", f"A Snapshot Ensemble of {ensemble.last} {what}."],
        ["## Model", card.model(ensemble.combination, about, "probabilities")],
        ["## Quality", *card.quality(ensemble.combination, about.outputs)],
        ["## How to use it", _code(kind, of_peft)],
        card.LICENCE,
    )
    return card.text(sections)


def _code(kind: str, of_peft: bool) -> str:
    lines = [
        "from snapens.integrations.transformers import EnsembleModel, load_ensemble",
        "",
        'folder = "."  # this folder, or what huggingface_hub.snapshot_download() returns',
        f"ensemble = load_ensemble(folder){'  # base= takes a base model that you have already loaded' * of_peft}",
        "model = EnsembleModel(ensemble)  # returns .logits, the logarithm of the mean of the members' softmax",
    ]
    loader = "peft.PeftModel.from_pretrained(base, " if of_peft else f"transformers.{kind}.from_pretrained("
    lines += ["", f"# one member alone: {loader}folder, subfolder='member-01')"]
    return "\n".join(["```python", *lines, "```"])
