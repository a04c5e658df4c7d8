"""`clutch …` inside this process: what it prints, what it says, and its exit code."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from clutch.cli.app import run


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def body(self) -> Any:
        (line,) = self.out.splitlines()
        return json.loads(line)


def typed(*words: object, state: Path | None = None, stdin: str = "") -> Done:
    """Nobody sits at it: stdin is a pipe with these lines."""
    out, err = io.StringIO(), io.StringIO()
    line = ["clutch", *map(str, words), *([] if state is None else ["--state", str(state)])]
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", line)
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            code = run()
        except typer.Exit as exit_:
            code = exit_.exit_code
    return Done(code, out.getvalue(), err.getvalue())
