"""S33: a file of a workspace is used after an approval of its content only, and never widens rights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from clutch.testing.invariants.probes import Probe


def _story() -> Iterator[str]:
    yield from _decided()
    yield from _narrowed()


def _decided() -> Iterator[str]:
    from clutch.core import definitions
    from clutch.core.definitions import Decisions, DefinitionState, FileTrust

    kind, source = definitions.DefinitionKind.AGENT, definitions.DefinitionSource.WORKSPACE
    first, second = (definitions.digest(kind, "a", {"": content}) for content in (b"one", b"two"))
    file = definitions.FileDefinition(kind, "a", "/w/.agents/a.md", source, digest=first)
    approved = Decisions(approved=frozenset({first}))
    for known, seen, wanted in (
        (Decisions(), first, DefinitionState.PROPOSED),
        (approved, first, DefinitionState.ACTIVE),
        (approved, second, DefinitionState.PROPOSED),
    ):
        [found] = definitions.decided([replace(file, digest=seen)], known, FileTrust.ASK, ())
        if found.state is not wanted:
            yield f"a file of a workspace is {found.state} and should be {wanted}"


def _narrowed() -> Iterator[str]:
    from clutch.core import definitions
    from clutch.core.agents import Agent, roster
    from clutch.core.authority import Request, Rights, ToolFilter, ToolPolicy, child_rights, root_rights
    from clutch.core.policy import Policy

    reads = ToolFilter(frozenset({frozenset({"read"})}))
    writes = ToolFilter(frozenset({frozenset({"write"})}))
    left = definitions.after_loading([reads, writes])
    if left.permits("read") or left.permits("write"):
        yield "a second skill gives a tool back"
    main = Agent("main", tools=ToolPolicy(deny=frozenset({"shell"})), sandbox=True)
    role = Agent("a", tools=ToolPolicy(allow=frozenset({"shell", "read"})))
    policy = Policy(agents=roster([main]), roles=roster([role]))
    rights = child_rights(root_rights(policy.grant("main")), policy.grant("a"), Request(), policy.tools)
    if not isinstance(rights, Rights) or not rights.sandbox or rights.tools.permits("shell"):
        yield "an agent of a file has more rights than the agent that starts it"
    elif rights.tools.permits("write"):
        yield "an agent of a file has a tool that the file does not list"


PROBE = Probe("S33", "files of a workspace are approved by content and only narrow rights", _story)
