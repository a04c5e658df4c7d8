"""`clutch doctor`: is everything as it should be, here and in the tables, and what to do where it is not.

The promises are asked of the live database as SQL, beside whoever works on it: nothing waits for the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from clutch.cli import checks
from clutch.cli.asking import Exit, answering, home_of, print_object, say
from clutch.cli.checks import Check
from clutch.core.shown import visible
from clutch.errors import ClutchError, NoGateway, StoreUnreadable, TooSlow
from clutch.surfaces.client import connect

EXAMPLE_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Report:
    checks: list[Check]
    asked: set[str] = field(default_factory=set)  #: names of promises
    broken: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        return not self.broken and all(check.is_ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        lost = {one["invariant"] for one in self.broken}
        counted = {"held": len(self.asked - lost), "total": len(self.asked), "broken": self.broken}
        return {"checks": [check.to_json() for check in self.checks], "invariants": counted}


def doctor(
    state: Path | None,
    *,
    fixes: bool,
    is_online: bool,
    bundle: Path | None,
    as_json: bool,
    database: str | None = None,
) -> None:
    with answering("doctor", as_json=as_json):
        home = home_of(state)
        for done in checks.mend(home) if fixes and home.is_dir() else ():
            say(f"fixed: {done}")
        report = examine(home, is_online=is_online, database=database)
        if bundle is not None:
            from clutch.cli import bundling

            bundling.write(bundle, home, report.to_json())
            say(f"written: {bundle}; read it before you send it to anybody")
        if as_json:
            print_object("doctor", report.to_json(), is_ok=report.is_ok)
        else:
            _tell(report)
        if not report.is_ok:
            raise typer.Exit(Exit.ERROR)


def _tell(report: Report) -> None:
    for check in report.checks:
        detail = check.detail.replace("\n", "\n      ")
        say(f"{'ok   ' if check.is_ok else 'FAIL '} {check.id}: {detail}")
        if check.remedy:
            say(f"      -> {check.remedy}")
    said = report.to_json()["invariants"]
    say(f"{'FAIL ' if said['broken'] else 'ok   '} invariants: {said['held']} of {said['total']} hold")
    for one in said["broken"]:
        say(f"      {one['invariant']} {one['promise']}: {'; '.join(one['examples'])}")


def examine(home: Path, *, is_online: bool = False, database: str | None = None) -> Report:
    """`database`: a server that the config does not name."""
    from clutch.looking import DATABASE_FILE
    from clutch.wiring import sandbox_offer

    offer = sandbox_offer()
    sandbox = Check("sandbox", offer.is_ok, offer.detail, offer.remedy)
    if not home.exists():
        return Report([Check("state-directory", True, f"{home} is not there yet"), sandbox])
    loops = _of_running(home)
    report = Report(
        [*checks.of_directory(home), checks.of_gateway(home), *loops, checks.of_disk(home), sandbox]
    )
    told, configured = _of_config(home, is_online=is_online)
    report.checks.extend(told)
    if server := database or configured:
        _examine_server(server, report, is_served=bool(loops))
    elif (home / DATABASE_FILE).exists():
        _examine_tables(home, report, is_served=bool(loops))
    return report


def _of_config(home: Path, *, is_online: bool) -> tuple[list[Check], str | None]:
    """Also, which database it names."""
    from clutch.config import files

    try:
        found = files.load(home)
    except ClutchError as error:
        return [Check("config", False, str(error), checks.command(home, "config", "check"))], None
    told = "none; every setting has its default" if found.path is None else f"{found.path} can be read"
    asked = (checks.of_provider(one, is_online=is_online) for one in found.settings.providers)
    return [Check("config", True, told), *asked], found.settings.database


def _of_running(home: Path) -> list[Check]:
    """Of its loops; none where nobody serves."""
    try:
        health = connect(home).get("/v1/health")
    except NoGateway:
        return []
    except ClutchError as error:
        return [Check("gateway-answers", False, str(error), checks.begin_again(home))]
    return list(checks.of_pulses(home, health["pulses"]))


def _examine_tables(home: Path, report: Report, *, is_served: bool) -> None:
    from clutch.looking import integrity, looking_at, newest, sqlite_version

    report.checks.append(Check("sqlite", True, f"version {sqlite_version()}"))
    try:
        with looking_at(home) as look:
            trouble = look(integrity)
            words = "; ".join(trouble) or "the file is whole"
            remedy = "restore a backup; keep this file" if trouble else None
            report.checks.append(Check("integrity", not trouble, words, remedy))
            report.checks.append(checks.of_clock(look(newest)))
            _ask_promises(look, report, is_served=is_served)
    except ClutchError as error:
        remedy = "restore a backup; keep this file" if isinstance(error, StoreUnreadable) else None
        report.checks.append(Check("database", False, str(error), remedy))


def _examine_server(dsn: str, report: Report, *, is_served: bool) -> None:
    """Beside everybody who works on it. What would keep it busy for long is not asked to the end."""
    from clutch.looking import looking_at_server, newest

    try:
        with looking_at_server(dsn) as look:
            report.checks.append(checks.of_clock(look(newest)))
            unasked = _ask_promises(look, report, is_served=is_served, is_sqlite=False)
            told = (
                f"answers; {unasked} promises take too long to be asked beside work" if unasked else "answers"
            )
            report.checks.append(Check("database", True, told))
    except ClutchError as error:
        report.checks.append(
            Check("database", False, str(error), "is the server there, and `database` right?")
        )


def _ask_promises(
    look: Callable[..., Any], report: Report, *, is_served: bool, is_sqlite: bool = True
) -> int:
    """How many could not be asked in time."""
    from clutch.protocol.promises import checkup

    unasked = 0
    for query in checkup.standing(is_served=is_served, is_sqlite=is_sqlite):
        try:
            examples = look(checkup.broken, query)
        except TooSlow:
            unasked += 1
            continue
        report.asked.add(query.invariant)
        if examples:
            shown = [visible(one, EXAMPLE_CHARS_MAX) for one in examples]
            report.broken.append({"invariant": query.invariant, "promise": query.promise, "examples": shown})
    return unasked
