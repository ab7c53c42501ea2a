"""The folder of a run: its recipe, its data and its ensemble."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from begun_runs import DATA, LABELS, begun, failing, kept, member, state

from snapens import Combination
from snapens.errors import ArgumentError, DamagedError, MismatchError, StoreError
from snapens.lab.records import format_1, gallery
from snapens.lab.records.curves import Between, Line
from snapens.lab.records.run import Run
from snapens.lab.records.runs import runs_in
from snapens.outputs import Outputs
from snapens.storage import jsonfile, parts, sealed


def test_a_run_knows_what_it_is(tmp_path):
    recipe = tiny.recipe(method="grow", pattern=("warm", "fresh"), lr=0.123456789)
    assert not Run(tmp_path).exists
    begun(tmp_path, recipe)
    run = Run(tmp_path)
    assert run.exists
    assert run.recipe == recipe
    assert run.data == DATA
    content = json.loads((tmp_path / "recipe.json").read_text())
    assert list(content) == ["format", "kind", "run", "recipe", "data", "sha256"]
    assert (content["format"], content["kind"], content["run"]) == (2, "recipe", run.snapshots.identity["run"])
    assert content["recipe"]["method"] == {"kind": "grow", "cycles": 2, "pattern": ["warm", "fresh"]}


def test_a_run_is_resumed_with_its_own_recipe_and_data_alone(tmp_path):
    begun(tmp_path)
    before = (tmp_path / "recipe.json").read_bytes()
    Run(tmp_path).begin(tiny.recipe(), DATA)
    with pytest.raises(MismatchError) as caught:
        Run(tmp_path).begin(tiny.recipe(lr=0.5, seed=9), DATA)
    assert str(caught.value) == (
        f"recipe must be that of the run in {tmp_path} to resume it, got (old, new) optimizer.lr: 0.05, 0.5; "
        "seed: 0, 9: use the same settings, or another folder (--out)"
    )
    with pytest.raises(MismatchError, match=r"data must be that of the run in .* to resume it, got other preproc"):
        Run(tmp_path).begin(
            tiny.recipe(), {**DATA, "preprocessing": {**DATA["preprocessing"], "mean": [1.0, 2.0, 3.0]}}
        )
    assert (tmp_path / "recipe.json").read_bytes() == before


def test_a_run_whose_recipe_is_lost_is_not_started_again(tmp_path):
    run = begun(tmp_path)
    run.save(state(3))
    (tmp_path / "recipe.json").unlink()
    for resume in (False, True):
        with pytest.raises(DamagedError, match=r"contains a state, but recipe\.json is missing: restore it"):
            run.admit(tiny.RECIPE, resume)


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(StoreError, match=rf"run must be a folder that holds recipe.json, got {tmp_path}: check the"):
        _ = Run(tmp_path).recipe


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: b"",
        lambda text: b"[]",
        lambda text: b"[" * 200_000,
        lambda text: text.replace(b'"data"', b'"date"'),
        lambda text: text.replace(b'"lr": 0.05', b'"lr": NaN'),
        lambda text: text.replace(b'"lr": 0.05', b'"lr": "0.05"'),
        lambda text: text.replace(b'"lr": 0.05', b'"lr": 0.05, "lr": 0.06'),
        lambda text: text.replace(b'"lr": 0.05', b'"rate": 0.05'),
        lambda text: text.replace(b'"batch": 8', b'"batch": 0'),
        lambda text: text.replace(b'"images": {', b'"images": "", "other": {'),
        lambda text: text.replace(b'"classes": [', b'"classes": 3, "other": ['),
    ],
)
@pytest.mark.parametrize("of_format_1", [False, True])
def test_a_recipe_that_was_altered_is_rejected(tmp_path, change, of_format_1):
    begun(tmp_path)
    path = tmp_path / "recipe.json"
    if of_format_1:
        path.write_bytes(jsonfile.dumps({"recipe": tiny.FORMAT_1, "data": DATA}))
        assert Run(tmp_path).recipe == tiny.RECIPE
    changed = change(path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    # without a checksum, a field that was renamed may be one of a newer version
    with pytest.raises(
        StoreError if of_format_1 else DamagedError,
        match=r"recipe\.json (must be unaltered, got .*: restore the file|cannot be interpreted)",
    ):
        _ = Run(tmp_path).recipe


@pytest.mark.parametrize("of_format_1", [False, True])
def test_a_newer_field_in_a_recipe_is_not_said_to_be_damage(tmp_path, of_format_1):
    run = begun(tmp_path)
    recipe = tiny.FORMAT_1 if of_format_1 else tiny.RECIPE.written()
    content = {"recipe": {**recipe, "novelty": 1}, "data": DATA}
    sealed_content = sealed.encode("recipe", run.identity, content)
    (tmp_path / "recipe.json").write_bytes(jsonfile.dumps(content) if of_format_1 else sealed_content)
    with pytest.raises(StoreError, match=r"recipe\.json cannot be interpreted .*novelty.*: install a newer") as caught:
        _ = Run(tmp_path).recipe
    assert not isinstance(caught.value, DamagedError)


OUTPUTS = {"test": (torch.zeros(2, 3).half(), torch.tensor([0, 1]))}


@pytest.mark.parametrize(
    ("name", "write"),
    [("state", lambda run: run.save(state(4))), ("outputs", lambda run: run.add_outputs(4, OUTPUTS, "step-000000004"))],
)
def test_a_folder_that_is_a_symbolic_link_is_not_written_through(tmp_path, name, write):
    outside, run = tmp_path / "outside", begun(tmp_path / "run")
    outside.mkdir()
    (run.path / name).symlink_to(outside)
    with pytest.raises(StoreError, match=rf"{name} must be a folder, got a symbolic link: replace it by the folder"):
        write(run)
    assert not list(outside.iterdir())


SWAPS = {
    "recipe": ("recipe.json", lambda run: run.recipe),
    "log": ("log.jsonl", lambda run: list(run.log())),
    "state": ("state", lambda run: run.state()),
    "outputs": ("outputs", lambda run: run.outputs()),
    "curves": ("curves.json", lambda run: run.curves()),
    "gallery": ("gallery.json", gallery.read),
}


@pytest.mark.parametrize(("name", "read"), SWAPS.values(), ids=SWAPS)
def test_a_file_of_another_run_is_rejected(tmp_path, name, read):
    for folder in ("a", "b"):
        run = begun(tmp_path / folder)
        kept(run.path, 10, 20)
        for step in (10, 20):
            run.add_outputs(step, {"test": (member(step), LABELS)})
        run.save(state(4))
        run.note("trained", step=5)
        run.keep_curves(Between((0.0, 0.5, 1.0), (Line(1, (1.0, 2.0, 3.0), (1.0, 2.0, 3.0)),), "nothing"))
        gallery.keep(run, np.zeros((6, 4, 4, 1), np.uint8).__getitem__)
        read(Run(run.path))
    target = tmp_path / "a" / name
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    (shutil.copytree if (tmp_path / "b" / name).is_dir() else shutil.copy)(tmp_path / "b" / name, target)
    with pytest.raises(DamagedError, match="must belong to run"):
        read(Run(tmp_path / "a"))


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("outputs.safetensors", lambda run: format_1.adopt_outputs(run, ["test"])),
        ("manifest.json", lambda run: run.recipe),
        ("state.previous.json", lambda run: run.state()),
    ],
)
def test_a_disk_that_cannot_find_a_file_is_an_error_of_our_own(tmp_path, monkeypatch, name, read):
    run, found = Run(tmp_path), Path.stat
    if name == "state.previous.json":
        run = begun(tmp_path)
        run.save(state(4))
        (tmp_path / "state/state.json").write_bytes(b"{")

    def broken(path, **options):
        if path.name == name:
            raise OSError(errno.EIO, "Input/output error")
        return found(path, **options)

    monkeypatch.setattr(Path, "stat", broken)
    with pytest.raises(StoreError, match=rf"{name} could not be read .*Input/output error"):
        read(run)


@pytest.mark.parametrize("listing", [parts.names, runs_in])
def test_a_folder_that_the_disk_cannot_list_is_not_taken_for_empty(tmp_path, monkeypatch, listing):
    (tmp_path / "outputs").mkdir()
    monkeypatch.setattr(os, "listdir", failing(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(StoreError, match=r"could not be read .*Input/output error"):
        listing(tmp_path)


def test_probabilities_add_up_to_one_and_errors_are_counted_by_hand():
    members = np.array([[[0.6, 0.4], [0.3, 0.7], [0.9, 0.1]], [[0.1, 0.9], [0.2, 0.8], [0.2, 0.8]]])
    outputs = Outputs((("a", 1), ("a", 2)), np.log(members).astype(np.float16), np.array([0, 1, 0]))
    assert np.allclose(outputs.probabilities, members, atol=1e-3)
    assert np.allclose(outputs.probabilities.sum(-1), 1, atol=1e-12)
    assert outputs.member_errors == pytest.approx([0, 2 / 3])
    # the last alone; both: (0.35, 0.65), (0.25, 0.75), (0.55, 0.45)
    assert outputs.ensemble_errors == pytest.approx([2 / 3, 1 / 3])


def test_pixels_are_prepared_as_they_were_for_training(tmp_path):
    data = tiny.data()
    Run(tmp_path).begin(tiny.recipe(), data.described())
    placed = data.place(torch.device("cpu"))
    found = Run(tmp_path).preprocessing(data.test.pixels)
    assert torch.equal(found, next(placed.batches(data.test)))
    mean, deviation = data.normalisation()
    expected = (data.test.pixels - np.array(mean)) / np.array(deviation)
    assert np.abs(found.permute(0, 2, 3, 1).numpy() - expected).max() < 1e-6
    assert repr(Run("runs/a")) == "Run('runs/a')"


def test_a_run_without_a_description_of_its_preprocessing_says_so(tmp_path):
    Run(tmp_path).begin(tiny.RECIPE, {"classes": ["a", "b"]})
    with pytest.raises(
        StoreError, match=r"recipe.json must describe the preprocessing of the run, but that in .* does"
    ):
        Run(tmp_path).ensemble(import_network=True)


def test_a_damaged_preprocessing_is_not_interpreted(tmp_path):
    run = begun(tmp_path)
    tiny.altered(run.path / "recipe.json", lambda text: text.replace('"deviation": [', '"deviation": [0.0, '))
    with pytest.raises(StoreError, match="deviation must have one number per mean"):
        Run(tmp_path).data  # noqa: B018


def with_snapshots(path, network="tiny:net"):
    """A run of two snapshots, and its network with the weights of the last one."""
    run = begun(path, tiny.recipe(network=network))
    model = tiny.net(classes=4, channels=3).eval()
    snapshots = run.snapshots
    snapshots.open_to_write()
    for step in (4, 8):
        with torch.no_grad():
            model.head.weight.mul_(step)
        snapshots.commit(step, model.state_dict())
    snapshots.close()
    return run, model


def test_the_ensemble_of_a_run_takes_raw_examples_or_the_inputs_of_its_network(tmp_path):
    run, model = with_snapshots(tmp_path)
    pixels = tiny.data().test.pixels
    inputs = run.preprocessing(pixels)
    expected = model(inputs).softmax(-1)
    with pytest.raises(ArgumentError, match=r"import_network must be given for the network 'tiny:net' of .*=True\)"):
        run.ensemble()
    raw = run.ensemble(last=1, import_network=True)
    torch.testing.assert_close(raw(torch.from_numpy(pixels)), expected)
    torch.testing.assert_close(raw.predict([torch.from_numpy(pixels)]), expected)
    torch.testing.assert_close(run.ensemble(last=1, raw=False, resident=False, import_network=True)(inputs), expected)
    assert run.ensemble(import_network=True).steps == (4, 8)
    combination = Combination(((run.identity, 4),), temperature=2.0)
    assert run.ensemble(combination=combination, import_network=True).combination == combination


def test_a_network_of_ones_own_must_still_be_importable(tmp_path):
    run, _ = with_snapshots(tmp_path, network="gone:net")
    message = r"module:callable that Python can import, got 'gone:net' \(ModuleNotFoundError: .* PYTHONPATH"
    with pytest.raises(ArgumentError, match=message):
        run.ensemble(import_network=True)


def test_a_network_that_was_changed_since_the_training_is_rejected(tmp_path):
    run, _ = with_snapshots(tmp_path, network="tiny:wide")
    with pytest.raises(MismatchError, match="model must have the architecture of the snapshot of step"):
        run.ensemble(import_network=True)
