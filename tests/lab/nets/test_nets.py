import re
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from torch import nn, relu

from snapens.errors import ArgumentError
from snapens.lab.nets import NETWORKS, blocks, build, of, require
from snapens.lab.nets.dropout import KeyedDropout
from snapens.lab.nets.mlp import mlp
from snapens.lab.nets.resnet import wide
from snapens.lab.recipe import Network, Recipe


def parameters(network):
    return sum(weights.numel() for weights in network.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "expected"),
    [
        ("resnet110", 10, 1_727_962),
        ("resnet110", 100, 1_733_812),
        ("wrn32", 10, 7_386_186),
        ("wrn32", 100, 7_409_316),
        ("wrn28x10", 10, 36_479_194),
        ("wrn28x10", 100, 36_536_884),
        ("wrn28x8", 10, 23_354_842),
        ("wrn28x8", 100, 23_401_012),
        ("wrn16x8", 10, 10_961_370),
        ("wrn16x8", 100, 11_007_540),
        ("densenet40", 10, 1_019_722),
        ("densenet40", 100, 1_060_132),
        ("densenet100", 10, 27_249_082),
        ("densenet100", 100, 27_457_972),
        ("resnet50", 1000, 25_557_032),
    ],
)
def test_parameter_counts_are_those_of_the_published_networks(name, classes, expected):
    with torch.device("meta"):
        assert parameters(build(name, classes=classes)) == expected


@pytest.mark.parametrize(
    ("name", "layers"), [("resnet110", 110), ("wrn32", 32), ("densenet40", 40), ("densenet100", 100), ("resnet50", 50)]
)
def test_a_network_has_as_many_layers_as_its_name_says(name, layers):
    with torch.device("meta"):
        network = build(name, classes=10)
    projections = sum("shortcut" in key and isinstance(module, nn.Conv2d) for key, module in network.named_modules())
    weighted = sum(isinstance(module, nn.Conv2d | nn.Linear) for module in network.modules())
    assert weighted - projections == layers
    assert projections == (4 if name == "resnet50" else 0)


@pytest.mark.parametrize(("name", "layers"), [("wrn28x10", 28), ("wrn28x8", 28), ("wrn16x8", 16)])
def test_a_wide_resnet_has_as_many_convolutions_as_its_name_says(name, layers):
    with torch.device("meta"):
        network = build(name, classes=10)
    assert sum(isinstance(module, nn.Conv2d) for module in network.modules()) == layers


@pytest.mark.parametrize(("depth", "remedy"), [(27, 28), (4, 10), (29, 28)])
def test_a_wide_resnet_of_an_impossible_depth_is_rejected(depth, remedy):
    with pytest.raises(ArgumentError, match=rf"depth must be 6 n \+ 4 .*, got {depth}: use {remedy}"):
        wide(depth=depth, widen=2, classes=10)


@pytest.mark.parametrize("name", sorted(set(NETWORKS) - {"resnet50", "small", "mlp"}))
@pytest.mark.parametrize(("stem_stride", "size"), [(1, 32), (2, 64)])
def test_the_first_feature_maps_are_32_by_32_and_there_is_one_output_per_class(name, stem_stride, size):
    with torch.device("meta"):
        network = build(name, classes=7, channels=1, stem_stride=stem_stride)
        images = torch.empty(2, 1, size, size)
        stem = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
        assert stem(images).shape[2:] == (32, 32)
        assert network(images).shape == (2, 7)


def test_the_small_network_is_small():
    network = build("small", classes=62, channels=1)
    convolutions = 16 * 25 + 16 * 32 * 9 + 32 * 64 * 9
    assert sum(weights.numel() for weights in network.parameters()) == convolutions + 2 * (16 + 32 + 64) + 65 * 62
    assert network(torch.zeros(2, 1, 16, 16)).shape == (2, 62)


def test_an_mlp_has_the_layers_of_its_settings():
    network = build("mlp", classes=3, inputs={"features": 20}, dropout=0.2)
    kinds = [type(layer).__name__ for layer in network]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "KeyedDropout"] * 2 + ["Linear"]
    assert parameters(network) == 20 * 256 + 2 * 256 + 256 * 256 + 2 * 256 + 256 * 3 + 3
    assert network(torch.zeros(2, 20)).shape == (2, 3)
    assert [layer.p for layer in network if isinstance(layer, KeyedDropout)] == [0.2, 0.2]
    assert parameters(mlp(classes=3, features=4, hidden=())) == 4 * 3 + 3
    assert [layer.out_features for layer in mlp(classes=3, features=4, hidden=(8, 6, 5))[::4]] == [8, 6, 5, 3]


