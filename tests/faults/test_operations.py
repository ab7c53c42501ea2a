"""Faults at each file operation: nothing is lost, errors are our own, and doing it again succeeds."""

import gc
import shutil

import pytest
from disk import FAULTS, Disk, Killed
from scenarios import READING, WRITING, Folders, look, sampled

from snapens.errors import DamagedError, SnapensError

HOW_MANY = [2, pytest.param(None, marks=pytest.mark.long)]
"""Operations for each fault and scenario; None: every one."""


def points(operations, fault, count):
    kinds = FAULTS[fault][1]
    return sampled((k for k, one in enumerate(operations) if kinds is None or one.name in kinds), count)


def attempt(act, target, path, fault, at):
    """Whether an operation returned, and what; an error must be our own, and an I/O error is not damage."""
    try:
        with Disk(path, FAULTS[fault][0], at):
            return True, act(target)
    except (KeyboardInterrupt, Killed):
        return False, None
    except DamagedError as error:
        raise AssertionError("an I/O error was taken for damage") from error
    except SnapensError:
        return False, None


def files(path):
    """How many files the folders have in which each commit removes what is not needed."""
    return {name: len(list((path / name).glob("*"))) for name in ("snapshots", "state")}


def assert_survives(scenario, folders, fault, at, before, after):
    path = folders.copy(scenario.make)
    target = scenario.opened(path)
    returned, _ = attempt(scenario.act, target, path, fault, at)
    gc.collect()  # a dead process holds no lock
    if scenario.whole or returned:
        assert look(path) in ([after[0]] if returned else [before, after[0]])
    if fault.startswith("a kill"):
        close(target)
        target = scenario.opened(path)
    scenario.act(target)
    close(target)
    assert look(path) == after[0]
    if fault.startswith("a kill"):  # otherwise files may stay until the next commit
        unused = 0 if scenario.whole else 1  # no commit follows the last one of a run, whose clean-up was killed
        assert all(after[1][name] <= count <= after[1][name] + unused for name, count in files(path).items())
    shutil.rmtree(path.parent)


def close(target):
    if hasattr(target, "close"):
        target.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    yield Folders(tmp_path_factory.mktemp("folders"))
    gc.unfreeze()


def ignore_present_objects():
    """Let later collections visit new objects only: those of torch take three quarters of the time of a trial."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("count", HOW_MANY)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", WRITING)
def test_writing_survives_a_fault_at_each_operation_and_can_be_repeated(folders, name, fault, count):
    scenario = WRITING[name]
    path = folders.copy(scenario.make)
    before = look(path) if scenario.whole else None
    target = scenario.opened(path)
    with Disk(path) as disk:
        scenario.act(target)
    close(target)
    after = look(path), files(path)
    ignore_present_objects()
    failures, tried = {}, points(disk.operations, fault, count)
    print(len(tried), "faults:", name)
    for at in tried:
        try:
            assert_survives(scenario, folders, fault, at, before, after)
        except Exception as error:
            failures[at, disk.operations[at].name, disk.operations[at].path] = repr(error)[:300]
    assert not failures


@pytest.mark.parametrize("count", HOW_MANY)
@pytest.mark.parametrize("fault", ["EIO", "a short transfer"])
@pytest.mark.parametrize("name", READING)
def test_reading_gives_the_same_result_or_an_error_of_ours_at_each_operation(folders, name, fault, count):
    scenario = READING[name]
    path = folders.copy(scenario.make)
    with Disk(path) as disk:
        expected = scenario.act(path)
    failures, tried = {}, points(disk.operations, fault, count)
    print(len(tried), "faults:", name)
    for at in tried:
        try:
            returned, found = attempt(scenario.act, path, path, fault, at)
            assert not returned or found == expected
        except Exception as error:
            failures[at, disk.operations[at].name, disk.operations[at].path] = repr(error)[:300]
    assert not failures
