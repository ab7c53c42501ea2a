"""The commands and the code of the pages about finished runs, on a tiny run of `snapens train`."""

import json
import re
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from test_pages import blocks, stand_ins

from snapens.cli import main
from snapens.lab.records.run import Run

PAGES = Path(__file__).parent.parent / "docs/how-to"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table of numbers, and a finished run on it in runs/t."""
    folder = tmp_path_factory.mktemp("work")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4))
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64) + (x[:, 2] > 1)
    np.savez(folder / "rows.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    np.savetxt(folder / "rows.csv", x[:5], delimiter=",")
    options = ["--network", "mlp", "--epochs", "6", "--cycles", "3", "--batch", "30", "--device", "cpu"]
    train = ["train", "--dataset", "arrays", "--data", str(folder / "rows.npz"), "--out", str(folder / "runs/t")]
    assert main([*train, *options]) == 0
    return folder


def marked(page):
    """The blocks of a page that need a run of `snapens train`."""
    return re.findall(r"<!-- not run: .*test_after_training.*? -->\n```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_every_command_after_training_works_on_the_same_folder(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    commands = (
        "combine runs/t --format json",
        "evaluate runs/t",
        "evaluate runs/t --format json",
        "predict runs/t rows.csv --format json --device cpu",
        "report runs/t",
        "export runs/t --raw-inputs --prefixes",
    )
    shown = {}
    for command in commands:
        capsys.readouterr()
        assert main(command.split()) == 0, command
        shown[command] = capsys.readouterr().out
    rows = json.loads(shown["predict runs/t rows.csv --format json --device cpu"])
    assert len(rows) == 5
    assert {"class", "probability", "entropy", "mutual_information", "members_used"} <= set(rows[0])
    for name in ("runs/t/combination.json", "runs/t/report.html", "runs/t/t.onnx", "runs/t/t.onnx.md"):
        assert (folder / name).is_file(), name


def test_a_run_is_an_ensemble_that_takes_raw_examples(folder, monkeypatch):
    monkeypatch.chdir(folder)
    names = {"examples": np.load("rows.npz")["x_test"][:7]}
    (block,) = marked(PAGES / "predict-and-deploy.md")
    exec(block, names)
    assert names["probabilities"].shape == (7, 3)
    torch.testing.assert_close(names["probabilities"].sum(1), torch.ones(7))


def test_a_student_is_trained_from_python(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (block,) = marked(PAGES / "one-network.md")
    exec(block, {})
    assert Run("runs/student").finished


@pytest.fixture
def service(tmp_path, monkeypatch):
    """The names that the page of the service defines, except for the server of its example, which is closed."""
    monkeypatch.chdir(tmp_path)
    names = stand_ins()
    for _, code in blocks((PAGES / "serve.md").read_text(), "python"):
        exec(code, names)
    return names


@pytest.fixture
def post(service):
    """A function that sends a body to the service and returns the status and the answer."""
    server = service["ThreadingHTTPServer"](("127.0.0.1", 0), service["Handler"])
    service["Handler"].log_message = lambda *_: None
    thread = Thread(target=server.serve_forever)
    thread.start()

    def send(body):
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.request("POST", "/", body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    yield send
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_service_answers_in_batches(service, post):
    rows = torch.randn(300, 8, generator=torch.Generator().manual_seed(1))
    status, found = post(json.dumps(rows.tolist()))
    assert status == 200
    p = service["served"].predict([rows])  # which exits early as well, if a threshold was fitted
    assert [answer["class"] for answer in found] == [service["CLASSES"][k] for k in p.argmax(-1)]
    np.testing.assert_allclose([answer["probability"] for answer in found], p.max(-1).values, atol=1e-6)


def test_the_service_rejects_what_is_not_rows_of_numbers(service, post):
    wrong = ([], 5, None, [[1, 2]], [[float("nan")] * 8], [[1], [1, 2]], {"a": 1}, ["a"], [[10**400] * 8])
    for body in (*map(json.dumps, wrong), "not JSON", b"\xff"):
        assert post(body) == (400, {"error": "the body must be rows of 8 finite numbers"}), body
    assert post(None) == post("") == (400, {"error": "the body must have 1 to 10000000 bytes"})


def test_the_service_answers_for_image_files(service, post, tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    for name, grey in (("dark", 40), ("light", 200)):
        for k in range(20):
            path = tmp_path / "photos" / name / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.new("RGB", (16, 16), (grey + k,) * 3).save(path)
    options = "--network small --epochs 4 --cycles 2 --batch 8 --held-out 8 --device cpu --out runs/photos"
    assert main(f"train --dataset folder --data photos {options}".split()) == 0
    assert main(["combine", "runs/photos"]) == 0
    (block,) = marked(PAGES / "serve.md")
    exec(block, service)
    image.new("RGB", (30, 20), (220,) * 3).save("new.png")
    capsys.readouterr()
    assert main(["predict", "runs/photos", "photos/dark/0.png", "new.png", "--device", "cpu", "--format", "json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    for path, row in zip(("photos/dark/0.png", "new.png"), predicted, strict=True):
        status, (answer,) = post(Path(path).read_bytes())
        assert (status, answer["class"]) == (200, row["class"])
        assert answer["probability"] == pytest.approx(row["probability"], abs=1e-4)
    status, answer = post(b"no image")
    assert status == 400
    assert answer["error"].startswith("the body must be an image file: ")
