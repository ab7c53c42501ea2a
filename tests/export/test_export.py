"""Exported graphs are run by onnxruntime and by torch, and compared with a float64 loop over the networks."""

import copy
import re
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tiny import dense
from torch import nn

from snapens import Combination, Ensemble, Outputs, Snapshots
from snapens.errors import ArgumentError, ExportError, MissingPackageError, StoreError
from snapens.export import About, to_onnx, to_program
from snapens.export import onnx as onnx_module
from snapens.export.graph import Graph
from snapens.lab.nets import accelerate, build
from snapens.weights import tensors

SOURCE = str(Path(onnx_module.__file__).parents[2]).encode()


def conv():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 36, 3)
    )


def accelerated():
    network = dense(classes=3, channels=3)
    accelerate(network)
    return network


NETWORKS = {
    "conv": (conv, (3, 8, 8)),
    "mlp": (lambda: build("mlp", classes=3, inputs={"features": 5}), (5,)),
    "small": (lambda: build("small", classes=3, channels=1, dropout=0.2), (1, 12, 12)),
    "dense": (accelerated, (3, 8, 8)),
}


def trained(make, frozen):
    """Snapshots of differing networks, and those networks in evaluation mode; frozen tensors are equal in all."""
    store, networks, first = Snapshots(), [], make().state_dict()
    for step in (4, 8, 12):
        network = make()
        for name, value in network.state_dict().items():
            if name in frozen:
                value.copy_(first[name])
            elif value.is_floating_point():
                value.mul_(1 + 0.2 * torch.rand_like(value)).add_(0.02 * torch.rand_like(value))  # never a default
        store.commit(step, tensors(network))
        networks.append(network.eval())
    return store, networks


def ensemble_of(make, combination=None, frozen=(), **options):
    store, networks = trained(make, frozen)
    return Ensemble(store, make(), combination=combination, **options), networks


def mean_of(networks, *args, weights=None, temperature=1.0, **kwargs):
    """The prediction in float64, from its definition."""
    with torch.no_grad():
        members = [copy.deepcopy(net).double()(*args, **kwargs).softmax(-1) for net in networks]
    weights = torch.tensor(weights or [1.0] * len(members), dtype=torch.float64)
    mean = sum(weight * member for weight, member in zip(weights, members, strict=True)) / weights.sum()
    powers = mean ** (1 / temperature)
    return (powers / powers.sum(-1, keepdim=True)).numpy()


def run(path, **inputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {name: value.numpy() for name, value in inputs.items()})


def ports(path):
    """The names and shapes of the inputs and outputs in the file."""
    graph = onnx.load(path).graph
    return {
        port.name: tuple(one.dim_param or one.dim_value for one in port.type.tensor_type.shape.dim)
        for port in (*graph.input, *graph.output)
    }


def weighted(weights, **options):
    return Combination(tuple(("memory", step) for step in (4, 8, 12)), weights, **options)


@pytest.fixture
def mlp():
    return ensemble_of(NETWORKS["mlp"][0])


# what a graph computes


@pytest.mark.parametrize("name", NETWORKS)
def test_a_graph_in_onnx_predicts_the_mean_of_the_networks_for_any_batch_size(name, tmp_path):
    make, shape = NETWORKS[name]
    ensemble, networks = ensemble_of(make)
    path = to_onnx(ensemble, torch.randn(2, *shape), tmp_path / "e.onnx", inputs=["x"])
    assert ports(path) == {"x": ("batch", *shape), "probabilities": ("batch", 3)}
    for size in (1, 7):
        x = torch.randn(size, *shape)
        np.testing.assert_allclose(run(path, x=x)[0], mean_of(networks, x.double()), atol=1e-5)


