"""A working folder with networks of the user's own."""

import sys


def enter(path, monkeypatch, module, source):
    """Make `path` the working folder, and write a module with networks into it, which commands can import."""
    monkeypatch.chdir(path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, module, raising=False)
    (path / f"{module}.py").write_text(source)
