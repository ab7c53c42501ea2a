"""The numbers of a report, against plain float64 loops over examples."""

import json
from collections import Counter

import folders
import numpy as np
import pytest
import safetensors.torch
import tiny
import torch
from conftest import score
from scipy.stats import binomtest

from snapens.errors import ArgumentError, DamagedError, MismatchError
from snapens.lab.recipe import CrossEntropy, Distillation, Recipe, Teacher
from snapens.lab.records import gallery
from snapens.lab.records.run import Run
from snapens.quality import Difference
from snapens.report.comparison import _names
from snapens.report.summary import summarise


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    return folders.with_curves(folders.made(path, members=4, examples=120, held_out=50, lr=0.2), bump=0.2)


@pytest.fixture(scope="module")
def summary(run):
    return summarise([run])


def test_members_and_ensembles_are_worth_what_a_loop_finds(run, summary):
    outputs = run.outputs()
    p, labels, focus = folders.softmax(outputs), outputs.labels, summary.focus
    for k in range(4):
        for found, chosen in ((focus.members, p[k : k + 1]), (focus.first, p[: k + 1]), (focus.last, p[3 - k :])):
            wanted = score(sum(chosen) / len(chosen), labels)
            assert (found[k].error, found[k].nll, found[k].ece) == pytest.approx(wanted, abs=1e-12)
    assert focus.single == focus.members[-1] == focus.last[0]
    assert focus.ensemble == focus.last[-1]
    assert summary.over_last.value == pytest.approx(outputs.ensemble_errors[-1] - outputs.member_errors[-1])


def test_the_log_gives_minima_losses_and_cost(run, summary):
    focus = summary.focus
    assert focus.steps == (32, 64, 96, 128)
    assert focus.minima == (4.0, 8.0, 12.0, 16.0)
    assert (focus.trace.seconds, focus.trace.device) == (12.5, "CPU")
    assert [focus.trace.loss_at(step) for step in (32, 128, 5)] == [1.0, 0.25, None]
    epochs, rates = focus.rates()
    schedule = run.recipe.schedule(folders.IMAGES)
    assert epochs == sorted(epochs)
    assert rates == [0.2 * schedule(round(epoch * folders.IMAGES / 8)) for epoch in epochs]
    assert rates[epochs.index(4.0)] == 0.2
    assert (epochs[0], epochs[-1]) == (0, 127 / 8)  # the first step and the last
    assert 31 / 8 in epochs  # and the one before a jump


def test_without_early_exit_the_table_is_the_ensembles_on_the_images_that_were_held_out(run, summary):
    exits, held_out = summary.details.exits, run.outputs("held_out")
    wanted = [score(folders.softmax(held_out)[-m:].mean(0), held_out.labels) for m in (1, 2, 3, 4)]
    assert exits.error[:, -1] == pytest.approx([error for error, _, _ in wanted])
    assert exits.nll[:, -1] == pytest.approx([nll for _, nll, _ in wanted])
    assert exits.used[:, -1].tolist() == [1, 2, 3, 4]
    assert exits.error[:, -1].tolist() != [found.error for found in summary.focus.last]


def test_where_nothing_was_held_out_the_table_is_of_the_test_images(tmp_path):
    summary = summarise([folders.made(tmp_path / "run", members=4)])
    assert summary.details.exits.error[:, -1] == pytest.approx([found.error for found in summary.focus.last])


def test_a_difference_is_paired():
    wrong, other = np.array([1, 1, 0, 0, 1], bool), np.array([0, 1, 0, 1, 0], bool)
    differences = [1.0, 0.0, 0.0, -1.0, 1.0]
    mean = sum(differences) / 5
    deviation = (sum((d - mean) ** 2 for d in differences) / 5) ** 0.5
    found = Difference.of(wrong, other)
    assert (found.value, found.standard_error) == pytest.approx((mean, deviation / 5**0.5))
    assert (found.more, found.fewer, found.examples) == (2, 1, 5)