@pytest.mark.parametrize("name", ["conv", "dense"])
def test_a_program_predicts_the_mean_of_the_networks_for_any_batch_size(name, tmp_path):
    make, shape = NETWORKS[name]
    ensemble, networks = ensemble_of(make)
    to_program(ensemble, torch.randn(2, *shape), tmp_path / "e.pt2", inputs=["x"])
    loaded = torch.export.load(tmp_path / "e.pt2").module()
    for size in (1, 7):
        x = torch.randn(size, *shape)
        np.testing.assert_allclose(loaded(x=x), mean_of(networks, x.double()), atol=1e-5)


def test_weights_and_temperature_are_in_the_graph_and_members_of_weight_zero_are_not(tmp_path):
    ensemble, networks = ensemble_of(conv, weighted((0.0, 1.0, 3.0), temperature=1.7, exit_threshold=0.6))
    path = to_onnx(ensemble, torch.randn(2, 3, 8, 8), tmp_path / "e.onnx")
    x = torch.randn(5, 3, 8, 8)
    expected = mean_of(networks[1:], x.double(), weights=[1.0, 3.0], temperature=1.7)
    np.testing.assert_allclose(run(path, input=x)[0], expected, atol=1e-5)
    assert sum(node.op_type == "Conv" for node in onnx.load(path).graph.node) == 2


def test_prefixes_are_the_predictions_of_the_newest_members(tmp_path):
    ensemble, networks = ensemble_of(NETWORKS["mlp"][0], weighted((1.0, 2.0, 3.0), temperature=0.8))
    path = to_onnx(ensemble, torch.randn(2, 5), tmp_path / "e.onnx", prefixes=True)
    assert ports(path)["probabilities"] == (3, "batch", 3)
    x = torch.randn(4, 5)
    found = run(path, input=x)[0]
    for m, weights in ((1, [3.0]), (2, [2.0, 3.0]), (3, [1.0, 2.0, 3.0])):
        expected = mean_of(networks[-m:], x.double(), weights=weights, temperature=0.8)
        np.testing.assert_allclose(found[m - 1], expected, atol=1e-5)


def test_one_member_is_one_network_even_if_others_were_used_before(mlp, tmp_path):
    ensemble, networks = mlp
    ensemble.last = 1
    program = to_program(ensemble, torch.randn(2, 5))
    x = torch.randn(3, 5)
    np.testing.assert_allclose(program.module()(input=x), mean_of(networks[-1:], x.double()), atol=1e-5)
    assert sum(value.numel() for value in program.state_dict.values()) == sum(
        value.numel() for value in networks[-1].state_dict().values()
    )


def test_tensors_that_members_share_are_stored_once(tmp_path):
    def make():
        return nn.Sequential(nn.Linear(5, 4000), nn.ReLU(), nn.Linear(4000, 3))

    ensemble, networks = ensemble_of(make, frozen=("0.weight", "0.bias"))
    path = to_onnx(ensemble, torch.randn(2, 5), tmp_path / "e.onnx")
    to_program(ensemble, torch.randn(2, 5), tmp_path / "e.pt2")
    base, heads = 4 * 6 * 4000, 3 * 4 * 3 * 4001
    for file in (path, tmp_path / "e.pt2"):
        assert base + heads < file.stat().st_size < base + heads + 50_000
    x = torch.randn(6, 5)
    np.testing.assert_allclose(run(path, input=x)[0], mean_of(networks, x.double()), atol=1e-5)


# inputs and outputs


