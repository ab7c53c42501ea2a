from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from snapens.errors import ArgumentError
from snapens.storage.typed import UnknownFieldError, decoded


@dataclass(frozen=True)
class Inner:
    step: int
    share: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    more: tuple[Inner, ...] = ()
    place: tuple[str, int] = ("", 0)
    kinds: dict[str, float] = field(default_factory=dict)
    method: Literal["warm", "fresh", 1] = "warm"
    limit: int | None = None
    notes: Any = None


class Own:
    @classmethod
    def of(cls, value):
        return f"own {value}"


def test_every_kind_is_decoded():
    value = {
        "name": "a",
        "inner": {"step": 1, "share": 2},
        "more": [{"step": 3}],
        "place": ["x", 4],
        "kinds": {"k": 0.25},
        "method": "fresh",
        "limit": 5,
        "notes": {"any": [None]},
    }
    found = decoded(Outer, value, "outer")
    inner = Inner(1, 2.0)
    assert found == Outer("a", inner, (Inner(3),), ("x", 4), {"k": 0.25}, "fresh", 5, {"any": [None]})
    assert type(found.inner.share) is float


def test_missing_fields_take_their_default():
    assert decoded(Outer, {"name": "a", "inner": {"step": 1}}, "outer") == Outer("a", Inner(1))


def test_a_class_that_decodes_itself_is_asked_to():
    assert decoded(tuple[Own, ...], [1, 2], "x") == ("own 1", "own 2")


def test_an_unknown_field_may_come_from_a_newer_version():
    with pytest.raises(
        UnknownFieldError, match="inner must be an object of step, share, got the unknown field 'extra', which a newer"
    ):
        decoded(Outer, {"name": "a", "inner": {"step": 1, "extra": 2}}, "outer")


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Outer, {"name": "a"}, "outer must be an object of name, inner.*, but 'inner' is missing"),
        (Outer, [], "outer must be an object of name"),
        (int, True, "outer must be int, got 'True'"),
        (int, 1.0, r"outer must be int, got '1\.0'"),
        (bool, 1, "outer must be bool, got '1'"),
        (str, None, "outer must be str, got 'None'"),
        (float, "1", "outer must be float, got '1'"),
        (float, True, "outer must be float, got 'True'"),
        (float, float("inf"), "outer must be float, got 'inf'"),
        (float, float("nan"), "outer must be float, got 'nan'"),
        (float, 10**400, "outer must be float, got '1000"),
        (tuple[int, ...], {"0": 1}, "outer must be"),
        (tuple[str, int], ["a"], "outer must be"),
        (tuple[str, int], ["a", 1, 2], "outer must be"),
        (tuple[str, int], ["a", "b"], "outer must be int, got 'b'"),
        (dict[str, int], {"a": "b"}, r"outer\['a'\] must be int, got 'b'"),
        (dict[str, int], [], "outer must be"),
        (Literal["a", "b"], "c", "outer must be one of a, b, got 'c'"),
        (Literal[1], True, "outer must be one of 1, got 'True'"),
        (int | None, "x", "outer must be int, got 'x'"),
    ],
)
def test_a_value_of_another_type_is_rejected(kind, value, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        decoded(kind, value, "outer")
    assert not isinstance(caught.value, UnknownFieldError)
