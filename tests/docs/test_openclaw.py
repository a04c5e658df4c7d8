"""The page for people who come from OpenClaw names settings that exist, with the defaults they have."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path
from typing import Any

from clutch.core.model import Lane
from clutch.core.policy import Policy

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "openclaw.md").read_text(encoding="utf-8")


def settings() -> list[tuple[list[str], str]]:
    table = TEXT.partition("| OpenClaw key |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines()[2:]]
    return [(re.findall(r"`([\w.]+)`", fields), told.strip()) for _, fields, told in rows]


def value(path: str) -> Any:
    return reduce(getattr, path.split("."), Policy())


def test_every_setting_it_names_exists() -> None:
    assert len(settings()) >= 12
    for paths, _ in settings():
        assert paths
        for path in paths:
            value(path)


def test_the_defaults_it_tells_are_the_defaults() -> None:
    checked = 0
    for paths, told in settings():
        words = [word.strip() for word in told.split(",")]
        if len(words) != len(paths) or told in ("none", "off", "") or "lane" in told:
            continue
        for path, word in zip(paths, words, strict=True):
            default = value(path)
            names = [str(default), f"{default:g}"] if isinstance(default, float) else [str(default)]
            assert word in [*names, getattr(default, "name", "").lower()], path
            checked += 1
    assert checked >= 9
    assert Policy().work.lanes[Lane.SUBAGENT] == 8
    assert not Policy().limits.allow_agents
