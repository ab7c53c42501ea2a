import numpy as np
import pytest
import torch
from torch import nn

from snapens.errors import ArgumentError
from snapens.lab.nets.dropout import KeyedDropout, keyed, mix32


def lowbias32(x):
    """Chris Wellons' hash as it is published, in uint32 arithmetic that wraps."""
    x = np.asarray(x, np.uint32)
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    return x ^ x >> np.uint32(16)


def mask(key, layer, shape, p):
    """The mask by its definition, in NumPy."""
    low, high = np.array([key & 0xFFFFFFFF], np.uint32), np.array([key >> 32], np.uint32)
    stream = lowbias32(lowbias32(lowbias32([layer]) ^ low) ^ high)
    positions = np.arange(np.prod(shape), dtype=np.uint32)
    return (lowbias32(positions ^ stream) >= round(p * 2**32)).reshape(shape)


def dropped(x, key=0, layer=0, p=0.2):
    dropout = KeyedDropout(p, layer)
    dropout.key = torch.tensor([key])
    return dropout(x)


def test_the_mixer_equals_its_published_form():
    values = np.random.default_rng(0).integers(0, 2**32, 10_000, dtype=np.uint32)
    values[:3] = 0, 1, 2**32 - 1
    assert np.array_equal(mix32(torch.from_numpy(values.astype(np.int64))).numpy(), lowbias32(values))


@pytest.mark.parametrize("key", [0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1])
@pytest.mark.parametrize("layer", [0, 37])
def test_masks_equal_their_definition(key, layer):
    shape = (3, 4, 5, 6)
    expected = np.where(mask(key, layer, shape, 0.2), 1 / (1 - 0.2), 0).astype(np.float32)
    assert np.array_equal(dropped(torch.ones(shape), key, layer).numpy(), expected)


@pytest.mark.parametrize("p", [0.05, 0.2, 0.5, 0.9])
def test_every_channel_keeps_a_share_of_1_minus_p_and_the_mean_stays(p):
    y = dropped(torch.ones(256, 8, 16, 16), key=123_456_789_012, p=p)
    n = y[:, 0].numel()
    kept = (y != 0).double().mean((0, 2, 3))
    assert (kept - (1 - p)).abs().max() < 4 * (p * (1 - p) / n) ** 0.5
    assert float(y.double().mean()) == pytest.approx(1, abs=4 * (p / (1 - p) / y.numel()) ** 0.5)


def test_other_steps_layers_and_images_have_independent_masks():
    x = torch.ones(2, 16, 32, 32)
    n = x.numel()
    kept = [dropped(x, key, layer) != 0 for key, layer in [(0, 0), (0, 1), (1, 0), (1, 1), (1 << 32, 0), (2, 0)]]
    for k, first in enumerate(kept):
        assert abs(np.corrcoef(first[0].flatten(), first[1].flatten())[0, 1]) < 4 / (n / 2) ** 0.5
        for second in kept[:k]:
            assert abs(np.corrcoef(first.flatten(), second.flatten())[0, 1]) < 4 / n**0.5


def test_a_mask_does_not_depend_on_the_global_generator():
    x = torch.ones(1000)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = dropped(x)
    assert torch.get_rng_state().equal(state)
    torch.manual_seed(2)
    assert dropped(x).equal(first)


def test_a_mask_does_not_depend_on_the_memory_format():
    x = torch.randn(2, 3, 4, 5)
    y = dropped(x.to(memory_format=torch.channels_last))
    assert y.equal(dropped(x))
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_is_masked_and_scaled_like_the_values(dtype):
    x = torch.ones(4, 5, dtype=dtype, requires_grad=True)
    y = dropped(x, p=0.5)
    y.backward(torch.ones_like(y))
    assert y.dtype == dtype
    assert x.grad is not None
    assert x.grad.equal(y)
    assert set(x.grad.flatten().tolist()) == {0.0, 2.0}


def test_evaluation_and_p_of_zero_change_nothing():
    x = torch.randn(4, 5)
    assert KeyedDropout(0.5, 0).eval()(x) is x
    assert KeyedDropout(0.0, 0)(x) is x


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_an_impossible_probability_is_rejected(p):
    with pytest.raises(ArgumentError, match="dropout must be at least 0 and less than 1, got"):
        KeyedDropout(p, 0)


def test_a_network_gets_keyed_dropouts_in_module_order_and_keeps_its_state():
    network = nn.Sequential(nn.Dropout(0.1), nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.2), nn.ReLU()), nn.Dropout2d())
    names = list(network.state_dict())
    keyed(network)
    found = {name: module for name, module in network.named_modules() if isinstance(module, KeyedDropout)}
    assert {name: (module.p, int(module.layer)) for name, module in found.items()} == {"0": (0.1, 0), "2.0": (0.2, 1)}
    assert list(network.state_dict()) == names


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch.compile's
@pytest.mark.parametrize("compiled", [False, True])
def test_masks_on_a_gpu_are_those_on_the_cpu(compiled):
    x = torch.randn(8, 12, 32, 32)
    dropout = KeyedDropout(0.2, 5).cuda()
    dropout.key.fill_(2**40 + 3)
    if compiled:
        dropout.compile(fullgraph=True)
    y = dropout(x.cuda().to(memory_format=torch.channels_last))
    assert y.cpu().equal(dropped(x, 2**40 + 3, 5))


def test_layers_that_differ_in_their_number_alone_share_one_compiled_program():
    programs = []

    def counted(program, inputs):
        programs.append(program)
        return program.forward

    x = torch.randn(2, 3, 4, 5)
    for layer in range(12):
        dropout = KeyedDropout(0.2, layer)
        dropout.compile(backend=counted, fullgraph=True)
        assert dropout(x).equal(dropped(x, 0, layer))
    assert len(programs) == 1