@pytest.mark.parametrize(("more", "fewer"), [(0, 0), (4, 0), (7, 1), (1, 7), (30, 12), (900, 1000), (2600, 2400)])
def test_the_chance_of_a_difference_is_that_of_scipys_binomial_test(more, fewer):
    wanted = binomtest(more, more + fewer, alternative="greater").pvalue if more + fewer else 1.0
    assert Difference(more, fewer, 10_000).chance == pytest.approx(wanted, rel=1e-9)
    assert -Difference(more, fewer, 10_000) == Difference(fewer, more, 10_000)


def test_reliability_counts_every_example_once(run, summary):
    outputs = run.outputs()
    bins: dict[int, list[tuple[float, bool]]] = {}
    for p, label in zip(folders.softmax(outputs).mean(0), outputs.labels, strict=True):
        bins.setdefault(int(np.ceil(p.max() * 15)) - 1, []).append((p.max(), p.argmax() == label))
    found = summary.details.reliability_ensemble
    assert len(found) == len(bins)
    for shown, place in zip(found, sorted(bins), strict=True):
        confidence, right = zip(*bins[place], strict=True)
        assert (shown.examples, shown.accuracy) == (len(right), sum(right) / len(right))
        assert shown.confidence == pytest.approx(sum(confidence) / len(confidence))


def test_classes_that_gain_come_first_and_those_that_lose_are_counted(run, summary):
    outputs = run.outputs()
    wanted = {}
    for p, label in zip(folders.softmax(outputs).swapaxes(0, 1), outputs.labels, strict=True):
        row = wanted.setdefault(folders.CLASSES[label], [0, 0, 0])
        row[0] += 1
        row[1] += int(p[-1].argmax() != label)
        row[2] += int(p.mean(0).argmax() != label)
    shown = (*summary.details.gaining, *summary.details.losing)
    assert shown
    for change in shown:
        assert [change.examples, change.errors_last, change.errors_ensemble] == wanted[change.name]
    assert [change.change for change in summary.details.gaining] == sorted(
        last - first for _, first, last in wanted.values() if last < first
    )
    assert all(change.change > 0 for change in summary.details.losing)


def test_of_many_classes_the_five_that_gain_and_the_five_that_lose_most_are_shown(tmp_path):
    run = folders.made(tmp_path / "run", examples=900, classes=[f"class {k}" for k in range(60)], apart=2.0)
    outputs = run.outputs()
    changes = np.zeros(60, int)
    for p, label in zip(folders.softmax(outputs).swapaxes(0, 1), outputs.labels, strict=True):
        changes[label] += int(p.mean(0).argmax() != label) - int(p[-1].argmax() != label)
    details = summarise([run]).details
    assert [change.change for change in details.gaining] == sorted(c for c in changes if c < 0)[:5]
    assert [change.change for change in details.losing] == sorted((c for c in changes if c > 0), reverse=True)[:5]
    assert len({change.change for change in details.losing}) > 1


def test_examples_are_the_most_disputed_with_every_members_vote(run, summary):
    outputs = run.outputs()
    p = folders.softmax(outputs)
    assert [example.index for example in summary.details.examples] == gallery.disputed(outputs).tolist()
    example = summary.details.examples[0]
    assert [found.probability for found in example.members] == p[::-1, example.index].max(-1).tolist()
    assert [found.name for found in example.members] == [folders.CLASSES[k] for k in p[::-1, example.index].argmax(-1)]
    for m in range(1, 5):
        mean = p[-m:, example.index].mean(0)
        assert example.means[m - 1].probability == pytest.approx(mean.max())
        assert example.means[m - 1].right == (mean.argmax() == outputs.labels[example.index])


