"""One send to a channel: what an error says about whether the receiver may have read the message."""

from __future__ import annotations

from enum import StrEnum

from clutch.core.text.format import visible

TEXT_CHARS_SHOWN = 60
ERROR_CHARS_SHOWN = 200


class SendOutcome(StrEnum):
    """How the last attempt to send a message ended, unless it arrived."""

    FAILED = "failed"  #: not read: sent again after a while, until the tries are used up
    REFUSED = "refused"  #: the receiver does not take it, now or later
    UNSURE = "unsure"  #: it may have been read: never sent again by itself


#: A connection that was cut after it was made.
_CUT = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)


class SendUnsure(ConnectionError):
    """The request was sent, and no answer tells whether it was read."""


def may_have_arrived(error: Exception) -> bool:
    """Whether the message may have been read although sending it failed.

    A channel says with a ConnectionError that it was not: the connection was refused, or the receiver answered with a
    failure. Every other error leaves it open."""
    return isinstance(error, (SendUnsure, *_CUT)) or not isinstance(error, ConnectionError)


def unsent_line(message_id: str, where: str, text: str, outcome: str, error: str, attempts: int) -> str:
    """A message that is not sent again by itself, why, and what can be done. `where`: its channel and target."""
    why = visible(error, ERROR_CHARS_SHOWN)
    became = {
        SendOutcome.UNSURE: f"unsure whether it arrived ({why}); it is not sent again",
        SendOutcome.REFUSED: f"refused ({why})",
    }.get(SendOutcome(outcome), f"not sent after {attempts} attempts ({why})")
    said = f'Message "{visible(text, TEXT_CHARS_SHOWN)}" to {visible(where, TEXT_CHARS_SHOWN)}: {became}'
    return (
        f"{said}. Send it again: `clutch redeliver {message_id}`. Discard it: `clutch dismiss {message_id}`."
    )