def test_the_weights_of_an_mlp_keep_the_size_of_standardised_features():
    """Weights of variance 2 / inputs double the mean square, and a ReLU halves it (He et al.)."""
    network = build("mlp", classes=3, inputs={"features": 64})
    first = network[0](torch.randn(512, 64, generator=torch.Generator().manual_seed(0)))
    second = network[4](relu(first))
    for sums in (first, second):
        assert float(sums.detach().square().mean()) == pytest.approx(2, rel=0.1)
    assert network[-1].bias.eq(0).all()


def test_resnet50_reads_imagenet():
    with torch.device("meta"):
        network = build("resnet50", classes=1000)
        images = torch.empty(2, 3, 224, 224)
        assert network.get_submodule("stem")(images).shape == (2, 64, 56, 56)
        assert network.get_submodule("blocks")(network.get_submodule("stem")(images)).shape == (2, 2048, 7, 7)
        assert network(images).shape == (2, 1000)


@pytest.mark.parametrize("name", ["densenet40", "small"])
def test_a_step_on_the_cpu_is_finite(name):
    network = build(name, classes=10, dropout=0.2)
    logits = network(torch.randn(2, 3, 32, 32))
    nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert logits.isfinite().all()
    assert all(weights.grad is not None and weights.grad.isfinite().all() for weights in network.parameters())


@pytest.mark.parametrize(
    ("name", "count", "kinds"),
    [
        ("resnet110", 54, {"Basic"}),
        ("wrn32", 15, {"Basic"}),
        ("wrn28x10", 12, {"PreActivation"}),
        ("wrn16x8", 6, {"PreActivation"}),
        ("resnet50", 16, {"Bottleneck"}),
        ("densenet40", 38, {"Layer", "Transition"}),
        ("small", 0, set()),
    ],
)
def test_the_repeated_blocks_are_found(name, count, kinds):
    with torch.device("meta"):
        found = blocks(build(name, classes=10))
    assert len(found) == count
    assert {type(block).__name__ for block in found} == kinds


def test_dropout_is_where_the_paper_has_it_and_its_layers_are_numbered():
    def layers(name):
        network = build(name, classes=10, dropout=0.2)
        return [module for module in network.modules() if isinstance(module, KeyedDropout)]

    assert len(layers("densenet40")) == 38  # after every convolution but the first
    assert len(layers("wrn32")) == 15  # one in each block
    assert [int(layer.layer) for layer in layers("densenet40")] == list(range(38))
    assert {layer.p for layer in layers("densenet40")} == {0.2}


def test_weights_are_a_function_of_seed_and_cycle():
    def weights(**settings):
        return torch.cat([tensor.flatten() for tensor in build("small", classes=3, **settings).parameters()])

    torch.manual_seed(1)
    first = weights(seed=5, cycle=2)
    torch.manual_seed(2)
    assert first.equal(weights(seed=5, cycle=2))
    others = [(5, 3), (6, 2), (2, 5), (5, 0), (0, 5), (5 + (2 << 32), 0)]
    assert not any(first.equal(weights(seed=seed, cycle=cycle)) for seed, cycle in others)


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build("small", classes=3, seed=9)
    assert torch.rand(4).equal(expected)


def test_convolutions_start_as_the_authors_draw_them_and_biases_at_zero():
    network = build("wrn32", classes=100)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            expected = (2 / (9 * module.out_channels)) ** 0.5
            n = module.weight.numel()
            assert float(module.weight.detach().std()) == pytest.approx(expected, rel=4 / (2 * n) ** 0.5)
            assert abs(float(module.weight.detach().mean())) < 4.5 * expected / n**0.5
        elif isinstance(module, nn.BatchNorm2d):
            assert module.weight.eq(1).all()
            assert module.bias.eq(0).all()
        elif isinstance(module, nn.Linear):
            assert module.bias.eq(0).all()
            assert 0 < float(module.weight.detach().abs().max()) <= module.in_features**-0.5