def test_evidence_is_that_of_the_held_out_images(run, summary):
    held_out, evidence = run.outputs("held_out"), summary.details.evidence
    assert (evidence.part, evidence.examples) == ("held_out", 50)
    assert list(evidence.member_errors) == held_out.member_errors
    assert list(evidence.ensemble_errors) == held_out.ensemble_errors
    assert [difference.value for difference in evidence.over_fewer] == pytest.approx(
        [held_out.ensemble_errors[-1] - error for error in held_out.ensemble_errors]
    )
    before, last = held_out.member_errors[-2:]
    assert {k: found.value for k, found in evidence.progress.items()} == pytest.approx(
        {1: before - last, 2: held_out.member_errors[1] - last}
    )
    assert evidence.gain.value == pytest.approx(last - held_out.ensemble_errors[-1])
    (_, most), *_ = Counter(held_out.labels.tolist()).most_common()
    assert evidence.learned.value == pytest.approx(1 - most / 50 - held_out.ensemble_errors[-1])
    wrong, together = (
        p.argmax(-1) != held_out.labels for p in (folders.softmax(held_out)[-1], folders.softmax(held_out).mean(0))
    )
    assert (evidence.gain.more, evidence.gain.fewer) == (sum(wrong & ~together), sum(together & ~wrong))
    alone = run.outputs().member_errors[-1]
    assert evidence.test_noise == pytest.approx((alone * (1 - alone) / 120) ** 0.5)
    best = min(held_out.ensemble_errors)
    wanted = [error - best for error in held_out.ensemble_errors]
    assert [difference.value for difference in evidence.over_best] == pytest.approx(wanted)
    votes = folders.softmax(held_out).argmax(-1)
    assert evidence.disagreements == pytest.approx([np.mean(votes[k] != votes[3]) for k in range(3)])
    assert evidence.losses == pytest.approx((1, 1 / 2, 1 / 3, 1 / 4))
    ends = run.outputs().member_errors
    assert [evidence.lines[k + 1].estimated_percent[0] for k in range(3)] == [100 * end for end in ends[:3]]
    assert evidence.missing == 0
    together = folders.softmax(held_out).mean(0)
    of_label = [p[np.arange(50), held_out.labels] for p in (folders.softmax(held_out)[-1], together)]
    assert evidence.nll == pytest.approx([-np.log(p).mean() for p in of_label])
    assert evidence.nll_noise == pytest.approx(np.log(of_label[1] / of_label[0]).std() / 50**0.5)


@pytest.mark.parametrize(
    ("method", "pattern", "restarts"),
    [
        ("snapshot", (), ("warm", "warm", "warm")),
        ("single", (), ("none", "none", "none")),
        ("singlecycle", (), ("fresh", "fresh", "fresh")),
        ("grow", ("warm", "fresh"), ("fresh", "fresh", "warm")),  # 1 and 2, 3 and 4 go on
    ],
)
def test_what_lies_between_a_member_and_the_last_is_fresh_where_a_cycle_began_so(tmp_path, method, pattern, restarts):
    run = folders.made(tmp_path / "run", members=4, method=method, pattern=pattern)
    assert summarise([run]).details.evidence.restarts == restarts


def test_the_focus_is_a_snapshot_ensemble_and_the_baseline_the_run_most_like_it(tmp_path):
    runs = [
        folders.made(tmp_path / "a", method="single", seed=1),
        folders.made(tmp_path / "b", method="single", seed=2, dropout=0.2),
        folders.made(tmp_path / "c", method="single", seed=2),
        folders.made(tmp_path / "d", method="snapshot", seed=2),
    ]
    summary = summarise(runs)
    assert (summary.focus.name, summary.baseline.name) == ("d", "c")
    assert [account.name for account in summary.accounts] == ["a", "b", "c", "d"]
    wrong = [folders.softmax(run.outputs()) for run in runs[2:]]
    labels = runs[0].outputs().labels
    wanted = np.mean((wrong[1].mean(0).argmax(-1) != labels) * 1.0 - (wrong[0][-1].argmax(-1) != labels))
    assert summary.over_baseline.value == pytest.approx(wanted)
    where = "lower" if wanted <= 0 else "higher"
    assert f"{100 * abs(wanted):.2f} points {where} than that of the single" in summary.findings[1].reason
    cyclic = folders.made(tmp_path / "e", method="singlecycle", seed=2)
    assert summarise([runs[2], cyclic]).focus.name == "e"
    assert summarise([cyclic, runs[3]]).focus.name == "d"
    assert summarise(runs[:2]).focus.name == "a"
    assert summarise(runs[:2]).baseline is None


