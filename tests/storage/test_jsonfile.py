import json

import pytest

from snapens.errors import DamagedError
from snapens.storage import durable, jsonfile


@pytest.mark.parametrize("content", [{}, [], None, True, -3, 0.1, "é ☃", {"a": [1, {"b": None}], "": [[]]}])
def test_what_is_written_is_read_back(tmp_path, content):
    path = tmp_path / "some.json"
    path.write_bytes(jsonfile.dumps(content))
    assert jsonfile.read(path) == content
    assert json.loads(path.read_text()) == content


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), [[float("nan")]]])
def test_numbers_that_json_lacks_are_not_written(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        jsonfile.dumps({"value": value})


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_lacks_are_not_read(name):
    with pytest.raises(ValueError, match=f"^{name} is not JSON"):
        jsonfile.loads(f'{{"value": [1, {name}]}}')


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": 3}}]', '{"a": 1, "\\u0061": 2}'])
def test_a_duplicate_key_is_rejected(text):
    with pytest.raises(ValueError, match="duplicate key"):
        jsonfile.loads(text)


def test_two_objects_may_have_the_same_key():
    assert jsonfile.loads('{"a": {"a": 1}, "b": {"a": 2}}') == {"a": {"a": 1}, "b": {"a": 2}}


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_endless_nesting_is_rejected(opening):
    with pytest.raises(ValueError, match="nested too deeply"):
        jsonfile.loads(opening * 200_000)


@pytest.mark.parametrize("text", [b"", b"{", b"{'a': 1}", b"[1,]", b"1 2", b"\xff\xff", b'"\x01"', b"{} //", b"\0"])
def test_what_is_almost_json_is_rejected(tmp_path, text):
    path = tmp_path / "some.json"
    path.write_bytes(text)
    with pytest.raises(ValueError):  # noqa: PT011  # whatever the parser says
        jsonfile.read(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "some.json"
    with open(path, "wb") as file:
        file.truncate(2**28 + 1)  # a hole: it takes no room
    with pytest.raises(DamagedError, match="at most 268435456 bytes, got 268435457"):
        jsonfile.read(path)


def test_a_file_of_the_largest_size_is_read(tmp_path):
    path = tmp_path / "some.json"
    path.write_bytes(b"[1, 2, 34]")
    assert durable.contents(path, 10) == b"[1, 2, 34]"
    path.write_bytes(b"[1, 2, 345]")
    with pytest.raises(DamagedError, match="at most 10 bytes, got 11"):
        durable.contents(path, 10)


def test_the_encoding_of_a_sealed_file_has_one_line_per_field():
    assert jsonfile.lines({"a": [1, {"b": None}], "é": "x"}) == b'{\n"a": [1, {"b": null}],\n"\\u00e9": "x"\n}\n'


def test_a_content_that_is_nested_too_deeply_is_not_written():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        jsonfile.compact(deep)
