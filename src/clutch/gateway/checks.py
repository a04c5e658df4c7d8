"""The form of what a program gives: text, keys, names. Raises InvalidInput in Python's spelling of the field.

Whether something is allowed is not decided here, and the arguments of a spawn have their own rules in the
toolbox; what it says of them in the spelling of the surfaces is translated here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping

from clutch.core import keys, routes
from clutch.core.keys import BadKey, KeyKind, SessionKey
from clutch.engine.verbs import check_text as check_text
from clutch.errors import InvalidInput

KEY_CHARS_MAX = 200
NAME_CHARS_MAX = 80
_CAMEL = re.compile(r"(?<![.\w])[a-z]+(?:[A-Z][a-z]+)+(?![.\w])")  #: a parameter, and no part of a config key


def check_key(key: object) -> None:
    """None: the caller has none, and one is made."""
    if key is None:
        return
    check_text("idempotency_key", key, KEY_CHARS_MAX)
    if not str(key).isprintable():
        raise InvalidInput("idempotency_key", "must be printable")


def check_place(channel: str, account: str, thread: str) -> None:
    """Where somebody writes: a thread of a channel that people use."""
    if not routes.CHANNEL_NAME.fullmatch(channel) or channel in routes.INTERNAL_CHANNELS - {routes.COUNTER}:
        raise InvalidInput(
            "channel", "must be the name of a channel: a-z 0-9, then also _ -, at most 32 in all"
        )
    check_text("thread", thread, KEY_CHARS_MAX)
    if account:
        check_text("account", account, KEY_CHARS_MAX)


def main_session(session: object, agents: Collection[str]) -> SessionKey:
    """`agents`: the configured ones, to name the one that a wrong id may have meant."""
    if not isinstance(session, str):
        raise InvalidInput("session", "must be text")
    parsed = keys.parse_session_key(session, agents)
    if isinstance(parsed, BadKey):
        raise InvalidInput("session", parsed.message)
    if parsed.kind is KeyKind.SUBAGENT:
        raise InvalidInput("session", "must be a main or chat session; a child is reached through its task")
    return parsed


def task_number(task_id: object) -> int:
    if not isinstance(task_id, str):
        raise InvalidInput("task_id", "must be text")
    number = keys.parse_task_id(task_id)
    if number is None:
        raise InvalidInput("task_id", "must be a task id as printed: t_ and letters and digits")
    return number


def as_given(attachments: object) -> object:
    """Files of a program as an agent would write them; whatever else it is, the toolbox says what is wrong."""
    if not isinstance(attachments, Mapping):
        return attachments
    return [
        {"name": name, "content": base64.b64encode(content).decode(), "encoding": "base64"}
        if isinstance(content, bytes)
        else {"name": name, "content": content}
        for name, content in attachments.items()
    ]


def in_surface_spelling(fields: Mapping[str, object]) -> dict[str, object]:
    """As agents write parameters (`runTimeoutSeconds`); a program writes Python."""
    for name in fields:
        if name != snake(name):
            raise InvalidInput(name[:NAME_CHARS_MAX], f"is not a known field; did you mean {snake(name)!r}?")
    return {_camel(name): value for name, value in fields.items()}


def in_python_spelling(field: str, rule: str) -> InvalidInput:
    """A rule may propose other names."""
    return InvalidInput(snake(field), _CAMEL.sub(lambda name: snake(name[0]), rule))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
