"""Run folders made up in a moment, with members of any number and quality."""

import json

import numpy as np
import torch

from snapens.lab.recipe import Settings
from snapens.lab.records.curves import Between, Line
from snapens.lab.records.run import Run

CLASSES = ("ant", "bee", "cow", "dog")
IMAGES = 64
"""Training images that the runs say they had."""


def recipe(members=3, **changes):
    return Settings(network="small", dataset="glyphs", epochs=4 * members, cycles=members, batch=8, **changes).recipe()


def log_probabilities(labels, members, classes, seed=0, skill=2.0, apart=1.0):
    """(members, examples, classes): each member sees the same evidence and some noise of its own.

    `skill` is one number, or one per member.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(1, len(labels), classes)) + apart * rng.normal(size=(members, len(labels), classes))
    logits[:, np.arange(len(labels)), labels] += np.reshape(skill, (-1, 1))
    return torch.from_numpy(logits).log_softmax(-1).half()


def softmax(outputs):
    """(members, examples, classes) in float64."""
    p = np.exp(outputs.log_probabilities.astype(np.float64))
    return p / p.sum(-1, keepdims=True)


def labels(examples, classes, seed=7):
    return np.random.default_rng(seed).integers(0, classes, examples)


def made(path, *, members=3, examples=40, classes=CLASSES, method="snapshot", held_out=0, **options):
    """A finished run; options are skill, apart, labels_seed, data, device, val and fields of a recipe.

    `val` is the number of held-out images of a data set that holds them out itself.
    """
    labels_seed, data, device = options.pop("labels_seed", 7), options.pop("data", {}), options.pop("device", "CPU")
    set_aside = held_out or options.pop("val", 0)
    quality = {name: options.pop(name) for name in ("skill", "apart") if name in options}
    seed = options.setdefault("seed", 0)
    path.mkdir(parents=True)
    run, made_of = Run(path), recipe(members, method=method, held_out=held_out, **options)
    images = {"images": {"train": {"count": IMAGES, "sha256": "0"}}}
    run.begin(made_of, {"classes": list(classes), "size": 4, "channels": 1, **images, **data})
    schedule, snapshots = made_of.schedule(IMAGES), run.snapshots
    parts = {"test": examples} | ({"held_out": set_aside} if set_aside else {})
    known = {part: labels(count, len(classes), labels_seed + k) for k, (part, count) in enumerate(parts.items())}
    found = {part: log_probabilities(y, members, len(classes), seed, **quality) for part, y in known.items()}
    snapshots.open_to_write()
    for k, step in enumerate(schedule.snapshot_steps):
        run.note("trained", step=step, epoch=step * 8 / IMAGES, lr=schedule(step - 1), loss=1 / (k + 1))
        snapshots.commit(step, {"weight": torch.full((3,), float(k))})
        run.add_outputs(step, {part: (found[part][k], torch.from_numpy(known[part])) for part in parts})
    snapshots.close()
    run.note("finished", step=schedule.total_steps, seconds=12.5, device=device, torch="2", snapens="0")
    return run


def as_format_1(path):
    """Rewrite a file as format 1 had it: without a seal, or without checksums of its lines."""
    extra = ("format", "kind", "run", "sha256", "crc32")

    def bare(text):
        return json.dumps({name: value for name, value in json.loads(text).items() if name not in extra})

    text = path.read_text()
    path.write_text(
        "".join(bare(line) + "\n" for line in text.splitlines()[1:]) if path.suffix == ".jsonl" else bare(text)
    )


def with_curves(run, bump=0.0):
    """Add lines between the snapshots, straight but for a bump in the middle."""
    *earlier, last = (100 * error for error in run.outputs().member_errors)
    ways = [(error, (error + last) / 2 + 100 * bump, last) for error in earlier]
    run.keep_curves(Between((0.0, 0.5, 1.0), tuple(Line(k, way, way) for k, way in enumerate(ways, 1)), "nothing"))
    return run
