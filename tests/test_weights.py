import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from snapens.errors import ArgumentError
from snapens.weights import reject_extra_state, set_tensors, tensors, unwrap


def test_a_child_called_module_is_not_mistaken_for_a_wrapper(net):
    assert unwrap(net) is net
    assert "module.weight" in tensors(net)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda m: torch.compile(m, backend="eager"),
        nn.DataParallel,
        lambda m: nn.DataParallel(torch.compile(m, backend="eager")),
        lambda m: torch.compile(nn.DataParallel(m), backend="eager"),
    ],
)
def test_wrappers_do_not_appear_in_the_names(net, wrap):
    assert unwrap(wrap(net)) is net
    assert tensors(wrap(net)).keys() == net.state_dict().keys()


def test_an_averaged_model_has_the_names_of_the_model_it_averages(net):
    assert tensors(AveragedModel(net)).keys() == net.state_dict().keys()


def test_compiled_children_do_not_appear_in_the_names(make_net):
    plain = nn.Sequential(make_net(), nn.Sequential(make_net(), nn.Linear(3, 2)))
    names = plain.state_dict().keys()
    compiled = copy.deepcopy(plain)
    compiled[1][0] = torch.compile(compiled[1][0], backend="eager")
    compiled[1] = torch.compile(compiled[1], backend="eager")
    assert tensors(compiled).keys() == names
    assert tensors(compiled)["1.0.head.weight"] is compiled[1]._orig_mod[0]._orig_mod.head.weight


def test_a_compiled_child_with_two_names_does_not_appear_in_either():
    model = nn.Module()
    model.a = model.b = torch.compile(nn.Linear(2, 2), backend="eager")
    assert set(tensors(model)) == {"a.weight", "a.bias", "b.weight", "b.bias"}


def test_a_state_changed_by_a_hook_is_rejected():
    model = nn.Linear(1, 1)
    model.register_state_dict_post_hook(lambda module, state, *_: state.update(bias=state["bias"].half()))
    with pytest.raises(ArgumentError, match="got 'bias', which extra state or a hook added"):
        reject_extra_state(model)
    assert list(tensors(model)) == ["weight"]


def test_the_tensors_are_the_live_ones(net):
    assert tensors(net)["head.weight"] is net.head.weight
    assert tensors(net)["norm.running_mean"] is net.norm.running_mean


def test_a_state_that_is_not_a_tensor_is_rejected():
    class Odd(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

    with pytest.raises(ArgumentError, match="only parameters and buffers in its state_dict, got '_extra_state'"):
        reject_extra_state(Odd(1, 1))
    assert list(tensors(Odd(1, 1))) == ["weight", "bias"]


def test_values_are_copied_into_the_tensors_of_a_wrapped_module(net, make_net):
    values = {name: tensor.detach().clone() for name, tensor in tensors(make_net()).items()}
    set_tensors(nn.DataParallel(net), values)
    assert all(torch.equal(tensor, values[name]) for name, tensor in tensors(net).items())
    assert net.again.weight is net.mix.weight
