"""The work of a chaos run, and the numbers of its gateways: trees of tasks that a model server hands out.

    a chat    reads the results of its trees, and says so
    a tree    spawns two to four children in one answer and waits for them; every third tree has a tree below it
    a leaf    calls a tool that must not run twice, twice, and reports

The model decides from the request alone, so a repeated call gets the same answer from any gateway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from clutch.core.model import Lane
from clutch.core.policy import Announcing, Life, Limits, Policy, Serving, Work
from clutch.testing.providers import Reply, Text, ToolCall, Turn, WireRequest, turns

LEASE_S: Final = 3.0
CHAT_TREES: Final = 6  #: results that one chat reads; a longer conversation only makes requests larger
LATENCY_S: Final = (0.05, 0.5)
MODEL: Final = "chaos:model"
PROVIDER: Final = "chaos"
PROVIDER_CALLS_MAX: Final = 6  #: at once, of all gateways together
NODE_HEADER: Final = "X-Chaos-Node"
MARK: Final = "mark"

#: Retries do not give up within a run, so that an outage delays results and fails none.
POLICY: Final = Policy(
    limits=Limits(children_max=100, depth_max=3, descendants_max=10_000, retained_max=10_000),
    life=Life(error_grace_s=0.1, provider_retries_s=(0.5, 1.0, 2.0, *(3.0,) * 100), provider_idle_s=10.0),
    announcing=Announcing(
        debounce_s=0.1, first_s=0.2, fast_max_s=1.0, slow_first_s=1.0, slow_max_s=2.0, until_s=3600.0
    ),
    work=Work(lanes={Lane.MAIN: 4, Lane.SUBAGENT: 8}, lease_s=LEASE_S, tick_s=0.5, stop_s=2.0),
    serving=Serving(requests_per_s=0),
)

_JOB: Final = re.compile(r"JOB (tree|leaf) ([\d.]+)$", re.MULTILINE)
_RESULT: Final = re.compile(r"^task: (t_\w+) session: ", re.MULTILINE)


def tree(number: int) -> str:
    return f"JOB tree {number}"


def chat_of(number: int) -> str:
    return f"agent:main:chat:chaos-{number // CHAT_TREES}"


def reply(request: WireRequest) -> Reply:
    said = turns(request)
    job = job_of(said)
    chance = Random(f"{request.key}")
    latency_s = chance.uniform(*LATENCY_S)
    answers = sum(turn.role == "result" for turn in said)
    match job:
        case ("tree", name):
            return Reply(_tree(name, answers), latency_s=latency_s)
        case ("leaf", name):
            return Reply(_leaf(name, answers), latency_s=latency_s)
        case _:
            return Reply([Text("noted")], latency_s=latency_s)


def job_of(said: Sequence[Turn]) -> tuple[str, str] | None:
    found = next((job for turn in said if turn.role == "user" and (job := _JOB.search(turn.text))), None)
    return None if found is None else (found[1], found[2])


def results_in(turn: Turn) -> list[str]:
    """The tasks whose result stands in this message."""
    return _RESULT.findall(turn.text) if turn.role == "user" else []


def children(name: str) -> list[str]:
    number = int(name.split(".", maxsplit=1)[0])
    kinds = ["leaf"] * (2 + number % 3)
    if number % 3 == 0 and "." not in name:
        kinds[0] = "tree"
    return [f"JOB {kind} {name}.{place}" for place, kind in enumerate(kinds)]


def _tree(name: str, results: int) -> list[ToolCall | Text]:
    jobs = children(name)
    if not results:
        return [_call("sessions_spawn", {"task": job, "label": job.split()[-1]}) for job in jobs]
    if results == len(jobs):
        return [_call("sessions_yield", {})]
    return [Text(f"all of {name}")]


def _leaf(name: str, results: int) -> list[ToolCall | Text]:
    """Each mark has a name of its own: the second call is another one, even where the first was interrupted."""
    if results < 2:
        return [_call(MARK, {"label": f"{name}/{results}"})]
    return [Text(f"finding of {name}")]


def _call(name: str, arguments: Mapping[str, str]) -> ToolCall:
    return ToolCall(name, (json.dumps(arguments),))
