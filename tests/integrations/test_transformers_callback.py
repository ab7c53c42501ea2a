"""The callback of the Hugging Face Trainer, compared with a plain PyTorch loop, for tiny models with random weights."""

import json
import math
import os
import shutil
import socket
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from snapens import CyclicCosine, Ensemble, SnapshotEnsembler, Snapshots, StepDecay, reset_momentum
from snapens.errors import ArgumentError, LockedError, MismatchError, StoreError

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")

from snapens.integrations.transformers import EnsembleModel, SnapshotCallback, save_ensemble  # noqa: E402
from snapens.integrations.transformers.callback import trainable  # noqa: E402

transformers.utils.logging.disable_progress_bar()
CONFIG = transformers.BertConfig(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    vocab_size=20,
    max_position_embeddings=8,
    num_labels=3,
)
STILL = transformers.BertConfig(**{**CONFIG.to_dict(), "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})

WIDE = transformers.BertConfig(**{**CONFIG.to_dict(), "hidden_size": 64, "intermediate_size": 256})
IN_ORDER = {
    "train_sampling_strategy": "sequential",
    "optim": "sgd",
    "average_tokens_across_devices": False,
}


def classifier(config=CONFIG):
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


def examples(count=32):
    chance = torch.Generator().manual_seed(1)
    inputs = torch.randint(20, (count, 6), generator=chance)
    return [{"input_ids": row, "labels": int(row.sum()) % 3} for row in inputs]


def trainer(folder, *callbacks, model=None, optimizers=(None, None), save_steps=None, **options):
    options = {
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no" if save_steps is None else "steps",
        "save_steps": save_steps or 1,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        **options,
    }
    arguments = transformers.TrainingArguments(str(folder / "checkpoints"), **options)
    found = transformers.Trainer(
        model or classifier(),
        arguments,
        train_dataset=examples(),
        eval_dataset=examples(4),
        callbacks=list(callbacks),
        optimizers=optimizers,
    )
    found.remove_callback(transformers.PrinterCallback)
    return found


class Crash(transformers.TrainerCallback):
    """Ends the training after the checkpoint of a step."""

    def __init__(self, step):
        self.step = step

    def on_save(self, args, state, control, **_):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def snapshots(folder):
    found = Snapshots(folder / "run")
    return {step: found.load(step) for step in found.steps}


def assert_same(found, expected):
    assert list(found) == list(expected)
    for step, kept in expected.items():
        assert found[step].keys() == kept.keys()
        assert [name for name in kept if not torch.equal(found[step][name], kept[name])] == []


@pytest.fixture(scope="module", autouse=True)
def two_processes(tmp_path_factory):
    """Two processes under torchrun, started before the other tests, because importing the packages takes long."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    command = [sys.executable, *launcher, "--master-port", str(port), __file__, str(tmp_path_factory.mktemp("ddp"))]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        yield process
        process.terminate()  # torchrun ends its workers too, if the tests did not wait for them


def rank_main(folder):
    """Train without interruption, then again from a checkpoint in mid-cycle, and evaluate the ensemble."""
    options = {**IN_ORDER, "per_device_train_batch_size": 2, "ddp_backend": "gloo", "save_steps": 4}
    whole, again = folder / "whole", folder / "again"
    trainer(whole, SnapshotCallback(2, store=whole / "run"), model=classifier(STILL), **options).train()
    if torch.distributed.get_rank() == 0:
        shutil.copytree(whole, again)
    torch.distributed.barrier()
    callback = SnapshotCallback(2, store=again / "run")
    resumed = trainer(again, callback, model=classifier(STILL), **options)
    resumed.train(resume_from_checkpoint=str(again / "checkpoints/checkpoint-4"))
    loss = trainer(folder, model=EnsembleModel(callback.ensemble())).evaluate()["eval_loss"]
    (folder / f"loss of rank {torch.distributed.get_rank()}").write_text(str(loss))
    torch.distributed.barrier()
    os._exit(0)  # threads of gloo that outlive the interpreter may abort it (pytorch/pytorch#179291)


def plain_loop(folder, schedule, accumulation=1):
    """What the Trainer does, as a plain loop: AdamW, clipped gradients, examples in their order."""
    model = classifier(STILL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0, fused=True)
    ensembler = SnapshotEnsembler(model, optimizer, schedule, store=folder / "run")
    rows, rates = examples(), []
    batches = [rows[first : first + 4] for first in range(0, len(rows), 4)] * 3
    for step in range(schedule.total_steps):
        for batch in batches[step * accumulation : (step + 1) * accumulation]:
            inputs = torch.stack([row["input_ids"] for row in batch])
            labels = torch.tensor([row["labels"] for row in batch])
            # this class does not divide the loss by the number of micro-batches, and the Trainer leaves it to the class
            torch.nn.functional.cross_entropy(model(input_ids=inputs).logits, labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        optimizer.zero_grad()
        ensembler.step()
    return snapshots(folder), rates


@pytest.mark.parametrize(
    ("length", "accumulation", "stop"), [({"max_steps": 6}, 1, 4), ({"max_steps": -1, "num_train_epochs": 2}, 2, 5)]
)
def test_a_training_that_is_stopped_in_mid_cycle_and_resumed_has_the_snapshots_of_a_plain_loop(
    tmp_path, length, accumulation, stop
):
    total = 6 if accumulation == 1 else 8
    expected, rates = plain_loop(tmp_path / "plain", CyclicCosine(total, 2), accumulation)
    options = {"train_sampling_strategy": "sequential", "gradient_accumulation_steps": accumulation, **length}
    options["save_steps"] = stop
    first = trainer(
        tmp_path, SnapshotCallback(2, store=tmp_path / "run"), Crash(stop), model=classifier(STILL), **options
    )
    with pytest.raises(KeyboardInterrupt):
        first.train()
    del first
    callback = SnapshotCallback(2, store=tmp_path / "run")
    second = trainer(tmp_path, callback, model=classifier(STILL), **options)
    second.train(resume_from_checkpoint=True)
    assert_same(snapshots(tmp_path), expected)
    logged = [entry["learning_rate"] for entry in second.state.log_history if "learning_rate" in entry]
    assert logged == rates
    assert callback.ensembler.completed == total


def test_resuming_at_any_step_gives_the_snapshots_of_the_uninterrupted_training(tmp_path):
    """With dropout and shuffled examples, so the random state matters too; the last step has nothing left to train."""
    whole = tmp_path / "whole"
    trainer(whole, SnapshotCallback(2, store=whole / "run"), save_steps=1).train()
    expected = snapshots(whole)
    for step in range(1, 7):
        again = shutil.copytree(whole, tmp_path / str(step))
        resumed = trainer(again, SnapshotCallback(2, store=again / "run"))
        resumed.train(resume_from_checkpoint=str(again / f"checkpoints/checkpoint-{step}"))
        assert_same(snapshots(again), expected)


def test_a_training_interrupted_in_a_notebook_continues_with_the_same_callback(tmp_path):
    callback = SnapshotCallback(2, store=tmp_path / "run")
    stopped = trainer(tmp_path, callback, Crash(4), save_steps=4)
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    with pytest.raises(LockedError, match="close"):
        trainer(tmp_path, SnapshotCallback(2, store=tmp_path / "run")).train(resume_from_checkpoint=True)
    restoring = trainer(tmp_path, callback, restore_callback_states_from_checkpoint=True)  # it makes new callbacks
    restoring.train(resume_from_checkpoint=True)
    assert callback.ensemble().steps == (3, 6)


def test_closing_the_ensembler_of_an_interrupted_callback_lets_another_one_continue(tmp_path):
    callback = SnapshotCallback(2, store=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, callback, Crash(4), save_steps=4).train()
    other = SnapshotCallback(2, store=tmp_path / "run")
    with pytest.raises(LockedError, match=r"callback\.ensembler\.close\(\)"):
        trainer(tmp_path, other).train(resume_from_checkpoint=True)
    callback.ensembler.close()
    trainer(tmp_path, other).train(resume_from_checkpoint=True)
    assert other.ensemble().steps == (3, 6)


def test_old_checkpoints_may_be_removed(tmp_path):
    options = {"save_total_limit": 1, "save_steps": 2}
    first = trainer(tmp_path, SnapshotCallback(3, store=tmp_path / "run"), Crash(4), **options)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    del first
    trainer(tmp_path, SnapshotCallback(3, store=tmp_path / "run"), **options).train(resume_from_checkpoint=True)
    assert list(snapshots(tmp_path)) == [2, 4, 6]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-6"]


def test_the_state_in_the_checkpoint_is_small_json(tmp_path):
    trainer(tmp_path, SnapshotCallback(2, store=tmp_path / "run"), save_steps=4).train()
    state = json.loads((tmp_path / "checkpoints/checkpoint-4/trainer_state.json").read_text())
    assert state["stateful_callbacks"]["snapens"]["completed"] == 4
    assert len(json.dumps(state["stateful_callbacks"])) < 2000


def rates(found):
    return [entry["learning_rate"] for entry in found.state.log_history if "learning_rate" in entry]


def test_the_warm_up_of_the_arguments_is_part_of_the_schedule(tmp_path):
    found = trainer(tmp_path, SnapshotCallback(2, store=tmp_path / "run"), warmup_steps=2)
    found.train()
    # two steps on a straight line to the peak, then two cosines of two steps: (1 + cos 0) / 2, (1 + cos pi / 2) / 2
    assert rates(found) == pytest.approx([0.01 / 3, 0.02 / 3, 0.01, 0.005, 0.01, 0.005])
    assert list(snapshots(tmp_path)) == [4, 6]


def test_another_schedule_is_followed(tmp_path):
    schedule = StepDecay(6, snapshots=3)
    callback = SnapshotCallback(store=tmp_path / "run", schedule=schedule)
    found = trainer(tmp_path, callback, lr_scheduler_type="constant")  # it is replaced, like the default
    found.train()
    assert rates(found) == pytest.approx([0.01, 0.01, 0.01, 0.001, 0.0001, 0.0001])
    assert list(snapshots(tmp_path)) == [2, 4, 6]


def test_a_step_that_the_gradient_scaler_skips_counts(tmp_path, monkeypatch):
    found = trainer(tmp_path, SnapshotCallback(2, store=tmp_path / "run"))
    skipped = property(lambda accelerator: found.state.global_step in (0, 3))
    monkeypatch.setattr(type(found.accelerator), "optimizer_step_was_skipped", skipped)
    found.train()
    assert rates(found) == pytest.approx([0.01, 0.0075, 0.0025] * 2)


class Interfering(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, optimizer, **_):
        optimizer.param_groups[0]["lr"] = 0.5


def test_another_callback_that_changes_the_rate_is_reported_once(tmp_path, caplog):
    trainer(tmp_path, SnapshotCallback(2, store=tmp_path / "run"), Interfering()).train()
    assert caplog.text.count("something else changed them to [0.5, 0.01]") == 1


class Averaging(transformers.TrainerCallback):
    """Updates an EMA of the weights."""

    def __init__(self, model):
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))

    def on_step_end(self, args, state, control, model, **_):
        self.average.update_parameters(model)


def test_an_ema_is_stored_as_it_is_at_the_minimum(tmp_path, caplog):
    model = classifier()
    ema = Averaging(model)
    trainer(tmp_path, ema, SnapshotCallback(2, store=tmp_path / "run", keep=ema.average), model=model).train()
    last = snapshots(tmp_path)[6]
    assert all(torch.equal(last[name], tensor) for name, tensor in ema.average.module.state_dict().items())
    assert not all(torch.equal(last[name], tensor) for name, tensor in model.state_dict().items())
    assert "earlier" not in caplog.text


def test_an_ema_that_is_updated_after_the_snapshot_is_reported(tmp_path, caplog):
    model = classifier()
    ema = Averaging(model)
    trainer(tmp_path, SnapshotCallback(2, store=tmp_path / "run", keep=ema.average), ema, model=model).train()
    assert caplog.text.count("list the callback that updates it before SnapshotCallback") == 1


def test_loading_the_best_model_at_the_end_does_not_change_the_ensemble(tmp_path):
    callback = SnapshotCallback(2, store=tmp_path / "run")
    options = {
        "save_steps": 1,
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "metric_for_best_model": "steps",
    }
    found = trainer(tmp_path, callback, **options)
    found.compute_metrics = lambda _: {"steps": -found.state.global_step}  # the first model is the best
    found.train()
    assert found.state.best_global_step == 1
    inputs = torch.stack([row["input_ids"] for row in examples(4)])
    expected = Ensemble.load(tmp_path / "run", classifier())(input_ids=inputs)
    assert torch.equal(callback.ensemble()(input_ids=inputs), expected)


def test_the_members_of_a_model_with_several_labels_per_example_have_a_sigmoid(tmp_path):
    config = transformers.BertConfig(**{**CONFIG.to_dict(), "problem_type": "multi_label_classification"})
    callback, model = SnapshotCallback(2, store=tmp_path / "run"), classifier(config)
    found = trainer(tmp_path, callback, model=model)
    found.train_dataset = [{**row, "labels": torch.tensor([1.0, 1.0, 0.0])} for row in examples()]
    found.train()
    inputs = torch.stack([row["input_ids"] for row in examples(4)])
    ensemble = callback.ensemble()
    with torch.no_grad():
        expected = sum(member(input_ids=inputs).logits.sigmoid() for member in ensemble.members) / 2
    torch.testing.assert_close(ensemble(input_ids=inputs), expected)
    assert callback.ensemble(activation=None).activation is None
    with pytest.raises(ArgumentError, match=r"must average the softmax over the .*, got activation=<.* sigmoid"):
        EnsembleModel(ensemble)


def test_under_bf16_members_have_their_own_weights(tmp_path):
    """Accelerate replaces `forward` of the model; a copy must not call that of the original."""
    callback = SnapshotCallback(2, store=tmp_path / "run")
    trainer(tmp_path, callback, bf16=True).train()
    inputs = torch.stack([row["input_ids"] for row in examples(4)])
    expected = Ensemble.load(tmp_path / "run", classifier())(input_ids=inputs)
    torch.testing.assert_close(callback.ensemble()(input_ids=inputs), expected, atol=0.02, rtol=0)
    assert callback.ensemble(last=1)(input_ids=inputs).dtype == torch.float32
    assert (callback.ensemble(last=1)(input_ids=inputs) - expected).abs().max() > 0.001


def test_options_of_the_ensembler_are_passed_on(tmp_path):
    seen = []

    def restart(ensembler):
        seen.append(ensembler.completed)
        reset_momentum(ensembler)

    callback = SnapshotCallback(3, store=tmp_path / "run", on_restart=restart)
    trainer(tmp_path, callback).train()
    assert seen == [2, 4]


class Stop(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == 4


def test_a_training_that_is_stopped_early_warns_and_releases_the_folder(tmp_path, caplog):
    callback = SnapshotCallback(2, store=tmp_path / "run")
    trainer(tmp_path, callback, Stop(), save_steps=4).train()
    assert callback.ensemble().steps == (3,)
    trainer(tmp_path, SnapshotCallback(2, store=tmp_path / "run")).train(resume_from_checkpoint=True)
    assert list(snapshots(tmp_path)) == [3, 6]
    del callback
    assert "ended after step 4 of 6, without a snapshot of cycle 2" in caplog.text


def test_only_the_adapters_of_a_peft_model_are_stored(tmp_path):
    model = peft.get_peft_model(classifier(WIDE), peft.LoraConfig(task_type="SEQ_CLS", r=2))
    adapters = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    base = sum(p.numel() * p.element_size() for p in model.parameters()) - adapters
    assert base > 20 * adapters
    callback = SnapshotCallback(3, store=tmp_path / "run")
    trainer(tmp_path, callback, model=model).train()
    stored = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert 3 * adapters < stored < 3 * adapters + 20_000 < base
    members = callback.ensemble().members
    shared = {p.data_ptr() for p in members[0].parameters()} & {p.data_ptr() for p in members[1].parameters()}
    names = {name for name, p in members[0].named_parameters() if p.data_ptr() not in shared}
    assert names == {name for name, p in model.named_parameters() if p.requires_grad}


def test_the_statistics_of_a_trained_batch_norm_belong_to_the_adapter(tmp_path):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(OrderedDict(first=torch.nn.Linear(4, 4), norm=torch.nn.BatchNorm1d(4)))
    model = peft.get_peft_model(layers, peft.LoraConfig(target_modules=["first"], modules_to_save=["norm"], r=2))
    expected = set(peft.get_peft_model_state_dict(model))  # what PEFT itself saves
    stored = [name for name in trainable(model) if ".original_module." not in name]  # which PEFT does not use
    assert {name.replace(".default", "").replace(".modules_to_save", "") for name in stored} == expected
    assert any("running_mean" in name for name in expected)


def test_the_statistics_of_a_batch_norm_in_the_base_are_those_of_each_member(tmp_path):
    seen = []

    class Record(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model, **_):
            if state.global_step in (3, 6):
                seen.append(model.eval()(pixel_values=images).logits.detach().softmax(-1))

    sizes = {"embedding_size": 4, "hidden_sizes": [4], "depths": [1], "layer_type": "basic", "num_channels": 1}
    torch.manual_seed(0)
    base = transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))
    model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["convolution"]))
    images = torch.randn(16, 1, 8, 8) + 2
    callback = SnapshotCallback(2, store=tmp_path / "run")
    training = trainer(tmp_path, callback, Record(), model=model, remove_unused_columns=False)
    training.train_dataset = [{"pixel_values": image, "labels": 0} for image in images]
    training.train()
    torch.testing.assert_close(callback.ensemble()(pixel_values=images), torch.stack(seen).mean(0))
    with pytest.raises(ArgumentError, match=r"buffers of the base, .*running_mean: name its layer in modules_to_save"):
        save_ensemble(tmp_path / "saved", callback.ensemble())


def test_the_adapters_of_a_peft_model_are_resumed(tmp_path):
    def adapted():
        return peft.get_peft_model(classifier(), peft.LoraConfig(task_type="SEQ_CLS", r=2))

    whole = tmp_path / "whole"
    trainer(whole, SnapshotCallback(2, store=whole / "run"), model=adapted(), save_steps=4).train()
    again = shutil.copytree(whole, tmp_path / "again")
    resumed = trainer(again, SnapshotCallback(2, store=again / "run"), model=adapted())
    resumed.train(resume_from_checkpoint=str(again / "checkpoints/checkpoint-4"))
    assert_same(snapshots(again), snapshots(whole))


def with_scheduler(make):
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "optimizers": (optimizer, make(optimizer))}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr_scheduler_type": "cosine"}, "lr_scheduler_type must not be set, .* got 'cosine': remove it"),
        ({"lr_scheduler_type": "greedy", "eval_strategy": "steps", "eval_steps": 6}, "got 'greedy'"),
    ],
)
def test_settings_that_would_be_replaced_are_rejected(tmp_path, options, words):
    with pytest.raises(ArgumentError, match=words):
        trainer(tmp_path, SnapshotCallback(2, store=tmp_path / "run"), **options).train()
    assert not (tmp_path / "run").exists()


def test_a_scheduler_of_the_user_is_rejected(tmp_path):
    options = with_scheduler(lambda optimizer: transformers.get_linear_schedule_with_warmup(optimizer, 0, 6))
    with pytest.raises(ArgumentError, match=r"optimizers must be \(optimizer, None\), .* got a LambdaLR: remove"):
        trainer(tmp_path, SnapshotCallback(2, store=tmp_path / "run"), **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0),
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
    ],
)
def test_a_scheduler_of_the_user_is_rejected_by_a_callback_that_is_added_later(tmp_path, make):
    found = trainer(tmp_path, **with_scheduler(make))
    found.add_callback(SnapshotCallback(2, store=tmp_path / "run"))
    with pytest.raises(ArgumentError, match=r"optimizers must be \(optimizer, None\)"):
        found.train()


def test_an_optimizer_of_the_user_is_accepted(tmp_path):
    found = trainer(tmp_path, SnapshotCallback(2, store=tmp_path / "run"), **with_scheduler(lambda optimizer: None))
    found.train()
    assert rates(found) == pytest.approx([0.1, 0.075, 0.025] * 2)


def test_deepspeed_is_rejected(tmp_path):
    found = trainer(tmp_path, SnapshotCallback(2, store=tmp_path / "run"))
    found.args.deepspeed = "config.json"
    with pytest.raises(ArgumentError, match=r"deepspeed must not be set, .*: train with DDP"):
        found.train()


def test_a_schedule_must_fit_the_arguments(tmp_path):
    for schedule, options, words in (
        (CyclicCosine(8, 2), {}, "schedule must have the 6 steps of the training, got total_steps=8"),
        (CyclicCosine(6, 2), {"warmup_steps": 2}, "warmup_steps must be 0 if a schedule is given, got 2"),
    ):
        callback = SnapshotCallback(store=tmp_path / "run", schedule=schedule)
        with pytest.raises(ArgumentError, match=words):
            trainer(tmp_path, callback, **options).train()
    with pytest.raises(ArgumentError, match="total_steps must have at least one step for each of cycles=7"):
        trainer(tmp_path, SnapshotCallback(7, store=tmp_path / "run")).train()


def test_the_arguments_of_the_callback_are_checked(tmp_path):
    with pytest.raises(ArgumentError, match="cycles or schedule must be given, but not both, got None and None"):
        SnapshotCallback(store=tmp_path)
    with pytest.raises(ArgumentError, match="cycles or schedule must be given, but not both, got 2"):
        SnapshotCallback(2, store=tmp_path, schedule=CyclicCosine(6, 2))
    with pytest.raises(
        ArgumentError, match="store must be a folder, because the checkpoints contain no snapshots, got memory"
    ):
        SnapshotCallback(2, store=Snapshots())


def test_a_folder_that_has_snapshots_is_rejected_by_a_new_training(tmp_path):
    callback = SnapshotCallback(2, store=tmp_path / "run")
    trainer(tmp_path, callback).train()
    with pytest.raises(
        StoreError, match=r"with those of steps 3, 6: choose another folder, or pass resume_from_checkpoint=True"
    ):
        trainer(tmp_path, callback).train()


def test_a_checkpoint_of_another_training_is_rejected(tmp_path):
    trainer(tmp_path / "plain", max_steps=4, save_steps=4).train()
    without = trainer(tmp_path / "plain", SnapshotCallback(2, store=tmp_path / "run"))
    with pytest.raises(MismatchError, match="saved with SnapshotCallback, got one of step 4 without it"):
        without.train(resume_from_checkpoint=True)
    for name in ("a", "b"):
        trainer(tmp_path / name, SnapshotCallback(2, store=tmp_path / name / "run"), save_steps=4).train()
    mixed = trainer(tmp_path / "a", SnapshotCallback(2, store=tmp_path / "b/run"))
    with pytest.raises(MismatchError, match="store must be that of the checkpoint"):
        mixed.train(resume_from_checkpoint=str(tmp_path / "a/checkpoints/checkpoint-4"))
    right = trainer(tmp_path / "b", SnapshotCallback(2, store=tmp_path / "b/run"))  # the folder was released
    right.train(resume_from_checkpoint=str(tmp_path / "b/checkpoints/checkpoint-4"))


def test_two_processes_store_each_snapshot_once_resume_and_evaluate(tmp_path, two_processes):
    """The Trainer passes the module inside DDP, so without a process group both processes would write."""
    output = two_processes.communicate()[0]
    assert two_processes.returncode == 0, output[-3000:]
    folder = Path(two_processes.args[-1])
    assert_same(snapshots(folder / "again"), snapshots(folder / "whole"))
    trainer(tmp_path, SnapshotCallback(2, store=tmp_path / "run"), model=classifier(STILL), **IN_ORDER).train()
    for step, kept in snapshots(tmp_path).items():  # the same examples in one process
        for name, tensor in kept.items():
            torch.testing.assert_close(snapshots(folder / "whole")[step][name], tensor, atol=1e-5, rtol=1e-4)
    rows = examples(4)
    mean = Ensemble.load(folder / "whole/run", classifier())(input_ids=torch.stack([row["input_ids"] for row in rows]))
    nll = -sum(math.log(mean[k, row["labels"]]) for k, row in enumerate(rows)) / 4
    for rank in (0, 1):
        assert float((folder / f"loss of rank {rank}").read_text()) == pytest.approx(nll, rel=1e-4)


if __name__ == "__main__":
    rank_main(Path(sys.argv[1]))
