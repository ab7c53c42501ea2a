"""Benchmarks on the terminal."""

from typing import TYPE_CHECKING

from rich.console import Console

from ..lab.recipe.recipe import Recipe
from ..storage import jsonfile
from .training import chosen_device, data_root

if TYPE_CHECKING:
    from . import Bench


def bench_train(options: "Bench") -> None:
    """Print a line for each thing timed, with its ratio to the first; the numbers go to `options.out` as they come."""
    import torch

    from ..lab.engine.bench import compare

    device, root = chosen_device(options.device), data_root(options.data)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    found: dict[str, dict[str, float | None]] = {}
    console = Console(highlight=False)
    console.print(f"{name}, torch {torch.__version__}, batch {options.batch}, {options.dataset}; images/s in training")
    for network in options.networks:
        speeds = found.setdefault(network, {})
        recipe = Recipe(network=network, dataset=options.dataset, batch=options.batch, epochs=200, cycles=1)
        for what, speed in compare(
            recipe, root, device.type, options.pack, options.seconds, loops=not options.engine_only
        ):
            speeds[what] = speed
            plain = next(iter(speeds.values()))
            shown = "–" if speed is None or plain is None else f"{speed:10,.0f} {speed / plain:6.1f} ×"
            console.print(f"{network:12} {what:44} {shown}")
            if options.out is not None:
                content = {
                    "device": name,
                    "torch": torch.__version__,
                    "batch": options.batch,
                    "images_per_second": found,
                }
                options.out.write_bytes(jsonfile.dumps(content))
