"""External agents as children, over the Agent Client Protocol: each task is a process of its own that we talk to."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from clutch import __version__
from clutch.contain import BackgroundTasks, in_thread
from clutch.core.messages import Answer, Usage
from clutch.core.redaction import redact
from clutch.core.text.format import quoted
from clutch.errors import extra
from clutch.ports import Launch, ProgramSandbox, RuntimeFailed, RuntimeJob, SandboxAccess, ToolFailed
from clutch.runtimes.acp_process import AcpAgent, Program, found_program, running
from clutch.runtimes.function import earlier

if TYPE_CHECKING:
    from acp.client import ClientSideConnection
    from acp.schema import PromptResponse

    from clutch.runtimes.acp_client import Listener

# --------------------------------------------------------------------------------------------------
# Which session of an external agent belongs to which of ours, so that it can be loaded again.
#
# Files and no table: the agent keeps its sessions on this machine, and on another one the name would mean nothing.
# Beside each lies the end of what the agent last printed for people. All of it may be lost: then a session starts
# anew.

KEPT_S = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Remembered:
    agent: str
    session_id: str
    key: str  #: of the run that was last under way in it


class Memory:
    """Its functions block, shortly."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, session_key: str, agent: str) -> Remembered | None:
        try:
            found = Remembered(**json.loads(self._place(session_key, "json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.agent == agent else None

    def remember(self, session_key: str, what: Remembered) -> None:
        self._write(self._place(session_key, "json"), json.dumps(asdict(what)))

    def log(self, session_key: str, words: str) -> None:
        if words:
            self._write(self._place(session_key, "log"), redact(words).text)

    def forget_old(self) -> None:
        for place in self._folder.glob("*.*"):
            try:
                if place.stat().st_mtime < time.time() - KEPT_S:
                    place.unlink()
            except OSError:
                continue  # another task was faster

    def _place(self, session_key: str, suffix: str) -> Path:
        return self._folder / f"{hashlib.sha256(session_key.encode()).hexdigest()[:32]}.{suffix}"

    def _write(self, place: Path, text: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = place.with_suffix(f".{os.getpid()}.new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(new, place)


# --------------------------------------------------------------------------------------------------
# One run of an external agent: start it, open or load its session, prompt it, listen until its final text.
#
# What can go wrong is reported with its remedy. When the run is stopped the agent is asked to cancel, and ended.

T = TypeVar("T")

CANCEL_S = 0.5  # what the agent gets to write down where it was
WORDS_SHOWN = 300
EARLIER_CHARS_MAX = 32_000
AUTH_REQUIRED = -32000
STOPS = {"end_turn": "end", "max_tokens": "length", "max_turn_requests": "too many requests"}
NOT_FOUND = 127  # of a shell or of `env`: there is no such program
GO_ON = "Your work on this was interrupted and you are started again. Look how far you came and continue:\n\n"


RESTARTS_MAX = 3  # of one run, for state directories that appear in its workspace


class _Exposed(RuntimeFailed):
    """The program was ended because a state directory appeared in its workspace."""


class AcpRuntime:
    """`home`: where it remembers sessions. `walls`: for sessions whose tools run behind them."""

    def __init__(self, agent: AcpAgent, home: Path, walls: ProgramSandbox) -> None:
        self._agent, self._walls = agent, walls
        self._memory = Memory(home)
        self._is_prepared = False

    async def run(self, job: RuntimeJob) -> Answer:
        if not job.may_change:
            raise RuntimeFailed(
                f"the agent {self._agent.name!r} writes files and runs commands, and this session may not do both"
            )
        await self._prepare()
        for _ in range(RESTARTS_MAX):
            with suppress(_Exposed):  # started again, as after a crash; the new sandbox hides the directory
                return await self._run(job)
        return await self._run(job)

    async def _run(self, job: RuntimeJob) -> Answer:
        # A sandbox walks through the workspace when it is made and when it is left.
        launching = in_thread(partial(self._launching, job))
        async with launching as launch, _started(launch) as program, BackgroundTasks() as tasks:
            tasks.start(self._watch(job, program), "clutch-acp-limits")
            if launch.exposed is not None:
                tasks.start(_watch_state(launch.exposed, program), "clutch-acp-state")
            try:
                return await self._talk(job, program)
            finally:
                await asyncio.shield(asyncio.to_thread(self._memory.log, job.session_key, program.last_words))

    async def _prepare(self) -> None:
        """The library takes a second to load; on the event loop that would cost the lease."""
        if not self._is_prepared:
            with extra("acp", f"the external agent {self._agent.name!r}"):
                await asyncio.to_thread(import_module, "clutch.runtimes.acp_client")
            await asyncio.to_thread(self._memory.forget_old)
            self._is_prepared = True

    # ---- starting it ---------------------------------------------------------------------------------

    @contextmanager
    def _launching(self, job: RuntimeJob) -> Iterator[Launch]:
        agent, env = self._agent, self._agent.environment()
        if job.files is not None:
            env["TASK_DIR"] = job.files
        command = found_program(agent, env.get("PATH"))
        if command is None:
            raise RuntimeFailed(f"the agent {agent.name!r} needs `{agent.command}`; {agent.remedy}")
        cwd, argv = _where(job), (command, *agent.args)
        if not (job.is_sandboxed and agent.sandbox):
            yield Launch(argv, cwd, env)
            return
        env.pop("TASK_DIR", None)
        with ExitStack() as stack:
            try:
                launch = stack.enter_context(self._walls.launching(argv, env, self._room(job)))
            except ToolFailed as error:
                raise RuntimeFailed(
                    f"the agent {agent.name!r} must run in a sandbox here, and {error}; to run it with all your "
                    f"rights, set acp.agents.{agent.name}.sandbox to false"
                ) from error
            yield launch

    def _room(self, job: RuntimeJob) -> SandboxAccess:
        agent = self._agent
        seen, changed = _paths(agent.visible), _paths(agent.writable)
        return SandboxAccess(
            job.workspace, _where(job), seen, changed, job.files, job.network, agent.memory_bytes
        )

    async def _watch(self, job: RuntimeJob, program: Program) -> None:
        """Ends a sandboxed program that uses more memory than it may."""
        if job.is_sandboxed and self._agent.sandbox:
            program.condemn(await self._walls.broken_limit(program.pid, self._room(job)))

    # ---- talking to it -------------------------------------------------------------------------------

    async def _talk(self, job: RuntimeJob, program: Program) -> Answer:
        from acp.core import Client, connect_to_agent

        from clutch.runtimes.acp_client import Listener

        listener = Listener(job, self._agent.name)
        # The library still counts elicitation among what is not stable.
        connection = connect_to_agent(cast(Client, listener), program, use_unstable_protocol=True)
        try:
            session_id, text = await self._opened(job, connection, program)
            listener.is_listening = True
            response = await self._prompted(
                connection, session_id, text, listener, program, traceparent=job.traceparent
            )
        finally:
            listener.is_listening = False
            listener.leave()
            await asyncio.shield(connection.close())
        stop = STOPS.get(response.stop_reason, response.stop_reason)
        if stop == "cancelled" and listener.refused is not None:  # Codex ends its turn so, and says no more
            stop = f"permission was refused for {_shown(listener.refused)}"
        return Answer(listener.last_words, usage=_usage(response), model=f"acp:{self._agent.name}", stop=stop)

    async def _opened(
        self, job: RuntimeJob, connection: ClientSideConnection, program: Program
    ) -> tuple[str, str]:
        """The session, and what to say in it."""
        seconds = self._agent.start_timeout_s
        try:
            async with asyncio.timeout(seconds):
                return await self._answered(self._open(job, connection), program)
        except TimeoutError:
            raise await self._trouble(f"was not ready within {seconds:g} s", program) from None

    async def _open(self, job: RuntimeJob, connection: ClientSideConnection) -> tuple[str, str]:
        from acp import PROTOCOL_VERSION
        from acp.schema import (
            ClientCapabilities,
            ElicitationCapabilities,
            ElicitationFormCapabilities,
            ElicitationUrlCapabilities,
            Implementation,
        )

        asks = ElicitationCapabilities(form=ElicitationFormCapabilities(), url=ElicitationUrlCapabilities())
        hello = await connection.initialize(
            PROTOCOL_VERSION,
            ClientCapabilities(elicitation=asks),
            Implementation(name="clutch", version=__version__),
        )
        if hello.protocol_version != PROTOCOL_VERSION:
            raise RuntimeFailed(
                f"the agent {self._agent.name!r} speaks version {hello.protocol_version} of ACP and we speak "
                f"{PROTOCOL_VERSION}; upgrade whichever is older"
            )
        cwd = _where(job)
        known = await asyncio.to_thread(self._memory.recall, job.session_key, self._agent.name)
        can_load = bool(hello.agent_capabilities and hello.agent_capabilities.load_session)
        if known is not None and can_load and await self._loaded(connection, known, cwd):
            session_id, text = known.session_id, GO_ON * (known.key == job.key) + job.text
        else:
            session_id, text = (await connection.new_session(cwd)).session_id, _with_earlier(job)
        what = Remembered(self._agent.name, session_id, job.key)
        await asyncio.to_thread(self._memory.remember, job.session_key, what)
        return session_id, text

    async def _loaded(self, connection: ClientSideConnection, known: Remembered, cwd: str) -> bool:
        from acp import RequestError

        try:
            await connection.load_session(cwd, known.session_id)
        except RequestError:
            return False  # the agent has forgotten it; a new one will do
        return True

    async def _prompted(
        self,
        connection: ClientSideConnection,
        session_id: str,
        text: str,
        listener: Listener,
        program: Program,
        *,
        traceparent: str | None,
    ) -> PromptResponse:
        from acp import text_block

        meta = {} if traceparent is None else {"traceparent": traceparent}  # sent as `_meta`
        async with BackgroundTasks() as tasks:
            prompting = tasks.call(
                connection.prompt(session_id, [text_block(text)], **meta), "clutch-acp-prompt"
            )
            try:
                await self._listened(prompting, listener, program)
                return await self._answered(prompting, program)
            except asyncio.CancelledError:
                listener.is_listening = False
                listener.leave()
                with suppress(Exception):
                    async with asyncio.timeout(CANCEL_S):
                        await connection.cancel(session_id)
                        await asyncio.wait([prompting])
                raise

    async def _listened(
        self, prompting: asyncio.Future[PromptResponse], listener: Listener, program: Program
    ) -> None:
        """Until it has answered. One that says nothing at all any more is ended; one that asks is not."""
        seconds = self._agent.silence_timeout_s
        while not prompting.done():
            silent_s = asyncio.get_running_loop().time() - listener.heard_at
            if silent_s >= seconds and not listener.is_asking:
                raise await self._trouble(f"gave no sign of life for {seconds:g} s", program)
            await asyncio.wait([prompting], timeout=max(0.05, seconds - silent_s))

    # ---- what goes wrong -----------------------------------------------------------------------------

    async def _answered(self, answering: Awaitable[T], program: Program) -> T:
        from acp import RequestError

        try:
            return await answering
        except ConnectionError:
            code = await program.exit_code()
            what = "closed the connection" if code is None else f"ended with exit code {code}"
            hint = f"; {self._unseen}" if code == NOT_FOUND else ""
            raise await self._trouble(f"{what} before it had answered{hint}", program) from None
        except RequestError as error:
            if error.code == AUTH_REQUIRED:
                raise await self._trouble(
                    "wants a login; log in with its own command first", program
                ) from None
            raise await self._trouble(f"said: {_shown(str(error))}", program) from None
        except ValueError as error:  # an answer that has not the form the protocol gives it
            raise await self._trouble(f"does not speak ACP: {_shown(str(error))}", program) from None

    @property
    def _unseen(self) -> str:
        return (
            "a sandbox shows /usr, the workspace and where the program is installed: add the folder of what it did "
            f"not find to acp.agents.{self._agent.name}.visible"
        )

    async def _trouble(self, what: str, program: Program) -> RuntimeFailed:
        if program.is_exposed:
            return _Exposed(f"the agent {self._agent.name!r} was ended: {program.verdict}")
        if program.verdict:
            return RuntimeFailed(
                f"the agent {self._agent.name!r} was ended: {program.verdict}; give it less to do, or raise "
                f"acp.agents.{self._agent.name}.memory"
            )
        said = program.last_words or program.noise
        heard = f"; it printed: {_shown(said[-WORDS_SHOWN:])}" if said else ""
        line = " ".join((self._agent.command, *self._agent.args))
        return RuntimeFailed(
            f"the agent {self._agent.name!r} {what}{heard}; run `{line}` by hand to see what it needs"
        )


async def _watch_state(exposed: Callable[[], Awaitable[str]], program: Program) -> None:
    verdict = await exposed()
    program.is_exposed = True
    program.condemn(verdict)


@asynccontextmanager
async def _started(launch: Launch) -> AsyncIterator[Program]:
    try:
        async with running(launch) as program:
            yield program
    except OSError as error:
        raise RuntimeFailed(f"{launch.argv[0]} cannot be started: {error.strerror or error}") from error


def _shown(text: str) -> str:
    return quoted(redact(text).text, WORDS_SHOWN)


def _where(job: RuntimeJob) -> str:
    return os.path.abspath(os.path.join(job.workspace, job.cwd))


def _paths(named: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(os.path.expanduser, named))


def _usage(response: PromptResponse) -> Usage:
    """All zero when the agent does not count: shown as unknown, never as nothing."""
    used = response.usage
    if used is None:
        return Usage()
    return Usage(
        used.input_tokens,
        used.output_tokens + (used.thought_tokens or 0),
        used.cached_read_tokens or 0,
        used.cached_write_tokens or 0,
    )


def _with_earlier(job: RuntimeJob) -> str:
    """For a session that knows nothing: what was said in ours before."""
    said = [f"{'You' if by_agent else 'Task'}: {text}" for by_agent, text in earlier(job)]
    if not said:
        return job.text
    before = "\n\n".join(said)[-EARLIER_CHARS_MAX:]
    return f"Earlier in this conversation:\n\n{before}\n\nNow:\n\n{job.text}"
