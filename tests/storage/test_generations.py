import re

import pytest

from snapens.storage import durable
from snapens.storage.generations import Generations


@pytest.fixture
def files(tmp_path):
    return Generations(tmp_path / "thing.json", tmp_path, "thing")


def committed(files, content):
    path = files.file("thing")
    durable.publish(path, [content])
    files.commit(content, [path.name])
    return path


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_generation_stays_until_the_next_but_one(files, tmp_path):
    first = committed(files, b"1")
    assert names(tmp_path) == {"thing.json", first.name}
    second = committed(files, b"2")
    assert names(tmp_path) == {"thing.json", "thing.previous.json", first.name, second.name}
    assert ((tmp_path / "thing.json").read_bytes(), (tmp_path / "thing.previous.json").read_bytes()) == (b"2", b"1")
    third = committed(files, b"3")
    assert names(tmp_path) == {"thing.json", "thing.previous.json", second.name, third.name}


def test_without_previous_only_the_last_generation_stays(tmp_path):
    files = Generations(tmp_path / "thing.json", tmp_path, "thing", previous=False)
    committed(files, b"1")
    last = committed(files, b"2")
    assert names(tmp_path) == {"thing.json", last.name}


def test_a_generation_that_was_read_is_the_one_before_the_next(files, tmp_path):
    first = committed(files, b"1")
    (tmp_path / "thing.json").write_bytes(b"damaged")
    again = Generations(tmp_path / "thing.json", tmp_path, "thing")
    again.rest_on(b"1", [first.name])
    committed(again, b"2")
    assert (tmp_path / "thing.previous.json").read_bytes() == b"1"
    assert first.exists()


def test_new_files_have_names_of_their_own_and_others_are_left_alone(files, tmp_path):
    assert files.file("thing") != files.file("thing")
    assert re.fullmatch(r"thing-[0-9a-f]{12}\.safetensors", files.file("thing").name)
    kept = {"thing-1.safetensors", "thingy-0123456789ab.safetensors", "other.json.0123456789ab.part", "thing.json"}
    left = {"thing-0123456789ab.safetensors", "thing.json.0123456789ab.part", "thing.previous.json.0123456789ab.part"}
    for name in kept | left:
        (tmp_path / name).touch()
    files.sweep([])
    assert names(tmp_path) == kept