def test_the_names_can_be_read_without_torch():
    code = (
        "import sys; from snapens.lab.nets import NETWORKS; assert 'wrn32' in NETWORKS and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Own(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * channels, classes))

    def forward(self, x):
        return self.layers(x)


def no_module(classes, channels):
    return classes + channels


def test_a_users_own_network_receives_classes_and_channels_and_its_dropout_is_keyed():
    network = build(f"{__name__}:Own", classes=4, channels=2, seed=1)
    assert network(torch.ones(3, 2, 2, 2)).shape == (3, 4)
    assert isinstance(network.layers[1], KeyedDropout)
    again = build(f"{__name__}:Own", classes=4, channels=2, seed=1)
    assert network.layers[2].weight.equal(again.layers[2].weight)
    assert blocks(network) == []


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "resnet111",
            {},
            "unknown network 'resnet111': did you mean resnet110.* timm:NAME, torchvision:NAME or your own",
        ),
        ("nosuch", {}, "unknown network 'nosuch': choose from densenet100, .* or your own module:callable"),
        ("resnet50", {"dropout": 0.2}, "network 'resnet50' must accept.*unexpected keyword argument 'dropout'.*leave"),
        ("resnet50", {"stem_stride": 2}, "unexpected keyword argument 'stem_stride'"),
        ("nowhere.to.be:found", {}, "module:callable that Python can import, got 'nowhere.to.be:found'.*PYTHONPATH"),
        (":found", {}, "module:callable that Python can import, got ':found'"),
        (f"{__name__}:Missing", {}, "module:callable that Python can import.*has no attribute 'Missing'"),
        (f"{__name__}:__name__", {}, "module:callable, got.*which is a str"),
        (f"{__name__}:Own", {"dropout": 0.2}, "unexpected keyword argument 'dropout'"),
        (f"{__name__}:no_module", {}, "network must build a torch.nn.Module, got int"),
        ("builtins:dict.nothing", {}, "module:callable that Python can import"),
        ("snapens.lab.nets.dense.densenet:densenet", {}, "missing a required.*'depth'"),
        ("densenet40", {"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ("mlp", {}, r"network 'mlp' takes tables \(features\), but the data are images \(channels\): use a network"),
        (
            "small",
            {"inputs": {"features": 4}},
            r"'small' takes images \(channels\), but the data are tables \(features\).*such as --network mlp",
        ),
        ("mlp", {"inputs": {"features": 4}, "channels": 3}, "unexpected keyword argument 'channels'"),
        ("mlp", {"inputs": {"features": 4}, "stem_stride": 2}, "unexpected keyword argument 'stem_stride'"),
    ],
)
def test_a_network_that_cannot_be_built_is_rejected_with_the_reason(name, settings, message):
    with pytest.raises(ArgumentError, match=message):
        build(name, classes=10, **settings)


@pytest.mark.parametrize("name", [*NETWORKS, f"{__name__}:Own"])
def test_a_network_is_accepted_before_its_data_is_known(name):
    require(name)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("resnet111", {}, "unknown network 'resnet111'"),
        ("resnet50", {"dropout": 0.2}, "unexpected keyword argument 'dropout'"),
        ("mlp", {"stem_stride": 2}, "unexpected keyword argument 'stem_stride'"),
        (
            "wrn28x10",
            {"pretrained": True},
            "unexpected keyword argument 'pretrained'.*leave the setting at its default",
        ),
        (f"{__name__}:parameters", {}, "unexpected keyword argument 'classes'"),
    ],
)
def test_a_setting_that_a_network_lacks_is_rejected_before_its_data_is_known(name, settings, message):
    with pytest.raises(ArgumentError, match=message):
        require(name, **settings)


def test_a_densenet_of_an_impossible_depth_is_rejected():
    from snapens.lab.nets.dense.densenet import densenet

    with pytest.raises(ArgumentError, match=r"depth must be 3 n \+ 4 .*, got 41: use 40"):
        densenet(depth=41, growth=12, classes=10)


def fake_library(monkeypatch, name, **contents):
    """A stand-in for a library that is not installed here: its names, and what it was called with."""
    module = ModuleType(name)
    for key, value in contents.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)


def test_torchvision_networks_are_built_by_name(monkeypatch):
    models = ModuleType("models")
    models.list_models = lambda module: ["resnet18"]
    models.get_model = lambda name, weights, num_classes: nn.Linear(1, num_classes)
    fake_library(monkeypatch, "torchvision", models=models)
    assert build("torchvision:resnet18", classes=6).out_features == 6
    with pytest.raises(ArgumentError, match=r"unknown torchvision network 'resnet19'.*resnet18"):
        build("torchvision:resnet19", classes=6)
    with pytest.raises(ArgumentError, match="channels must be 3 for a torchvision network, got 1: use timm:NAME"):
        build("torchvision:resnet18", classes=6, channels=1)
    with pytest.raises(ArgumentError, match="unexpected keyword argument 'dropout'"):
        build("torchvision:resnet18", classes=6, dropout=0.2)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_package_that_is_not_installed_is_named_with_a_command_before_the_data_is_known(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)  # importing it fails
    with pytest.raises(ArgumentError, match=rf"network '{library}:resnet18' needs .*, with pip install {library}$"):
        require(f"{library}:resnet18")


