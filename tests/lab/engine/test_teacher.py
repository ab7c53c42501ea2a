"""Distillation: the objective in float64, a step against a plain loop, resuming, packs, and unsuitable teachers."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from torch.nn.functional import cross_entropy

from snapens import Ensemble
from snapens.combination import Combination
from snapens.errors import ArgumentError, MismatchError, StoreError
from snapens.lab import nets
from snapens.lab.data.tables import Rows, TableData
from snapens.lab.engine.feed import Feed
from snapens.lab.engine.pack import prepare, train, unfinished
from snapens.lab.engine.step import TrainingStep
from snapens.lab.engine.teacher import Taught, find, teacher_of
from snapens.lab.recipe import Distillation, Mirror, Teacher
from snapens.lab.recipe.transforms import Batch
from snapens.lab.records.run import Run
from snapens.weights import tensors

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The folder of a finished run with snapshots at 10 and 20, of a network with dropout."""
    path = tmp_path_factory.mktemp("teacher")
    train(prepare([(tiny.recipe(network="tiny:wide", dropout=0.5, seed=5), path)], tiny.load, CPU))
    return path


def student(teacher, *, share=0.7, temperature=2.0, combination=None, **changes):
    """A recipe that distils the run in a folder."""
    objective = Distillation(teacher_of(teacher, combination), share, temperature)
    return replace(tiny.recipe(**changes), objective=objective)


def softmax(scores):
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_the_loss_is_that_of_hinton_et_al_in_float64():
    """(1 - share) · cross-entropy + share · T² · the mean of sum p log(p / q), both softened by T."""
    rng = np.random.default_rng(0)
    logits, mean, labels = rng.normal(0, 3, (6, 4)), softmax(rng.normal(0, 2, (6, 4))), rng.integers(0, 4, 6)
    p = mean ** (1 / (1.5 * 3))  # the combination's temperature, then that of the distillation
    p /= p.sum(1, keepdims=True)
    q = softmax(logits / 3)
    divergence = 9 * (p * np.log(p / q)).sum(1).mean()
    expected = 0.3 * -np.log(softmax(logits)[np.arange(6), labels]).mean() + 0.7 * divergence
    objective = Distillation(Teacher("a", (4,), temperature=1.5), share=0.7, temperature=3.0)
    batch = Batch(torch.zeros(6, 1), torch.from_numpy(labels), teacher=torch.from_numpy(np.log(mean)).float())
    assert objective(torch.from_numpy(logits).float(), batch).item() == pytest.approx(expected, rel=1e-5)
    same = batch.teacher / 1.5  # the teacher's own prediction: nothing but the labels is left
    assert objective(same, batch).item() == pytest.approx(0.3 * cross_entropy(same, batch.targets).item(), rel=1e-4)


def test_a_teacher_predicts_the_weighted_mean_of_its_members(teacher):
    run = str(Run(teacher).identity)
    combination = Combination(((run, 10), (run, 20)), (1, 3))
    placed, x = tiny.data().place(CPU), torch.randn(5, 3, 8, 8)
    found = Taught(Distillation(teacher_of(teacher, combination)), Run(teacher), placed).log_mean(x)
    network = nets.build("tiny:wide", classes=4, channels=3).double()
    parts = []
    for step, share in ((10, 0.25), (20, 0.75)):
        network.load_state_dict(Run(teacher).snapshots.load(step))
        parts.append(share * network.eval()(x.double()).softmax(1))
    assert torch.allclose(found.exp().double(), sum(parts), rtol=1e-4)


def test_a_very_confident_teacher_gives_a_finite_loss():
    objective = Distillation(Teacher("a", (4,)), temperature=1.0)
    batch = Batch(torch.zeros(1, 1), torch.tensor([0]), teacher=torch.tensor([[0.0, -500.0]]))
    outputs = torch.tensor([[-300.0, 300.0]], requires_grad=True)
    objective(outputs, batch).backward()
    assert torch.isfinite(outputs.grad).all()


