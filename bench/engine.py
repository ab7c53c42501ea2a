"""Compares the engine on a CPU with a minimal loop written by hand, for the same network and the same data.

    python bench/engine.py

The engine and the loop take turns of 16 steps, a hundred turns each. The script prints the median ratio of a turn of
the engine to the turn of the loop that follows it. The loop has no log, no state and no snapshots.
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from snapens.lab import data, nets
from snapens.lab.engine import pack as engine
from snapens.lab.recipe import Budget, Dataset, Network, Recipe, Snapshot

TURNS, STEPS = 100, 16


def by_hand(recipe, images):
    """A generator that takes a step whenever it is advanced."""
    mean, deviation = map(torch.tensor, images.normalisation())
    x = torch.from_numpy(images.train.pixels)
    y = torch.from_numpy(images.train.labels)
    network = nets.of(recipe, len(images.classes), images.inputs)
    network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=recipe.optimizer.lr, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True
    )
    schedule = recipe.schedule(len(y))
    step = 0
    while True:
        for batch in torch.randperm(len(y)).split(recipe.budget.batch):
            optimizer.param_groups[0]["lr"] = recipe.optimizer.lr * schedule(step)
            channels_last = ((x[batch].float() - mean) / deviation).permute(0, 3, 1, 2)
            loss = cross_entropy(network(channels_last), y[batch])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            yield


def seconds(action) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def main() -> None:
    recipe = Recipe(Network("small"), Dataset("glyphs"), Snapshot(cycles=1), Budget(epochs=1000))
    images = data.load("glyphs", None)
    loop = by_hand(recipe, images)
    with tempfile.TemporaryDirectory() as folder:
        [training] = engine.prepare([(recipe, Path(folder) / "run")], lambda recipe: images, torch.device("cpu"))

        def engine_steps() -> None:
            goal = training.completed + STEPS
            while training.completed < goal:
                training.advance()

        def loop_steps() -> None:
            for _ in range(STEPS):
                next(loop)

        for warm_up in (engine_steps, loop_steps):
            warm_up()
        ours, theirs = [], []
        for _ in range(TURNS):
            before = training.completed
            took = seconds(engine_steps)
            ours.append(took / (training.completed - before))
            theirs.append(seconds(loop_steps) / STEPS)
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    print(
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, small network, batch {recipe.budget.batch}: "
        f"engine {1e3 * statistics.median(ours):.2f} ms per step, by hand {1e3 * statistics.median(theirs):.2f} ms, "
        f"ratio {ratio:.3f} (n = {TURNS} turns of {STEPS} steps)"
    )


if __name__ == "__main__":
    main()