def test_timm_networks_are_built_by_name(monkeypatch):
    def create_model(name, pretrained, num_classes, in_chans, drop_rate):
        assert not pretrained
        return nn.Sequential(nn.Dropout(drop_rate), nn.Linear(in_chans, num_classes))

    fake_library(monkeypatch, "timm", list_models=lambda: ["vit"], create_model=create_model)
    dropout, head = build("timm:vit", classes=6, channels=1, dropout=0.3)
    assert dropout.p == 0.3
    assert (head.in_features, head.out_features) == (1, 6)
    with pytest.raises(ArgumentError, match="unknown timm network 'vat'"):
        build("timm:vat", classes=6)


def pretrained_torchvision(monkeypatch, network):
    """A torchvision whose one network has pretrained weights for 1,000 classes."""
    models = ModuleType("models")
    models.list_models = lambda module: ["net"]
    models.get_model = lambda name, weights: network if weights == "DEFAULT" else None
    fake_library(monkeypatch, "torchvision", models=models)


def test_a_pretrained_torchvision_network_has_a_new_last_layer_that_depends_on_the_seed(monkeypatch):
    body = nn.Linear(4, 5)
    heads = []
    for seed in (1, 1, 2):
        pretrained_torchvision(monkeypatch, nn.ModuleDict({"body": body, "heads": nn.Sequential(nn.Linear(5, 1000))}))
        network = build("torchvision:net", classes=3, pretrained=True, seed=seed)
        assert network["body"] is body
        heads.append(network["heads"][0])
    assert (heads[0].in_features, heads[0].out_features) == (5, 3)
    assert heads[0].weight.equal(heads[1].weight)
    assert not heads[0].weight.equal(heads[2].weight)


def test_a_pretrained_network_without_a_linear_layer_at_its_end_is_rejected(monkeypatch):
    pretrained_torchvision(monkeypatch, nn.Sequential(nn.Conv2d(3, 1000, 1)))
    with pytest.raises(ArgumentError, match="'torchvision:net' must end with a linear layer to start from pretrained"):
        build("torchvision:net", classes=3, pretrained=True)


def test_a_pretrained_timm_network_is_built_by_timm_and_a_failed_download_is_explained(monkeypatch):
    def create_model(name, pretrained, num_classes, in_chans, drop_rate):
        if name == "missing":
            raise OSError("no route to host")
        return nn.Linear(in_chans, num_classes, bias=pretrained)

    fake_library(monkeypatch, "timm", list_models=lambda: ["vit", "missing"], create_model=create_model)
    assert build("timm:vit", classes=6, pretrained=True).bias is not None
    assert build("timm:vit", classes=6).bias is None
    message = r"network 'timm:missing' must have pretrained weights .*, got no route to host: check the connection, or"
    with pytest.raises(ArgumentError, match=message):
        build("timm:missing", classes=6, pretrained=True)


def test_the_network_of_a_recipe_starts_from_pretrained_weights_unless_a_snapshot_replaces_them(monkeypatch):
    def create_model(name, pretrained, num_classes, in_chans, drop_rate):
        return nn.Linear(in_chans, num_classes, bias=pretrained)

    fake_library(monkeypatch, "timm", list_models=lambda: ["vit"], create_model=create_model)
    recipe = Recipe(Network("timm:vit", pretrained=True))
    assert of(recipe, 6, {"channels": 3}).bias is not None
    assert of(recipe, 6, {"channels": 3}, pretrained=False).bias is None


@pytest.mark.parametrize("error", [ImportError("no such module"), RuntimeError("operator nms does not exist")])
def test_a_library_that_does_not_import_is_named_with_the_remedy(monkeypatch, error):
    def broken(name):
        raise error

    monkeypatch.setattr("snapens.lab.nets.zoo.importlib.import_module", broken)
    message = f"torchvision, which cannot be imported ({error}): install a version that supports torch"
    from snapens.lab.nets.zoo import from_torchvision

    with pytest.raises(ArgumentError, match=re.escape(message)):
        from_torchvision(name="resnet18", classes=10)
