"""A headless Chromium, driven through its debugging pipe: file descriptors 3 and 4, JSON between NULs."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--remote-debugging-pipe"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_SECONDS = 60


class Browser:
    """One page at a time; what it complains of and what it asks the network for are kept."""

    def __init__(self, profile):
        self.complaints, self.requests, self._events, self._sent, self._read = [], [], [], 0, b""
        commands, self._commands = _pipe()
        self._answers, answers = _pipe()

        def place():
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, preexec_fn=place, pass_fds=(3, 4), **quiet)
        os.close(commands)
        os.close(answers)
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._session = None
        self._send("Browser.close", {})
        self._process.wait(_SECONDS)
        os.close(self._commands)
        os.close(self._answers)

    def open(self, path):
        self.complaints, self.requests, self._events = [], [], []
        self.call("Page.navigate", url=path.as_uri())
        while "Page.loadEventFired" not in self._events:
            self._take(self._message())

    def evaluate(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def slide(self, name, value):
        """Move a slider as a hand does: the value changes, and an input event says so."""
        slider = f"document.getElementById({name!r})"
        self.evaluate(f"{slider}.value = {value}; {slider}.dispatchEvent(new Event('input', {{bubbles: true}}))")

    def text(self, name):
        return self.evaluate(f"document.getElementById({name!r}).textContent")

    def call(self, method, **parameters):
        number = self._send(method, parameters)
        while (message := self._message()).get("id") != number:
            self._take(message)
        assert "error" not in message, message
        return message["result"]

    def _send(self, method, parameters):
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        return self._sent

    def _message(self):
        until = time.monotonic() + _SECONDS
        while b"\0" not in self._read:
            ready, *_ = select.select([self._answers], [], [], max(0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            self._read += os.read(self._answers, 1 << 16)
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)

    def _take(self, message):
        method, found = message.get("method"), message.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown" or (method == "Log.entryAdded" and found["entry"]["level"] == "error"):
            self.complaints.append(found)
        if method == "Runtime.consoleAPICalled" and found["type"] in ("error", "assert", "warning"):
            self.complaints.append(found)
        if method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])


def contrast(colour, ground):
    """WCAG 2's ratio of two colours written rgb(r, g, b)."""
    lights = []
    for text in (colour, ground):
        channels = [int(value) / 255 for value in text.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def _pipe():
    """Its two ends, with numbers that leave 3 and 4 free."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved
