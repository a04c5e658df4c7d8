"""A person at a chat: whose words they are, where, and what the words of a command mean."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from clutch.core import keys
from clutch.core.authority import OperatorCaller, Verb
from clutch.core.model import Route
from clutch.engine.kit import Kit
from clutch.engine.verbs import Verbs
from clutch.protocol import targets
from clutch.protocol.guarding import guarded
from clutch.protocol.targets import Standpoint
from clutch.store.door import Tx

if TYPE_CHECKING:
    from clutch.gateway.local import Gateway

T = TypeVar("T")

MAIN_SESSION = "agent:main:main"  #: whom a person talks to who names nobody

_WORD = re.compile(r'\s*(?:"([^"]*)"|(\S+))')


class Usage(Exception):
    """The words do not fit the command; whoever typed them is shown how it is written."""


@dataclass(frozen=True, slots=True)
class Chat:
    """`key`: of this message, so that one that is sent again acts once."""

    gateway: Gateway
    caller: OperatorCaller
    session_key: str
    session_id: int
    agent_id: str
    key: str
    thread: Route  #: in which the words were written

    @property
    def kit(self) -> Kit:
        return self.gateway.kit

    @property
    def verbs(self) -> Verbs:
        return Verbs(self.kit)

    @property
    def who(self) -> Standpoint:
        return Standpoint(self.caller, f"chat:{self.session_id}", self.session_id, self.agent_id)

    async def task(self, text: str) -> int:
        return await self.kit.door.read(targets.task, text, self.who)

    async def look(self, verb: Verb, session_id: int, fn: Callable[..., Tx[T]], *args: Any) -> T:
        """A read, or a write of what belongs to this chat alone, if the caller may."""
        return await self.kit.door.alone(guarded, self.caller, verb, session_id, fn, *args)


@dataclass(frozen=True, slots=True)
class Command:
    """`usage` begins with its name."""

    usage: str
    run: Callable[[Chat, str], Awaitable[str]]

    async def answer(self, chat: Chat, text: str) -> str:
        try:
            return await self.run(chat, text.strip())
        except Usage:
            return f"Usage: {self.usage}"


def first_word(text: str) -> tuple[str, str]:
    """A word, or several in double quotes, and the rest. Raises Usage when there is none."""
    found = _WORD.match(text)
    word = "" if found is None else found[1] if found[1] is not None else found[2]
    if found is None or not word:
        raise Usage
    return word, text[found.end() :].strip()


def only_word(text: str) -> str:
    word, rest = first_word(text)
    if rest:
        raise Usage
    return word


def nothing(text: str) -> None:
    if text:
        raise Usage


def named(numbers: Sequence[int]) -> str:
    return ", ".join(keys.task_id(number) for number in numbers)
