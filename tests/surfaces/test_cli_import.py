"""`clutch import openclaw` as people run it: real processes, and the gateway that goes on with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.openclaw_state import FLAT, MAIN, ended, fingerprint, run, said, write
from tests.surfaces.served import FAST, served
from tests.surfaces.test_cli import clutch
from tests.surfaces.test_http_tasks import seen

pytestmark = pytest.mark.slow


def small_state(directory: Path) -> Path:
    runs = [
        run("done", FLAT, **ended(), frozenResultText="Found it", completionAnnouncedAt=1),
        run("untold", "agent:main:subagent:two", **ended()),
        run("open", "agent:main:subagent:three"),
    ]
    index = {MAIN: {"sessionId": "m"}, "agent:main:subagent:two": {"sessionId": "s2"}}
    return write(
        directory, runs, index, {"s2": [said("user", "x"), "{broken", said("assistant", "all done")]}
    )


@pytest.mark.scenario(213)
def test_import_is_rehearsed_done_once_and_the_gateway_tells_the_rest(tmp_path: Path) -> None:
    source, state = small_state(tmp_path / "openclaw"), tmp_path / "state"
    before = fingerprint(source)

    rehearsed = clutch("import", "openclaw", source, "--dry-run", "--json", state=state)
    assert (rehearsed.code, rehearsed.body["schema"], rehearsed.body["dryRun"]) == (
        0,
        "clutch.import/1",
        True,
    )
    assert not state.exists()

    imported = clutch("import", "openclaw", source, "--json", state=state)
    assert (imported.code, imported.body["ok"]) == (0, True)
    assert imported.body["counts"] == rehearsed.body["counts"]
    assert (
        imported.body["counts"] | {"imported": 3, "toAnnounce": 2, "ok": 2, "lost": 1}
        == imported.body["counts"]
    )
    assert imported.body["problems"] == [
        {
            "file": "agents/main/sessions/s2.jsonl",
            "line": 2,
            "what": "is not JSON: Expecting property name enclosed in double quotes",
        }
    ]

    again = clutch("import", "openclaw", source, "--json", state=state)
    assert (again.code, again.body["counts"]["imported"], again.body["counts"]["known"]) == (0, 0, 3)
    report = clutch("import", "openclaw", source, "--dry-run", state=state)
    assert "agents/main/sessions/s2.jsonl:2: is not JSON" in report.out
    assert fingerprint(source) == before

    with served(state, policy=FAST) as here:
        ids = {one["runId"]: one["taskId"] for one in imported.body["tasks"]}
        for name, outcome in (("done", "ok"), ("untold", "ok"), ("open", "lost")):
            told = seen(here.client, ids[name], lambda one: one["delivery"]["state"] == "delivered")
            assert (told["label"], told["outcome"]) == (name, outcome)
        refused = clutch("import", "openclaw", source, "--json", state=state)
        assert (refused.code, refused.body["ok"]) == (1, False)
        assert "owned by the gateway" in refused.body["error"]["message"]
        beside = clutch("import", "openclaw", source, "--dry-run", "--json", state=state)
        assert (beside.code, beside.body["counts"]["known"]) == (0, 3)


def test_a_directory_of_something_else_is_a_wrong_argument(tmp_path: Path) -> None:
    done = clutch("import", "openclaw", tmp_path, "--json", state=tmp_path / "state")
    assert (done.code, done.body["error"]["code"], done.body["error"]["field"]) == (2, "invalid_input", "DIR")
    assert not (tmp_path / "state").exists()


def test_import_loads_nothing_that_talks_to_models(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom clutch.cli.app import run\n"
        "sys.argv[1:] = ['import', 'openclaw', sys.argv[1], '--state', sys.argv[2]]\nassert run() == 0\n"
        "heavy = {'pydantic_ai','mcp','openai','anthropic','starlette','uvicorn','aiohttp'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    where = (str(small_state(tmp_path / "openclaw")), str(tmp_path / "state"))
    done = subprocess.run(
        [sys.executable, "-c", code, *where], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"