def test_a_step_is_that_of_a_plain_loop_with_the_ensemble_as_the_teacher(teacher):
    recipe = student(teacher)
    data = tiny.data()
    step = TrainingStep(recipe, data.place(CPU), recipe.schedule(40), [teacher])
    ensemble = Ensemble.load(teacher, nets.build("tiny:wide", classes=4, channels=3))
    feed, network = Feed(data.place(CPU), (Mirror(),), recipe.seed, 8), nets.of(recipe, 4, {"channels": 3})
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    for completed in range(20):
        feed.prepare(completed)
        batch = feed.read(torch.tensor([completed]))
        outputs = network(batch.inputs)
        soft = (ensemble(batch.inputs).log() / 2).softmax(1)
        divergence = (soft * (soft.log() - (outputs / 2).log_softmax(1))).sum(1).mean()
        loss = 0.3 * cross_entropy(outputs, batch.targets) + 0.7 * 4 * divergence
        optimizer.param_groups[0]["lr"] = 0.05 * recipe.schedule(40)(completed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step(completed)
        assert step.losses[completed].item() == pytest.approx(loss.item(), rel=1e-3)
    for name, tensor in tensors(step.network).items():
        assert torch.allclose(tensor, tensors(network)[name], rtol=1e-3, atol=1e-4), name


def test_training_leaves_the_teacher_as_it_is(teacher, tmp_path):
    before = {step: Run(teacher).snapshots.load(step) for step in (10, 20)}
    (training,) = prepare([(student(teacher), tmp_path / "run")], tiny.load, CPU, teachers=[teacher])
    members = training.step._objective._members
    start = [{name: tensor.clone() for name, tensor in tensors(member).items()} for member in members]
    train([training])
    assert training.run.finished
    assert all(tiny.equal(dict(tensors(member)), then) for member, then in zip(members, start, strict=True))
    assert all(tiny.equal(Run(teacher).snapshots.load(step), before[step]) for step in before)
    assert not any(parameter.requires_grad for member in members for parameter in member.parameters())


def test_a_distilled_run_resumes_bit_for_bit_also_when_its_teacher_has_moved(teacher, tmp_path):
    recipe, looks = student(teacher, dropout=0.2), iter([False, False, True])
    whole = prepare([(recipe, tmp_path / "whole")], tiny.load, CPU, teachers=[teacher])
    train(whole)
    train(
        prepare([(recipe, tmp_path / "parts")], tiny.load, CPU, teachers=[teacher]),
        stop=lambda: next(looks),
    )
    assert not Run(tmp_path / "parts").finished
    moved = shutil.copytree(teacher, tmp_path / "moved")
    parts = prepare([(recipe, tmp_path / "parts")], tiny.load, CPU, resume=True, teachers=[moved])
    train(parts)
    assert tiny.equal(whole[0].step.state(), parts[0].step.state())
    assert unfinished([(recipe, tmp_path / "parts")]) == []


def test_a_packed_student_is_the_student_alone_and_can_be_a_teacher_in_turn(teacher, tmp_path):
    recipe, second = student(teacher, seed=3), student(teacher, temperature=1.0)
    train(prepare([(recipe, tmp_path / "alone")], tiny.load, CPU, teachers=[teacher]))
    jobs = [(tiny.recipe(), tmp_path / "plain"), (recipe, tmp_path / "run"), (second, tmp_path / "second")]
    train(prepare(jobs, tiny.load, CPU, teachers=[teacher]))
    alone, packed = (Run(tmp_path / name) for name in ("alone", "run"))
    assert all(tiny.equal(alone.snapshots.load(step), packed.snapshots.load(step)) for step in (10, 20))
    assert Run(tmp_path / "second").finished
    next_one = student(tmp_path / "run", combination=Combination.last(1))
    assert next_one.objective.teacher.steps == (20,)
    train(prepare([(next_one, tmp_path / "next")], tiny.load, CPU, teachers=[teacher, tmp_path / "run"]))
    assert Run(tmp_path / "next").finished


def test_a_run_is_not_resumed_with_another_teacher_or_combination(teacher, tmp_path):
    looks = iter([False, True])
    recipe = student(teacher)
    train(prepare([(recipe, tmp_path / "run")], tiny.load, CPU, teachers=[teacher]), stop=lambda: next(looks))
    other = student(teacher, combination=Combination.last(1))
    with pytest.raises(MismatchError, match=r"objective\.teacher\.steps: \(10, 20\), \(20,\)"):
        prepare([(other, tmp_path / "run")], tiny.load, CPU, resume=True, teachers=[teacher])


def test_a_missing_teacher_is_named(teacher, tmp_path):
    recipe = student(teacher)
    run = recipe.objective.teacher.run
    for given, shown in (([], "none"), ([tmp_path / "nothing"], tmp_path / "nothing")):
        with pytest.raises(StoreError, match=f"must contain the folder of the run {run}, got {shown}: pass the folder"):
            prepare([(recipe, tmp_path / "run")], tiny.load, CPU, teachers=given)
    assert not (tmp_path / "run").exists()
    with pytest.raises(StoreError, match=r"run must be a folder that holds recipe\.json"):
        teacher_of(tmp_path / "nothing")


def test_a_snapshot_that_the_teacher_does_not_have_is_rejected(teacher, tmp_path):
    recipe = replace(tiny.recipe(), objective=Distillation(Teacher(str(Run(teacher).identity), (10, 15))))
    with pytest.raises(ArgumentError, match=r"members must be among .* 15"):
        prepare([(recipe, tmp_path / "run")], tiny.load, CPU, teachers=[teacher])
    with pytest.raises(ArgumentError, match=r"last must be between 1 and 2 \(the number of members\), got 3"):
        teacher_of(teacher, Combination.last(3))


def test_an_unfinished_teacher_is_rejected(tmp_path):
    (training,) = prepare([(tiny.recipe(), tmp_path)], tiny.load, CPU)
    train([training], stop=lambda: training.completed >= 10)
    run = Run(tmp_path)
    assert run.snapshots.steps == (10,)
    with pytest.raises(StoreError, match=f"teacher must be a finished run, got {tmp_path}: resume it to finish it"):
        teacher_of(tmp_path)
    with pytest.raises(StoreError, match="teacher must be a finished run"):
        find(Teacher(str(run.identity), (10,)), [tmp_path])


@pytest.mark.parametrize(
    ("load", "held_out", "differing"),
    [
        (lambda recipe: replace(tiny.data(), classes=("circle", "square", "star", "dot")), 0, "classes"),
        (lambda recipe: tiny.data(channels=1), 0, "preprocessing, images"),
        (lambda recipe: tiny.data(train=41), 0, ".*images"),
        (tiny.load, 4, ".*images"),
    ],
)
def test_a_student_with_other_data_than_its_teacher_is_rejected(teacher, tmp_path, load, held_out, differing):
    recipe = student(teacher, held_out=held_out)
    with pytest.raises(MismatchError, match=f"data must be that of the teacher in {teacher}, got other {differing}"):
        prepare([(recipe, tmp_path / "run")], load, CPU, teachers=[teacher])
    assert not (tmp_path / "run").exists()


def test_rows_of_a_table_are_distilled_too(tmp_path):
    rng = np.random.default_rng(0)
    train_rows, test_rows = (Rows(rng.normal(size=(size, 5)), np.arange(size) % 3) for size in (40, 12))
    data = TableData("tiny", train_rows, test_rows, ("a", "b", "c"))
    train(prepare([(tiny.recipe(network="mlp"), tmp_path / "teacher")], lambda recipe: data, CPU))
    recipe = student(tmp_path / "teacher", network="mlp")
    train(prepare([(recipe, tmp_path / "run")], lambda recipe: data, CPU, teachers=[tmp_path / "teacher"]))
    assert Run(tmp_path / "run").finished