def test_methods_are_runs_that_differ_in_their_seed_alone(tmp_path):
    runs = [folders.made(tmp_path / f"{k}", seed=k, lr=lr) for k, lr in enumerate((0.1, 0.2, 0.1, 0.1))]
    first, second = summarise(runs).methods
    assert (first.name, first.runs, second.name, second.runs) == ("snapshot, lr 0.1", 3, "snapshot, lr 0.2", 1)
    errors = [run.outputs().ensemble_errors[-1] for run in (runs[0], runs[2], runs[3])]
    mean = sum(errors) / 3
    assert first.ensemble.mean == pytest.approx(mean)
    assert first.ensemble.deviation == pytest.approx((sum((e - mean) ** 2 for e in errors) / 2) ** 0.5)
    assert second.ensemble.deviation is None
    assert (first.seconds.mean, first.seconds.deviation, second.seconds.deviation) == (12.5, 0, None)
    log = runs[0].path / "log.jsonl"  # killed between its last snapshot and its last words
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if "finished" not in line))
    assert summarise([Run(run.path) for run in runs]).methods[0].seconds.mean is None


def test_methods_are_named_by_what_differs(tmp_path):
    runs = [
        folders.made(tmp_path / "a", method="grow", pattern=("warm", "fresh")),
        folders.made(tmp_path / "b", method="snapshot", dropout=0.2, lr=1.0),
    ]
    assert [method.name for method in summarise(runs).methods] == [
        "grow, pattern warm fresh, lr 0.1",
        "snapshot, dropout 0.2, lr 1",
    ]
    adamw = {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.05, "transforms": ("mirror", "cutout=4")}
    runs = [folders.made(tmp_path / "d"), folders.made(tmp_path / "e", members=4, **adamw)]
    assert [method.name for method in summarise(runs).methods] == [
        "snapshot, 3 cycles, 12 epochs, sgd, lr 0.1",
        "snapshot, 4 cycles, 16 epochs, adamw, lr 0.01, weight decay 0.05, transforms mirror, cutout 4",
    ]
    grow = [folders.made(tmp_path / f"grow{k}", method="grow", pattern=("warm", "fresh"), seed=k) for k in (0, 1)]
    (two,) = summarise(grow).methods
    assert (two.name, two.runs) == ("grow", 2)
    assert two.ensemble.deviation is not None


def test_a_student_is_named_by_its_teacher_only_next_to_students_of_others():
    plain, one, soft, other = (
        Recipe(objective=objective)
        for objective in (
            CrossEntropy(),
            Distillation(Teacher("a1", (4, 8))),
            Distillation(Teacher("a1", (4, 8)), temperature=3.0),
            Distillation(Teacher("b2", (4, 8))),
        )
    )
    assert _names([plain, one]) == ["snapshot, cross_entropy", "snapshot, distillation"]
    assert _names([one, soft]) == ["snapshot, temperature 2", "snapshot, temperature 3"]
    assert _names([one, other]) == ["snapshot, teacher run a1", "snapshot, teacher run b2"]


def test_no_run_and_the_same_run_twice_are_rejected(run):
    with pytest.raises(ArgumentError, match="runs must name at least one run folder, got none"):
        summarise([])
    with pytest.raises(ArgumentError, match="runs must be different folders, got"):
        summarise([run, Run(run.path / ".." / run.path.name)])


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("log.jsonl", lambda text: text.replace('"loss": 1.0', '"loss": "much"')),
        ("log.jsonl", lambda text: text.replace('"epoch": 4.0, ', "")),
        ("log.jsonl", lambda text: text.replace('"loss": 1.0', '"loss": 1e999')),
        ("log.jsonl", lambda text: text.replace('"seconds": 12.5', '"seconds": -1e999')),
        ("recipe.json", lambda text: text.replace('"ant",', "")),
        ("recipe.json", lambda text: text.replace('"count": 64', '"count": "many"')),
        ("recipe.json", lambda text: text.replace('"count": 64', '"count": 0')),
    ],
)
def test_a_damaged_file_is_named(tmp_path, file, change):
    run = folders.with_curves(folders.made(tmp_path / "run"))
    folders.as_format_1(run.path / file)  # in format 2 a checksum tells
    text = (run.path / file).read_text()
    assert change(text) != text
    (run.path / file).write_text(change(text))
    with pytest.raises(DamagedError, match=rf"run/{file} must"):
        summarise([Run(run.path)])


