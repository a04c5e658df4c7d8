"""The official conformance suite of MCP, run against a gateway: what revision 2026-07-28 requires, and its extensions.

The suite is installed by npm, outside of the repository. It needs a newer Node than some machines have; Playwright,
which the tests of the dashboard use, brings one.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

from tests.surfaces.conformance_failures import EXPECTED
from tests.surfaces.conformance_front import FixtureModel, front_of
from tests.surfaces.node_packages import installed
from tests.surfaces.served import FAST, served

SUITE, REVISION = "@modelcontextprotocol/conformance@0.2.0-alpha.12", "2026-07-28"
RUN_S = 240.0
#: `server-SCENARIO-TIME` is the folder of a scenario.
FOLDER = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT.*")


def run(url: str, results: Path) -> str:
    """Run the suite, and return what it said."""
    program = installed(SUITE) / "node_modules/.bin/conformance"
    options = ["--url", url, "--requirements", REVISION, "-o", str(results)]
    done = subprocess.run(
        [compute_driver_executable()[0], str(program), "server", *options],
        capture_output=True, text=True, timeout=RUN_S, check=False, cwd=results,
    )  # fmt: skip
    return done.stdout + done.stderr


def checks(results: Path) -> Iterator[tuple[str, bool]]:
    """Yield each check as `scenario:check`, and whether it passed. What could not be tested is left out."""
    for file in sorted(results.glob("*/checks.json")):
        folder = FOLDER.fullmatch(file.parent.name)
        assert folder is not None, file
        for check in json.loads(file.read_text()):
            if check["status"] in {"SUCCESS", "FAILURE"}:
                yield f"{folder['scenario']}:{check['id']}", check["status"] == "SUCCESS"


@pytest.mark.slow
def test_a_gateway_conforms_but_for_what_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    model = FixtureModel()
    with served(tmp_path / "state", model, policy=FAST) as db, front_of(db.port, db.token) as url:
        said = run(url, results)
    found = list(checks(results))
    failed = {name for name, is_passed in found if not is_passed}
    with capsys.disabled():
        print(
            f"\nMCP conformance {REVISION}: {sum(passed for _, passed in found)} of {len(found)} checks passed,"
            f" {len(failed & EXPECTED.keys())} expected failures, {len(failed - EXPECTED.keys())} others"
        )
    assert len(found) > 100, said
    assert failed - EXPECTED.keys() == set(), said
    assert EXPECTED.keys() - failed == set(), "these pass now: take them out of the list"
