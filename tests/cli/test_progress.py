"""What is shown while a command runs."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from snapens import CyclicCosine
from snapens.cli import progress
from snapens.cli import training as training_commands
from snapens.lab.recipe import Settings


def running(**changes):
    """A run after 50 of 100 steps of 8 images, two steps per second."""
    values = {
        "run": SimpleNamespace(path=SimpleNamespace(name="a-run")),
        "recipe": SimpleNamespace(budget=SimpleNamespace(epochs=10, batch=8), network=SimpleNamespace(name="vast")),
        "total_steps": 100,
        "completed": 50,
        "epoch": 5.0,
        "lr": 0.05,
        "log": SimpleNamespace(loss=1.25),
        "images_per_second": 16.0,
        "rehearsal_seconds": 2.0,
        "finished": False,
        "failure": None,
    }
    return SimpleNamespace(**values | changes)


BEGUN = {"completed": 0, "epoch": 0.0, "log": SimpleNamespace(loss=None), "images_per_second": None}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "epoch 5.0 / 10, lr 0.0500, loss 1.250, 16 images/s, 0:25 left"),
        # two of 100 steps of 8 images took 40 seconds: 98 more take 1,960
        (
            {**BEGUN, "completed": 2, "epoch": 0.2, "images_per_second": 0.4},
            "epoch 0.2 / 10, lr 0.0500, loss –, 0.4 images/s, 32:40 left",
        ),
        # not one step yet: the rehearsed one took two seconds
        (BEGUN, "epoch 0.0 / 10, lr 0.0500, loss –, 4.0 images/s, 3:20 left"),
        # a diverging run, and one at a small rate with a small loss
        (
            {"lr": 2.5e7, "log": SimpleNamespace(loss=1.4493516e21)},
            "epoch 5.0 / 10, lr 2.5e+07, loss 1.45e+21, 16 images/s, 0:25 left",
        ),
        (
            {"lr": 2e-5, "log": SimpleNamespace(loss=0.00123)},
            "epoch 5.0 / 10, lr 2e-05, loss 0.00123, 16 images/s, 0:25 left",
        ),
        ({**BEGUN, "rehearsal_seconds": None}, "epoch 0.0 / 10, lr 0.0500, loss –, – images/s, – left"),
    ],
)
def test_bars_and_lines_show_an_estimate_from_the_beginning(monkeypatch, capsys, changes, shown):
    monkeypatch.setenv("COLUMNS", "100")
    training = running(**changes)
    bars = progress.Bars([training])
    text = ", ".join(str(column(bars._progress.tasks[0])) for column in bars._progress.columns[1:])
    bars.close()
    assert text == shown
    clock = [1000.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    lines = progress.Lines([training])
    capsys.readouterr()
    written = []
    for seconds in (1, 1, 1, 14, 1):  # the first line after two seconds, the next 15 seconds later
        clock[0] += seconds
        lines(training)
        written.append(capsys.readouterr().err)
    assert written == ["", f"a-run: {shown}\n", "", f"a-run: {shown}\n", ""]


NUMBERS = "epoch 299.9 / 300 lr 0.0999 loss 4.041 21,270 images/s 1:23:45 left"
LARGE = {
    "recipe": SimpleNamespace(budget=SimpleNamespace(epochs=300, batch=128)),
    "total_steps": 50 + 835_029,
    "epoch": 299.9,
    "lr": 0.0999,
    "log": SimpleNamespace(loss=4.041),
    "images_per_second": 21270.4,  # the steps left take 5,025 seconds
}


@pytest.mark.parametrize(
    ("columns", "names", "labels", "numbers"),
    [
        (80, ["small-glyphs-snapshot-0.1-6-epochs-ddbe3dbb-seed0"], [""], NUMBERS),
        (140, ["small-glyphs-snapshot-0.1-6-epochs-ddbe3dbb-seed0"], [""], NUMBERS),
        (80, [f"small-glyphs-snapshot-0.1-6-epochs-ddbe3dbb-seed{k}" for k in range(3)], ["seed0", "seed1"], NUMBERS),
        (
            80,
            ["a-snapshot-0.1-6-epochs-ddbe3dbb-seed0", "a-snapshot-0.2-6-epochs-00be3dbb-seed1"],
            ["0.1-seed0", "0.2-seed1"],
            NUMBERS.replace(" 21,270 images/s", ""),
        ),
        (100, ["a-6-epochs-ddbe3dbb-seed0", "a-6-epochs-00be3dbb-seed0"], ["ddbe3dbb", "00be3dbb"], NUMBERS),
        (100, ["single-seed0", "snapshot-0.2-seed0"], ["single-seed0", "snapshot-0.2-seed0"], NUMBERS),
        (100, ["[red]-seed0", "[red]-seed0"], ["[red]-seed0", "[red]-seed0"], NUMBERS),
        (60, ["seed0", "seed1"], ["seed0", "seed1"], "epoch 299.9 / 300 loss 4.041 1:23:45 left"),
        (60, ["a", "a-long-name-of-a-run"], ["a", "…g-name-of-a-run"], "epoch 299.9 / 300 loss 4.041 1:23:45 left"),
        (45, ["seed0", "seed1"], ["", ""], "epoch 299.9 / 300 loss 4.041 1:23:45 left"),
        (44, ["seed0"], [""], "epoch 299.9 / 300 loss 4.041 1:23:45 left"),
    ],
)
def test_no_number_is_cut_on_a_narrow_terminal(monkeypatch, columns, names, labels, numbers):
    monkeypatch.setenv("COLUMNS", str(columns))
    bars = progress.Bars([running(run=SimpleNamespace(path=Path(name)), **LARGE) for name in names])
    with bars._progress.console.capture() as captured:
        bars._progress.console.print(bars._progress.get_renderable())
    bars.close()
    for line, label in zip(captured.get().splitlines(), labels, strict=False):
        assert line.startswith(label)
        assert " ".join(line.removeprefix(label).replace("━", "").replace("╸", "").split()) == numbers
        assert len(line) <= columns


def test_a_finished_run_is_at_its_last_epoch_although_the_last_partial_batch_is_left_out(capsys):
    progress.Lines([done := running(completed=100, epoch=9.8, finished=True)])(done)
    assert capsys.readouterr().err == "a-run: epoch 10.0 / 10, lr 0.0500, loss 1.250, 16 images/s, done\n"


@pytest.mark.parametrize(
    ("changes", "hours"),
    [
        ({}, None),  # 50 steps of two seconds
        ({"total_steps": 3_650}, "2 hours (the first step took 2.0"),
        ({"total_steps": 36_050, "rehearsal_seconds": 30.0}, "300 hours (the first step took 30.0"),
        ({"total_steps": 36_050_000, "rehearsal_seconds": 0.4}, None),  # too short to tell
        ({"total_steps": 36_050_000, "rehearsal_seconds": None}, None),  # a GPU
    ],
)
def test_hours_on_a_cpu_are_announced_with_a_smaller_option(capsys, changes, hours):
    training_commands._warn_of_hours([running(**changes)])
    found = capsys.readouterr().err
    if hours is None:
        assert found == ""
    else:
        assert found == (
            f"snapens: training vast on this CPU may take up to {hours} seconds): "
            "use a GPU, fewer --epochs, or --network small\n"
        )


@pytest.mark.parametrize(
    ("decay", "share"),
    [(0.5, None), (0.954, None), (0.97, 5), (0.999, 90)],  # after 100 steps: 1e-30, 0.9 %, 4.8 %, 90.5 %
)
def test_an_average_with_much_of_the_initial_weights_is_announced(capsys, decay, share):
    recipe = Settings(network="timm:resnet50", pretrained=True, ema=decay).recipe()
    training = running(recipe=recipe, schedule=CyclicCosine(200, 2), run=SimpleNamespace(path=Path("runs/a")))
    plain = running(recipe=Settings().recipe(), schedule=CyclicCosine(2, 2))
    resumed = SimpleNamespace(**{**vars(training), "completed": 100})  # its first snapshot is stored already
    training_commands._warn_of_slow_averages([training, plain, resumed])
    found = capsys.readouterr().err
    if share is None:
        assert found == ""
    else:
        assert found == (
            f"snapens: the initial weights are {share} % of the first snapshot of runs/a, "
            f"because --ema {decay} is too slow for 100 steps: use a lower --ema, or more --epochs\n"
        )


def test_a_download_shows_its_bytes():
    with progress.Download("cifar10") as bar:
        bar(0, 100)
        bar(60, 100)
        task = bar._progress.tasks[0]
    assert (task.completed, task.total, task.description) == (60, 100, "downloading cifar10")
