"""The command that trains one network to imitate the ensemble of a run."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..lab.paper.cells import run_name
from ..lab.recipe import Budget, Distillation, Network, Recipe, Snapshot
from . import processes
from .combining import combination_of
from .options import Flag, Folder, ImportNetwork, Place, TrainingOptions, arg

if TYPE_CHECKING:
    from ..lab.recipe import Teacher


@dataclass(frozen=True)
class Distill:
    """Train one network to imitate the ensemble of a run."""

    run: Folder
    """The run folder of the teacher. The student uses the teacher's data, transforms, optimizer and batch size."""
    epochs: Annotated[int, arg("INT", "(required)")]
    """The number of passes over the training examples."""
    training: TrainingOptions
    network: Annotated[str | None, arg("NAME")] = None
    """The network of the student. By default that of the teacher."""
    pretrained: Flag = False
    """Start from the pretrained weights of torchvision:NAME or timm:NAME; only the last layer is new."""
    last: Annotated[int | None, arg("INT")] = None
    """The number of the teacher's last snapshots to use. By default those of its combination.json, or all."""
    share: float = 0.9
    """The share of the imitation in the loss; the rest is the cross-entropy with the labels."""
    temperature: float = 2.0
    """The temperature that softens both predictions for the imitation."""
    cycles: int = 1
    """The number of cosine cycles, and of snapshots."""
    lr: Annotated[float | None, arg("FLOAT")] = None
    """The peak learning rate. By default that of the teacher."""
    seed: int = 0
    """The seed of weights, order, transforms and dropout."""
    out: Place = None
    """The run folder. By default a folder in runs/ that is named after the recipe."""
    import_network: ImportNetwork = False

    def __call__(self) -> int:
        """Train, then print the student's test error next to those of the teacher."""
        from ..lab.engine.teacher import teacher_of
        from ..lab.records.run import Run
        from . import tables
        from .loader import import_network_of
        from .training import train, with_report

        run = Run(self.run)
        world = processes.world()
        world.agree(lambda: import_network_of(run, self.import_network))
        teacher = world.agree(lambda: teacher_of(self.run, combination_of(run, self.last)))
        recipe = self._recipe(run.recipe, teacher)
        out = self.out or Path("runs") / f"distilled-{run_name(recipe)}"
        status = train([(recipe, out)], self.training, teachers=[self.run])
        processes.end_others(status)
        if status == 0:
            with_report([out], lambda: tables.distilled(Run(out), run, teacher.combination))
        return status

    def _recipe(self, recipe: Recipe, teacher: "Teacher") -> Recipe:
        """The recipe of the student; the docstring of `run` lists what it takes from the recipe of the teacher."""
        network = replace(recipe.network, pretrained=recipe.network.pretrained or self.pretrained)
        if self.network is not None:
            network = Network(self.network, stem_stride=network.stem_stride, pretrained=self.pretrained)
        return Recipe(
            network,
            recipe.dataset,
            Snapshot(self.cycles),
            Budget(self.epochs, recipe.budget.batch),
            recipe.optimizer if self.lr is None else replace(recipe.optimizer, lr=self.lr),
            Distillation(teacher, self.share, self.temperature),
            recipe.transforms,
            seed=self.seed,
        )
