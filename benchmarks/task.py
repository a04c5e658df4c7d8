"""The one task of `store` and `growth`: what its model says, what its tools give. Two steps, then an answer.

Both systems write these texts, so that they write the same bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.messages import Answer, Call, Result, Results, Usage
from clutch.core.model import Lane
from clutch.core.policy import Announcing, Policy, Work
from clutch.core.spawn import SpawnRequest

MODEL: Final = "bench"
REQUEST: Final = SpawnRequest(
    "Read the three files that the parser imports and say what each is for.", "read"
)
STEPS: Final = tuple(
    (
        Answer(
            "",
            (Call("read", {"path": f"src/part_{number}.py"}, f"c{number}"),),
            Usage(900, 60),
            MODEL,
            "tools",
        ),
        Results(
            (Result(0, "read", "def part(tokens):\n    return [token for token in tokens if token]\n" * 4),)
        ),
    )
    for number in range(2)
)
FINDING: Final = Answer(
    "Each part filters the tokens of one stage, nothing more.", (), Usage(1200, 90), MODEL
)
REPLY: Final = Answer("The three files filter tokens, one stage each.", (), Usage(700, 40), MODEL)
ROOT_RIGHTS: Final = rights_text(root_rights(AgentGrant(depth_max=1)))
WORKSPACE: Final = "."

#: Lanes wide enough for every client; a result is read at once. Everything else as it comes.
LANE_CAP: Final = 100_000
POLICY: Final = replace(
    Policy(),
    announcing=Announcing(debounce_s=0.0),
    work=Work(lanes={Lane.MAIN: LANE_CAP, Lane.SUBAGENT: LANE_CAP}, sessions_max=2 * LANE_CAP),
)
RAISED: Final = {
    "worker.lanes": {"main": LANE_CAP, "subagent": LANE_CAP},
    "worker.sessionsMax": 2 * LANE_CAP,
    "announce.queue.debounceMs": 0,
}

#: A requester is used this often, then the next: a long-lived one with fewer than `maxRetainedRuns` records.
TASKS_PER_PARENT: Final = 10
