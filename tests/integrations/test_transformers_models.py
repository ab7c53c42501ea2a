"""Ensembles of Transformers models: text generation, the Trainer's evaluation, and folders of the Hub's layout."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from snapens import Combination, Ensemble, Outputs, Snapshots
from snapens.errors import ArgumentError, DamagedError, StoreError
from snapens.export import About

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")

from snapens.integrations.transformers import EnsembleModel, load_ensemble, save_ensemble  # noqa: E402

transformers.utils.logging.disable_progress_bar()
SMALL = {"vocab_size": 20, "initializer_range": 0.3}
BERT = transformers.BertConfig(
    **SMALL,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=8,
    id2label={0: "bad", 1: "fair", 2: "good"},
)
GPT2 = transformers.GPT2Config(
    **SMALL, n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2, pad_token_id=0
)
LLAMA = transformers.LlamaConfig(
    **SMALL,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=32,
    pad_token_id=0,
)
INPUTS = torch.randint(3, 20, (5, 6), generator=torch.Generator().manual_seed(0))


def classifier(seed=0):
    torch.manual_seed(seed)
    return transformers.BertForSequenceClassification(BERT).eval()


def language_model(seed=0, config=GPT2):
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def adapted(seed=0, base=classifier, task="SEQ_CLS"):
    """The same base for every seed; LoRA begins at zero, so noise is added to the adapter."""
    model = peft.get_peft_model(base(), peft.LoraConfig(task_type=task, r=2)).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    return model


def ensemble_of(models, **options):
    snapshots = Snapshots()
    for k, model in enumerate(models, 1):
        kept = model.state_dict()
        if partial := isinstance(model, peft.PeftModel):
            kept = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
        snapshots.commit(4 * k, kept, partial=partial)
    return Ensemble(snapshots, models[0], strict=not partial, **options)


@torch.no_grad()
def mean_softmax(models, inputs, weights=(1, 1, 1), **more):
    """The plain computation, in float64."""
    parts = [model(input_ids=inputs, **more).logits.double().softmax(-1) for model in models]
    return sum(weight * part for weight, part in zip(weights, parts, strict=True)) / sum(weights)


# EnsembleModel


@pytest.mark.parametrize(
    "make",
    [
        language_model,
        lambda seed: language_model(seed, LLAMA),
        lambda seed: adapted(seed, lambda: language_model(0, LLAMA), "CAUSAL_LM"),
    ],
    ids=["gpt2", "llama", "adapters"],
)
def test_greedy_generation_takes_the_most_probable_token_of_the_mean(make):
    models = [make(seed) for seed in (1, 2, 3)]
    expected = INPUTS[:, :3]
    for _ in range(8):
        expected = torch.cat([expected, mean_softmax(models, expected)[:, -1].argmax(-1, keepdim=True)], 1)
    model = EnsembleModel(ensemble_of(models))
    found = model.generate(INPUTS[:, :3], max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert torch.equal(found, expected)
    alone = [m.generate(input_ids=INPUTS[:, :3], max_new_tokens=8, do_sample=False, eos_token_id=None) for m in models]
    assert not any(torch.equal(found, one) for one in alone)  # the test can tell them apart


def test_sampled_tokens_have_the_probabilities_of_the_mean():
    models = [language_model(seed) for seed in (1, 2, 3)]
    prompts = INPUTS[:1, :3].expand(4000, 3)
    found = EnsembleModel(ensemble_of(models)).generate(prompts, max_new_tokens=1, do_sample=True, top_k=0)
    shares = torch.bincount(found[:, -1], minlength=20) / 4000
    expected = mean_softmax(models, INPUTS[:1, :3])[0, -1]
    assert (shares - expected).abs().max() < 0.03  # four standard errors


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_padded_prompt_gives_the_text_of_the_prompt_alone(config, beams):
    model = EnsembleModel(ensemble_of([language_model(seed, config) for seed in (1, 2, 3)]))
    options = {"max_new_tokens": 5, "num_beams": beams, "do_sample": False, "eos_token_id": None}
    padded = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]])
    found = model.generate(padded, attention_mask=(padded > 0).long(), **options)
    assert torch.equal(found[:1, 2:], model.generate(padded[:1, 2:], **options))
    assert torch.equal(found[1:], model.generate(padded[1:], **options))


def test_the_loss_of_a_language_model_is_that_of_the_next_token():
    models = [language_model(seed) for seed in (1, 2, 3)]
    labels = INPUTS.clone()
    labels[0, 3:] = -100
    mean, terms = mean_softmax(models, INPUTS), []
    for row in range(5):
        terms += [-mean[row, t - 1, labels[row, t]].log() for t in range(1, 6) if labels[row, t] >= 0]
    for output in ("probabilities", "log_probabilities"):
        found = EnsembleModel(ensemble_of(models, output=output))(INPUTS, labels=labels)
        assert found.loss.item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-5)
        torch.testing.assert_close(found.logits.exp(), mean.float())


def test_the_trainer_evaluates_an_ensemble_of_classifiers(tmp_path):
    models = [classifier(seed) for seed in (1, 2, 3)]
    labels = [0, 2, 1, 1, 0]
    segments = torch.tensor([0, 0, 0, 1, 1, 1])  # an optional argument of the model, which the Trainer must not drop
    rows = [{"input_ids": i, "token_type_ids": segments, "labels": y} for i, y in zip(INPUTS, labels, strict=True)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, per_device_eval_batch_size=8
    )
    found = transformers.Trainer(EnsembleModel(ensemble_of(models)), arguments).predict(rows)
    mean = mean_softmax(models, INPUTS, token_type_ids=segments.expand(5, 6))
    assert torch.tensor(found.predictions).exp().numpy() == pytest.approx(mean.numpy(), abs=1e-6)
    nll = -mean[range(5), labels].log().mean()  # softmax of probabilities would give another value
    assert found.metrics["test_loss"] == pytest.approx(nll.item(), rel=1e-5)


def test_the_trainer_evaluates_an_ensemble_of_language_models(tmp_path):
    models = [language_model(seed) for seed in (1, 2, 3)]
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True)
    rows = [{"input_ids": row, "labels": row} for row in INPUTS]
    found = transformers.Trainer(EnsembleModel(ensemble_of(models)), arguments, eval_dataset=rows).evaluate()
    mean = mean_softmax(models, INPUTS)
    terms = [-mean[row, t - 1, INPUTS[row, t]].log().item() for row in range(5) for t in range(1, 6)]
    assert found["eval_loss"] == pytest.approx(sum(terms) / 25, rel=1e-5)


def test_an_ensemble_that_is_no_mean_of_softmax_or_no_classifier_is_rejected():
    models = [classifier(1), classifier(2)]
    for wrong, words in (
        (models[0], "ensemble must be an Ensemble of resident members, got BertFor"),
        (ensemble_of(models, resident=False), "ensemble must be an Ensemble of resident members"),
        (ensemble_of(models, activation=torch.sigmoid), "must average the softmax over the last dimension, got activ"),
        (ensemble_of([nn.Linear(2, 2)]), "classifiers or causal language models of Transformers, got Linear"),
    ):
        with pytest.raises(ArgumentError, match=words):
            EnsembleModel(wrong)


def test_a_model_with_an_encoder_and_a_decoder_is_rejected():
    config = transformers.T5Config(vocab_size=20, d_model=8, d_ff=8, num_layers=1, num_heads=1, d_kv=8)
    with pytest.raises(ArgumentError, match="causal language models of Transformers, got T5For"):
        EnsembleModel(ensemble_of([transformers.T5ForConditionalGeneration(config)]))


def test_a_model_with_several_outputs_has_no_logits():
    config = transformers.BertConfig(**{**BERT.to_dict(), "id2label": {0: "start", 1: "end"}})
    model = EnsembleModel(ensemble_of([transformers.BertForQuestionAnswering(config).eval()]))
    with pytest.raises(ArgumentError, match="return logits, got start_logits, end_logits: call the ensemble itself"):
        model(input_ids=INPUTS)
    assert model.ensemble(input_ids=INPUTS)["start_logits"].shape == (5, 6)


def test_an_ensemble_model_is_neither_saved_nor_pushed(tmp_path):
    model = EnsembleModel(ensemble_of([classifier(1)]))
    for write in (model.save_pretrained, model.push_to_hub):
        with pytest.raises(ArgumentError, match=r"must not be saved .*: use save_ensemble\(folder, ensemble\)"):
            write(str(tmp_path / "e"))
    assert list(tmp_path.iterdir()) == []


# folders


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def tokenizer():
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"bad": 0, "good": 1, "[UNK]": 2}, unk_token="[UNK]"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


def test_a_saved_ensemble_predicts_the_same_and_each_member_can_be_loaded_alone(tmp_path):
    models = [classifier(seed) for seed in (1, 2, 3)]
    ensemble = ensemble_of(models)
    members = ensemble.combination.members
    ensemble.combination = Combination(members, weights=(1.0, 2.0, 3.0), temperature=1.5, exit_threshold=0.9)
    assert save_ensemble(tmp_path / "e", ensemble, tokenizer=tokenizer()) == tmp_path / "e"
    for options in ({}, {"last": None}, {"combination": None}):
        loaded = load_ensemble(tmp_path / "e", **options)
        assert loaded.combination == ensemble.combination
    assert torch.equal(loaded(input_ids=INPUTS), ensemble(input_ids=INPUTS))
    tempered = mean_softmax(models, INPUTS, (1, 2, 3)) ** (1 / 1.5)
    torch.testing.assert_close(loaded(input_ids=INPUTS).double(), tempered / tempered.sum(-1, keepdim=True))
    second = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "e", subfolder="member-02")
    assert torch.equal(second(INPUTS).logits, models[1](INPUTS).logits)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "e").vocab_size == 3
    kinds = {Path(name).suffix for name in files(tmp_path / "e")}
    assert kinds == {".safetensors", ".json", ".md"}


def test_a_saved_language_model_with_tied_weights_generates_the_same(tmp_path):
    ensemble = ensemble_of([language_model(seed) for seed in (1, 2)])
    loaded = load_ensemble(save_ensemble(tmp_path / "e", ensemble), last=2, output="log_probabilities")
    before, after = (
        EnsembleModel(one).generate(INPUTS, max_new_tokens=4, do_sample=False) for one in (ensemble, loaded)
    )
    assert torch.equal(before, after)


def test_members_of_several_runs_are_saved(tmp_path):
    for name, seeds in (("a", (1, 2)), ("b", (3, 4))):
        store = Snapshots(tmp_path / name)
        store.open_to_write()
        for step, seed in enumerate(seeds, 1):
            store.commit(step, classifier(seed).state_dict())
        store.close()
    ensemble = Ensemble.load([tmp_path / "a", tmp_path / "b"], classifier())
    loaded = load_ensemble(save_ensemble(tmp_path / "e", ensemble))
    assert loaded.steps == (1, 2, 3, 4)
    assert torch.equal(loaded(input_ids=INPUTS), ensemble(input_ids=INPUTS))


@pytest.mark.parametrize("named", [True, False], ids=["named base", "given base"])
def test_saved_adapters_share_one_base(tmp_path, named):
    base = classifier()
    base.save_pretrained(tmp_path / "base")
    models = [adapted(seed) for seed in (1, 2, 3)]
    for model in models:
        model.peft_config["default"].base_model_name_or_path = str(tmp_path / "base") if named else None
    ensemble = ensemble_of(models)
    save_ensemble(tmp_path / "e", ensemble)
    assert {name for name in files(tmp_path / "e") if "member" in name} == {
        f"member-0{k}/{name}" for k in (1, 2, 3) for name in ("adapter_config.json", "adapter_model.safetensors")
    }
    if not named:
        with pytest.raises(ArgumentError, match=r"base must be given, because .* names no base model"):
            load_ensemble(tmp_path / "e")
    loaded = load_ensemble(tmp_path / "e", base=None if named else base)
    expected = mean_softmax(models, INPUTS)
    torch.testing.assert_close(loaded(input_ids=INPUTS).double(), expected, atol=1e-6, rtol=0)
    first, second, third = loaded.members
    assert len({m.get_base_model().bert.embeddings.word_embeddings.weight.data_ptr() for m in loaded.members}) == 1
    assert first.classifier.modules_to_save["default"].weight.data_ptr() != second.classifier.weight.data_ptr()
    alone = peft.PeftModel.from_pretrained(classifier(), tmp_path / "e", subfolder="member-03").eval()
    assert torch.equal(alone(INPUTS).logits, third(INPUTS).logits)


def test_the_card_has_the_metadata_of_the_hub_and_code_that_runs(tmp_path, monkeypatch):
    from huggingface_hub import ModelCard

    ensemble = ensemble_of([classifier(1), classifier(2)])
    outputs = ensemble.outputs([{"input_ids": INPUTS}], targets=lambda _: torch.tensor([0, 2, 1, 1, 0]))
    outputs = Outputs(outputs.members, outputs.log_probabilities, outputs.labels, "test")
    save_ensemble(tmp_path / "moods", ensemble, about=About(data="two sentences", outputs=[outputs]))
    card = ModelCard.load(tmp_path / "moods/README.md")
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["snapens", "snapshot-ensemble"],
    }
    wrong = sum(
        mean_softmax([classifier(1), classifier(2)], INPUTS, (1, 1)).argmax(-1) != torch.tensor([0, 2, 1, 1, 0])
    )
    for line in (
        "# moods",
        "- Network: BertForSequenceClassification",
        "- Training data: two sentences",
        "- Classes: 3: bad, fair, good",
        f"| test set | 5 | 2 | {20 * wrong:.2f} %",
    ):
        assert line in card.text
    monkeypatch.chdir(tmp_path / "moods")
    names = {}
    exec(re.search(r"```python\n(.*?)```", card.text, re.DOTALL)[1], names)
    assert torch.equal(names["model"](INPUTS).logits.argmax(-1), ensemble(input_ids=INPUTS).argmax(-1))


def test_the_card_of_adapters_names_their_base_on_the_hub(tmp_path):
    from huggingface_hub import ModelCard

    model = adapted(1)
    model.peft_config["default"].base_model_name_or_path = "bert-base-uncased"
    card = ModelCard.load(save_ensemble(tmp_path / "e", ensemble_of([model])) / "README.md")
    assert (card.data.library_name, card.data.base_model) == ("peft", "bert-base-uncased")
    assert "adapters of one base model" in card.text


def test_a_folder_with_other_content_is_not_overwritten(tmp_path):
    ensemble = ensemble_of([classifier(1)])
    (tmp_path / "empty").mkdir()
    save_ensemble(tmp_path / "empty", ensemble)
    (tmp_path / "file").write_text("mine")
    for name in ("empty", "file", "."):
        with pytest.raises(ArgumentError, match=r"folder must be new or empty, got .*: choose another folder"):
            save_ensemble(tmp_path / name, ensemble)
    assert (tmp_path / "file").read_text() == "mine"
    assert load_ensemble(tmp_path / "empty").steps == (4,)


def test_a_failed_save_leaves_nothing(tmp_path):
    class Full:
        def save_pretrained(self, folder):
            raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match=r"could not be written .*No space left"):
        save_ensemble(tmp_path / "e", ensemble_of([classifier(1)]), tokenizer=Full())
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_loaded_again_is_not_saved(tmp_path):
    two = adapted(1)
    two.add_adapter("other", peft.LoraConfig(task_type="SEQ_CLS", r=2))
    prompts = peft.get_peft_model(classifier(1), peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3))
    native = classifier(1)
    native.add_adapter(peft.LoraConfig(task_type="SEQ_CLS", r=2))
    for wrong, words in (
        (classifier(1), "ensemble must be an Ensemble, got BertFor"),
        (ensemble_of([classifier(1)], activation=None), "must average the softmax over the last dimension"),
        (
            ensemble_of([classifier(1)], output="log_probabilities"),
            "must have output='probabilities', because this sett",
        ),
        (ensemble_of([classifier(1)], preprocess=nn.Identity()), "must have no preprocess module"),
        (ensemble_of([nn.Linear(2, 2)]), "members of Transformers or PEFT, got Linear: see snapens.export"),
        (ensemble_of([two]), r"one adapter per member, .* got \['default', 'other'\]"),
        (ensemble_of([native]), r"made by peft.get_peft_model, got \['default'\] in a BertFor"),
        (ensemble_of([prompts]), "must have adapters of weights, .* got PROMPT_TUNING: use the run folder and Ens"),
    ):
        with pytest.raises(ArgumentError, match=words):
            save_ensemble(tmp_path / "e", wrong)


def test_a_damaged_folder_is_rejected(tmp_path):
    with pytest.raises(
        StoreError, match=r"folder must be one that save_ensemble wrote, got .* without combination.json"
    ):
        load_ensemble(tmp_path)
    folder = save_ensemble(tmp_path / "e", ensemble_of([classifier(1), classifier(2)]))
    with pytest.raises(ArgumentError, match=r"base must not be given for .*, which contains whole models"):
        load_ensemble(folder, base=classifier())
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("BertForSequenceClassification", "MyModel"))
    with pytest.raises(StoreError, match=r"config.json must name a class of transformers, got 'MyModel'"):
        load_ensemble(folder)
    (folder / "config.json").unlink()
    with pytest.raises(StoreError, match=r"e must contain a model in safetensors files, got .*config.json"):
        load_ensemble(folder)
    (folder / "config.json").write_text(config)
    (folder / "member-02/config.json").unlink()
    with pytest.raises(StoreError, match=r"member-02 must contain a model in safetensors files, got .*: restore it"):
        load_ensemble(folder)
    combination = (folder / "combination.json").read_text()
    (folder / "combination.json").write_text(combination.replace('"temperature": 1.0', '"temperature": 2.0'))
    with pytest.raises(DamagedError, match="checksum mismatch"):
        load_ensemble(folder)


@pytest.mark.parametrize("make", [classifier, adapted])
def test_a_member_without_some_of_its_tensors_is_rejected(tmp_path, make):
    from safetensors.torch import load_file, save_file

    folder = save_ensemble(tmp_path / "e", ensemble_of([make(1), make(2)]))
    base = None if make is classifier else classifier()
    (weights,) = (folder / "member-02").glob("*.safetensors")
    tensors = load_file(weights)
    name = min(name for name in tensors if "query" in name)
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, weights, {"format": "pt"})
    with pytest.raises(StoreError, match=f"member-02 must contain all tensors of its model, but {name} is missing"):
        load_ensemble(folder, base=base)
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(StoreError, match="member-02 must contain a model in safetensors files, got"):
        load_ensemble(folder, base=None if make is classifier else classifier())


def test_pickles_are_not_read(tmp_path):
    folder = save_ensemble(tmp_path / "a", ensemble_of([adapted(1)]))
    weights = folder / "member-01/adapter_model.safetensors"
    weights.rename(weights.with_name("adapter_model.bin"))
    with pytest.raises(
        StoreError, match=r"must contain a model .* No such file .*adapter_model.safetensors': restore it"
    ):
        load_ensemble(folder, base=classifier())
    folder = save_ensemble(tmp_path / "b", ensemble_of([classifier(1)]))
    weights = folder / "member-01/model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(StoreError, match=r"must contain a model .* no file named model.safetensors found"):
        load_ensemble(folder)
