"""Mixup and CutMix against loops over examples and pixels, and their shares against SciPy's distribution."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn.functional import cross_entropy

from snapens.lab.recipe import CrossEntropy, CutMix, Mixup
from snapens.lab.recipe.batch import Batch
from snapens.lab.recipe.mixing import _quantiles

CPU = torch.device("cpu")
LARGEST = 1 - 2**-24


def batch(count=12, **changes):
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (count, 8, 10, 3)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 5, count))
    return Batch(images, labels, torch.tensor([120.0, 100, 90]), classes=5)._replace(**changes)


def drawn(columns, count=12):
    draws = np.random.default_rng(1).random((count, columns), np.float32)
    draws[0], draws[1] = 0, LARGEST
    return torch.from_numpy(draws)


def one_hot(label, share=1.0):
    return share * np.eye(5)[label]


def partner(k, count):
    """Examples 0 and 1, 2 and 3, …; the last of an odd number is alone."""
    other = k + 1 if k % 2 == 0 else k - 1
    return other if other < count else k


def share_of(draw, alpha):
    """The quantile in the middle of one of 4,096 intervals."""
    return stats.beta.ppf((int(draw * 4096) + 0.5) / 4096, alpha, alpha)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, 2.0, 8.0, 100.0])
def test_shares_have_the_quantiles_of_the_beta_distribution(alpha):
    middles = (np.arange(4096) + 0.5) / 4096
    assert np.abs(_quantiles(alpha, CPU).numpy() - stats.beta.ppf(middles, alpha, alpha)).max() < 1e-5


@pytest.mark.parametrize("count", [12, 11])
@pytest.mark.parametrize("probability", [1.0, 0.5])
def test_mixup_is_the_weighted_mean_of_an_example_and_its_neighbour(count, probability):
    given, draws = batch(count), drawn(2, count)
    found = Mixup(0.4, probability)(given, draws)
    images, labels = given.inputs.double().numpy(), given.targets.tolist()
    applied = 0
    for k, (draw, chance) in enumerate(draws.tolist()):
        share = share_of(draw, 0.4) if chance < probability else 1.0
        other = partner(k, count)
        applied += chance < probability
        assert np.allclose(found.inputs[k], share * images[k] + (1 - share) * images[other], atol=0.01)
        assert np.allclose(found.targets[k], one_hot(labels[k], share) + one_hot(labels[other], 1 - share), atol=1e-4)
    assert applied == count if probability == 1 else 0 < applied < count


@pytest.mark.parametrize("count", [12, 11])
@pytest.mark.parametrize("probability", [1.0, 0.5])
def test_cutmix_replaces_a_box_and_the_targets_have_the_shares_of_the_pixels(count, probability):
    given, draws = batch(count), drawn(4, count)
    found = CutMix(1.0, probability)(given, draws)
    sizes = set()
    for k, (draw, chance, down, right) in enumerate(draws.tolist()):
        share = share_of(draw, 1.0) if chance < probability else 1.0
        other, expected = partner(k, count), given.inputs[k].clone()
        # the authors' rand_bbox: half of the whole height and width on each side of the centre, clipped
        high, wide = int(8 * (1 - share) ** 0.5) // 2, int(10 * (1 - share) ** 0.5) // 2
        y, x = int(down * 8), int(right * 10)
        top, bottom, left, end = max(y - high, 0), min(y + high, 8), max(x - wide, 0), min(x + wide, 10)
        expected[top:bottom, left:end] = given.inputs[other, top:bottom, left:end]
        assert found.inputs[k].equal(expected)
        kept = 1 - (bottom - top) * (end - left) / 80
        sizes.add(kept)
        labels = given.targets.tolist()
        assert np.allclose(found.targets[k], one_hot(labels[k], kept) + one_hot(labels[other], 1 - kept), atol=1e-6)
    assert len(sizes) > 3


def test_mixing_twice_mixes_the_probabilities():
    first = Mixup()(batch(), drawn(2))
    second = CutMix()(first, drawn(4))
    assert torch.allclose(second.targets.sum(1), torch.ones(12))
    assert (second.targets > 0).sum(1).max() <= 2  # neighbours remain the same two


def test_rows_of_a_table_are_mixed_too_and_boxes_need_images():
    rows = torch.arange(8.0).view(4, 2)
    draws = torch.tensor([[0.5, 0.0]] * 4)
    found = Mixup(1.0)(Batch(rows, torch.tensor([0, 1, 1, 1]), classes=2), draws)
    assert torch.allclose(found.inputs, rows.view(2, 2, 2).mean(1).repeat_interleave(2, 0), atol=1e-3)
    assert torch.allclose(found.targets, torch.tensor([[0.5, 0.5], [0.5, 0.5], [0, 1], [0, 1]]), atol=1e-3)
    assert Mixup().suits({"features": 3})
    assert not CutMix().suits({"features": 3})


@pytest.mark.parametrize("mixing", [Mixup(1.0), CutMix()])
def test_padding_has_its_colour_before_it_is_mixed(mixing):
    """A pixel that is padding in both images stays padding; else the colour of padding is mixed with the other."""
    inside = torch.ones(12, 8, 10, 1, dtype=torch.bool)
    inside[:, 0] = False  # in all images
    inside[::2, 1] = False  # in every second image
    given = batch(inside=inside)
    found = mixing(given, drawn(mixing.columns))
    painted = given._replace(inputs=torch.where(inside, given.inputs, given.fill), inside=None)
    expected = mixing(painted, drawn(mixing.columns)).inputs
    assert found.restored().inputs.equal(torch.where(found.inside, expected, given.fill))
    assert torch.allclose(found.restored().inputs, expected, atol=1e-4)
    assert not found.inside[:, 0].any()
    assert found.inside[:, 2:].all()


def test_the_cross_entropy_accepts_probabilities_and_smooths_them():
    """The loss is linear in the targets, so that of a mixture is the mixture of the losses."""
    outputs = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given, draws = batch(), drawn(2)
    mixed = Mixup(1.0)(given, draws)._replace(inputs=None)
    labels = given.targets
    partners = labels.view(6, 2).flip(1).flatten()
    share = torch.tensor([share_of(draw, 1.0) for draw in draws[:, 0].tolist()])
    for smoothing in (0.0, 0.1):
        each = [cross_entropy(outputs, of, label_smoothing=smoothing, reduction="none") for of in (labels, partners)]
        expected = (share * each[0] + (1 - share) * each[1]).mean()
        found = CrossEntropy(smoothing)(outputs, mixed._replace(targets=mixed.targets.double()))
        assert float(found) == pytest.approx(float(expected), abs=1e-4)
