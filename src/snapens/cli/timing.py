"""Benchmarks on the terminal."""

from typing import TYPE_CHECKING

from rich.console import Console

from ..lab.recipe import Settings
from ..storage import jsonfile
from .interrupt import Interrupt
from .training import data_root, import_from_here

if TYPE_CHECKING:
    from . import Bench


def bench_train(options: "Bench") -> None:
    """Print a line per measurement, with its ratio to the first one, and write the numbers so far to `options.out`."""
    import torch

    from ..lab.engine.bench import compare
    from ..lab.engine.pack import chosen_device

    device, root = chosen_device(options.device), data_root(options.data)
    import_from_here(options.networks)
    threads = torch.get_num_threads()
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {threads} thread{'s' * (threads > 1)}"
    found: dict[str, dict[str, float | None]] = {}
    console = Console(highlight=False)
    console.print(f"{name}, torch {torch.__version__}, batch {options.batch}, {options.dataset}; training images/s")
    recipes = [
        Settings(network=network, dataset=options.dataset, batch=options.batch, epochs=200, cycles=1).recipe()
        for network in options.networks
    ]
    with Interrupt():
        for recipe in recipes:
            speeds = found.setdefault(recipe.network.name, {})
            for what, speed in compare(
                recipe, root, device.type, options.pack, options.seconds, loops=not options.engine_only
            ):
                speeds[what] = speed
                plain = next(iter(speeds.values()))
                shown = "–" if speed is None or plain is None else f"{speed:10,.0f} {speed / plain:6.1f} ×"
                console.print(f"{recipe.network.name:12} {what:44} {shown}")
                if options.out is not None:
                    options.out.write_bytes(
                        jsonfile.dumps(
                            {
                                "device": name,
                                "torch": torch.__version__,
                                "batch": options.batch,
                                "images_per_second": found,
                            }
                        )
                    )
