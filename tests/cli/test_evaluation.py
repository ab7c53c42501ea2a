"""`snapens combine` and `snapens evaluate`, on the outputs of a user's own loop."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from snapens import Combination, Outputs, Snapshots
from snapens.cli import main
from snapens.lab.recipe import Settings
from snapens.lab.records.run import Run


def outputs(folder, seed, examples=400, classes=3, part="held_out"):
    """Three members that are right more often than not, each with noise of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, examples)
    logits = (
        1.5 * np.eye(classes)[labels] + rng.normal(0, 1, (examples, classes)) + rng.normal(0, 1, (3, examples, classes))
    )
    scores = torch.tensor(2 * logits).log_softmax(-1).half().numpy()
    members = tuple((Snapshots(folder).identity["run"], step) for step in (4, 8, 12))
    return Outputs(members, scores, labels).save(folder, part)


def stored(path, steps):
    store = Snapshots(path)
    store.open_to_write()
    for step in steps:
        store.commit(step, {"w": torch.full((1,), float(step))})
    store.close()
    return path


@pytest.fixture
def folder(tmp_path):
    return stored(tmp_path / "run", (4, 8, 12))


def test_a_combination_is_fitted_on_held_out_examples_stored_and_evaluated_on_the_test_part(folder, capsys):
    held_out, test = outputs(folder, 0), outputs(folder, 1, part="test")
    assert main(["combine", str(folder), "--members", "2", "--exit-loss", "1"]) == 0
    shown = capsys.readouterr().out
    assert "fitted on one half" in shown
    assert "members" in shown
    combination = Combination.load(folder)
    assert combination.members == held_out.members[1:]
    assert combination.temperature > 1.2  # the scores are doubled
    assert 0 < combination.exit_threshold < 1

    assert main(["combine", str(folder), "--members", "2", "--exit-loss", "1", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["combination"]["temperature"] == combination.temperature
    assert (found["run"], found["examples"]) == (str(folder), 400)
    assert [gain["choice"] for gain in found["gains"]] == ["temperature", "members", "exit_threshold"]
    for gain in found["gains"]:
        named = f"{gain['nll']:.4f}  {0.0 - gain['nll_gain']['mean']:+.4f} ± {gain['nll_gain']['standard_error']:.4f}"
        assert named.replace("-", "−") in shown

    assert main(["evaluate", str(folder), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["part"], list(found["predictors"])) == ("test", ["last snapshot", "mean of 3", "combination.json"])
    p = test.probabilities
    for name, mean, used in (("last snapshot", p[-1], 1), ("mean of 3", p.mean(0), 3)):
        numbers = found["predictors"][name]
        wrong = mean.argmax(-1) != test.labels
        assert numbers["error"] == pytest.approx(wrong.mean())
        assert numbers["nll"] == pytest.approx(-np.log(mean[np.arange(400), test.labels]).mean())
        assert numbers["class_errors"]["1"] == pytest.approx(wrong[test.labels == 1].mean())
        assert (numbers["mean_members"], numbers["equivalent"], numbers["examples"]) == (used, None, 400)
        assert numbers["error_of_confident"] < numbers["error"]
    assert 1 < found["predictors"]["combination.json"]["mean_members"] < 2


def test_early_exit_after_one_member_is_announced(folder, capsys):
    members = outputs(folder, 0)
    assert main(["combine", str(folder)]) == 0
    assert "early exit evaluates only" not in capsys.readouterr().err
    rows = np.stack([members.log_probabilities[-1]] * 3)  # the last member alone is as good
    Outputs(members.members, rows, members.labels).save(folder, "held_out")
    assert main(["combine", str(folder)]) == 0
    assert (
        "early exit evaluates only the last snapshot for almost every example: use --no-exit" in capsys.readouterr().err
    )
    assert main(["combine", str(folder), "--no-exit"]) == 0
    assert "early exit evaluates only" not in capsys.readouterr().err


def test_a_choice_that_raises_the_nll_of_other_examples_is_named_with_its_remedy(folder, capsys):
    outputs(folder, 0)
    assert main(["combine", str(folder), "--members", "1"]) == 0
    out, err = capsys.readouterr()
    (row,) = (line.split() for line in out.splitlines() if line.startswith("members "))
    assert float(row[5]) > 0  # one member has a higher NLL than three
    assert err == (
        "snapens: the choice of the members raised the NLL of examples that it was not fitted on: use --members all\n"
    )


def test_no_number_is_cut_on_a_narrow_terminal_and_no_change_has_no_minus(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    outputs(folder, 0)
    assert main(["combine", str(folder), "--members", "3", "--no-temperature", "--no-exit"]) == 0
    (row,) = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("members "))
    assert row[2:5] + row[6:] == ["+0.00", "±", "0.00", "+0.0000", "±", "0.0000", "3.00"]
    assert main(["evaluate", str(folder)]) == 0
    (row,) = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("members used "))
    assert row == ["members", "used", "1.00", "3.00", "3.00"]


def test_a_choice_that_is_worse_within_the_noise_is_not_advised_against(folder, capsys):
    rng = np.random.default_rng(0)
    scores = torch.tensor(rng.normal(size=(400, 3))).log_softmax(-1)
    labels = [rng.choice(3, p=row) for row in scores.exp().numpy()]  # exact probabilities
    members = tuple((Snapshots(folder).identity["run"], step) for step in (4, 8, 12))
    Outputs(members, scores.half().expand(3, 400, 3).numpy(), np.array(labels)).save(folder, "held_out")
    assert main(["combine", str(folder), "--no-exit"]) == 0
    out, err = capsys.readouterr()
    (row,) = (line.split() for line in out.splitlines() if line.startswith("temperature "))
    assert 0 < float(row[6]) < 2 * float(row[8]), row  # the change of the NLL, and its standard error
    assert err == ""


def test_a_combination_of_few_examples_is_the_plain_mean_and_the_command_warns(folder):
    outputs(folder, 0, examples=50)
    command = [sys.executable, "-m", "snapens", "combine", str(folder), "--exit-loss", "5", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "50 held-out examples are too few to fit a temperature or early exit: hold out at least" in done.stderr
    assert json.loads(done.stdout)["gains"] == []
    found = Combination.load(folder)
    assert (len(found.members), found.temperature, found.exit_threshold) == (3, 1, None)


def test_a_table_shows_the_same_numbers_and_says_which_combination_it_used(folder, capsys):
    outputs(folder, 0)
    Combination.last(2).save(folder)
    assert main(["evaluate", str(folder)]) == 0  # the only part
    shown = capsys.readouterr().out
    assert "part held_out: 400 examples" in shown
    assert "combination.json: the last 2 of 3 members, temperature 1.000, no early exit" in shown
    assert "classes with the highest errors: " in shown
    assert "if combination.json was fitted on these examples, its results here are too good" in shown


def test_independent_networks_serve_as_a_scale(folder, tmp_path, capsys):
    outputs(folder, 0, part="test")
    assert main(["evaluate", str(folder), "--baseline", str(folder), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictors"]
    assert found["last snapshot"]["equivalent"] == pytest.approx(1)
    assert found["mean of 3"]["equivalent"] == "more than given"
    assert main(["evaluate", str(folder), "--baseline", str(folder)]) == 0
    assert "more than given" in capsys.readouterr().out


@pytest.mark.parametrize(("examples", "known"), [(99, False), (100, True)])
def test_few_examples_have_no_calibrated_log_likelihood(folder, capsys, examples, known):
    outputs(folder, 0, examples=examples, part="test")
    command = ["evaluate", str(folder), "--baseline", str(folder)]
    assert main([*command, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictors"]["last snapshot"]
    assert (found["calibrated_log_likelihood"] is not None, found["equivalent"] is not None) == (known, known)
    assert main(command) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("calibrated", "equivalent"))]
    assert ["–" in row for row in rows] == [not known] * 2


@pytest.mark.parametrize("columns", range(40, 90, 3))
def test_the_errors_of_classes_are_not_broken_and_their_numbers_are_not_taken_for_errors(
    folder, capsys, monkeypatch, columns
):
    monkeypatch.setenv("COLUMNS", str(columns))
    labels, scores = np.array([0] * 8 + [1] * 4 + [2] * 4), np.zeros((1, 16, 3))
    scores[0, np.arange(16), [0] * 7 + [1] * 2 + [1] * 3 + [1, 2, 2, 2]] = 9  # errors: 1 of 8, 1 of 4, 1 of 4
    scores[0, 8] = (0, 0, 9)
    one = stored(folder.parent / "one", (4,))
    member = (Snapshots(one).identity["run"], 4)
    Outputs((member,), torch.tensor(scores).log_softmax(-1).half().numpy(), labels).save(one, "test")
    assert main(["evaluate", str(one)]) == 0
    *_, shown = capsys.readouterr().out.partition("classes with")
    assert " ".join(shown.split()) == "the highest errors: class 1: 25.0 %, class 2: 25.0 %, class 0: 12.5 %"
    for line in shown.splitlines()[1:]:
        assert line.startswith("class ")
    assert max(map(len, shown.splitlines())) <= columns


def test_the_name_of_a_folder_is_shown_as_it_is(tmp_path, capsys):
    run = stored(tmp_path / "photos [new] :x:", (4, 8, 12))
    outputs(run, 0)
    outputs(run, 1, part="test")
    assert main(["combine", str(run)]) == 0
    assert f"\n{run}/combination.json\n" in capsys.readouterr().out
    assert main(["evaluate", str(run)]) == 0
    assert f"{run}, part test: 400 examples\n" in capsys.readouterr().out


def test_a_baseline_on_other_examples_is_named(folder, tmp_path, capsys):
    outputs(folder, 0, part="test")
    other = stored(tmp_path / "other", (4, 8, 12))
    for changed in ({"seed": 1}, {"seed": 0, "examples": 300}, {"seed": 0, "classes": 4}):
        outputs(other, part="test", **changed)
        assert main(["evaluate", str(folder), "--baseline", str(folder), str(other)]) == 2
        expected = f"baseline must name runs with the same classes and examples, got {other}: evaluate it on the same"
        assert expected in capsys.readouterr().err


def test_one_member_has_no_mean_beside_it(folder, tmp_path, capsys):
    one = stored(tmp_path / "one", (4,))
    found = outputs(folder, 0, part="test")
    Outputs(((Snapshots(one).identity["run"], 4),), found.log_probabilities[:1], found.labels).save(one, "test")
    assert main(["evaluate", str(one), "--format", "json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["predictors"]) == ["last snapshot"]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8:strict"])
def test_what_the_output_cannot_encode_is_escaped(folder, encoding):
    outputs(folder, 0)
    strange = folder.rename(folder.with_name("α" + os.fsdecode(b"\xff")))
    command = [sys.executable, "-m", "snapens", "combine", strange]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\\udcff/combination.json" in done.stdout


def test_class_names_are_shown_as_they_are(tmp_path, capsys):
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.begin(Settings(dataset="glyphs").recipe(), {"classes": ["[dog]", "cat", "hen"]})
    stored(run.path, (4, 8, 12))
    outputs(run.path, 1, part="test")
    assert main(["evaluate", str(run.path)]) == 0
    assert re.search(r"classes with the highest errors: .*\[dog\]: \d+\.\d %", capsys.readouterr().out)


def test_weights_are_listed_in_words(folder, capsys):
    outputs(folder, 0)
    assert main(["combine", str(folder), "--weights", "simplex", "--no-exit", "--no-temperature"]) == 0
    assert "with the weights " in capsys.readouterr().out
    found = Combination.load(folder)
    assert (found.temperature, found.exit_threshold, len(found.weights)) == (1.0, None, 3)


def test_a_combination_fitted_with_held_out_examples_is_used_for_a_run_without(folder, tmp_path, capsys):
    outputs(folder, 0)
    assert main(["combine", str(folder), "--members", "2"]) == 0
    fitted, other = Combination.load(folder), stored(tmp_path / "other", (5, 10, 15))
    capsys.readouterr()
    assert main(["combine", str(other), "--like", str(folder)]) == 0
    assert "2 of 3 members (steps 10, 15), temperature" in capsys.readouterr().out
    found, run = Combination.load(other), Snapshots(other).identity["run"]
    assert found.members == ((run, 10), (run, 15))
    assert (found.temperature, found.exit_threshold) == (fitted.temperature, fitted.exit_threshold)


def test_a_combination_is_not_used_for_other_data(folder, tmp_path, capsys, monkeypatch):
    outputs(folder, 0)
    assert main(["combine", str(folder)]) == 0
    other = stored(tmp_path / "other", (5, 10, 15))
    monkeypatch.setattr(
        "snapens.lab.records.runs.same_data", lambda run, like: (run.path, like.path) != (other, folder)
    )
    assert main(["combine", str(other), "--like", str(folder)]) == 2
    assert "like must be a run with the same classes and test images" in capsys.readouterr().err
    assert not (other / "combination.json").exists()


def test_a_combination_is_not_used_for_a_run_with_another_number_of_snapshots(folder, tmp_path, capsys):
    outputs(folder, 0)
    assert main(["combine", str(folder)]) == 0
    other = stored(tmp_path / "other", (5, 10))
    for options, message in (
        ([], "both runs must have the same number of members, got 3 and 2: use a run with as many cycles"),
        (["--no-exit"], "like must be given alone, because nothing is fitted, got other options: remove them"),
    ):
        assert main(["combine", str(other), "--like", str(folder), *options]) == 2
        assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (other / "combination.json").exists()
    assert main(["combine", str(folder), "--like", str(other)]) == 2
    assert "contains no combination.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["combine"], "contains no outputs of the part 'held_out'"),
        (["combine", "--part", "test"], "outputs must be those of held-out training data, got the part 'test'"),
        (["combine", "--part", "own", "--members", "some"], "members must be a whole number, 'all', 'last'"),
        (["combine", "--part", "own", "--members", "4"], "members must be between 1 and 3 (those of a run), got 4"),
        (["combine", "--part", "own", "--exit-loss", "-1"], "exit-loss must be from 0 to 100 (percentage points)"),
        (["combine", "--part", "own", "--exit-loss", "nan"], "exit-loss must be from 0 to 100 (percentage points)"),
        (["evaluate", "--part", "other"], "contains no outputs of the part 'other'"),
    ],
)
def test_bad_requests_are_rejected_and_nothing_is_stored(folder, capsys, arguments, message):
    outputs(folder, 0, part="own")
    outputs(folder, 1, part="test")
    command, *options = arguments
    assert main([command, str(folder), *options]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (folder / "combination.json").exists()


SAVE = "save them with Ensemble.load('{0}', model).outputs(loader).save('{0}', part='{1}')"


def test_missing_outputs_are_named_with_a_line_that_saves_them(folder, capsys):
    def error(*command):
        assert main([*command, str(folder)]) == 2
        return capsys.readouterr().err

    assert error("evaluate") == (
        f"snapens: {folder} contains no outputs of the part 'test': {SAVE.format(folder, 'test')}\n"
    )
    outputs(folder, 1, part="test")
    only_test = f"snapens: {folder} contains no outputs of the part '{{0}}', only of test: "
    assert error("combine") == f"{only_test.format('held_out')}{SAVE.format(folder, 'held_out')}\n"
    assert error("combine", "--part", "val") == f"{only_test.format('val')}{SAVE.format(folder, 'val')}\n"
    assert error("evaluate", "--part", "val") == (
        f"{only_test.format('val')}choose test, or {SAVE.format(folder, 'val')}\n"
    )
    outputs(folder, 1, part="own")
    assert "only of own, test: choose own, or save them" in error("combine")


def test_a_combination_of_an_unfinished_run_is_said_to_be_one(tmp_path, capsys):
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.begin(Settings(dataset="glyphs", cycles=5).recipe(), {"classes": ["a", "b", "c"]})
    stored(run.path, (4, 8, 12))
    outputs(run.path, 1)
    assert main(["combine", str(run.path)]) == 0
    said = capsys.readouterr().err
    assert said.startswith(
        f"{run.path} is not finished: 3 of 5 snapshots exist\ncombine again when the run is finished"
    )
    outputs(run.path, 1, part="test")
    assert main(["evaluate", str(run.path)]) == 0
    assert capsys.readouterr().err == f"{run.path} is not finished: 3 of 5 snapshots exist\n"


def test_a_run_of_the_lab_can_be_trained_again_with_held_out_examples(tmp_path, capsys):
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.begin(Settings(dataset="glyphs").recipe(), {"classes": ["a", "b", "c"]})
    stored(run.path, (4, 8, 12))
    outputs(run.path, 1, part="test")
    assert main(["combine", str(run.path)]) == 2
    assert capsys.readouterr().err == (
        f"snapens: {run.path} contains no outputs of the part 'held_out', only of test: "
        "train again with --held-out N and another --out\n"
    )


@pytest.mark.parametrize(
    "command",
    [["combine"], ["evaluate"], ["predict", "a.png"], ["export"], ["distill", "--epochs", "1"], ["combine", "--like"]],
)
def test_the_error_for_a_folder_of_runs_names_some_of_them(tmp_path, capsys, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for name in "cadb":
        stored(tmp_path / "runs" / name, (4,))
    (tmp_path / "runs/e").mkdir()
    name, *others = command
    if others == ["--like"]:
        outputs(stored(tmp_path / "fitted", (4, 8, 12)), 0)
        assert main(["combine", "fitted"]) == 0
        others = ["--like", "fitted"]
    assert main([name, "runs", *others]) == 2
    err = capsys.readouterr().err
    assert "snapens: run must be a folder that holds" in err
    assert err.endswith("got runs: choose a run in it, such as runs/a, runs/b, runs/c, and 1 more\n")


def test_one_of_several_parts_must_be_chosen_if_none_is_the_test_part(folder, capsys):
    outputs(folder, 0, part="a")
    outputs(folder, 0, part="b")
    assert main(["evaluate", str(folder)]) == 2
    assert "part must be one of a, b, got none: choose one with --part" in capsys.readouterr().err
    assert main(["evaluate", str(folder / "none")]) == 2
    assert "must be a folder that holds manifest.json" in capsys.readouterr().err
