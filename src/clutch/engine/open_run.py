"""A run that this worker has open: its state in memory, and its transactions.

Everything here can be read again from the database; a crash loses nothing. `model_call` and `tool_calls` work on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from clutch.core import session_tools
from clutch.core.agents import SKILL_TOOL
from clutch.core.attachments import WRITING, FetchedFiles, FileVersion, SavedRoot, lost_files, written_by
from clutch.core.authority import EVERY_TOOL, AgentCaller, ToolFilter, under_plan
from clutch.core.checks import TaskCheck
from clutch.core.definitions import after_loading
from clutch.core.messages import Answer, Entry, Usage
from clutch.core.model import Plan, Thinking
from clutch.core.run import SUBMIT, SinceInput
from clutch.core.spawn import OWN_RUNTIME
from clutch.core.text import announce, prompts
from clutch.core.text.tasks import storable
from clutch.engine.live import Live
from clutch.engine.prompt import System
from clutch.engine.services import Services, is_cancelled, patiently
from clutch.engine.task_files import hand_over
from clutch.errors import StoreError, StoreLost
from clutch.logs import logger
from clutch.ports import Delta, DeltaKind, FilesFailed, ToolSpec
from clutch.store.transaction import Tx
from clutch.transactions import turn as turn_tx
from clutch.transactions import turn_begin, turn_end, usage
from clutch.transactions.claims import Claimed
from clutch.transactions.read.transcripts import Briefing
from clutch.transactions.sessions import LostRun, OwnedRun
from clutch.transactions.turn import Boundary, ModelAnswer
from clutch.transactions.turn_begin import Begun
from clutch.transactions.usage import Fate

# --------------------------------------------------------------------------------------------------
# A run that is superseded: a model call is cut at once, tools that run get a moment to end.
#
# A worker that stops: what the next start repeats anyway is cut at once, everything else gets `worker.stop` seconds.


class Interrupt:
    """One for each turn. The worker pulls it; the turn names its tools while they run."""

    def __init__(self) -> None:
        self.is_pulled = False
        self._running: Sequence[asyncio.Task[Any]] = ()
        self._is_repeatable = False
        self._stopping: asyncio.Task[None] | None = None  #: the turn, when its worker stops

    @contextmanager
    def repeatable(self, *, is_so: bool = True) -> Iterator[None]:
        """Mark a wait for what the next start repeats without harm: a model call, or tools that may run twice."""
        self._is_repeatable = is_so
        self._cut_if_stopping()
        try:
            yield
        finally:
            self._is_repeatable = False

    @property
    def is_stopping(self) -> bool:
        return self._stopping is not None

    def stop(self, turn: asyncio.Task[None]) -> None:
        """The worker stops: cut the turn now if it waits for something repeatable, else as soon as it does."""
        self._stopping = turn
        self._cut_if_stopping()

    def _cut_if_stopping(self) -> None:
        if self._stopping is not None and self._is_repeatable:
            self._stopping.cancel()

    @contextmanager
    def sparing(self, running: Sequence[asyncio.Task[Any]]) -> Iterator[None]:
        self._running = running
        try:
            yield
        finally:
            self._running = ()

    def pull(self, turn: asyncio.Task[None], grace_s: float) -> None:
        running = [task for task in self._running if not task.done()]
        if not running:
            turn.cancel()
            return
        self.is_pulled = True
        asyncio.get_running_loop().call_later(grace_s, _cancel, running)


def _cancel(running: Sequence[asyncio.Task[Any]]) -> None:
    for task in running:
        task.cancel()


#: A store that answers takes less; one that does not must not hold a turn, or the stop of a worker, for longer.
SAVE_S = 20.0

T = TypeVar("T")
P = ParamSpec("P")
TurnTransaction: TypeAlias = Callable[Concatenate[float, OwnedRun, P], Tx[T]]

log = logger(__name__)


class OpenRun:
    """The state of an open run.

    `is_unanswered`: letters wait for the model's next answer; `senders` are the tasks that wrote them."""

    def __init__(
        self, services: Services, claimed: Claimed, begun: Begun, about: Briefing, interrupt: Interrupt
    ) -> None:
        self.interrupt = interrupt
        self._events = 0
        self._narrowed: tuple[int, ToolFilter] | None = None  #: computed once for an answer
        self.services, self.policy = services, services.policy
        self.session_id, self.fence = claimed.session_id, claimed.fence
        self.run_id, self.head = begun.run_id, begun.head
        self._owned = OwnedRun(services.policy, claimed.session_id, claimed.fence, begun.run_id)
        self._begun_at = begun.head
        self.is_unanswered, self.senders = begun.is_unanswered, begun.senders
        self.about, self.system = about, System("")
        self.transcript: list[Entry] = list(about.transcript)
        self.since_input = SinceInput(self.transcript)
        self.converted: dict[object, Any] = {}  #: the transcript as the adapters of models send it
        self.steps = about.steps
        self.specs = _specs(services, about)
        self.by_name = {spec.name: spec for spec in self.specs}
        self._aliases = {alias: spec.name for spec in self.specs for alias in spec.aliases}
        self.is_ours = about.runtime == OWN_RUNTIME
        self.is_answered = begun.is_answered
        self.is_last_call = False  #: no budget is left after it, and it may use no tool
        ours = about.model or services.policy.model_of(about.agent_id)
        # Foreign code does not use the model a child of ours would get, so it must not be priced as if it did.
        self.model = ours if self.is_ours else about.model_asked or f"runtime:{about.runtime}"
        self.thinking = None if about.thinking is None else Thinking(about.thinking)

    @property
    def caller(self) -> AgentCaller:
        """The caller in whose name its tools act on other tasks."""
        about, policy = self.about, self.policy
        return AgentCaller(
            session_id=self.session_id,
            agent_id=about.agent_id,
            role=about.rights.role,
            visibility=policy.visibility,
            is_sandboxed=about.rights.sandbox,
            peers=policy.peers,
            session_key=about.session_key,
            fence=self.fence,
        )

    def traceparent(self, call_key: str | None = None) -> str | None:
        """Return the trace context for a tool call, or for the run itself. None: traces are off."""
        known = self.services.traces
        if known is None:
            return None
        span_id = known.run(self.run_id) if call_key is None else known.tool(call_key)
        return known.traceparent(self.about.root_id, span_id)

    @property
    def files(self) -> str | None:
        """The directory of its task. A main session has none."""
        files = self.services.files
        return None if files is None or not self.about.depth else files.path(self._file_version)

    async def fetch_files(self) -> None:
        """Bring the files of its task here: the turn before may have run on another machine. What cannot be had is
        missing for the tools, and they say so."""
        if self.services.files is not None and self.about.has_files:
            try:
                await self.services.files.fetch(self._file_version)
            except FilesFailed as error:
                log.warning("Files of session %d not fetched: %s", self.session_id, error)

    async def arrive(self) -> None:
        """Bring the files of the session here, if it was on another machine before. What the model must know of them it
        reads with its next request."""
        files, about = self.services.session_files, self.about
        if files is None or about.place in (None, files.place):
            return await self.fetch_files()
        fetched = await files.fetch(self._file_version, about.saved, about.workspace_source)
        self.about = replace(about, place=files.place, workspace=fetched.workspace or about.workspace)
        await self.fetch_files()
        names = await self._missing(fetched)
        note = prompts.files_missing(names) if names else ""
        shown = prompts.missing_names(names)
        arrival = turn_begin.FileArrival(files.place, fetched.workspace, note, shown)
        if (added := await self.tx(turn_begin.arrive, arrival)) is not None:
            self.transcript.append(added)
            self.head += 1

    async def _missing(self, fetched: FetchedFiles) -> tuple[str, ...]:
        """Return the names of the files that are not here as the session left them."""
        about, saved = self.about, fetched.saved
        is_isolated = about.workspace_source is not None
        lost = lost_files(self.transcript, saved=saved, base=about.base, is_isolated=is_isolated)
        # A workspace that it shares may be the same directory on all machines.
        shared = () if is_isolated else written_by(self.transcript)
        paths = [about.workspace or ".", *(path for path in shared if not path.startswith("/"))]
        given = [] if about.shelf else [f"{self.files}/in/{name}" for name in about.attachments]
        gone = await asyncio.to_thread(_not_there, paths, given)
        since = self.transcript[max(0, (0 if saved is None else saved.head) - about.base) :]
        calls = (call for entry in since if isinstance(entry, Answer) for call in entry.calls)
        is_unsure = is_isolated and any(self._may_change(call.name) for call in calls)
        return tuple(dict.fromkeys((*gone, *fetched.missing, *lost, *([prompts.UNSAVED] * is_unsure))))

    def _may_change(self, name: str) -> bool:
        """Whether a tool may have written files whose names are not in its call."""
        spec = self.by_name.get(name)
        return spec is not None and not spec.read_only and name not in {*WRITING, *session_tools.TOOLS}

    async def place_files(self, answer: Answer) -> None:
        """After the calls of an answer: the first files of a session say where it is at home."""
        files = self.services.session_files
        if files is None or self.about.place is not None:
            return
        if written_by([answer]) or self._roots():
            await self.tx(turn_tx.placed, files.place)
            self.about = replace(self.about, place=files.place)

    def _roots(self, *, is_end: bool = False) -> Mapping[SavedRoot, Path]:
        files, is_isolated = self.services.session_files, self.about.workspace_source is not None
        if files is None:
            return {}
        return files.roots(self._file_version, is_isolated=is_isolated, is_end=is_end)

    async def save_files(self, *, is_end: bool = False) -> None:
        """Store what the session wrote for other machines, before it is released. What fails stays on this machine, and
        the model that resumes elsewhere reads a note."""
        files, before = self.services.session_files, self.about.saved
        roots = self._roots(is_end=is_end)
        if files is None or not (roots or before):
            return
        try:
            async with asyncio.timeout(SAVE_S):
                saved = await files.save(self._file_version, roots, self.head, before)
                if saved is None:
                    return
                await self.tx(turn_tx.saved, files.place, saved)
                self.about = replace(self.about, place=files.place, saved=saved)
                await files.settle(self.session_id, before, saved)
        except (FilesFailed, TimeoutError) as error:
            log.warning("Files of session %d not stored for other machines: %s", self.session_id, error)

    async def hand_over(self) -> None:
        """Store what the session wrote and the list of the files in `out/`, before the end of the task is committed."""
        if self.about.depth:
            await hand_over(self.services, self._file_version)
        await self.save_files(is_end=True)

    @property
    def _file_version(self) -> FileVersion:
        return FileVersion(self.session_id, self.about.shelf)

    @property
    def is_sandboxed(self) -> bool:
        """A sandboxed session stays sandboxed, even if the policy changes later. A policy that sandboxes the agent now
        holds for its older sessions too."""
        return self.about.rights.sandbox or self.policy.grant(self.about.agent_id).sandbox

    async def load_system_prompt(self) -> None:
        """At the start of a turn, and after a compaction: the summary may have dropped the children."""
        self.system = await self.services.around().system(
            self.session_id, self.about, submits_result=SUBMIT in self.by_name
        )

    # ---- the store -----------------------------------------------------------------------------------

    async def tx(self, fn: TurnTransaction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction that writes this session only."""
        return await self.services.db.tx(self.session_id, fn, self._owned, *args, **kwargs)

    async def tx_with_budgets(self, fn: TurnTransaction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction that also writes the budgets of this session."""
        return await self.services.db.tx((self.session_id, *self._budgets), fn, self._owned, *args, **kwargs)

    async def tx_with_senders(self, fn: TurnTransaction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction that books a model call, and steps the tasks whose letters this run has read.

        What the provider has answered is paid for: on a full disk, or while the database is away, it waits here and is
        not asked for again. After a lost connection the transcript says whether the commit happened."""
        while True:
            try:
                return await patiently(
                    self.services, lambda: self._try_with_senders(fn, *args, **kwargs), is_once=True
                )
            except StoreLost:
                if is_cancelled() or self.services.stopping.is_set() or await self._has_moved():
                    raise

    async def _has_moved(self) -> bool:
        """Whether more is committed than this turn knows of; the next claim resumes there."""
        return await patiently(self.services, lambda: self.tx(turn_tx.has_moved, self.head))

    async def _try_with_senders(self, fn: TurnTransaction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        db = self.services.db
        await self.services.thaw()
        if self.policy.limits.on_parent_end:
            # It may kill the children, so it writes sessions that no key names.
            return await db.alone(fn, self._owned, *args, **kwargs)
        keys = (self.session_id, *self.senders, *self._budgets)
        return await db.tx(keys, fn, self._owned, *args, **kwargs)

    async def tx_with_root(self, fn: TurnTransaction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction that spawns: the root of the tree counts all of its descendants."""
        return await self.services.db.tx(
            (self.about.root_id, self.session_id), fn, self._owned, *args, **kwargs
        )

    async def tx_if_lost(
        self, fn: Callable[Concatenate[float, LostRun, P], Tx[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a transaction that stores something for a session which this worker may have lost."""
        lost = LostRun(self.policy, self.session_id, self.fence, self.run_id, self.head)
        return await self.services.db.tx(self.session_id, fn, lost, *args, **kwargs)

    async def give_back(self, fate: Fate) -> None:
        """Release the session; the next owner resumes the run.

        The call that was foreseen or under way has its reservation in the budgets."""
        await self.save_files()
        known = (self.policy, self.session_id, self.fence, fate)
        await self.services.db.tx((self.session_id, *self._budgets), turn_end.hand_over, *known)

    async def report_late(self, text: str) -> None:
        """Keep a text that came after the session was lost: killed, superseded, timed out or taken over."""
        try:
            await self.tx_if_lost(turn_tx.late_in_turn, text, self.services.ids.nonce())
        except StoreError as error:  # nothing depends on it, and a turn that was cancelled must end
            log.warning("Late answer of %s not saved: %s (not retried)", self.about.session_key, error)

    @property
    def _budgets(self) -> tuple[int, ...]:
        return usage.keys(self.policy, self.about.purses)

    @property
    def is_budgeted(self) -> bool:
        return usage.is_budgeted(self.policy, self.about.purses)

    # ---- what happened -------------------------------------------------------------------------------

    def answered(self, answer: Answer, head: int) -> None:
        self.transcript.append(answer)
        self.head = head
        self.steps += 1
        self.is_unanswered, self.senders = False, ()

    def went_on(self, new: Entry, boundary: Boundary) -> None:
        self.transcript.append(new)
        self.head += 1
        self.received(boundary)

    def received(self, boundary: Boundary) -> None:
        self.transcript += boundary.inputs
        self.head += len(boundary.inputs)
        self.is_unanswered, self.senders = boundary.is_unanswered, boundary.senders

    @property
    def wants_summary(self) -> bool:
        """A compaction was requested, and the model has not answered since."""
        asked_at = self.about.compact_at
        if asked_at is None:
            return False
        since = self.transcript[max(0, asked_at - self.about.base) :]
        return not any(isinstance(entry, Answer) for entry in since)

    @property
    def checks(self) -> tuple[TaskCheck, ...]:
        """A plan is no result, so nothing of it is checked."""
        return () if self.about.plan == Plan.DRAFTING else self.about.checks

    def open_answer(self) -> Answer | None:
        """The last message, if it is an answer whose calls have no results yet."""
        last = self.transcript[-1] if self.transcript else None
        return last if isinstance(last, Answer) and last.calls else None

    @property
    def is_taken_up(self) -> bool:
        """The open answer was there before this turn. What the user decided about its calls holds, whether or not the
        policy would ask today."""
        return self.head == self._begun_at

    @property
    def narrowed(self) -> ToolFilter:
        """What the skills that this run has loaded leave of its tools. A skill of the open answer was not read yet."""
        skills, agent_id = self.services.skills, self.about.agent_id
        if skills is None or SKILL_TOOL not in self.by_name:
            return EVERY_TOOL
        if self._narrowed is None or self._narrowed[0] != self.head:
            answers = [entry for entry in self.transcript if isinstance(entry, Answer)]
            own = answers[max(0, len(answers) - self.steps) : -1]
            names = [call.args.get("name") for one in own for call in one.calls if call.name == SKILL_TOOL]
            left = after_loading(skills.narrowed(agent_id, str(name)) for name in names)
            self._narrowed = (self.head, left)
        return self._narrowed[1]

    def price(self, used: Usage) -> Decimal | None:
        return self.services.prices.cost(self.model, used)

    def priced(self, answer: Answer, events_upto: int = 0) -> ModelAnswer:
        """The answer as it is committed. `events_upto`: consume the system events that its prompt showed."""
        return ModelAnswer(answer, self.is_unanswered, self.price_of(answer), events_upto)

    def price_of(self, answer: Answer) -> Decimal | None:
        """Foreign code may report which model it used; the built-in loop uses the one that was asked for."""
        theirs = None if self.is_ours else self.services.prices.cost(answer.model, answer.usage)
        return self.price(answer.usage) if theirs is None else theirs

    def tell(self, name: str, data: object = None, detail: Mapping[str, Any] | None = None) -> None:
        self._events += 1
        whose = (self.about.session_key, self.about.depth > 0)
        self.services.bus.publish(
            Live(name, self.session_id, self.run_id, data, *whose, self._events, detail)
        )

    def in_own_names(self, answer: Answer) -> Answer:
        """The answer with aliases replaced, before rights and journal see it: a tool has one name there."""
        if not any(call.name in self._aliases for call in answer.calls):
            return answer
        named = (replace(call, name=self._aliases.get(call.name, call.name)) for call in answer.calls)
        return replace(answer, calls=tuple(named))

    def on_delta(self, delta: Delta) -> None:
        if delta.kind is not DeltaKind.CALL:
            self.tell(f"assistant:{delta.kind}", delta.text)

    async def fail(self, error: str, *, is_final: bool = True) -> None:
        """End the run with an error. Foreign code may put anything into its text."""
        said = storable(error)
        self.tell("lifecycle:error", said)
        await self.hand_over()
        await self.tx_with_senders(turn_end.fail, said, is_final)


def _not_there(workspace: Sequence[str], given: Sequence[str]) -> list[str]:
    """`workspace`: its path, and paths of files in it. Blocks."""
    top, *paths = workspace
    missing = [path for path in paths if not Path(top, path).exists()]
    return [f"/task/in/{Path(path).name}" for path in given if not Path(path).exists()] + missing


def _submitting(schema: str) -> dict[str, Any]:
    """References name a place from the top of the schema, so shared definitions stay at the top."""
    value = json.loads(schema)
    shared = {name: value.pop(name) for name in ("$defs", "definitions") if name in value}
    return {"type": "object", "properties": {"value": value}, "required": ["value"], **shared}


def tools_for(about: Briefing, specs: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """The tools that the stored rights of the session permit. A plan is made with tools that only read."""
    rights = under_plan(about.rights) if about.plan == Plan.DRAFTING else about.rights
    return tuple(spec for spec in specs if rights.permits_tool(spec.name, is_read_only=spec.read_only))


def _specs(services: Services, about: Briefing) -> tuple[ToolSpec, ...]:
    found = tools_for(about, services.toolbox.specs())
    if services.skills is not None and not services.skills.offered(about.agent_id):
        found = tuple(spec for spec in found if spec.name != SKILL_TOOL)
    if about.output_schema is None or about.plan == Plan.DRAFTING:
        return found
    return (
        *found,
        ToolSpec(SUBMIT, announce.SUBMIT_RESULT, _submitting(about.output_schema), replay_safe=True),
    )