@pytest.mark.parametrize(
    "change",
    [
        lambda text: json.dumps({**json.loads(text), "last_share": 3}),
        lambda text: text.replace('"snapshot": 2', '"snapshot": 3'),
        lambda text: json.dumps({**json.loads(text), "last_share": [0, 1]}),
    ],
)
def test_damaged_curves_are_left_out_with_a_warning(tmp_path, caplog, change):
    run = folders.with_curves(folders.made(tmp_path / "run"))
    folders.as_format_1(run.path / "curves.json")
    (run.path / "curves.json").write_text(change((run.path / "curves.json").read_text()))
    assert summarise([Run(run.path)]).details.between is None
    assert "run/curves.json must" in caplog.text
    assert "the report leaves it out, and you may remove the file" in caplog.text


def test_a_damaged_gallery_is_left_out_with_a_warning(tmp_path, caplog):
    run = folders.made(tmp_path / "run")
    gallery.keep(run, np.zeros((40, 4, 4, 1), np.uint8).__getitem__)
    assert summarise([run]).details.examples[0].pixels is not None
    (run.path / "gallery.json").write_text("{}")
    assert summarise([run]).details.examples[0].pixels is None
    assert "run/gallery.json must" in caplog.text
    assert "the report leaves it out, and you may remove the file" in caplog.text


def test_a_gallery_of_other_images_is_left_out_with_a_warning(tmp_path, caplog):
    run = folders.made(tmp_path / "run", examples=50)
    gallery.keep(run, np.zeros((50, 4, 4, 1), np.uint8).__getitem__)
    other = folders.made(tmp_path / "other", examples=20)
    kept = gallery.read(run)
    tensors = {"indices": torch.from_numpy(kept.indices), "pixels": torch.from_numpy(kept.pixels)}
    safetensors.torch.save_file(tensors, other.path / "gallery.safetensors")  # as format 1 had it
    assert all(example.index < 20 and example.pixels is None for example in summarise([other]).details.examples)
    assert "gallery.safetensors must show some of the 20 test images, got image" in caplog.text


def unfinished(run):
    """The same folder, of a recipe that has more snapshots to come."""

    def grown(text):
        cycles = run.recipe.method.cycles
        return text.replace(f'"cycles": {cycles}', f'"cycles": {cycles + 1}')

    tiny.altered(run.path / "recipe.json", grown)
    return Run(run.path)


def test_an_unfinished_run_is_shown_but_stands_for_no_method_and_no_baseline(tmp_path):
    runs = [folders.made(tmp_path / f"cyclic{seed}", seed=seed) for seed in (0, 1)]
    runs.append(folders.made(tmp_path / "single", method="single"))
    summary = summarise([runs[0], unfinished(runs[1]), unfinished(runs[2])])
    assert [account.missing for account in summary.accounts] == [0, 1, 1]
    assert [(method.name, method.runs) for method in summary.methods] == [("snapshot", 1)]
    assert summary.baseline is None
    assert [summarise([run]).details.evidence.missing for run in (runs[0], Run(runs[1].path))] == [0, 1]
    log = runs[0].path / "log.jsonl"
    head, _, *rest = log.read_text().splitlines(keepends=True)
    log.write_text("".join([head, *rest]))
    assert summarise([runs[0]]).details.evidence.losses == ()  # all of them or none


