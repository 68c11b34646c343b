"""A program that starts the command again and again, without loading it anew each time.

Each start is a process of its own, with its own words, environment, folder and streams, and it ends as
the interpreter ends. Reads one JSON object a line, and answers with the exit code. Whether the
command loads what it needs is for other tests: here most of it is there already.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from runtime_pack.cli import main


def become(order: dict[str, Any]) -> None:
    """In the new process: what a shell would have given it."""
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for number, (path, flags) in enumerate(
        ((os.devnull, os.O_RDONLY), (order["out"], os.O_WRONLY), (order["err"], os.O_WRONLY))
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["runtime-pack", *order["words"]]


def started(order: dict[str, Any]) -> int:
    """The process id of the command under way; does not come back in the new process."""
    # A fork takes no other thread along, and what it holds stays held.
    assert threading.active_count() == 1
    process = os.fork()
    if process == 0:
        become(order)
        main()
    return process


def load(folder: str) -> None:
    """Load what the command loads in the middle of a run."""
    listed = Path(folder, "modules")
    if os.fork() == 0:
        become(
            {
                "folder": folder,
                "environment": {**os.environ, "XDG_STATE_HOME": folder},
                "out": os.devnull,
                "err": os.devnull,
                "words": ["ask", "What is a list?"],
            }
        )
        try:
            main()
        finally:
            listed.write_text("\n".join(sys.modules), encoding="utf-8")
            # Not by way of the caller, whose folder it would remove.
            os._exit(0)
    os.wait()
    for name in listed.read_text(encoding="utf-8").split("\n"):
        # Some are no modules of their own but parts of compiled ones.
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)


def serve() -> None:
    """Start what is asked for, one after the other, until nobody asks any more."""
    answers = os.dup(1)
    while line := sys.stdin.readline():
        order = json.loads(line)
        for name in order.get("load", ()):
            importlib.import_module(name)
        _, status = os.waitpid(started(order), 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        load(made)
    serve()
