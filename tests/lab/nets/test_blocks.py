"""The blocks against naive computations."""

import numpy as np
import pytest
import torch
from torch import nn

from snapens.lab.nets.dense.densenet import Layer, Transition
from snapens.lab.nets.resnet import Basic, Bottleneck, PreActivation, wide


def naive_shortcut(x, outputs, stride):
    """Type A, pixel by pixel, in float64."""
    images, inputs, height, width = x.shape
    result = np.zeros((images, outputs, -(-height // stride), -(-width // stride)))
    for n, c, h, w in np.ndindex(images, inputs, *result.shape[2:]):
        result[n, c, h, w] = x[n, c, h * stride, w * stride]
    return result


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(4, 4, 1), (4, 8, 2), (3, 5, 2)])
@pytest.mark.parametrize("size", [8, 7])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_shortcut_is_every_second_pixel_and_zeros_for_new_channels(inputs, outputs, stride, size, memory_format):
    block = Basic(inputs, outputs, stride, dropout=0.0).double()
    nn.init.zeros_(block.norm2.weight)  # nothing comes from the convolutions, so that relu(shortcut) is left
    x = torch.randn(2, inputs, size, size, dtype=torch.float64).to(memory_format=memory_format)
    shortcut = naive_shortcut(x.numpy(), outputs, stride)
    assert np.array_equal(block.shortcut(x).numpy(), shortcut)
    assert np.array_equal(block(x).detach().numpy(), np.maximum(shortcut, 0))


def test_the_shortcut_stays_channels_last():
    x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
    assert Basic(4, 8, 2, dropout=0.0).shortcut(x).is_contiguous(memory_format=torch.channels_last)


def normalised(x):
    """BatchNorm in training with weight 1 and bias 0, over the images and pixels of each channel."""
    mean = x.mean((0, 2, 3), keepdims=True)
    return (x - mean) / np.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5)


def convolved(x, weight, stride=1):
    """A convolution as a sum over shifted images."""
    size = weight.shape[-1]
    padded = np.pad(x, ((0, 0), (0, 0), (size // 2,) * 2, (size // 2,) * 2))
    height, width = x.shape[2:]
    return sum(
        np.einsum(
            "nchw,oc->nohw", padded[:, :, i : i + height : stride, j : j + width : stride], weight.numpy()[:, :, i, j]
        )
        for i in range(size)
        for j in range(size)
    )


def relu(x):
    return np.maximum(x, 0)


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(4, 4, 1), (4, 8, 2)])
def test_a_residual_block_equals_a_naive_one(inputs, outputs, stride):
    block = Basic(inputs, outputs, stride, dropout=0.0).double()
    x = torch.randn(3, inputs, 6, 6, dtype=torch.float64)
    y = relu(normalised(convolved(x.numpy(), block.conv1.weight.detach(), stride)))
    y = normalised(convolved(y, block.conv2.weight.detach()))
    expected = relu(y + naive_shortcut(x.numpy(), outputs, stride))
    assert block(x).detach().numpy() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(4, 4, 1), (4, 8, 1), (4, 8, 2), (4, 4, 2)])
def test_a_block_with_pre_activation_equals_a_naive_one_and_projects_the_activated_input(inputs, outputs, stride):
    block = PreActivation(inputs, outputs, stride, dropout=0.0).double()
    x = torch.randn(3, inputs, 6, 6, dtype=torch.float64)
    activated = relu(normalised(x.numpy()))
    y = relu(normalised(convolved(activated, block.conv1.weight.detach(), stride)))
    y = convolved(y, block.conv2.weight.detach())
    if inputs == outputs and stride == 1:
        expected = y + x.numpy()
    else:
        expected = y + convolved(activated, block.shortcut.weight.detach(), stride)
    assert block(x).detach().numpy() == pytest.approx(expected, abs=1e-9)


def test_a_wide_resnet_is_its_blocks_between_one_convolution_and_a_last_activation():
    network = wide(depth=10, widen=2, classes=5).double()
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    y = convolved(x.numpy(), network.stem[0].weight.detach())
    for block in network.blocks[:3]:
        y = block(torch.from_numpy(y)).detach().numpy()
    assert [block.conv1.stride for block in network.blocks[:3]] == [(1, 1), (2, 2), (2, 2)]
    assert y.shape == (3, 128, 2, 2)
    head = network.head[2]
    expected = relu(normalised(y)).mean((2, 3)) @ head.weight.detach().numpy().T
    assert network(x).detach().numpy() == pytest.approx(expected, abs=1e-9)


def test_a_bottleneck_equals_a_naive_one_with_the_stride_in_its_middle():
    block = Bottleneck(4, 3, stride=2).double()
    x = torch.randn(3, 4, 6, 6, dtype=torch.float64)
    y = relu(normalised(convolved(x.numpy(), block.conv1.weight.detach())))
    y = relu(normalised(convolved(y, block.conv2.weight.detach(), stride=2)))
    y = normalised(convolved(y, block.conv3.weight.detach()))
    shortcut = normalised(convolved(x.numpy(), block.shortcut[0].weight.detach(), stride=2))
    assert block(x).detach().numpy() == pytest.approx(relu(y + shortcut), abs=1e-9)


def test_a_dense_layer_appends_its_growth_to_what_it_read():
    layer = Layer(5, growth=3, dropout=0.0).double()
    x = torch.randn(2, 5, 6, 6, dtype=torch.float64)
    y = layer(x).detach().numpy()
    assert y.shape == (2, 8, 6, 6)
    assert np.array_equal(y[:, :5], x.numpy())
    assert y[:, 5:] == pytest.approx(convolved(relu(normalised(x.numpy())), layer.conv.weight.detach()), abs=1e-9)


def test_a_transition_halves_the_image():
    transition = Transition(5, dropout=0.0).double()
    x = torch.randn(2, 5, 6, 6, dtype=torch.float64)
    y = convolved(relu(normalised(x.numpy())), transition.conv.weight.detach())
    expected = y.reshape(2, 5, 3, 2, 3, 2).mean((3, 5))
    assert transition(x).detach().numpy() == pytest.approx(expected, abs=1e-9)