@pytest.mark.parametrize(
    "change", [{"weight_decay": 0.5}, {"stem_stride": 2}, {"warmup_epochs": 1}, {"dropout": 0.2}, {"momentum": 0.5}]
)
def test_a_baseline_has_the_same_task_and_budget(tmp_path, change):
    focus = folders.made(tmp_path / "cyclic")
    other = folders.made(tmp_path / "other", method="single", **change)
    assert summarise([focus, other]).baseline is None
    same = folders.made(tmp_path / "same", method="single", lr=0.2)
    assert summarise([focus, other, same]).baseline.name == "same"


def test_of_several_ensembles_the_one_with_the_most_baselines_is_the_focus(tmp_path):
    runs = [
        folders.made(tmp_path / "a wide", dropout=0.2),
        folders.made(tmp_path / "b narrow"),
        folders.made(tmp_path / "c narrow", seed=1),
        folders.made(tmp_path / "d wide", method="single", dropout=0.2),
        *(folders.made(tmp_path / f"e narrow {seed}", method="single", seed=seed) for seed in (0, 1)),
    ]
    summary = summarise(runs[::-1])
    assert (summary.focus.name, summary.baseline.name) == ("b narrow", "e narrow 0")
    chosen = summarise(runs, focus="a wide")
    assert (chosen.focus.name, chosen.baseline.name) == ("a wide", "d wide")
    assert summarise(runs, focus="d wide").baseline is None
    with pytest.raises(ArgumentError, match="unknown focus 'a wild': did you mean a wide"):
        summarise(runs, focus="a wild")
    assert summarise([unfinished(runs[1]), runs[2]]).focus.name == "c narrow"


def test_images_that_the_data_set_itself_holds_out_are_used(tmp_path):
    run = folders.made(tmp_path / "run", members=4, val=50)
    assert run.recipe.dataset.held_out == 0
    summary = summarise([run])
    assert (summary.details.evidence.part, summary.details.evidence.examples) == ("held_out", 50)
    assert "based on 50 held-out images" in summary.basis


def test_damaged_held_out_outputs_are_not_taken_for_missing_ones(tmp_path, monkeypatch):
    run = folders.made(tmp_path / "run", held_out=30)
    outputs = Run.outputs

    def damaged(run, part="test"):
        if part == "held_out":
            raise DamagedError("damaged")
        return outputs(run, part)

    monkeypatch.setattr(Run, "outputs", damaged)
    with pytest.raises(DamagedError):
        summarise([run])


def test_images_on_which_all_members_agree_are_not_shown_even_if_an_older_gallery_has_them(tmp_path, monkeypatch):
    run = folders.made(tmp_path / "run", examples=50, skill=3.0)
    choices = folders.softmax(run.outputs()).argmax(-1)
    agreed = (choices == choices[0]).all(0)
    assert 0 < agreed.sum() < 50
    monkeypatch.setattr(gallery, "disputed", lambda outputs: np.arange(50))
    gallery.keep(run, np.zeros((50, 4, 4, 1), np.uint8).__getitem__)
    assert [example.index for example in summarise([run]).details.examples] == np.flatnonzero(~agreed).tolist()


def test_examples_have_the_names_of_their_files(tmp_path):
    run = folders.made(tmp_path / "run", examples=50)
    gallery.keep(run, np.zeros((50, 4, 4, 1), np.uint8).__getitem__, lambda index: f"test/ant/{index}.png")
    assert all(example.file == f"test/ant/{example.index}.png" for example in summarise([run]).details.examples)
    without = folders.made(tmp_path / "without", examples=50)
    assert {example.file for example in summarise([without]).details.examples} == {None}


def images(sha256):
    return {"images": {"train": {"count": 64, "sha256": "0"}, "test": {"count": 40, "sha256": sha256}}}


@pytest.mark.parametrize("other", [{"classes": list("abcd")}, images("b")])
def test_equal_labels_of_other_images_are_not_paired(tmp_path, other):
    run = folders.made(tmp_path / "run", data=images("a"))
    another = folders.made(tmp_path / "another", seed=1, data={**images("a"), **other})
    with pytest.raises(MismatchError, match="runs must have been tested on the same images"):
        summarise([run, another])