class Two(nn.Module):
    """Embeds words and adds numbers; the number of rows of `scale` is not that of the batch."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, words, numbers, scale=None, twice=False):
        found = self.words(words).mean(1).to(numbers.dtype) + numbers
        found = found if scale is None else found * scale
        return self.head(2 * found if twice else found)


def two(size):
    return {"words": torch.randint(0, 10, (size, 6)), "numbers": torch.randn(size, 4)}


def test_several_inputs_have_the_names_of_the_keywords_in_a_mapping(tmp_path):
    ensemble, networks = ensemble_of(Two)
    scale = torch.rand(4)
    path = to_onnx(ensemble, {**two(3), "scale": scale, "twice": True}, tmp_path / "e.onnx")
    assert ports(path) == {
        "words": ("batch", 6),
        "numbers": ("batch", 4),
        "scale": (4,),
        "probabilities": ("batch", 3),
    }
    for size in (1, 7):
        batch = two(size)
        expected = mean_of(networks, batch["words"], batch["numbers"].double(), scale.double(), twice=True)
        np.testing.assert_allclose(run(path, **batch, scale=scale)[0], expected, atol=1e-5)


def test_arguments_in_a_tuple_have_the_names_of_the_parameters_or_given_names():
    ensemble, networks = ensemble_of(Two)
    batch = two(5)
    expected = mean_of(networks, batch["words"], batch["numbers"].double())
    example = tuple(two(2).values())
    np.testing.assert_allclose(to_program(ensemble, example).module()(**batch), expected, atol=1e-5)
    named = to_program(ensemble, example, inputs=["a", "b"]).module()
    np.testing.assert_allclose(named(a=batch["words"], b=batch["numbers"]), expected, atol=1e-5)


def test_an_example_of_one_row_leaves_the_batch_size_free(mlp):
    ensemble, networks = mlp
    x = torch.randn(7, 5)
    found = to_program(ensemble, x[:1]).module()(input=x)
    np.testing.assert_allclose(found, mean_of(networks, x.double()), atol=1e-5)


class Scaled(nn.Linear):
    def forward(self, x, scale):
        return super().forward(x) * scale


def test_a_tensor_with_another_number_of_rows_than_the_batch_keeps_its_shape():
    ensemble, networks = ensemble_of(lambda: Scaled(5, 2))
    x, scale = torch.randn(7, 5), torch.tensor([1.0, 2.0])
    found = to_program(ensemble, (x[:1], scale)).module()(x=x, scale=scale)
    np.testing.assert_allclose(found, mean_of(networks, x.double(), scale.double()), atol=1e-5)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.colour, self.shape = nn.Linear(5, 2), nn.Linear(5, 3)

    def forward(self, x):
        return {"colour": self.colour(x), "shape": self.shape(x)}


def test_a_mapping_of_heads_gives_one_output_per_head(tmp_path):
    ensemble, networks = ensemble_of(Heads)
    path = to_onnx(ensemble, torch.randn(2, 5), tmp_path / "e.onnx", prefixes=True)
    x = torch.randn(4, 5)
    colour, shape = run(path, x=x)
    assert list(ports(path)) == ["x", "colour", "shape"]
    np.testing.assert_allclose(colour[-1], mean_of([net.colour for net in networks], x.double()), atol=1e-5)
    np.testing.assert_allclose(shape[0], mean_of([networks[-1].shape], x.double()), atol=1e-5)


def test_without_an_activation_the_output_is_the_mean_of_the_scores(tmp_path):
    ensemble, networks = ensemble_of(lambda: nn.Linear(5, 1), activation=None)
    program = to_program(ensemble, torch.randn(2, 5), tmp_path / "e.pt2")
    x = torch.randn(4, 5)
    with torch.no_grad():
        expected = sum(network(x) for network in networks) / 3
    np.testing.assert_allclose(program.module()(input=x), expected, atol=1e-5)
    card = (tmp_path / "e.pt2.md").read_text()
    assert "| output | `mean` | float32 | (batch, 1) |" in card
    assert "the weighted mean of the members' outputs" in card


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(100.0))

    def forward(self, pixels):
        return ((pixels.float() - self.mean) / 50).permute(0, 3, 1, 2)


def test_a_preprocessing_module_comes_first_and_names_the_input(tmp_path):
    ensemble, networks = ensemble_of(conv, preprocess=Normalised())
    pixels = torch.randint(0, 256, (4, 8, 8, 3), dtype=torch.uint8)
    path = to_onnx(ensemble, pixels[:2], tmp_path / "e.onnx")
    expected = mean_of(networks, ((pixels.double() - 100) / 50).permute(0, 3, 1, 2))
    np.testing.assert_allclose(run(path, pixels=pixels)[0], expected, atol=1e-5)


# files


def test_an_onnx_file_depends_neither_on_the_example_nor_on_the_folder(mlp, tmp_path):
    files = [to_onnx(mlp[0], torch.randn(2, 5), tmp_path / name / "e.onnx") for name in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert SOURCE not in files[0].read_bytes()


def test_a_program_contains_neither_the_example_nor_paths_of_this_machine(mlp, tmp_path):
    example = torch.randn(2, 5)
    to_program(mlp[0], example, tmp_path / "e.pt2")
    content = (tmp_path / "e.pt2").read_bytes()
    assert example.numpy().tobytes() not in content
    assert SOURCE not in content


def test_a_graph_that_computes_nan_is_rejected(mlp):
    graph = Graph(mlp[0], torch.randn(2, 5))
    with pytest.raises(ExportError, match="got a difference of nan for 2 examples"):
        graph.check(lambda inputs: [torch.full((2, 3), torch.nan)], tolerance=1e-3)


def test_tensors_of_a_large_model_are_in_a_second_file_which_only_a_complete_export_replaces(
    mlp, tmp_path, monkeypatch
):
    monkeypatch.setattr(onnx_module, "_MOST_BYTES", 1000)
    ensemble, networks = mlp
    path = to_onnx(ensemble, torch.randn(2, 5), tmp_path / "e.onnx")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert path.stat().st_size < 20_000 < sum(map(len, before.values()))
    with pytest.raises(ExportError, match="probabilities of the exported graph must equal those of PyTorch within -1"):
        to_onnx(ensemble, torch.randn(2, 5), path, tolerance=-1)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    ensemble.last = 2
    to_onnx(ensemble, torch.randn(2, 5), path)
    (new,) = set(tmp_path.iterdir()) - before.keys()
    assert set(tmp_path.iterdir()) == {path, new, tmp_path / "e.onnx.md"}
    assert f"| `{new.name}` | {new.stat().st_size:,} |" in (tmp_path / "e.onnx.md").read_text()
    x = torch.randn(4, 5)
    np.testing.assert_allclose(run(path, input=x)[0], mean_of(networks[-2:], x.double()), atol=1e-5)


def test_a_path_that_cannot_be_written_is_an_error_of_our_own(mlp, tmp_path):
    (tmp_path / "file").write_text("")
    for write in (to_onnx, to_program):
        with pytest.raises(StoreError, match=r"file/e could not be written .*choose another path"):
            write(mlp[0], torch.randn(2, 5), tmp_path / "file" / "e")


# the model card


def code_in(card):
    return re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]


@pytest.mark.parametrize(("write", "name", "prefixes"), [(to_onnx, "e.onnx", False), (to_program, "e.pt2", True)])
def test_the_code_in_the_card_runs(write, name, prefixes, tmp_path, monkeypatch, capsys):
    ensemble, _ = ensemble_of(Heads if prefixes else Two)
    write(ensemble, torch.randn(2, 5) if prefixes else two(2), tmp_path / name, prefixes=prefixes)
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(code_in((tmp_path / f"{name}.md").read_text()), found)
    assert found["prediction"].shape == ((3, 1, 2) if prefixes else (1, 3))
    assert capsys.readouterr().out


def test_the_card_states_members_combination_quality_inputs_and_hash(tmp_path):
    ensemble, _ = ensemble_of(lambda: nn.Linear(5, 2), weighted((1.0, 1.0, 3.0), temperature=0.5, exit_threshold=0.9))
    # by hand: newest alone (0.8, 0.2); the weighted mean is (0.7, 0.3) and, squared and normalised, (0.8448, 0.1552)
    p = np.log([[[0.6, 0.4]], [[0.5, 0.5]], [[0.8, 0.2]]]).repeat(10, 1).astype(np.float16)
    labels = np.array([0] * 9 + [1])
    members = ensemble.combination.members
    outputs = [Outputs(members, p, labels, "test"), Outputs(members[:1], p[:1], labels, "held_out")]
    about = About("two layers", "ten *rows*", ["yes", "no_*"], outputs, "five numbers between 0 and 1")
    to_program(ensemble, torch.randn(2, 5), tmp_path / "e.pt2", about=about)
    card = (tmp_path / "e.pt2.md").read_text()
    ((error, nll, ece),) = re.findall(r"\| test set \| 10 \| 3 \| ([\d.]+) % \| ([\d.]+) \| ([\d.]+) \|", card)
    assert error == "10.00"
    assert float(nll) == pytest.approx(-(9 * np.log(0.8448) + np.log(0.1552)) / 10, abs=1e-3)  # outputs are float16
    assert float(ece) == pytest.approx(0.9 - 0.8448, abs=1e-3)
    for line in (
        "- Classes: 2: yes, no\\_\\*",
        "- Members: 3 snapshots of 1 training run",
        "- Step × weight of each member, oldest first: 4 × 1, 8 × 1, 12 × 3",
        "then the temperature 0.5",
        "exit threshold 0.9. This file does not use it",
        "| input | `input` | float32 | (batch, 5) |",
        "| output | `probabilities` | float32 | (batch, 2) |",
        "five numbers between 0 and 1",
        f"torch {torch.__version__}",
        sha256((tmp_path / "e.pt2").read_bytes()).hexdigest(),
    ):
        assert line in card
    assert "held-out" not in card.lower()  # those outputs lack two members


def test_the_card_has_one_line_of_quality_per_prefix_and_says_what_held_out_means(tmp_path):
    ensemble, _ = ensemble_of(lambda: nn.Linear(5, 2))
    p = np.log([[[0.9, 0.1]], [[0.6, 0.4]], [[0.2, 0.8]]]).astype(np.float16)
    about = About(outputs=[Outputs(ensemble.combination.members, p, np.array([0]), "held_out")])
    to_program(ensemble, torch.randn(2, 5), tmp_path / "e.pt2", prefixes=True, about=about)
    card = (tmp_path / "e.pt2.md").read_text()
    rows = re.findall(r"\| held-out examples \| 1 \| (\d) \| ([\d.]+) %", card)
    assert rows == [("1", "100.00"), ("2", "100.00"), ("3", "0.00")]  # (0.2, 0.8), (0.4, 0.6), (0.567, 0.433)
    assert "the combination may have been fitted on them" in card


# errors


def test_onnx_needs_a_version_of_torch_that_exports_batchnorm(mlp, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.6.0+cpu"))
    with pytest.raises(
        ExportError, match=r"torch must be version 2.7 or later for ONNX, got 2.6.0\+cpu: use to_program"
    ):
        to_onnx(mlp[0], torch.zeros(2, 5), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_streamed_ensemble_is_rejected(tmp_path):
    ensemble, _ = ensemble_of(lambda: nn.Linear(5, 2), resident=False)
    with pytest.raises(
        ArgumentError, match=r"ensemble must be resident, .* got resident=False: build it with resident"
    ):
        to_onnx(ensemble, torch.randn(2, 5), tmp_path / "e.onnx")


def test_an_ensemble_on_another_device_is_rejected(mlp):
    with pytest.raises(ArgumentError, match=r"ensemble must be on the CPU, got meta: call ensemble.cpu\(\)"):
        to_program(mlp[0].to("meta"), torch.randn(2, 5))


def test_what_is_not_an_ensemble_is_rejected():
    with pytest.raises(ArgumentError, match="ensemble must be an Ensemble, got Linear"):
        to_program(nn.Linear(5, 2), torch.randn(2, 5))


class Branches(nn.Linear):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


class Fixed(nn.Linear):
    def forward(self, x):
        return super().forward(x).reshape(int(x.shape[0]), 2) + torch.zeros(2 if x.shape[0] == 2 else 1, 2)


@pytest.mark.parametrize("kind", [Branches, Fixed])
def test_a_model_that_cannot_be_traced_for_every_batch_is_rejected(kind, tmp_path):
    ensemble, _ = ensemble_of(lambda: kind(5, 2))
    with pytest.raises(
        ExportError, match=r"model must be traceable by torch.export with a dynamic batch size, got \w+:"
    ):
        to_onnx(ensemble, torch.randn(2, 5), tmp_path / "e.onnx")
    assert not list(tmp_path.iterdir())


class LessTheSecond(nn.Linear):
    def forward(self, x):
        return super().forward(x) - x[1, :2]


@pytest.mark.parametrize("write", [to_onnx, to_program])
def test_a_model_that_needs_several_examples_is_rejected(write, tmp_path):
    ensemble, _ = ensemble_of(lambda: LessTheSecond(5, 2))
    message = "the exported graph must accept 1 examples, got .*: forward.. of the model must accept every batch size"
    with pytest.raises(ExportError, match=message):
        write(ensemble, torch.randn(2, 5), tmp_path / "e")
    assert not list(tmp_path.iterdir())


def test_a_type_that_onnxruntime_lacks_is_an_error_of_our_own(tmp_path):
    ensemble, _ = ensemble_of(lambda: nn.Linear(5, 2, dtype=torch.bfloat16))
    with pytest.raises(
        ExportError, match=r"model must be one that onnxruntime can load, got NotImplemented: .*: use to_program$"
    ):
        to_onnx(ensemble, torch.randn(2, 5, dtype=torch.bfloat16), tmp_path / "e.onnx")
    assert not list(tmp_path.iterdir())


class Bessel(nn.Linear):
    def forward(self, x):
        return torch.special.bessel_j0(super().forward(x))


def test_an_operator_that_onnx_lacks_is_an_error_of_our_own(tmp_path):
    ensemble, _ = ensemble_of(lambda: Bessel(5, 2))
    with pytest.raises(
        ExportError, match=r"model must consist of operators that ONNX supports, .*bessel_j0.*use to_program"
    ):
        to_onnx(ensemble, torch.randn(2, 5), tmp_path / "e.onnx")


@pytest.mark.parametrize(
    ("example", "options", "message"),
    [
        (torch.randn(2, 4), {}, r"example must be a batch that the model accepts, got input \(2, 4\) \(RuntimeError"),
        (
            (torch.randn(2, 5), torch.randn(2)),
            {},
            "example must be a batch that the model accepts, got input .*TypeErr",
        ),
        ({"y": torch.randn(2, 5)}, {}, r"example must be a batch that the model accepts, got y \(2, 5\)"),
        (torch.randn(0, 5), {}, "example must contain a tensor with at least one row, got none"),
        ((1, "a"), {}, "example must contain a tensor with at least one row, got none"),
        ([torch.randn(2, 5)], {}, "example must consist of tensors, numbers and strings, got a list as argument 0"),
        (torch.randn(2, 5), {"inputs": ["a", "b"]}, r"inputs must be 1 names, one per tensor of the example \(input\)"),
        (torch.randn(2, 5), {"inputs": "x"}, "inputs must be 1 names, .*got 'x'"),
        (torch.randn(2, 5), {"inputs": ["probabilities"]}, "inputs must not have the name of an output, got 'probab"),
        (torch.randn(2, 5), {"inputs": ["1 a"]}, "inputs must be distinct names of letters, digits and _, got .'1 a'."),
    ],
)
def test_a_wrong_example_or_wrong_names_are_rejected(example, options, message, mlp):
    with pytest.raises(ArgumentError, match=message):
        to_program(mlp[0], example, **options)


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


def test_a_model_that_returns_a_tuple_is_rejected_as_by_the_ensemble():
    ensemble, _ = ensemble_of(lambda: Pair(5, 2))
    with pytest.raises(
        ArgumentError, match=r"model must return a tensor, a mapping of tensors or something with .logits"
    ):
        to_program(ensemble, torch.randn(2, 5))


@pytest.mark.parametrize("name", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named_before_any_work(name, mlp, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=rf"{name} must be installed for this: pip install .*\[export\]"):
        to_onnx(mlp[0], torch.randn(2, 5), tmp_path / "e.onnx")
