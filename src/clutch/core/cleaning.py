"""What goes once a task is over, and what stays.

Outcome, result, usage and timeline always stay. Of the rest:

    undelivered          what was given to it goes; everything else waits for whoever redelivers it
    killed, lost         all its files
    cleanup: delete      all its files, its own workspace, its session with the transcript
    cleanup: keep        what was given to it, unless the policy retains that; the rest until it is archived
    never begun          whatever was made for it
"""

from __future__ import annotations

from typing import NamedTuple

from clutch.core.attachments import Side
from clutch.core.model import Delivery, Outcome

EVERYTHING = (Side.IN, Side.OUT)


class Removal(NamedTuple):
    sides: tuple[Side, ...] = ()
    workspace: bool = False
    session: bool = False
    number: int = 0  #: of the shelf that the sides are removed from
    generation: int = 0  #: whose end it is: the word that it is done says nothing of another one


def removal(
    *, outcome: Outcome | None, delivery: Delivery, is_begun: bool, is_deleted: bool, is_retained: bool
) -> Removal:
    """`is_deleted`: the spawn asked for it. `is_retained`: what was given stays with a task that is kept."""
    given = () if is_retained and not is_deleted else (Side.IN,)
    if not is_begun:
        return Removal(EVERYTHING, workspace=True, session=is_deleted)
    if delivery is Delivery.UNDELIVERED:
        return Removal(given)
    if is_deleted:
        return Removal(EVERYTHING, workspace=True, session=True)
    return Removal(EVERYTHING if outcome in (Outcome.KILLED, Outcome.LOST) else given)


def is_stripped(*, outcome: Outcome | None, is_begun: bool, is_archived: bool) -> bool:
    """Of a finished task: its files are gone, or somebody is at it. If it works again, then with another shelf."""
    return is_archived or not is_begun or outcome in (Outcome.KILLED, Outcome.LOST)
