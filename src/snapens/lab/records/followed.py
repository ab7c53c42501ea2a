"""Followed: a run that another process trains, as recorded in its log."""

from contextlib import suppress
from os import PathLike

from ...errors import StoreError
from ..recipe.recipe import Recipe
from .run import Run


class Followed:
    """The progress of a run, read from its folder; it has the attributes that a progress display uses."""

    def __init__(self, recipe: Recipe, path: str | PathLike[str]) -> None:
        self.recipe, self.run, self.log = recipe, Run(path), FollowedLog()
        self.total_steps = self.completed = 0
        """Both are 0 before the first line of the log."""
        self.epoch, self.lr = 0.0, recipe.optimizer.lr
        self.finished = False
        self.failure: str | None = None
        self.images_per_second: float | None = None
        self.rehearsal_seconds: float | None = None

    def refresh(self) -> bool:
        """Read the log; returns whether it has new lines."""
        run, lines = Run(self.run.path), []
        with suppress(StoreError):  # an error of the folder is reported by the process that trains
            lines = list(run.log())
        if len(lines) == self.log.lines:
            return False
        self.log.lines, self.finished = len(lines), any(line.get("event") == "finished" for line in lines)
        trained = [line for line in lines if line.get("event") == "trained"]
        if trained:
            last, epochs = trained[-1], self.recipe.budget.epochs
            self.completed, self.epoch, self.lr = last["step"], last["epoch"], last["lr"]
            self.total_steps = max(self.completed, round(self.completed * epochs / self.epoch))
            self.log.loss, images = last["loss"], self.completed * self.recipe.budget.batch
            self.images_per_second = last["images_per_second"] or images / last["seconds"]
        return True


class FollowedLog:
    """The last values in the log of a followed run."""

    loss: float | None = None
    lines = 0
    """The number of lines that were read."""
