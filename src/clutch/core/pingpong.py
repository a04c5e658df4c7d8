"""Two agents that write to each other: whose turn it is, when it stops, and which way a message may not go.

    request     origin → target
    reply 1…n   target's answer → origin, its answer → target, …   until one has nothing to say, or n is reached
    announce    → target: what of this should its person hear?

An `Exchange` is all there is to know about it and travels with every letter, so nothing is kept anywhere else.
`hops` are the sessions the chain has passed: a message to one of them would close a circle, whatever its shape.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from clutch.core.wording.results import silence

REPLY_SKIP = "REPLY_SKIP"  #: as the whole reply: I have nothing to add


class Stage(StrEnum):
    REQUEST = "request"
    REPLY = "reply"
    ANNOUNCE = "announce"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One letter of a talk between two sessions, with the talk it belongs to."""

    key: str  #: of the first message
    origin_id: int
    target_id: int
    origin: str  #: their session keys
    target: str
    request: str
    hops: tuple[int, ...]  #: the reader may not write to any of these now; its answer goes back by itself
    turns_max: int
    stage: Stage = Stage.REQUEST
    turn: int = 0
    first_reply: str = ""
    latest: str = ""

    @property
    def reader_id(self) -> int:
        return self.origin_id if self.stage is Stage.REPLY and self.turn % 2 else self.target_id

    @property
    def writer(self) -> str:
        return self.target if self.reader_id == self.origin_id else self.origin


def begins(
    key: str,
    origin: tuple[int, str],
    target: tuple[int, str],
    text: str,
    *,
    hops: tuple[int, ...] = (),
    turns_max: int = 5,
) -> Exchange | None:
    """`hops`: of what the sender is answering. None: it would come back to where it has been."""
    passed = tuple(dict.fromkeys((*hops, origin[0])))
    if target[0] in passed:
        return None
    return Exchange(key, origin[0], target[0], origin[1], target[1], text, passed, turns_max)


def answered(exchange: Exchange, reply: str) -> Exchange | None:
    """The letter that follows from the reader's last words; None = it is over."""
    if exchange.stage is Stage.ANNOUNCE or (exchange.stage is Stage.REQUEST and not reply.strip()):
        return None
    both = tuple(dict.fromkeys((*exchange.hops, exchange.target_id)))
    if is_silent(reply):
        return replace(exchange, stage=Stage.ANNOUNCE, hops=both)
    heard = replace(exchange, latest=reply, first_reply=exchange.first_reply or reply, hops=both)
    if exchange.turn >= exchange.turns_max:
        return replace(heard, stage=Stage.ANNOUNCE)
    return replace(heard, stage=Stage.REPLY, turn=exchange.turn + 1)


def is_silent(reply: str) -> bool:
    return not reply.strip() or reply.strip() == REPLY_SKIP or silence(reply) is not None


def dump(exchange: Exchange) -> str:
    return json.dumps(asdict(exchange), ensure_ascii=False)


def load(body: str) -> Exchange:
    known = json.loads(body)
    return Exchange(**(known | {"hops": tuple(known["hops"]), "stage": Stage(known["stage"])}))
