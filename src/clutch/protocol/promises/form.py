"""What a promise looks like: a query that returns the rows that break it, when it is asked, and how it is filled in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from clutch.core.agents import Heartbeat
from clutch.core.model import WORKING
from clutch.core.policy import Policy


class Scope(StrEnum):
    """When a query is asked, and what `{touched}` names in it."""

    TASK = "task"  #: after every commit: tasks it wrote, or whose letter it wrote
    LIFE = "life"  #: after every commit: those, and tasks whose session it wrote
    SESSION = "session"  #: after every commit: sessions
    BIRTH = "birth"  #: after a commit with new tasks: their requesters
    MOVE = "move"  #: after every commit: tasks it changed
    FENCE = "fence"  #: after every commit: sessions it gave another owner or fence
    STEER = "steer"  #: after a commit that steered tasks: those
    GUARDED = "guarded"  #: after every write by an owner: its session is ?1, its worker ?2, its fence ?3
    CUT = "cut"  #: after a commit that took sessions from owners who had not let go: those
    READ = "read"  #: after a commit that put letters into transcripts: those letters
    UNDONE = "undone"  #: after a commit that took tasks away: those
    PURSE = "purse"  #: after a commit that reserved or charged something: the names of the purses
    OWNERS = "owners"  #: after a commit that changed who owns what: everything
    CALM = "calm"  #: again and again while nothing goes wrong
    END = "end"  #: when all is over


@dataclass(frozen=True, slots=True)
class Query:
    invariant: str
    scope: Scope
    promise: str
    sql: str  #: selects a number and, as text, what is wrong with it
    also: str = ""  #: another promise that says the same


WORKING_WORDS: Final = "(" + ", ".join(f"'{phase.value}'" for phase in sorted(WORKING)) + ")"

#: May still do something. An ended task that waits for its requester to come back may not.
IS_ALIVE: Final = f"{{0}}.phase IN {WORKING_WORDS} AND {{0}}.outcome IS NULL"


def filled(
    query: Query,
    policy: Policy,
    *,
    touched: str = "IS NOT NULL",
    now: str = "0",
    blob: str = "BLOB",
    alive: str = "IS NOT NULL",
) -> str:
    """The SQL with the numbers of this policy. They are numbers, never anybody's words.

    `alive`: which workers are, where somebody knows better than their leases, whose clocks may have been set."""
    work = policy.work
    words = {
        **{f"{{{alias}_is_alive}}": IS_ALIVE.format(alias) for alias in "tcgh"},
        "{touched}": touched,
        "{now}": now,
        "{alive}": alive,
        "{patience_s}": str(work.lease_s + 3 * work.tick_s),
        "{children_max}": str(policy.limits.children_max),
        "{descendants_max}": str(policy.limits.descendants_max),
        "{retained_max}": str(policy.limits.retained_max),
        "{depth_max}": str(policy.limits.depth_max),
        "{result_bytes_max}": str(policy.life.result_bytes_max),
        "{inline_chars_max}": str(policy.announcing.inline_chars_max),
        "{events_max}": str((policy.defaults.heartbeat or Heartbeat()).events_max),
        "{blob}": blob,
    }
    sql = query.sql
    for word, value in words.items():
        sql = sql.replace(word, value)
    return sql
