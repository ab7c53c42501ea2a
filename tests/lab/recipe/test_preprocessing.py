"""Preprocessing as a value: its rules, its JSON, its arithmetic and its export."""

import numpy as np
import pytest
import torch
from torch import nn

from snapens.errors import ArgumentError
from snapens.lab.recipe.preprocessing import ImagePreprocessing, Preprocessing, RowPreprocessing, from_flat

PIXELS = ImagePreprocessing((100.0, 50.0, 0.0), (50.0, 25.0, 255.0), size=2, crop=0.875)
ROWS = RowPreprocessing((1e6, 2.0), (0.5, 4.0))


def test_pixels_are_normalised_and_their_channels_come_first():
    found = PIXELS(np.full((3, 2, 2, 3), (200, 100, 51), np.uint8))
    assert found.shape == (3, 3, 2, 2)
    assert found.shape[1:] == PIXELS.input_shape
    assert found.dtype == torch.float32
    assert found[2, :, 1, 0].tolist() == pytest.approx([2.0, 2.0, 0.2])


def test_rows_are_standardised_in_float64():
    assert ROWS(np.array([[1e6 + 0.125, 4.0]])).tolist() == [[0.25, 0.5]]
    assert ROWS(np.array([[1_000_001, 0]])).tolist() == [[2.0, -0.5]]
    assert ROWS.input_shape == (2,)


@pytest.mark.parametrize("value", [PIXELS, ROWS])
def test_its_json_gives_it_back(value):
    assert Preprocessing.of(value.written()) == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"kind": "sound"}, "unknown preprocessing 'sound'"),
        ({"kind": "rows", "mean": [1], "deviation": [1], "size": 3}, "unknown field 'size'"),
        ({"kind": "rows", "mean": [1], "deviation": ["1"]}, "deviation must be float, got '1'"),
        ({"kind": "rows", "mean": [], "deviation": []}, r"deviation must have one number per mean \(0\)"),
        ({"kind": "rows", "mean": [1, 2], "deviation": [1]}, r"deviation must have one number per mean \(2\)"),
        ({"kind": "rows", "mean": [1], "deviation": [0]}, "deviation must be greater than 0"),
        ({"kind": "images", "mean": [1], "deviation": [1], "size": 0}, "size must be at least 1, got 0"),
        ({"kind": "images", "mean": [1], "deviation": [1], "size": 8, "crop": 1.5}, "crop must be more than 0 and at"),
    ],
)
def test_a_value_that_breaks_a_rule_is_rejected(content, message):
    with pytest.raises(ArgumentError, match=message):
        Preprocessing.of(content)


def test_a_mean_that_is_not_finite_is_rejected():
    with pytest.raises(ArgumentError, match="mean must be float, got 'nan'"):
        RowPreprocessing((float("nan"),), (1.0,))


@pytest.mark.parametrize(
    ("value", "examples", "message"),
    [
        (PIXELS, np.zeros((4, 2, 2, 3)), r"uint8 of shape \(images, 2, 2, 3\), got float64 of \(4, 2, 2, 3\)"),
        (PIXELS, np.zeros((4, 3, 2, 3), np.uint8), r"uint8 of shape \(images, 2, 2, 3\), got uint8 of \(4, 3, 2, 3\)"),
        (PIXELS, np.zeros((4, 2), np.uint8), r"uint8 of shape \(images, 2, 2, 3\), got uint8 of \(4, 2\)"),
        (ROWS, np.zeros((4, 3)), r"rows must be numbers \(rows, 2\), got float64 of shape \(4, 3\)"),
        (ROWS, np.array([["a", "b"]]), r"rows must be numbers \(rows, 2\), got <U1 of shape \(1, 2\)"),
    ],
)
def test_other_examples_are_rejected(value, examples, message):
    with pytest.raises(ArgumentError, match=message):
        value(examples)


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (PIXELS, torch.randint(0, 256, (5, 2, 2, 3), dtype=torch.uint8)),
        (ROWS, torch.randn(5, 2, dtype=torch.float64)),
    ],
)
def test_its_module_is_exported_in_front_of_a_network_for_any_batch_size(value, raw):
    features = 12 if value is PIXELS else 2
    network = nn.Sequential(value.module(), nn.Flatten(), nn.Linear(features, 3)).eval()
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(network, (raw[:2],), dynamic_shapes=(batch,)).module()
    torch.testing.assert_close(program(raw), network[2](value(raw.numpy()).flatten(1)))


FLAT = {"classes": ["a", "b"], "size": 8, "channels": 3, "mean": [1, 2, 3.5], "deviation": [4, 5, 6], "images": {}}


@pytest.mark.parametrize(("words", "crop"), [("none", 1.0), ("the middle 7/8", 0.875)])
def test_the_flat_fields_of_earlier_versions_are_one_value(words, crop):
    found = from_flat({**FLAT, "crop": words})
    expected = ImagePreprocessing((1.0, 2.0, 3.5), (4.0, 5.0, 6.0), 8, crop)
    assert Preprocessing.of(found.pop("preprocessing")) == expected
    assert found == {"classes": ["a", "b"], "images": {}}
    found = from_flat({"classes": ["a", "b"], "features": 2, "mean": [1e6, 2], "deviation": [0.5, 4]})
    assert found == {"classes": ["a", "b"], "preprocessing": ROWS.written()}
    assert from_flat(found) == found


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({**FLAT, "crop": "none", "channels": 1}, ArgumentError),
        ({**FLAT, "crop": "the left half"}, KeyError),
        ({"preprocessing": {"kind": "rows", "mean": [1], "deviation": [-1]}}, ArgumentError),
    ],
)
def test_a_description_that_contradicts_itself_is_rejected(data, error):
    with pytest.raises(error):
        from_flat(data)
