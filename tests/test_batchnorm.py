import pytest
import torch
from torch import nn

from snapens.batchnorm import estimated_statistics, norms


@pytest.fixture
def model():
    return nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3, momentum=0.2), nn.Sequential(nn.BatchNorm1d(3)))


def test_statistics_are_plain_averages_over_the_batches_without_dropout(model):
    batches = [torch.randn(8, 3) * k + k for k in (1, 2, 3)]
    model[1].running_mean.fill_(100.0)  # forgotten
    with estimated_statistics(model):
        for batch in batches:
            assert not model(batch).requires_grad
    mean = torch.stack([batch.double().mean(0) for batch in batches]).mean(0)
    variance = torch.stack([batch.double().var(0) for batch in batches]).mean(0)
    assert torch.allclose(model[1].running_mean.double(), mean, atol=1e-5)
    assert torch.allclose(model[1].running_var.double(), variance, atol=1e-5)
    assert len(norms(model)) == 2


def test_modes_and_momenta_are_restored_also_after_an_error(model):
    model[2].eval()  # frozen by its user
    modes = [module.training for module in model.modules()]
    with estimated_statistics(model):
        assert [module.training for module in model.modules()] == [False, False, True, False, True]
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(RuntimeError), estimated_statistics(model):
        model(torch.zeros(8, 4))  # too wide
    assert [module.training for module in model.modules()] == modes
    assert [norm.momentum for norm in norms(model)] == [0.2, 0.1]
