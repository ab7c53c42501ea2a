"""Many runs in one command: in this process, and with a real Ray that listens on loopback only."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import working_folder

import snapens
from snapens import Snapshots
from snapens.cli import main, progress
from snapens.lab.paper import cells as paper
from snapens.lab.recipe import Settings
from snapens.lab.records.run import Run

NETWORK = """
import os, signal, threading
from pathlib import Path
from torch import nn

HERE = Path(__file__).parent

class At(nn.Module):
    'Calls a function at one of its training calls; the first call is the rehearsal.'

    def __init__(self, call, function):
        super().__init__()
        self.calls, self.call, self.function = 0, call, function

    def forward(self, x):
        self.calls += self.training
        if self.training and self.calls == self.call:
            self.function()
        return x

def network(classes, channels, call=0, function=None):
    return nn.Sequential(nn.Flatten(), At(call, function), nn.Linear(64 * channels, classes))

plain = network

def kill():
    'Once: the file says that it has happened.'
    try:
        os.close(os.open(HERE / "killed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

def interrupt():
    'Once: send Ctrl-C to the command, and wait until it arrives here.'
    try:
        os.close(os.open(HERE / "interrupted", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    arrived, handler = [], signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda *arguments: (arrived.append(1), handler(*arguments)))
    os.kill(int((HERE / "pid").read_text()), signal.SIGINT)
    while not arrived:
        threading.Event().wait(0.01)

def killed(classes, channels):
    return network(classes, channels, 27, kill)  # between the two snapshots, at 18 and 36

def interrupted(classes, channels):
    return network(classes, channels, 27, interrupt)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with networks of the user's own and an array file of 64 images in three classes."""
    working_folder.enter(tmp_path, monkeypatch, "nets_of_mine", NETWORK)
    (tmp_path / "pid").write_text(str(os.getpid()))
    x, labels = np.random.default_rng(0).integers(0, 256, (64, 8, 8), dtype=np.uint8), np.arange(64) % 3
    x[np.arange(64), labels] = 255  # a bright row tells the class
    np.savez(tmp_path / "tiny.npz", x_train=x[:48], y_train=labels[:48], x_test=x[48:], y_test=labels[48:])
    return tmp_path


def sweep(*more, network=("plain",), out="runs", held_out=("--held-out", "0")):
    networks = [f"nets_of_mine:{name}" for name in network]
    flags = f"--dataset arrays --data tiny.npz --epochs 6 --cycles 2 --batch 8 --device cpu --threads 1 --out {out}"
    threads = torch.get_num_threads()
    status = main(["sweep", "--network", *networks, *flags.split(), *held_out, *more])
    torch.set_num_threads(threads)
    return status


def snapshots(out):
    """Every tensor of every snapshot in the folders of a sweep."""
    return {
        (path.name, step, name): tensor
        for path in Path(out).iterdir()
        for step in Snapshots(path).steps
        for name, tensor in Snapshots(path).load(step).items()
    }


def assert_equal(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


def of(**settings):
    """The folder of the run with these settings."""
    common = {"network": "nets_of_mine:plain", "dataset": "arrays", "epochs": 6, "cycles": 2, "batch": 8}
    return Path("runs") / paper.run_name(Settings(**common | settings).recipe())


def test_every_combination_is_trained_in_a_folder_named_after_its_recipe(folder, capsys):
    assert sweep("--method", "snapshot", "single", "--seed", "3", "4", "--pack", "3") == 0
    paths = [of(method=method, seed=seed) for method in ("snapshot", "single") for seed in (3, 4)]
    assert set(Path("runs").iterdir()) == set(paths)
    assert all(Run(path).finished for path in paths)
    assert [Run(path).finish_event["pack"] for path in paths] == [2, 2, 2, 2]  # two packs of equal size
    said = capsys.readouterr()
    assert "pack 2 of 2: nets_of_mine-plain-arrays-" in said.err
    assert said.err.count("reading arrays") == 1
    assert said.out.endswith("next: snapens report runs\n")
    assert main(["report", "runs"]) == 0


def test_the_errors_are_means_over_the_seeds_and_those_of_all_members_together(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert sweep("--lr", "0.001", "0.1", "--seed", "0", "1", "2") == 0
    assert_shows(capsys.readouterr().out, held_out=0)


def test_held_out_errors_are_shown_where_there_are_held_out_examples(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert sweep("--lr", "0.001", "0.1", "--seed", "0", "1", "2", held_out=("--held-out", "16")) == 0
    assert_shows(capsys.readouterr().out, held_out=16)


def assert_shows(shown, *, held_out):
    """The table of a sweep over two rates has the errors of three seeds; the lines below it have the folders."""
    assert f"{'held-out' if held_out else 'test'} error, mean over the runs" in shown
    for lr in (0.001, 0.1):
        paths = [of(lr=lr, seed=seed, held_out=held_out) for seed in range(3)]
        assert all(f"lr {lr:g}: {path}\n" in shown for path in paths)
        outputs = [Run(path).outputs("held_out" if held_out else "test") for path in paths]
        assert len(outputs[0].labels) == 16
        last = np.mean([[found.probabilities[-1].argmax(-1) != found.labels] for found in outputs])
        alone = np.mean([[found.probabilities.mean(0).argmax(-1) != found.labels] for found in outputs])
        members = np.concatenate([found.probabilities for found in outputs])
        together = np.mean(members.mean(0).argmax(-1) != outputs[0].labels)
        line = next(line for line in shown.splitlines() if f"lr {lr:g} " in line)
        assert [word.strip() for word in line.split("│")[2:-1]] == [
            "3",
            *(f"{100 * error:.2f}" for error in (last, alone, together)),
        ]


def test_a_dry_run_rejects_what_the_sweep_would_reject(folder, capsys):
    assert main(["sweep", "--network", "small", "nosuch", "--dataset", "glyphs", "--dry-run"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "unknown network 'nosuch'" in said.err


def test_a_dry_run_lists_the_runs_and_a_finished_one_is_not_repeated(folder, capsys):
    assert sweep("--seed", "0") == 0
    before = snapshots("runs")
    capsys.readouterr()
    assert sweep("--seed", "0", "1", "--dry-run") == 0
    assert (
        capsys.readouterr().out
        == f"finished     {of(seed=0)}\nnew          {of(seed=1)}\n2 runs, 1 left to train in 1 pack\n"
    )
    assert not of(seed=1).exists()
    assert sweep("--seed", "0", "1") == 0
    assert f"{of(seed=0)} is already finished\n" in capsys.readouterr().err
    after = snapshots("runs")
    assert_equal(before, {key: after[key] for key in before})
    assert sweep("--seed", "0", "1") == 0


def test_an_interrupted_sweep_continues_with_resume_to_the_same_snapshots(folder, capsys):
    assert sweep("--seed", "0", "1", network=["interrupted"]) == 130
    assert "interrupted; the same command with --resume continues" in capsys.readouterr().err
    assert sweep("--seed", "0", "1", network=["interrupted"]) == 2
    assert "interrupted runs must be continued with --resume, got runs/" in capsys.readouterr().err
    assert sweep("--seed", "0", "1", "--resume", network=["interrupted"]) == 0
    assert sweep("--seed", "0", "1", network=["interrupted"], out="whole") == 0
    assert_equal(snapshots("runs"), snapshots("whole"))


def test_runs_are_labelled_by_the_flags_with_several_values(folder, capsys):
    assert sweep("--sam", "0.05", "0.1", "--sam-every", "2", "--transforms", "mirror,cutout=4", "", "--ema", "0.9") == 0
    shown = capsys.readouterr().out
    for sam in (0.05, 0.1):
        for text, names in (("mirror,cutout=4", ("mirror", "cutout=4")), ('""', ())):
            path = of(sam=sam, sam_every=2, transforms=names, ema=0.9)
            assert f"\ntransforms {text}, sam {sam}: {path}\n" in shown


def test_a_run_that_fails_does_not_stop_the_others(folder, capsys):
    assert sweep("--lr", "1e30", "0.1", "--batch", "49", "8") == 1
    assert [path for path in Path("runs").iterdir() if Run(path).finished] == [of(lr=0.1)]
    out, err = capsys.readouterr()
    assert "lr 0.1" in out  # the settings that differ in the plan, though one run is finished
    assert "1 of 4 runs are finished" in out
    assert f"{of(lr=1e30)} failed: loss must be finite" in err
    assert f"snapens: {of(lr=1e30, batch=49).name} failed: batch must be at most the 48 training examples" in err
    assert f"as {of(lr=1e30, batch=49).name}: {of(lr=0.1, batch=49).name}\n" in err


def test_an_error_that_several_runs_share_is_printed_once_with_their_number(folder, capsys):
    assert sweep("--batch", "49", "--seed", "0", "1", "2", "3") == 1
    err = capsys.readouterr().err
    names = [of(batch=49, seed=seed).name for seed in range(4)]
    assert f"snapens: {names[0]} failed: batch must be at most the 48 training examples" in err
    assert err.count("batch must be") == 1
    assert f"snapens: 3 more runs failed with the same error as {names[0]}: {', '.join(names[1:])}\n" in err
    assert sweep("--lr", "1e30", "--seed", "4", "5") == 1
    assert capsys.readouterr().err.count("loss must be finite") == 1


def test_a_tenth_of_the_users_own_data_is_held_out_as_in_train(folder, capsys):
    assert sweep("--seed", "0", "1", "--dry-run", held_out=()) == 0
    said = capsys.readouterr()
    assert said.err.count("holding out 4 of 48 training examples") == 1
    assert str(of(seed=1, held_out=4)) in said.out


def test_patterns_and_transforms_are_lists_joined_by_commas(folder, capsys):
    patterns = ["--method", "single", "grow", "--pattern", "warm,fresh", "fresh", "--transforms", "", "mirror,cutout=4"]
    assert sweep(*patterns, "--dry-run") == 0
    grow = [of(method="grow", pattern=pattern, transforms=()) for pattern in (("warm", "fresh"), ("fresh",))]
    single = [of(method="single", transforms=transforms) for transforms in ((), ("mirror", "cutout=4"))]
    listed = [Path(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(listed) == 7  # six runs, and their number
    assert {*grow, *single} < set(listed)


def test_the_settings_of_a_preset_are_overridden_and_varied(folder, capsys):
    assert sweep("--preset", "cifar100-modern", "--lr", "0.1", "0.3", "--transforms", "mirror", "--dry-run") == 0
    common = {"weight_decay": 5e-4, "decays": "weights", "warmup_epochs": 1, "transforms": ("mirror",)}
    listed = [Path(line.split()[-1]) for line in capsys.readouterr().out.splitlines()[:-1]]
    assert listed == [of(lr=lr, **common) for lr in (0.1, 0.3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "cifar"], "unknown preset 'cifar': choose from cifar10-modern"),
        (["--pattern", "warm"], "pattern must be given for the method grow, and for no other, got ('warm',)"),
        (["--network", "small", "resnet11"], "unknown network 'resnet11': did you mean resnet110"),
        (["--pack", "0"], "pack must be at least 1, got 0"),
        (["--seed", "0", "-1"], "seed must be at least 0"),
        (["--seed"], "--seed must have at least one value, got none: add one, or remove --seed"),
        (["--ray", "a:1", "b:2"], "ray must be one address or none, got a:1 b:2"),
        (
            ["--ray", "nonsense"],
            "ray must be the address of a running Ray cluster, as HOST:PORT or auto, got 'nonsense'",
        ),
        (["--ray", "127.0.0.1:1"], "got '127.0.0.1:1' ([Errno 111] Connection refused): `ray start --head` prints"),
        (["--ray", "127.0.0.1:99999"], "got '127.0.0.1:99999'"),
        (["--ray", "ray://127.0.0.1:1"], "got 'ray://127.0.0.1:1'"),
    ],
)
def test_what_cannot_work_is_rejected_before_the_first_run(folder, capsys, arguments, message):
    assert sweep(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_without_ray_its_option_is_rejected_with_the_command_that_installs_it(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert sweep("--ray") == 2
    assert 'ray must be installed for this: pip install -e "' in capsys.readouterr().err
    assert not Path("runs").exists()


RAY = """
import json, os, sys
from snapens.lab.engine.cluster import connect
with connect():
    import ray
    class Worker:  # a process that stays
        def start(self): pass
    worker = ray.remote(num_cpus=0)(Worker).remote()
    ray.get(worker.start.remote())
    address = ray.get_runtime_context().gcs_address
    print(json.dumps({"address": address, "token": os.environ["RAY_AUTH_TOKEN"]}), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def local_ray():
    """A Ray as `--ray` starts it, in another process; its address, and that process."""
    authentication = pytest.importorskip("ray._private.authentication_test_utils")
    environment = {**os.environ, "PYTHONPATH": str(Path(snapens.__file__).parents[1])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", RAY], env=environment, **pipes) as process:
        found = json.loads(process.stdout.readline())
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_AUTH_MODE", "token")
            patch.setenv("RAY_AUTH_TOKEN", found["token"])
            authentication.reset_auth_token_state()  # Ray has read the variables when it was imported
            yield found["address"], process
        process.stdin.close()
        assert process.stdout.read() == ""  # nothing of Ray's own
    assert process.returncode == 0


def test_with_ray_snapshots_are_the_same_though_a_worker_is_killed_and_a_run_fails(folder, local_ray, capfd):
    for name in ("numpy", "torch", "ray"):  # no worker imports a package from the current folder
        (folder / f"{name}.py").write_text("raise SystemExit")
    flags = ["--lr", "0.01", "1e30"]
    assert sweep(*flags, "--ray", local_ray[0], network=["plain", "killed"]) == 1
    assert (folder / "killed").exists()
    said = capfd.readouterr()
    assert "training 4 runs in 4 packs; Ray can train " in said.err
    assert said.err.count(", done\n") == 2
    assert f"snapens: {of(lr=1e30).name} failed: loss must be finite" in said.err
    assert "worker" not in said.out + said.err  # of Ray's messages about the killed process
    assert sweep(*flags, network=["plain", "killed"], out="here") == 1
    assert_equal(snapshots("runs"), snapshots("here"))
    assert len(snapshots("runs")) == 2 * 2 * 2  # runs, snapshots, weight and bias


@pytest.mark.long
def test_with_ray_an_interrupt_saves_the_states_and_resume_continues(folder, local_ray, capfd):
    flags = ["--seed", "0", "1", "2", "3"]
    assert sweep(*flags, "--ray", local_ray[0], network=["interrupted"]) == 130
    assert "interrupted; the same command with --resume continues" in capfd.readouterr().err
    states = {path.name: Run(path).state().completed for path in Path("runs").iterdir() if not Run(path).finished}
    assert 26 in states.values()  # in mid-cycle: the step that sent the signal was the last
    assert sweep(*flags, "--ray", local_ray[0], "--resume", network=["interrupted"]) == 0
    assert sweep(*flags, network=["interrupted"], out="whole") == 0
    assert_equal(snapshots("runs"), snapshots("whole"))


@pytest.mark.long
def test_the_runs_of_cells_are_trained_with_ray(folder, local_ray, capsys, monkeypatch):
    recipe = Settings(network="nets_of_mine:plain", dataset="arrays", epochs=4, cycles=2, batch=8).recipe()
    cell = paper.Cell("tiny", "npz", "snapshot-x2", recipe, "figure 4", "ensemble", seeds=2)
    monkeypatch.setattr(paper, "_cells", lambda: {cell.name: cell})
    monkeypatch.setattr(paper, "_run_names", paper._run_names.__wrapped__)
    command = ["paper", "run", cell.name, "--data", "tiny.npz", "--device", "cpu", "--tensorboard"]
    assert main([*command, "--ray", local_ray[0]]) == 0
    runs = [Run(f"runs/paper/tiny-npz-snapshot-x2-seed{seed}") for seed in (0, 1)]
    assert all(run.finished and run.curves() and list(run.path.glob("tensorboard/*")) for run in runs)
    assert "tiny-npz-snapshot-x2" in capsys.readouterr().out


def test_a_local_ray_listens_on_loopback_only(local_ray):
    psutil = pytest.importorskip("psutil")
    main_process, listening = psutil.Process(local_ray[1].pid), []
    for process in [main_process, *main_process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # a worker of another test that has just ended
            sockets = [one for one in process.net_connections() if not one.raddr]
            listening += [(process.name(), one.laddr.ip) for one in sockets]
    names = {name for name, _ in listening}
    assert {"gcs_server", "raylet"} < names
    assert any(name.startswith("ray::Worker") for name in names)
    assert {address for _, address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_a_terminal_with_few_lines_shows_the_bars_of_running_runs_only(monkeypatch):
    from snapens.lab.records.followed import Followed

    monkeypatch.setenv("LINES", "3")
    name = "a-network-with-a-long-name-on-some-data"
    runs = [
        Followed(Settings(seed=seed).recipe(), f"{name}-{words}") for seed, words in enumerate(("x", "y", name, "z"))
    ]
    bars = progress.Bars(runs)
    assert [task.description for task in bars._progress.tasks] == ["x", "y", f"…{name[-27:]}", "z"]
    assert [task.visible for task in bars._progress.tasks] == [False] * 4
    for run in runs[:2]:
        run.total_steps = 10
        bars(run)
    runs[0].finished = True
    bars(runs[0])
    bars.close()
    assert [task.visible for task in bars._progress.tasks] == [False, True, False, False]


def test_the_commands_and_the_code_of_the_page_work(folder, capsys):
    page = (Path(__file__).parents[2] / "docs/how-to/many-runs.md").read_text()
    commands = re.findall(r"^snapens (sweep .*)$", page.replace("\\\n", " "), flags=re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        assert main([*command.split(), "--dry-run"]) == 0
        capsys.readouterr()
    assert main([*commands[0].split(), "--device", "cpu", "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("\n12 runs, 12 left to train in 12 packs\n")
    assert sweep("--seed", "0", "1", out="runs/sweep") == 0
    names = {}
    exec(re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)[1], names)
    assert len(names["ensemble"].combination.members) == 4
    with np.load("tiny.npz") as arrays:
        predicted = names["ensemble"](torch.from_numpy(arrays["x_test"])[..., None])
    outputs = [run.outputs().probabilities for run in names["runs"]]
    expected = np.concatenate(outputs).mean(0)
    assert predicted.numpy() == pytest.approx(expected, abs=2e-3)  # outputs are stored in float16
