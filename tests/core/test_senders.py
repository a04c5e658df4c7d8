"""Commands from a channel run only for accounts that are named, with no more rights than their token has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.authority import EVERY_SCOPE, Scope
from clutch.core.questions import ANYONE, COMMANDS, Operators, within

ACCOUNTS = st.sampled_from(["", "ada", "bob", "ADA", "ada ", ANYONE])
NAMED = st.frozensets(ACCOUNTS.filter(bool), max_size=3)

DECIDES = COMMANDS | {Scope.APPROVE}
NONE = frozenset[Scope]()


@pytest.mark.parametrize(
    ("account", "bound", "operators", "approvers", "rights"),
    [
        ("ada", None, (), (), NONE),
        ("ada", "ada", (), (), COMMANDS),
        ("bob", "ada", (), (), NONE),
        ("", "", (), (), NONE),
        ("", None, (), (), NONE),
        ("ada", None, ("ada",), (), COMMANDS),
        ("ADA", None, ("ada",), (), NONE),
        ("ada", None, (), ("ada",), DECIDES),
        ("", "", ("*",), (), COMMANDS),
        ("bob", "ada", ("*",), ("ada",), COMMANDS),
        ("*", None, ("ada",), (), NONE),
    ],
)
def test_rights_of_an_account(
    account: str,
    bound: str | None,
    operators: tuple[str, ...],
    approvers: tuple[str, ...],
    rights: frozenset[Scope],
) -> None:
    assert Operators(operators, approvers).rights(account, bound) == rights


@given(ACCOUNTS, st.none() | ACCOUNTS, NAMED, NAMED, st.frozensets(st.sampled_from(Scope)))
def test_an_unnamed_account_has_no_rights_and_no_account_more_than_its_token(
    account: str,
    bound: str | None,
    operators: frozenset[str],
    approvers: frozenset[str],
    scopes: frozenset[Scope],
) -> None:
    named = Operators(operators, approvers)
    rights = named.rights(account, bound)
    if not named.names(account) and (not account or account != bound):
        assert not rights
    if Scope.APPROVE in rights:
        assert account in approvers or ANYONE in approvers
    assert Scope.ADMIN not in rights
    token = EVERY_SCOPE if Scope.ADMIN in scopes else scopes
    assert within(rights, scopes) <= token
