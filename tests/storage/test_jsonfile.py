import json

import pytest

from snapens.storage import jsonfile


@pytest.mark.parametrize("content", [{}, [], None, True, -3, 0.1, "é ☃", {"a": [1, {"b": None}], "": [[]]}])
def test_what_is_written_is_read_back(tmp_path, content):
    path = tmp_path / "some.json"
    path.write_bytes(jsonfile.dumps(content))
    assert jsonfile.read(path) == content
    assert json.loads(path.read_text()) == content


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), [[float("nan")]]])
def test_what_json_has_no_word_for_is_not_written(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        jsonfile.dumps({"value": value})


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_what_json_has_no_word_for_is_not_read(name):
    with pytest.raises(ValueError, match=f"^{name} is not JSON"):
        jsonfile.loads(f'{{"value": [1, {name}]}}')


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": 3}}]', '{"a": 1, "\\u0061": 2}'])
def test_a_key_that_stands_twice_is_refused(text):
    with pytest.raises(ValueError, match="a key that stands twice"):
        jsonfile.loads(text)


def test_the_same_key_may_stand_in_two_objects():
    assert jsonfile.loads('{"a": {"a": 1}, "b": {"a": 2}}') == {"a": {"a": 1}, "b": {"a": 2}}


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_bottomless_nesting_ends_in_an_error_and_not_in_a_crash(opening):
    with pytest.raises(RecursionError):
        jsonfile.loads(opening * 200_000)


@pytest.mark.parametrize("text", [b"", b"{", b"{'a': 1}", b"[1,]", b"1 2", b"\xff\xff", b'"\x01"', b"{} //", b"\0"])
def test_what_is_almost_json_is_refused(tmp_path, text):
    path = tmp_path / "some.json"
    path.write_bytes(text)
    with pytest.raises(ValueError):  # noqa: PT011  # the parser's own word, whichever
        jsonfile.read(path)


def test_a_file_that_is_too_large_is_not_even_opened(tmp_path):
    path = tmp_path / "some.json"
    with open(path, "wb") as file:
        file.truncate(2**28 + 1)  # a hole: it takes no room
    with pytest.raises(ValueError, match="larger than 268435456 bytes"):
        jsonfile.read(path)


def test_a_file_of_the_largest_size_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonfile, "_SIZE_LIMIT", 10)
    path = tmp_path / "some.json"
    path.write_bytes(b"[1, 2, 34]")
    assert jsonfile.read(path) == [1, 2, 34]
    path.write_bytes(b"[1, 2, 345]")
    with pytest.raises(ValueError, match="larger than 10 bytes"):
        jsonfile.read(path)
