"""Entries as if the paper's runs had been trained: numbers near the published ones, made up from the run's name."""

import zlib
from dataclasses import replace
from functools import cache

import numpy as np

from snapens.lab.paper import cells as paper
from snapens.lab.paper.entry import Entry, Exit, Joint, Losses, Origin
from snapens.lab.records.curves import Between, Line

ORIGIN = Origin("3f2a91c0d4", "NVIDIA H200", "2.11.0", "0.1.0")


def entry(recipe, origin=ORIGIN, between=True):
    rng = np.random.default_rng(zlib.crc32(paper.run_name(recipe).encode()))
    m, cells = recipe.method.cycles, [cell for cell in paper.cells() if cell.recipe == replace(recipe, seed=0)]
    level = next((cell.published_percent for cell in cells if cell.published_percent), 25.0)
    k = np.arange(m)
    alone = level * (1.12 + (0.35 if recipe.method.kind == "single" else 0.02) * (m - 1 - k)) + rng.normal(0, 0.1, m)
    alone = np.minimum(alone, 95)
    last, first = level * (1 + 0.12 * 0.5**k), level * (1 + 0.15 * 0.6**k)
    epochs = np.arange(1, min(recipe.budget.epochs, 300) + 1)
    schedule = recipe.schedule(paper.images(recipe))
    factor = np.array([schedule(int(schedule.total_steps * (e - 0.5) / recipe.budget.epochs)) for e in epochs])
    loss = 0.002 + 0.35 * factor**0.9 * np.exp(rng.normal(0, 0.06, len(epochs))) + 1.2 * np.exp(-epochs / 6)
    apart = np.abs(k[:, None] - k[None])
    return Entry(
        recipe=recipe,
        origin=origin,
        seconds=4000.5,
        images_per_second=3750.0,
        pack=4,
        test_images=paper.IMAGES[recipe.dataset.name][1],
        snapshot_epochs=tuple(float(e) for e in recipe.budget.epochs * (k + 1) / m),
        snapshot_percent=series(alone),
        last_percent=(*series(alone[-1:]), *series(last[1:])),
        first_percent=(*series(alone[:1]), *series(first[1:])),
        last_nll=series(last / 25),
        last_ece=series(last / 400),
        correlation=tuple(series(row) for row in 1 - 0.06 * apart**0.5),
        disagreement=tuple(series(row) for row in 0.1 * apart**0.5),
        early_exit=(Exit(0.9, level, 2.5),),
        losses=Losses(series(epochs), series(recipe.optimizer.lr * factor), series(loss)),
        between=lines(m, level) if between and m > 1 else None,
    )


def lines(m, level):
    shares = np.arange(11) / 10
    hump = 4 * shares * (1 - shares)
    return Between(
        series(shares),
        tuple(
            Line(k, series(level + (90 - level) * hump**0.4 * (m - k) / m), series(level + 8 * hump * (m - k) / m))
            for k in range(1, m)
        ),
        "made-up images",
    )


def joint(cell, repetition):
    names = tuple(paper.run_names(cell, repetition))
    percent = 24.0 - cell.seeds / 2 + repetition / 8
    return Joint(cell.name, repetition, names, (ORIGIN,) * cell.seeds, 1.5, 10_000, percent)


def of_cells(cells, repetitions=1, **options):
    """The ledger after so many repetitions of some cells."""
    cells, found = list(cells), []
    for repetition in range(repetitions):
        found += [entry(recipe, **options) for recipe in paper.runs(cells, repetition)]
        found += [joint(cell, repetition) for cell in cells if cell.seeds > 1]
    return {one.name: one for one in found}


@cache
def everything(repetitions=1):
    return of_cells(paper.cells(), repetitions)


def series(values):
    return tuple(round(float(value), 5) for value in values)
