import json

import numpy as np
import pytest

from snapens import Snapshots
from snapens.combination import Combination
from snapens.errors import ArgumentError, DamagedError, StoreError

RUN, OTHER = "a" * 32, "b" * 32
TWO = ((RUN, 4), (RUN, 8))


@pytest.fixture
def folder(tmp_path):
    store = Snapshots(tmp_path / "run")
    store.open_to_write()
    store.close()
    return tmp_path / "run"


@pytest.mark.parametrize(
    "combination",
    [
        Combination.last(3),
        Combination(newest=2, temperature=1.5),
        Combination(((RUN, 4), (RUN, 8), (OTHER, 8)), weights=(1.0, 0.0, 2.0), exit_threshold=0.9),
    ],
)
def test_a_combination_is_saved_and_loaded(folder, combination):
    combination.save(folder)
    assert Combination.load(folder) == combination
    content = json.loads((folder / "combination.json").read_text())
    assert (content["format"], content["kind"]) == (2, "combination")


def test_the_last_m_members_have_equal_weights_and_no_exit():
    last = Combination.last(3)
    assert (last.members, last.newest, last.weights, last.temperature, last.exit_threshold) == ((), 3, (), 1.0, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"members must have at least one \(run, step\), or newest must be given instead, got members=\(\)"),
        ({"newest": 0}, "newest must be a whole number of at least 1, got 0"),
        ({"newest": 1, "members": ((RUN, 4),)}, "newest must be given instead"),
        ({"members": ((RUN, 4), (RUN, 4))}, "members must be distinct, .*: use weights"),
        ({"members": ((RUN, 0),)}, "a step of at least 1"),
        ({"members": (("", 4),)}, "the name of a run"),
        ({"newest": 2, "weights": (1.0, 1.0)}, "weights must be 0 finite numbers .*, one per entry of members"),
        ({"members": TWO, "weights": (1.0,)}, r"weights must be 2 finite numbers .*, got \(1\.0,\)"),
        ({"members": TWO, "weights": (1.0, -1.0)}, "weights must be 2 finite numbers of at least 0"),
        ({"members": TWO, "weights": (1.0, float("nan"))}, "weights must be 2 finite numbers"),
        ({"members": TWO, "weights": (0.0, 0.0)}, "not all 0"),
        ({"newest": 2, "temperature": 0.0}, r"temperature must be a finite number greater than 0, got 0\.0"),
        ({"newest": 2, "temperature": float("inf")}, "temperature must be a finite number"),
        (
            {"newest": 2, "exit_threshold": 0.0},
            r"exit_threshold must be greater than 0 and less than 1, or None to evaluate all members, got 0\.0",
        ),
        ({"newest": 2, "exit_threshold": 1.0}, "exit_threshold must be greater than 0 and less than 1"),
    ],
)
def test_a_combination_that_breaks_a_rule_is_rejected(values, message):
    with pytest.raises(ArgumentError, match=message):
        Combination(**values)


def test_a_combination_that_is_missing_altered_or_of_another_run_is_an_error_of_our_own(folder, tmp_path):
    assert Combination.find(folder) is None
    with pytest.raises(StoreError, match=r"contains no combination\.json: fit and save a combination first"):
        Combination.load(folder)
    with pytest.raises(StoreError, match=r"must be a folder that holds manifest\.json"):
        Combination.last(2).save(tmp_path / "none")
    Combination.last(2).save(folder)
    content = (folder / "combination.json").read_bytes()
    (folder / "combination.json").write_bytes(content.replace(b'"newest": 2', b'"newest": 3'))
    with pytest.raises(DamagedError, match=r"combination\.json must be unaltered"):
        Combination.load(folder)
    other = Snapshots(tmp_path / "other")
    other.open_to_write()
    (tmp_path / "other/combination.json").write_bytes(content)
    with pytest.raises(DamagedError, match="must belong to run"):
        Combination.load(tmp_path / "other")


def test_the_last_members_are_those_of_each_run():
    existing = ((RUN, 4), (OTHER, 5), (RUN, 8), (OTHER, 10), (RUN, 12))
    assert Combination.last(2).among(existing) == Combination(((OTHER, 5), (RUN, 8), (OTHER, 10), (RUN, 12)))
    with pytest.raises(ArgumentError, match=r"last must be between 1 and 2 \(the number of members\), got 3"):
        Combination.last(3).among(existing)


@pytest.mark.parametrize("m", [0, -1, 1.0, "2", None, True])
def test_the_number_of_members_is_a_whole_number_of_at_least_1(m):
    with pytest.raises(ArgumentError, match=f"last must be a whole number of at least 1, got {m!r}"):
        Combination.last(m)


def test_the_number_of_members_can_be_an_integer_of_numpy(folder):
    combination = Combination.last(np.int64(3))
    assert combination == Combination.last(3) == Combination(newest=np.uint8(3))
    combination.save(folder)  # NumPy's integers cannot be written as JSON
    assert Combination.load(folder) == combination


def test_members_of_weight_0_are_left_out_and_others_must_exist():
    chosen = Combination(((RUN, 8), (RUN, 4), (OTHER, 4)), weights=(2.0, 0.0, 1.0), temperature=2.0)
    kept = Combination(((RUN, 8), (OTHER, 4)), weights=(2.0, 1.0), temperature=2.0)
    assert chosen.among((*TWO, (OTHER, 4))) == kept
    with pytest.raises(ArgumentError, match=rf"members must be among .*, got \('{OTHER}', 4\): load that run too"):
        chosen.among(TWO)
    assert Combination(TWO).shares == (1.0, 1.0)
