"""What a turn shows its model beside the messages, and how the whole is kept within bounds.

`Surroundings` builds the system prompt from what is stored and what lies in the workspace. `compacted` has a
model summarise the older part of a transcript; `spilled` moves a large tool result into a file. Where to cut
and the texts are decided in `core`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from clutch.core import compaction as rules_of
from clutch.core.agents import SKILL_TOOL, Agent
from clutch.core.attachments import RESULTS
from clutch.core.authority import Role
from clutch.core.compaction import ContextLimits, Cut
from clutch.core.forecast import SAMPLES_MIN, PastTask, of_tasks
from clutch.core.messages import Answer, Input, Summary
from clutch.core.model import Plan
from clutch.core.policy import Policy
from clutch.core.spawn import Spawner, SpawnRequest, spawnable, terms
from clutch.core.text import prices, prompts
from clutch.ports import ModelError, ModelRequest, Skills, ToolFailed, ToolSpec, Trouble
from clutch.store.transaction import Database
from clutch.transactions.read import transcripts as stored
from clutch.transactions.read.transcripts import Around, Briefing, PriceQuery

DOCUMENT = "AGENTS.md"
FRESH_S = 2.0  # a fan-out starts hundreds of turns in one workspace; an edit may wait as long
PRICES_S = 60.0  # what finished tasks cost changes little, and every turn of a main session asks for it
WORKSPACES_MAX = 256  # remembered; isolated children have one each
PIECE_CHARS_MIN = 4000  # a model that does not take this much cannot summarise
TOOL_BYTES = 600  # a tool with its schema, until the provider has counted
NOTE_CHARS = 200  # what is said about a cut

Ask: TypeAlias = Callable[[ModelRequest], Awaitable[Answer]]
#: writes a text to a file of this name among the session's large results; raises if it cannot
Keep: TypeAlias = Callable[[str, str], Awaitable[None]]


# ---- the system prompt -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Known:
    section: str = ""
    stamp: tuple[int, ...] | None = None  #: of the file it was read from; None = there is none
    looked_at: float | None = None
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Documents:
    """One file of each workspace as a section of a prompt, read again when it has changed.

    `is_settled`: says of a path that no running command could have written it. Until then the previous text stays."""

    def __init__(
        self, bytes_max: int, name: str = DOCUMENT, is_settled: Callable[[str], bool] = lambda _: True
    ) -> None:
        self._bytes_max, self._name, self._is_settled = bytes_max, name, is_settled
        self._known: dict[str, _Known] = {}

    async def section(self, workspace: str) -> str:
        """Empty when there is no such file, or none that may be read."""
        known = self._remembered(workspace)
        now = asyncio.get_running_loop().time
        if not _is_fresh(known, now()):
            async with known.looking:
                if not _is_fresh(known, now()):
                    await asyncio.to_thread(self._look, workspace, known)
                    known.looked_at = now()
        return known.section

    def _remembered(self, workspace: str) -> _Known:
        known = self._known.get(workspace)
        if known is None:
            known = self._known[workspace] = _Known()
            if len(self._known) > WORKSPACES_MAX:
                del self._known[next(iter(self._known))]
        return known

    def _look(self, workspace: str, known: _Known) -> None:
        if not self._is_settled(f"{workspace}/{self._name}"):
            return
        try:
            file = _opened(workspace, self._name)
        except OSError:
            known.section, known.stamp = "", None
            return
        try:
            status = os.fstat(file)
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp != known.stamp:
                known.section = self._read(file) if stat.S_ISREG(status.st_mode) else ""
                known.stamp = stamp
        finally:
            os.close(file)

    def _read(self, file: int) -> str:
        data = os.read(file, self._bytes_max + 1)
        text = data[: self._bytes_max].decode("utf-8", "replace").replace("\0", "\ufffd")
        if not text.strip():
            return ""
        return prompts.document_section(self._name, text, is_cut=len(data) > self._bytes_max)


def _is_fresh(known: _Known, now: float) -> bool:
    return known.looked_at is not None and now - known.looked_at < FRESH_S


def _opened(workspace: str, name: str) -> int:
    """Open relative to the open directory and never through a link: a link could lead to any file."""
    directory = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)


@dataclass(frozen=True, slots=True)
class System:
    """`events_upto`: to be consumed with the answer to it; 0 = it shows none."""

    text: str
    events_upto: int = 0


class Surroundings:
    """Builds system prompts. An agent's identity goes to its main and chat sessions only, its instructions to its
    subagents only. `policy`: returns the present one, which a reload or an approved file replaces."""

    def __init__(
        self,
        db: Database,
        policy: Callable[[], Policy],
        documents: Documents | None = None,
        skills: Skills | None = None,
    ) -> None:
        self._db, self._policy, self._documents, self._skills = db, policy, documents, skills
        self._past: list[PastTask] = []  #: what finished tasks have cost, read at `_past_at`
        self._past_at = 0.0

    async def system(self, session_id: int, about: Briefing, *, submits_result: bool = False) -> System:
        """Once per turn and after each compaction: a prompt that changed with every step could not be cached."""
        policy = self._policy()
        sections = [_who(about, policy.agent(about.agent_id), submits_result)]
        sections += self._choices(about, policy)
        if self._documents is not None and about.workspace:
            sections.append(await self._documents.section(about.workspace))
        around = Around()
        if about.rights.role is not Role.LEAF:
            asked = self._price_query(about, policy)
            around = await self._db.read(stored.around, session_id, policy.context, asked)
            if asked is not None:
                sections.append(self._price(about, policy, around))
        sections += _news(around)
        return System("\n\n".join(filter(None, sections)), around.events_upto)

    def _price_query(self, about: Briefing, policy: Policy) -> PriceQuery | None:
        if about.depth or not about.rights.may_spawn:
            return None
        is_old = asyncio.get_running_loop().time() - self._past_at >= PRICES_S
        return PriceQuery(policy.budgets, about.purses, is_old or len(self._past) < SAMPLES_MIN)

    def _price(self, about: Briefing, policy: Policy, around: Around) -> str:
        """What a subagent of the same agent costs. It changes now and then, so it stands below what never changes."""
        if around.past is not None:
            self._past, self._past_at = around.past, asyncio.get_running_loop().time()
        caller = Spawner(about.agent_id, about.model, workspace=about.workspace)
        model = terms(SpawnRequest(""), about.agent_id, caller, policy).model
        line = prices.prompt_line(of_tasks(self._past, about.agent_id, model), around.left)
        return line and f"{prompts.PRICES}\n{line}"

    def _choices(self, about: Briefing, policy: Policy) -> Iterator[str]:
        """What the session may start and load, if its rights permit it."""
        if about.rights.may_spawn:
            others = sorted(spawnable(policy, about.agent_id))
            if agents := [(one, text) for one in others if (text := policy.agent(one).description)]:
                yield prompts.choices_section(prompts.AGENTS, agents)
        may_load = about.rights.tools.permits(SKILL_TOOL)
        if self._skills is not None and may_load and (skills := self._skills.offered(about.agent_id)):
            yield prompts.choices_section(prompts.SKILLS, skills)


def _who(about: Briefing, agent: Agent, submits_result: bool) -> str:
    rights = about.rights
    if not about.depth:
        return prompts.main_prompt(agent.identity, may_spawn=rights.may_spawn)
    brief = prompts.ChildBrief(
        label=about.label or "",
        session_key=about.session_key,
        requester=about.requester_key or "",
        depth=about.depth,
        depth_max=rights.depth_max,
        may_spawn=rights.may_spawn,
        plan_mode=about.plan == Plan.DRAFTING,
        submits_result=submits_result,
        agent_id=about.agent_id,
        instructions=agent.instructions,
    )
    return prompts.system_prompt(brief)


def _news(around: Around) -> Iterator[str]:
    if around.active or around.recent:
        yield prompts.children_section(around.active, around.recent, is_more=around.is_more)
    if around.events:
        yield prompts.events_section(around.events)


def overhead_bytes(system: str, tools: Sequence[ToolSpec]) -> int:
    """About what a request holds beside its messages."""
    return len(system.encode("utf-8", "replace")) + TOOL_BYTES * len(tools)


# ---- long transcripts --------------------------------------------------------------------------------------


async def compacted(ask: Ask, like: ModelRequest, cut: Cut, rules: ContextLimits, nonce: str) -> Summary:
    """Summarise what was cut: in one call, or in several when it is longer than a window itself.

    `ask` makes one model call and books it. `like`: the request that has grown too long. Raises ModelError."""
    left, notes, number = rules_of.record(cut.old), rules_of.summary(cut, ""), 0
    room = rules.window_tokens * rules_of.BYTES_PER_TOKEN // 2
    while left:
        request = replace(
            like,
            system=prompts.SUMMARISING,
            transcript=(
                Input(prompts.summary_request(left[:room], nonce, cut.bytes_max, notes.text), "summary"),
            ),
            tools=(),
            key=f"{like.key}:summary:{number}",
        )
        number += 1
        try:
            notes = rules_of.summary(cut, _text(await ask(request)))
        except ModelError as error:
            if error.trouble is not Trouble.CONTEXT or room // 2 < PIECE_CHARS_MIN:
                raise
            room = min(room, len(left)) // 2  # the window is smaller than the price list says
            continue
        left = left[room:]
    return notes


def _text(answer: Answer) -> str:
    if answer.calls or not answer.text.strip() or answer.stop in ("filter", "refusal"):
        raise ModelError(Trouble.MALFORMED, f"the model gave no summary ({answer.stop})")
    return answer.text


# ---- large results -----------------------------------------------------------------------------------------


async def spilled(text: str, chars_max: int, keep: Keep) -> str:
    """A text that is too long becomes its two ends and the name of the file that has all of it.

    The name comes from the text, so a call that runs again writes the same file."""
    if len(text) <= chars_max:
        return text
    name = f"{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}.txt"
    try:
        await keep(name, text)
    except Exception as error:  # noqa: BLE001 - whatever the disk or the sandbox says, the model gets its result
        head, tail = rules_of.ends(text, max(0, chars_max - NOTE_CHARS))
        why = str(error) if isinstance(error, ToolFailed) else ""
        return prompts.cut_result(head, tail, len(text), None, why)
    head, tail = rules_of.ends(text, chars_max // 4)
    return prompts.cut_result(head, tail, len(text), f"{RESULTS}/{name}")
