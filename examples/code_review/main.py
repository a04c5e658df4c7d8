"""A review crew: three children review a git repository, each in a worktree of its own, and return typed findings.

    python code_review/main.py                  # reviews a small sample repository that it creates
    python code_review/main.py path/to/repository

    unfinished work: findings: 1
    error handling: findings: 1
    missing tests: findings: 1
    summary: 3 findings, files: 1
    app.py:1: TODO without an owner
    app.py:4: bare except hides errors
    app.py:8: function without a test

`workspace="isolated"` gives each child a git worktree of its own below `review-state/workspaces`, enforced by the
sandbox: children can run tests and change files without disturbing each other or your checkout. On Linux the sandbox
needs bubblewrap >= 0.8 (`apt install bubblewrap`); without it the spawn is refused, and the error says so.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pydantic import BaseModel

import clutch
from clutch import Clutch, ClutchError
from fake_model import REVIEWS, fake_model
from sample import make_repository


class Finding(BaseModel):
    file: str
    line: int
    comment: str


class Review(BaseModel):
    findings: list[Finding]


async def review(repository: Path) -> list[Finding]:
    # A real model: replace models=fake_model by model="anthropic:claude-sonnet-4-5"
    async with Clutch("review-state", workspace=repository, models=fake_model) as c:
        tasks = [
            await c.spawn(
                f"Review this repository for {aspect}. Report each problem with file and line.",
                label=aspect,
                workspace="isolated",
                output_type=Review,
                run_timeout_seconds=600,
            )
            for aspect in REVIEWS
        ]
        findings: list[Finding] = []
        async for task, result in clutch.as_completed(tasks):
            found = result.value.findings if result.value else []
            print(f"{task.label}: {result.error or f'findings: {len(found)}'}")
            findings += found
        return sorted(findings, key=lambda finding: (finding.file, finding.line))


def summarise(findings: list[Finding]) -> None:
    files = {finding.file for finding in findings}
    print(f"summary: {len(findings)} findings, files: {len(files)}")
    for finding in findings:
        print(f"{finding.file}:{finding.line}: {finding.comment}")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else make_repository(Path("sample-repository"))
    try:
        summarise(asyncio.run(review(target)))
    except ClutchError as error:  # for example: no sandbox on this machine
        sys.exit(f"not reviewed: {error}")
