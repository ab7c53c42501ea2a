"""What the ledger records, against plain loops over the outputs; what is read back, and what is rejected."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from finished import LABELS, MADE, SINGLE, SNAPSHOT, finished, percent, softmax

from snapens import Snapshots
from snapens.errors import ArgumentError, DamagedError, MismatchError, StoreError
from snapens.lab.paper import cells as paper
from snapens.lab.paper import ledger
from snapens.lab.paper.entry import Entry, Exit, Joint
from snapens.lab.recipe import Settings
from snapens.lab.records import source
from snapens.lab.records.curves import Between, Line
from snapens.lab.records.run import Run


@pytest.fixture(autouse=True)
def data_sets_of_forty_test_images(monkeypatch):
    monkeypatch.setattr(paper, "IMAGES", {name: (train, 40) for name, (train, _) in paper.IMAGES.items()})


def test_an_entry_says_what_the_members_are_worth_alone_and_together(tmp_path):
    run = finished(tmp_path)
    path = ledger.record(run, tmp_path / "results", "3f2a91c")
    entry = ledger.entries(tmp_path / "results")[path.stem]
    p, m = softmax(run), SNAPSHOT.method.cycles
    assert path.name == "densenet40-cifar100-snapshot-0.2-seed0.json"
    assert entry.snapshot_percent == pytest.approx([percent(member) for member in p], abs=1e-4)
    assert entry.last_percent == pytest.approx([percent(p[-k:].mean(0)) for k in range(1, m + 1)], abs=1e-4)
    assert entry.first_percent == pytest.approx([percent(p[:k].mean(0)) for k in range(1, m + 1)], abs=1e-4)
    nll = [-np.mean([np.log(p[-k:].mean(0)[i, label]) for i, label in enumerate(LABELS)]) for k in range(1, m + 1)]
    assert entry.last_nll == pytest.approx(nll, abs=1e-5)
    assert len(set(entry.last_percent)) > 2  # or the tests above say little
    for a in range(m):
        for b in range(m):
            together = np.corrcoef(p[a].ravel(), p[b].ravel())[0, 1]
            assert entry.correlation[a][b] == pytest.approx(together, abs=1e-5)
            assert entry.disagreement[a][b] == pytest.approx(np.mean(p[a].argmax(-1) != p[b].argmax(-1)), abs=1e-5)


def test_an_entry_says_what_made_it(tmp_path):
    entry = Entry.of_run(finished(tmp_path, replace(SNAPSHOT, seed=3)), "3f2a91c")
    assert {"pack": entry.pack, **vars(entry.origin)} == {"commit": "3f2a91c", **MADE}
    assert entry.recipe == replace(SNAPSHOT, seed=3)
    assert entry.name == "densenet40-cifar100-snapshot-0.2-seed3"
    assert (entry.seconds, entry.test_images) == (468.75, 40)
    assert entry.images_per_second == 300 * 50_000 // 64 * 64 / 468.75
    assert entry.snapshot_epochs == pytest.approx((50, 100, 150, 200, 250, 300), abs=0.01)


def test_the_confidence_of_an_ensemble_is_that_of_the_calibration_error_by_hand(tmp_path):
    run = finished(tmp_path)
    for k, found in enumerate(Entry.of_run(run, "c").last_ece, 1):
        p, total = softmax(run)[-k:].mean(0), 0.0
        for low in np.arange(15) / 15:
            rows = [row for row in range(len(LABELS)) if low < p[row].max() <= low + 1 / 15]
            total += abs(sum((p[row].argmax() == LABELS[row]) - p[row].max() for row in rows)) / len(LABELS)
        assert found == pytest.approx(total, abs=1e-5)


def test_early_exit_evaluates_the_last_member_first_and_stops_when_the_mean_is_confident(tmp_path):
    run = finished(tmp_path)
    p, entry = softmax(run), Entry.of_run(run, "c")
    for found in entry.early_exit:
        used, wrong = [], 0
        for i, label in enumerate(LABELS):
            for k in range(1, len(p) + 1):
                mean = p[-k:, i].mean(0)
                if mean.max() >= found.threshold:
                    break
            used.append(k)
            wrong += int(mean.argmax() != label)
        assert found == Exit(found.threshold, round(100 * wrong / 40, 4), round(float(np.mean(used)), 4))
    means = [found.mean_members for found in entry.early_exit]
    assert means == sorted(means)
    assert means[0] < means[-1]


def test_losses_are_kept_with_their_rates_thinned_to_300_points(tmp_path):
    short = Entry.of_run(finished(tmp_path / "short"), "c").losses
    assert short.epoch == (0, 0.5, 1, 1.5, 2, 2.5, 3)
    assert short.loss == (1, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625)
    assert short.lr == pytest.approx([0.1 / k for k in range(1, 8)], rel=1e-4)
    long = Entry.of_run(finished(tmp_path / "long", trained=1001), "c").losses
    assert {len(values) for values in vars(long).values()} == {300}
    assert (long.epoch[0], long.epoch[-1]) == (0, 500)
    assert max(np.diff(long.epoch)) <= 2  # evenly: every third or fourth of 1,001 half epochs


def test_the_lines_between_snapshots_are_kept_where_they_were_measured(tmp_path):
    run = finished(tmp_path)
    assert Entry.of_run(run, "c").between is None
    path = ledger.record(run, tmp_path / "results", "c")
    lines = Between((0.0, 0.5, 1.0), tuple(Line(k, (20, 90, 30), (20, 25, 30)) for k in (1, 5)), "images")
    run.keep_curves(lines)
    assert ledger.record(run, tmp_path / "results", "c") == path  # they may come later
    assert ledger.entries(tmp_path / "results")[path.stem].between == lines
    run.keep_curves(replace(lines, estimated_from="other images"))
    with pytest.raises(StoreError, match="now differs in between: remove"):
        ledger.record(run, tmp_path / "results", "c")


def test_a_run_of_one_snapshot_has_an_entry(tmp_path):
    cell = paper.find("resnet50-imagenet-single")
    run = finished(tmp_path, cell.recipe)
    path = ledger.record(run, tmp_path / "results", "c")
    entries = ledger.entries(tmp_path / "results")
    assert entries[path.stem].correlation == ((1,),)
    assert ledger.measured(cell, entries) == [percent(softmax(run)[0])]


def test_what_is_read_is_what_was_recorded(tmp_path):
    runs = [finished(tmp_path, replace(SINGLE, seed=seed)) for seed in (0, 1)]
    runs[0].keep_curves(Between((0.0, 0.5, 1.0), (), "images"))
    for run in runs:
        ledger.record(run, tmp_path / "results", "c")
    ledger.record_together(runs, tmp_path / "results")
    found = ledger.entries(tmp_path / "results")
    assert [found[run.path.name] for run in runs] == [Entry.of_run(run, "c") for run in runs]
    assert sorted(found) == [
        "densenet40-cifar100-single-seed0",
        "densenet40-cifar100-single-seed1",
        "densenet40-cifar100-single-x2-seeds0-1",
    ]
    assert ledger.entries(tmp_path / "nowhere") == {}
    assert all(path.stat().st_size < 100_000 for path in (tmp_path / "results").iterdir())


def lose_the_last_snapshot(run):
    store = Snapshots(run.path)
    store.open_to_write(resume=True)
    *kept, _ = store.steps
    store.rewind(kept[-1])
    store.commit(kept[-1] + 1, {"weight": torch.zeros(2)})
    store.close()


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (lambda run: (run.path / "log.jsonl").write_text(""), StoreError, "run must be finished to be recorded, got"),
        (lambda run: (run.path / "recipe.json").unlink(), StoreError, "run must be a folder that holds recipe.json"),
        (lose_the_last_snapshot, DamagedError, "must hold 6 snapshots, the last at step 234375"),
        (lambda run: (run.path / "curves.json").write_text("{}"), DamagedError, "curves.json must be unaltered"),
        (
            lambda run: run.note("trained", epoch=1),
            DamagedError,
            "log.jsonl must be unaltered",
        ),
        (lambda run: run.note("finished", **{**MADE, "seconds": "?"}), DamagedError, "must be unaltered"),
        (lambda run: run.note("finished", seconds=1.0), DamagedError, "must state seconds, device, torch and snapens"),
        (lambda run: run.note("finished", seconds=1.0, **{**MADE, "device": 7}), DamagedError, "must be unaltered"),
    ],
)
def test_a_run_that_is_not_whole_is_rejected(tmp_path, spoil, kind, message):
    run = finished(tmp_path)
    spoil(run)
    with pytest.raises(kind, match=message):
        ledger.record(Run(run.path), tmp_path / "results", "c")
    assert not (tmp_path / "results").exists()


def test_a_run_of_any_recipe_is_recorded_under_a_name_of_its_own(tmp_path):
    results = tmp_path / "results"
    changes = ({"seed": 123_456}, {"lr": 0.3}, {"weight_decay": 5e-4}, {"held_out": 500}, {"epochs": 299})
    single = Settings(network="densenet40", dataset="cifar100", method="single", epochs=300, cycles=6)
    assert single.recipe() == SINGLE
    recipes = [replace(single, **change).recipe() for change in changes]
    recipes.append(replace(single, dataset="folder", network="mine:net", epochs=3).recipe())
    paths = [ledger.record(finished(tmp_path, recipe), results, "c") for recipe in recipes]
    entries = ledger.entries(results)
    assert [entries[path.stem].recipe for path in paths] == recipes
    assert ledger.measured(paper.find("densenet40-cifar100-single"), entries) == [
        entries[paths[0].stem].last_percent[0]
    ]
    assert entries[paths[-1].stem].snapshot_epochs == pytest.approx([0.48, 0.96, 1.44, 1.92, 2.4, 2.96])


def test_a_run_on_part_of_a_known_data_set_is_rejected(tmp_path):
    run = finished(tmp_path, images=49_999)
    with pytest.raises(
        ArgumentError, match=r"run must be trained on the 50,000 images of cifar100, got .* with 49,999"
    ):
        ledger.record(run, tmp_path / "results", "c")


@pytest.mark.parametrize("words", ["", "two\nlines", "\x1b[31mred", "Grafikkarte für alle", "x" * 201])
def test_names_that_are_not_plain_text_are_rejected(tmp_path, words):
    with pytest.raises(ArgumentError, match="device must be one line of at most 200 printable ASCII characters, got"):
        ledger.record(finished(tmp_path, device=words), tmp_path, "c")
    (tmp_path / "other").mkdir()
    with pytest.raises(ArgumentError, match="commit must be one line"):
        ledger.record(finished(tmp_path / "other"), tmp_path, words)


def test_a_result_stays_unless_it_is_said_to_be_overwritten(tmp_path):
    results = tmp_path / "results"
    path = ledger.record(finished(tmp_path / "a"), results, "first")
    before, run = path.read_bytes(), Run(tmp_path / "a" / path.stem)
    assert ledger.record(run, results, "first") == path
    with pytest.raises(
        StoreError, match=r"must not change, but .*-seed0 now differs in origin: remove .*\(--overwrite\)"
    ):
        ledger.record(run, results, "second")
    assert path.read_bytes() == before
    other = finished(tmp_path / "b", labels=LABELS[::-1].copy(), seconds=9.0)
    with pytest.raises(
        StoreError, match=r"must not change, but .*-seed0 now differs in .*last_percent.*, seconds.*: remove"
    ):
        ledger.record(other, results, "first")
    assert path.read_bytes() == before
    ledger.record(other, results, "third", overwrite=True)
    assert ledger.entries(results)[path.stem] == Entry.of_run(other, "third")
    assert [file.name for file in results.iterdir()] == [path.name]


def test_a_commit_of_other_code_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "digest_at", {"first": "a", "second": "b", "unknown": None}.get)
    run, mixed = finished(tmp_path, sources="a"), finished(tmp_path, SINGLE, sources="a b")
    for wrong in ((run, "second"), (mixed, "first"), (mixed, "second")):
        with pytest.raises(
            MismatchError, match=r"commit must be that of the code that trained .*, got \w+, which has different code"
        ):
            ledger.record(wrong[0], tmp_path / "results", wrong[1])
    assert not (tmp_path / "results").exists()
    ledger.record(run, tmp_path / "results", "first")
    ledger.record(mixed, tmp_path / "results", "unknown")  # git cannot tell: the caller's word
    ledger.record(finished(tmp_path, replace(SINGLE, seed=1)), tmp_path / "results", "second")  # nor can an old log


def test_a_disk_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "results").write_text("a file")
    with pytest.raises(StoreError, match=r"seed0\.json could not be written .*: a file is where a folder must be"):
        ledger.record(finished(tmp_path), tmp_path / "results", "c")


def test_what_cannot_be_read_is_not_what_is_not_there(tmp_path):
    run, results, loop = finished(tmp_path), tmp_path / "results", tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(StoreError, match=r"loop could not be read \(.*\): check its permissions"):
        ledger.entries(loop)
    ledger.record(run, results, "c").unlink()
    (results / f"{run.path.name}.json").mkdir()
    for ask in (lambda: ledger.entries(results), lambda: ledger.record(run, results, "c")):
        with pytest.raises(StoreError, match=r"seed0\.json must be a regular file"):
            ask()
    assert ledger.entries(tmp_path / "none") == {}


@pytest.fixture
def recorded(tmp_path):
    """Three fully trained models and two Snapshot Ensembles, and the ledger that knows them."""
    singles = [finished(tmp_path, replace(SINGLE, seed=seed)) for seed in range(3)]
    snapshots = [finished(tmp_path, replace(SNAPSHOT, seed=seed)) for seed in range(2)]
    for run in (*singles, *snapshots):
        ledger.record(run, tmp_path / "results", f"commit{run.recipe.seed}")
    return singles, snapshots, tmp_path / "results"


def test_several_runs_together_are_the_mean_of_their_softmax(recorded):
    singles, snapshots, results = recorded
    kept = ledger.record_together([*singles, *snapshots], results)
    assert sorted(path.stem for path in kept) == [
        "densenet40-cifar100-single-x2-seeds0-1",
        "densenet40-cifar100-single-x3-seeds0-2",
        "densenet40-cifar100-snapshot-0.2-x2-seeds0-1",
    ]
    entries = ledger.entries(results)
    for cell, members in {
        "densenet40-cifar100-single-x2": [softmax(run)[-1:] for run in singles[:2]],
        "densenet40-cifar100-single-x3": [softmax(run)[-1:] for run in singles],
        "densenet40-cifar100-snapshot-0.2-x2": [softmax(run) for run in snapshots],
    }.items():
        together = percent(np.concatenate(members).mean(0))
        assert ledger.measured(paper.find(cell), entries) == pytest.approx([together], abs=1e-4)
    joint = entries["densenet40-cifar100-single-x3-seeds0-2"]
    assert joint.runs == tuple(run.path.name for run in singles)
    assert [origin.commit for origin in joint.origins] == ["commit0", "commit1", "commit2"]
    assert (joint.seconds, joint.test_images) == (3 * 468.75, 40)
    assert ledger.origins(paper.find(joint.cell), entries) == list(joint.origins)
    two = ledger.origins(paper.find("densenet40-cifar100-single-x2"), entries)
    assert [origin.commit for origin in two] == ["commit0", "commit1"]
    alone = ledger.origins(paper.find("densenet40-cifar100-snapshot-0.2"), entries)
    assert [origin.commit for origin in alone] == ["commit0", "commit1"]


def test_a_set_of_runs_is_recorded_when_all_of_it_is_there_and_in_the_ledger(recorded):
    singles, _, results = recorded
    assert ledger.record_together(singles[1:], results) == []
    (results / "densenet40-cifar100-single-seed0.json").unlink()
    assert ledger.record_together(singles, results) == []
    assert ledger.record_together([], results) == []
    assert ledger.record_together([finished(results.parent, replace(SINGLE, seed=1 << 62))], results) == []


def test_a_run_that_is_overwritten_takes_what_it_had_a_part_in_with_it(recorded):
    singles, snapshots, results = recorded
    ledger.record_together([*singles, *snapshots], results)
    ledger.record(singles[2], results, "another", overwrite=True)
    joints = [name for name, entry in ledger.entries(results).items() if isinstance(entry, Joint)]
    assert joints == ["densenet40-cifar100-single-x2-seeds0-1", "densenet40-cifar100-snapshot-0.2-x2-seeds0-1"]
    ledger.record_together(singles, results)
    again = ledger.entries(results)["densenet40-cifar100-single-x3-seeds0-2"]
    assert [origin.commit for origin in again.origins] == ["commit0", "commit1", "another"]
    ledger.record(singles[0], results, "commit0")  # nothing new
    assert ledger.entries(results)[again.name] == again
    ledger.record(singles[0], results, "another", overwrite=True)
    joints = [name for name, entry in ledger.entries(results).items() if isinstance(entry, Joint)]
    assert joints == ["densenet40-cifar100-snapshot-0.2-x2-seeds0-1"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("read-only file system")])
def test_a_recording_that_was_interrupted_before_outdated_numbers_were_removed_is_completed(
    recorded, monkeypatch, error
):
    singles, _, results = recorded
    ledger.record_together(singles, results)

    def fail(path, **_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail)
        with pytest.raises((StoreError, KeyboardInterrupt), match=r"could not be removed \(read-only|^$"):
            ledger.record(singles[1], results, "another", overwrite=True)
    with pytest.raises(DamagedError, match="are missing or have changed"):
        ledger.entries(results)
    ledger.record(singles[1], results, "another")
    assert not any(isinstance(found, Joint) for found in ledger.entries(results).values())
    assert len(ledger.record_together(singles, results)) == 2
    assert len(ledger.entries(results)) == 7


def test_a_number_of_runs_that_are_missing_or_have_changed_is_rejected(recorded):
    singles, _, results = recorded
    ledger.record_together(singles, results)
    joints = sorted(path.stem for path in results.glob("*-x?-*"))
    path = results / "densenet40-cifar100-single-seed1.json"
    content = path.read_text()
    for damage in (path.unlink, lambda: path.write_text(content.replace("commit1", "another"))):
        damage()
        with pytest.raises(
            DamagedError,
            match=rf"but the runs of {joints[0]}.json, {joints[1]}.json are missing or have changed: remove",
        ):
            ledger.entries(results)
    path.write_text(content)
    assert sorted(name for name, found in ledger.entries(results).items() if isinstance(found, Joint)) == joints
    path.unlink()
    ledger.record(singles[1], results, "another")  # a new result: the old numbers are gone
    assert not any(isinstance(found, Joint) for found in ledger.entries(results).values())


def test_another_number_of_test_images_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "IMAGES", {**paper.IMAGES, "cifar100": (50_000, 10_000)})
    with pytest.raises(ArgumentError, match="test_images must be 10,000 for cifar100, got 40"):
        ledger.record(finished(tmp_path), tmp_path / "results", "c")


def test_repetitions_have_no_seed_in_common(recorded, tmp_path):
    singles, _, results = recorded
    run = finished(tmp_path, replace(SINGLE, seed=3))
    ledger.record(run, results, "c")
    kept = ledger.record_together([*singles, run], results)
    assert [path.stem for path in kept if "-x2-" in path.stem] == [
        "densenet40-cifar100-single-x2-seeds0-1",
        "densenet40-cifar100-single-x2-seeds2-3",
    ]
    assert len(ledger.measured(paper.find("densenet40-cifar100-single-x2"), ledger.entries(results))) == 2


def test_runs_on_other_test_images_are_not_averaged(tmp_path):
    runs = [finished(tmp_path, SINGLE), finished(tmp_path, replace(SINGLE, seed=1), labels=(LABELS + 1) % 10)]
    for run in runs:
        ledger.record(run, tmp_path / "results", "c")
    with pytest.raises(
        MismatchError, match="runs must have been tested on the same images in the same order, but those of"
    ):
        ledger.record_together(runs, tmp_path / "results")


def test_cells_read_what_is_theirs_of_every_seed(recorded):
    singles, snapshots, results = recorded
    entries = ledger.entries(results)
    last, every = ([percent(of(softmax(run))) for run in singles] for of in (lambda p: p[-1], lambda p: p.mean(0)))
    assert ledger.measured(paper.find("densenet40-cifar100-single"), entries) == pytest.approx(last, abs=1e-4)
    assert ledger.measured(paper.find("densenet40-cifar100-nocycle"), entries) == pytest.approx(every, abs=1e-4)
    ours = [percent(softmax(run).mean(0)) for run in snapshots]
    for name in ("densenet40-cifar100-snapshot-0.2", "densenet40-cifar100-m6"):  # two cells of one recipe
        assert ledger.measured(paper.find(name), entries) == pytest.approx(ours, abs=1e-4)
    assert ledger.measured(paper.find("densenet40-cifar100-snapshot-0.1"), entries) == []
    assert ledger.measured(paper.find("densenet40-cifar100-single-x2"), entries) == []
    seeds = [entry.recipe.seed for entry in ledger.runs_of(paper.find("densenet40-cifar100-single"), entries)]
    assert seeds == [0, 1, 2]


def changed(**changes):
    return lambda text: json.dumps({**json.loads(text), **changes})


def lines(**changes):
    line = {"snapshot": 1, "interpolated_percent": [1.0] * 3, "estimated_percent": [1.0] * 3}
    return {"last_share": [0.0, 0.5, 1.0], "lines": [{**line, **changes}], "estimated_from": "images"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-10], "Expecting|delimiter|Unterminated"),
        (lambda text: "[]", "format None instead of 2"),
        (changed(format=True), "format True instead of 2"),
        (changed(format=3), "format 3, but this snapens reads up to 2: install a newer snapens"),
        (changed(format=0), "format 0 instead of 2"),
        (changed(kind="rumour"), "kind must be one of run, runs together, got 'rumour'"),
        (changed(kind=["run"]), "kind must be one of"),
        (changed(more=1), "entry must be an object of recipe, origin, seconds"),
        (changed(recipe={"network": "wrn32", "lr": "high"}), "lr must be float, got 'high'"),
        (changed(recipe=replace(SNAPSHOT, seed=9).written()), "the file's name must be that of its content, .*-seed9"),
        (changed(seconds="long"), "seconds must be float, got 'long'"),
        (changed(seconds=True), "seconds must be float, got 'True'"),
        (changed(test_images=1.5), "test_images must be int"),
        (changed(last_percent=[1.0]), "each series of an entry must have 6 numbers, one per snapshot"),
        (changed(last_percent=7), "last_percent must be"),
        (changed(correlation=[[1.0]] * 6), "each series of an entry must have 6 numbers"),
        (
            changed(losses={"epoch": [1.0], "lr": [], "loss": []}),
            "losses must have equally many epochs, learning rates and losses",
        ),
        (changed(between=lines(snapshot=6)), "a line must start at a snapshot before the last one, which is 6"),
        (changed(between=lines(estimated_percent=[])), "a line must have a percentage for each of 3 shares"),
        (changed(test_images=41), "test_images must be 40 for cifar100, got 41"),
        (changed(snapshot_percent=[1.0, 2.0, 3.0, 4.0, 5.0, 101.0]), "errors must be between 0 and 100 percent"),
        (changed(early_exit=[{"threshold": 0.5, "error_percent": -1.0, "mean_members": 1.0}]), "errors must be"),
        (changed(last_percent=[1.5, 2.0, 3.0, 4.0, 5.0, 6.0]), "an ensemble of one snapshot must have the error"),
        (changed(first_percent=[1.5, 2.0, 3.0, 4.0, 5.0, 6.0]), "an ensemble of one snapshot must have the error"),
        (changed(last_ece=[1.5] * 6), "must be within their ranges"),
        (changed(correlation=[[-1.5] * 6] * 6), "must be within their ranges"),
        (changed(disagreement=[[1.5] * 6] * 6), "must be within their ranges"),
        (changed(last_nll=[-1.0] * 6), "must be within their ranges"),
        (changed(seconds=-1.0), "must be within their ranges"),
        (changed(pack=0), "must be within their ranges"),
        (lambda text: text.replace('"seconds": 468.75', '"seconds": 1e999'), "seconds must be float, got 'inf'"),
        (lambda text: text.replace('"seconds": 468.75', '"seconds": NaN'), "NaN is not JSON"),
        (
            lambda text: text.replace('"seconds": 468.75', '"seconds": 1' + "0" * 400),
            "seconds must be float, got '1000",
        ),
        (lambda text: text.replace('"seconds": 468.75', '"seconds": 1, "seconds": 2'), "duplicate key"),
        (lambda text: text.replace("NVIDIA H200", "<b>\\u0007"), "device must be one line"),
        (lambda text: "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_not_an_entry_is_rejected(tmp_path, change, message):
    path = ledger.record(finished(tmp_path), tmp_path / "results", "c")
    text = change(path.read_text())
    assert text != path.read_text()
    path.write_text(text)
    with pytest.raises(DamagedError, match=rf"seed0\.json must be an entry of the ledger, got .*({message})"):
        ledger.entries(tmp_path / "results")
    with pytest.raises(DamagedError):
        ledger.record(Run(tmp_path / path.stem), tmp_path / "results", "c")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "densenet40-cifar100-single-x9"}, "unknown cell 'densenet40-cifar100-single-x9'"),
        ({"repetition": -1}, "runs must be those of repetition -1"),
        ({"runs": ("a", "b")}, "runs must be those of repetition 0 of densenet40-cifar100-single-x2, got"),
        ({"origins": ()}, "origins must have one entry per run, 2, got 0"),
    ],
)
def test_a_number_of_several_runs_is_of_the_cells_own_runs(recorded, changes, message):
    singles, _, results = recorded
    ledger.record_together(singles, results)
    joint = ledger.entries(results)["densenet40-cifar100-single-x2-seeds0-1"]
    assert isinstance(joint, Joint)
    with pytest.raises(ArgumentError, match=message):
        replace(joint, **changes)


def test_the_ledger_is_read_without_torch(tmp_path):
    ledger.record(finished(tmp_path), tmp_path / "results", "c")
    code = (
        "import sys; from pathlib import Path; from snapens.lab.paper import cells as paper, ledger\n"
        "paper.IMAGES['cifar100'] = (50_000, 40)\n"
        f"entries = ledger.entries(Path({str(tmp_path / 'results')!r}))\n"
        "assert len(ledger.measured(paper.find('densenet40-cifar100-m6'), entries)) == 1\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
