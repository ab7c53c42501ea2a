"""The disk under observation sees what the system sees: strace is the witness."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMES = {name: name for name in ("mkdir", "unlink", "fsync", "write")} | {"openat": "open", "rename": "replace"}
KINDS = {"create": "open", "scandir": "open", "listdir": "open"}
CODE = """
import json, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from disk import Disk
from scenarios import trained
folder, how = Path(sys.argv[3]), sys.argv[4]
if how == "observed":
    with Disk(folder) as disk:
        trained(folder / "run")
    print(json.dumps([[one.name, one.path] for one in disk.operations]))
else:
    trained(folder / "run")
"""


def seen_by_strace(log, folder):
    """(operation, path without its random digits) of the calls that succeeded below the folder."""
    found = Counter()
    for line in log.read_text(errors="replace").splitlines():
        call = re.match(r"\d+ +(\w+)\((.*?)(\) += \d| <unfinished)", line)
        if call and f"{folder}/run" in call[2]:
            path = re.findall(rf"{re.escape(str(folder))}/(run[^\">]*)", call[2])[0]
            found[NAMES[call[1]], anonymous(path)] += 1
    return found


def anonymous(path):
    return re.sub(r"[0-9a-f]{12}", "*", path)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.long
def test_no_system_call_of_a_run_escapes_the_observation(tmp_path):
    def run(how, *prefix):
        (tmp_path / how).mkdir()
        command = [*prefix, sys.executable, "-c", CODE, HERE, HERE.parent / "lab", tmp_path / how, how]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "TZ": "UTC"})
        return done.stdout

    log = tmp_path / "log"
    run("traced", "strace", "-f", "-y", "-o", log, "-e", f"trace={','.join(NAMES)}")
    expected = seen_by_strace(log, tmp_path / "traced")
    ours = Counter(
        (KINDS.get(name, name), anonymous(path)) for name, path in json.loads(run("observed")) if path.startswith("run")
    )
    ours = Counter({key: n for key, n in ours.items() if key[0] in NAMES.values()})
    assert expected - ours == ours - expected == Counter()
    assert expected.total() > 200
