"""The page about OpenAI's clients is true: its program runs as it stands, with the official client."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from clutch.models.demo_model import OfflineModel
from clutch.surfaces.http.completions import ASKS_FOR_NOTHING, Completing
from tests.surfaces.served import FAST, served

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "openai-clients.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_program_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = re.findall(r"(?s)```python\n(.*?)```", PAGE)
    (tmp_path / "notes.md").write_text("TODO: water the plants\n")
    with served(tmp_path / "state", OfflineModel(latency=lambda _: 0.01), FAST) as db:
        monkeypatch.setattr(sys, "argv", ["ask.py", str(db.home)])
        for program in programs:
            exec(compile(program, "docs/how-to/openai-clients.md", "exec"), {})  # noqa: S102 (our own words)
    told = capsys.readouterr().out
    assert told.count("Survey of the folder") == 2, "each program has an answer"
    assert "Session: agent:main:chat:ada" in told
    assert told.rstrip().endswith("completed")


def test_every_parameter_it_names_is_taken_or_refused_as_it_says() -> None:
    (refused,) = re.findall(r"names the field, never.*?`null`\)", PAGE, re.DOTALL)
    (accepted,) = re.findall(r"say nothing about the answer \((.*?)\)", PAGE, re.DOTALL)
    names = set(re.findall(r"`([a-z]\w+)`", refused)) - {"null"}
    assert len(names) >= 7
    assert names <= set(ASKS_FOR_NOTHING)
    assert set(re.findall(r"`(\w+)`", accepted)) <= set(Completing.model_fields) - set(ASKS_FOR_NOTHING)
