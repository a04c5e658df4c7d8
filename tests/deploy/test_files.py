"""The files in deploy/ are valid, and the metrics, settings, commands and paths that they name exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from clutch.cli.app import app
from clutch.config.load import read
from tests.patience import PATIENCE_S
from tests.postgres_server import postgres_dsn, postgres_server

__all__ = ["postgres_dsn", "postgres_server"]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
GOLDEN = (ROOT / "tests/golden/events.txt").read_text().partition("# metrics\n")[2]
METRICS = {line.split()[0]: set(line.split()[2:]) for line in GOLDEN.splitlines() if line}
#: Labels of metrics that have no sample in the golden file.
METRICS |= {name: {"provider"} for name in METRICS if name.startswith("clutch_limiter_")}
METRICS["clutch_model_usd_total"] = {"model"}
SERVER_LABELS = {"job", "instance"}
FUNCTIONS = {"max", "sum", "rate", "by", "up"}


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DEPLOY / "grafana/clutch.json").read_text())["panels"]
    return found


EXPRESSIONS = [rule["expr"] for rule in alerts()] + [
    one["expr"] for panel in panels() for one in panel["targets"]
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_metrics_labels_and_functions_that_exist(expression: str) -> None:
    without_texts = re.sub(r'"[^"]*"', '""', expression)
    assert without_texts.count("(") == without_texts.count(")")
    named = set(re.findall(r"clutch_\w+", without_texts))
    assert named <= METRICS.keys()
    assert named or without_texts.startswith("up{")
    known = SERVER_LABELS.union(*(METRICS[name] for name in named))
    grouped = re.findall(r"by \(([^)]*)\)", without_texts)
    assert {label for group in grouped for label in group.split(", ")} <= known
    words = set(re.findall(r"[a-z_]+", re.sub(r"\[\w+\]|\{[^}]*\}|by \([^)]*\)", "", without_texts)))
    assert words - named <= FUNCTIONS
    legend = [
        one["legendFormat"] for panel in panels() for one in panel["targets"] if one["expr"] == expression
    ]
    assert {label for text in legend for label in re.findall(r"{{(\w+)}}", text)} <= known


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    page = (ROOT / "docs/operate/observability.md").read_text()
    commands = getattr(typer.main.get_command(app), "commands")  # noqa: B009 (a group has them, a command not)
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "action"} == rule["annotations"].keys()
        assert set(re.findall(r"`clutch (\w+)", rule["annotations"]["action"])) <= commands.keys()
        assert f"`{rule['alert']}`" in page
    wanted = {"undelivered", "leases_expired", "invariants_broken", "oldest_queued_seconds"}
    assert all(any(f"clutch_{name}" in rule["expr"] for rule in alerts()) for name in wanted)


def test_the_dashboard_has_no_two_panels_in_one_place() -> None:
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels())
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_every_metric_is_described_on_the_page() -> None:
    page = (ROOT / "docs/operate/observability.md").read_text()
    assert set(re.findall(r"`(clutch_\w+)`", page)) == METRICS.keys()


# ---- the gateway as a service -----------------------------------------------------------------------------


def _is_command(words: list[str]) -> None:
    """Check a command line of `clutch` against the commands there are."""
    command: Any = typer.main.get_command(app)
    known: set[str] = set()
    while True:
        known |= {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        word = next((word for word in words if not word.startswith("-")), None)
        if not hasattr(command, "commands") or word is None:
            break
        command, words = command.commands[word], [one for one in words if one != word]
    assert {word for word in words if word.startswith("--")} <= known, words


def test_the_unit_is_one_that_systemd_accepts(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd/clutch.service").read_text()
    (line,) = re.findall(r"ExecStart=\S+/clutch (.*)", text)
    _is_command(line.split())
    if (systemd := shutil.which("systemd-analyze")) is None:
        return
    program = tmp_path / "clutch"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "clutch.service"
    unit.write_text(text.replace("/opt/clutch/bin/clutch", str(program)).replace("User=clutch", "User=root"))
    checked = subprocess.run([systemd, "verify", str(unit)], capture_output=True, text=True, check=False)
    about_us = [line for line in checked.stderr.splitlines() if "clutch.service" in line]
    assert (about_us, checked.returncode) == ([], 0), checked.stderr


# ---- the gateway in a container ---------------------------------------------------------------------------


def _instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "container/Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def test_the_container_file_copies_what_exists_and_runs_commands_that_exist() -> None:
    for name, rest in _instructions():
        assert name in {
            "FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
            "ENTRYPOINT", "CMD",
        }  # fmt: skip
        if name == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
    told = dict(_instructions())
    assert json.loads(told["ENTRYPOINT"]) == ["clutch"]
    _is_command(json.loads(told["CMD"]))
    _, *probe = json.loads(told["HEALTHCHECK"].partition("CMD ")[2])
    _is_command(probe)


def test_the_services_of_the_compose_file_fit_together() -> None:
    folder = DEPLOY / "container"
    found = yaml.safe_load((folder / "compose.yaml").read_text())
    services, volumes = found["services"], found["volumes"].keys()
    given = set(re.findall(r"(?m)^(\w+)=", (folder / "example.env").read_text()))
    assert set(re.findall(r"\$\{(\w+)", (folder / "compose.yaml").read_text())) <= given
    for service in services.values():
        assert set(service.get("depends_on", ())) <= services.keys()
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (folder / source).exists() if source.startswith(".") else source in volumes, volume
    build = services["gateway"]["build"]
    assert (folder / build["context"] / build["dockerfile"]).resolve() == folder / "Containerfile"
    assert services["proxy"]["environment"]["CLUTCH_GATEWAY"] == "gateway:8765"


def test_the_settings_of_the_container_are_valid() -> None:
    path = DEPLOY / "container/clutch.json"
    settings = read(path.read_text(), path, 0o600, {"CLUTCH_DATABASE": "postgresql://x@database/x"}).settings
    assert settings.listening.is_remote
    assert settings.listening.lacks() is None
    assert settings.database == "postgresql://x@database/x"


@pytest.mark.slow
def test_the_commands_of_the_container_make_a_token_serve_and_end_in_order(
    tmp_path: Path, postgres_dsn: str
) -> None:
    """As in the container, but on loopback: with its settings, its command, its probe and its signal."""
    clutch = str(Path(sys.executable).with_name("clutch"))
    config, work = tmp_path / "clutch.json", tmp_path / "work"
    config.write_text((DEPLOY / "container/clutch.json").read_text().replace("0.0.0.0", "127.0.0.1"))  # noqa: S104
    work.mkdir()
    told = dict(_instructions())
    changed = {"/etc/clutch/clutch.json": str(config), "8765": "0", "/work": str(work)}
    serve = [changed.get(word, word) for word in json.loads(told["CMD"])]
    probe = [clutch, *json.loads(told["HEALTHCHECK"].partition("CMD ")[2])[1:]]
    env = {**os.environ, "CLUTCH_HOME": str(tmp_path / "state"), "CLUTCH_DATABASE": postgres_dsn}
    subprocess.run([clutch, "token", "--rotate"], env=env, check=True, capture_output=True)
    assert subprocess.run(probe, env=env, check=False, capture_output=True).returncode == 9
    with subprocess.Popen(
        [clutch, *serve, "--json"], env=env, stdout=subprocess.PIPE, text=True, cwd=work
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            probed = subprocess.run(probe, env=env, check=False, capture_output=True, text=True)
            assert probed.returncode == 0, probed.stderr
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
