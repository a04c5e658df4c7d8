"""Planted bugs in who may give commands through a channel. Simulated worlds have no senders: a probe finds them."""

from __future__ import annotations

from typing import Any

from clutch.core.questions import COMMANDS
from tests.trust.mutants.mutant import Mutant

_SENDERS = frozenset({"S31"})


def _any_account(rights: Any) -> tuple[Any, ...]:
    del rights

    def bug(self: Any, account: str, bound_account: str | None) -> Any:
        del self, account, bound_account
        return COMMANDS

    return (bug,)


def _unbound_threads(admitted: Any) -> tuple[Any, ...]:
    def bug(channels: Any, thread: Any, bound: Any, caller: Any, *, binds: bool) -> Any:
        return caller if bound is None else admitted(channels, thread, bound, caller, binds=binds)

    return (bug,)


def _any_channel(check_place: Any) -> tuple[Any, ...]:
    def bug(channel: str, account: str, thread: str, channels: Any) -> None:
        check_place(channel, account, thread, {channel, *channels})

    return (bug,)


def _rights_of_the_token(within: Any) -> tuple[Any, ...]:
    del within

    def bug(rights: Any, scopes: Any) -> Any:
        del rights
        return scopes

    return (bug,)


MUTANTS = (
    Mutant(
        "commands_of_any_sender",
        ("clutch.core.questions.Operators.rights",),
        _SENDERS,
        (),
        _any_account,
        "an account that is not named gives commands",
    ),
    Mutant(
        "commands_in_unbound_threads",
        ("clutch.api.slash.admitted",),
        _SENDERS,
        (),
        _unbound_threads,
        "a command runs in a thread that belongs to no session",
    ),
    Mutant(
        "commands_from_unknown_channels",
        ("clutch.api.gateway.check_place",),
        _SENDERS,
        (),
        _any_channel,
        "a channel that is not configured is heard",
    ),
    Mutant(
        "senders_with_the_rights_of_the_token",
        ("clutch.api.slash.within",),
        _SENDERS,
        (),
        _rights_of_the_token,
        "a sender that may command may also approve",
    ),
)
