"""Every sentence the runtime shows to a model or a person about background work.

`core.shown` makes foreign text safe to stand in a line of ours and prints figures; `fence` carries a child's
text as data; `results` reads a child's own text (silence, summary, freeze); `announce` writes what a
requester is told, `plans` what it is told about a plan, `prompts` what a child is told.

Nothing here decides whether or when a message is sent.
"""

from __future__ import annotations

from clutch.core.shown import duration, money, quoted, size, tokens, visible
from clutch.core.wording.announce import (
    Absent,
    Audience,
    Finding,
    announcement,
    as_it_is,
    interrupt,
    one_line,
    status_words,
    undelivered_line,
)
from clutch.core.wording.fence import Fenced, fence, parse_fences, unfence
from clutch.core.wording.limits import LOOP_NOTE, SUBMIT_NOTE, SUBMIT_RESULT, budget_used_up, whose_budget
from clutch.core.wording.plans import PlanReady, plan_ready, question_asked
from clutch.core.wording.prompts import (
    BUDGET_WRAP_UP,
    CANCELLED,
    OUTCOME_UNKNOWN,
    ChildBrief,
    budget_note,
    first_message,
    partial_progress,
    spawn_note,
    system_prompt,
    wrap_up_note,
)
from clutch.core.wording.results import (
    Frozen,
    Payload,
    PayloadMode,
    Silence,
    freeze,
    payload,
    silence,
    summary,
)
from clutch.core.wording.states import state_words

__all__ = [
    "BUDGET_WRAP_UP",
    "CANCELLED",
    "LOOP_NOTE",
    "OUTCOME_UNKNOWN",
    "SUBMIT_NOTE",
    "SUBMIT_RESULT",
    "Absent",
    "Audience",
    "ChildBrief",
    "Fenced",
    "Finding",
    "Frozen",
    "Payload",
    "PayloadMode",
    "PlanReady",
    "Silence",
    "announcement",
    "as_it_is",
    "budget_note",
    "budget_used_up",
    "duration",
    "fence",
    "first_message",
    "freeze",
    "interrupt",
    "money",
    "one_line",
    "parse_fences",
    "partial_progress",
    "payload",
    "plan_ready",
    "question_asked",
    "quoted",
    "silence",
    "size",
    "spawn_note",
    "state_words",
    "status_words",
    "summary",
    "system_prompt",
    "tokens",
    "undelivered_line",
    "unfence",
    "visible",
    "whose_budget",
    "wrap_up_note",
]
