"""The process of an external agent: messages as lines over its stdin and stdout, everything else kept small.

A line has a limit, noise is counted and dropped, the end of stderr is kept. Nothing it has started outlives it, and
it does not outlive us: see `acp_supervisor`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from clutch.contain import BackgroundTasks
from clutch.errors import InvalidInput
from clutch.ports import Launch
from clutch.runtimes import acp_supervisor

LINE_BYTES_MAX = 8 * 1024 * 1024
NOISE_LINES_MAX = 1000  # in a row: a program that prints so much does not speak the protocol
CHUNK = 64 * 1024
NOISE_KEPT = 200
STDERR_KEPT = 64 * 1024
SUPERVISOR_S = 2.0  # until the leash has ended all; then the group is killed from here
LAST_WORDS_S = 0.3  # a crash closes stdout a moment before its exit code and its last lines are there


class Program:
    """A transport of the ACP library. `last_words`: the end of what it printed for people."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._errors = bytearray()
        self.noise = ""
        self.verdict = ""  #: why it was ended from here
        self.is_exposed = False  #: ... because it saw a new state directory
        self._tasks = BackgroundTasks()
        self._listening = self._tasks.call(self._listen(), "clutch-acp-stderr")

    @property
    def last_words(self) -> str:
        return self._errors.decode("utf-8", "replace").strip()

    async def exit_code(self) -> int | None:
        """Of one that has closed its stdout; None if it still runs."""
        await asyncio.wait([self._listening], timeout=LAST_WORDS_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._process.wait()
        return self._process.returncode

    @property
    def pid(self) -> int:
        return self._process.pid

    def condemn(self, verdict: str) -> None:
        """Ends it with all it started."""
        self.verdict = verdict
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    # ---- the transport -------------------------------------------------------------------------------

    async def send(self, message: dict[str, Any]) -> None:
        try:
            self._stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            await self._stdin.drain()
        except OSError as error:
            raise ConnectionError("it does not read any more") from error

    async def receive(self) -> dict[str, Any] | None:
        for _ in range(NOISE_LINES_MAX):
            line = b"(a line that is too long)"
            with suppress(ValueError):
                line = await self._stdout.readline()
                if not line:
                    return None
                message = json.loads(line)
                if isinstance(message, dict):
                    return message
            self.noise = self.noise or line[:NOISE_KEPT].decode("utf-8", "replace").strip()
        return None

    async def close(self) -> None:
        self._stdin.close()

    async def _listen(self) -> None:
        while data := await self._stderr.read(CHUNK):
            self._errors += data
            del self._errors[:-STDERR_KEPT]

    async def end(self) -> None:
        """After the supervisor was released."""
        self._stdin.close()
        if not await self._ended():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._ended()
        await self._tasks.close()

    async def _ended(self) -> bool:
        """Read to the end, because a full pipe would keep asyncio from noticing the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SUPERVISOR_S):
                while await self._stdout.read(CHUNK):
                    pass
                await self._process.wait()
        return self._process.returncode is not None


@asynccontextmanager
async def running(launch: Launch) -> AsyncIterator[Program]:
    """Raises OSError when it cannot be started."""
    line, held = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", acp_supervisor.__file__, str(line), *launch.argv),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=launch.cwd,
            env=dict(launch.env),
            pass_fds=(line, *launch.kept),
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )
        try:
            program = Program(process)
            yield program
        finally:
            os.close(held)
            held = -1
            await asyncio.shield(program.end())
    finally:
        os.close(line)
        if held >= 0:
            os.close(held)


# --------------------------------------------------------------------------------------------------
# What a person says about one external agent. Nothing here starts it.
#
# An agent gets nothing of ours by itself: its environment is a short list and what is named here. Who uses its own
# login needs no key from us; who does not names the variable in `inherit`.

TIMEOUT_MAX_S = 24 * 3600.0
MEMORY_BYTES_MIN = 64 << 20  # less starts no program
#: What every program needs to run at all; never a key.
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcpAgent:
    """`runtime: "acp:NAME"` starts `command`. Paths may begin with `~`. Raises InvalidInput naming the field."""

    name: str
    command: str = ""  #: Program to start. Empty = that of the known agent with this name.
    args: tuple[str, ...] = ()  #: Arguments of the program.
    install: str = ""  #: Command that installs the program, shown when it is missing.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  #: Environment variables of the program.
    inherit: frozenset[str] = frozenset()  #: Names of environment variables that the program inherits.
    sandbox: bool = True  #: Run the program in the sandbox if the tools of its session are.
    #: Folders that the program can read in the sandbox, such as its installation.
    visible: tuple[str, ...] = ()
    #: Folders that the program can change in the sandbox, besides the workspace.
    writable: tuple[str, ...] = ()
    memory_bytes: int = 4 << 30  #: Memory that the program and its processes may use in the sandbox.
    start_timeout_s: float = 60.0  #: Time until the program must be ready for a prompt.
    silence_timeout_s: float = 1800.0  #: Time without output or activity after which the program is ended.

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"acp.agents.{self.name[:40]!r}", "a name is up to 32 of a-z, 0-9, - and _; rename the agent"
            )
        if not self.command.strip():
            self._be_known()
        for name in (*self.env, *self.inherit):
            if not _VARIABLE.fullmatch(name):
                self._refuse("env", f"{name[:40]!r} is no name of a variable")
            if name.startswith("CLUTCH_"):
                self._refuse("env", f"{name} is a secret of Clutch and is never given to an agent")
        if self.memory_bytes < MEMORY_BYTES_MIN:
            self._refuse("memory_bytes", f"must be at least {MEMORY_BYTES_MIN} (64 MiB)")
        for name in ("start_timeout_s", "silence_timeout_s"):
            if not 0 < getattr(self, name) <= TIMEOUT_MAX_S:
                self._refuse(name, f"must be more than 0 and at most {TIMEOUT_MAX_S:g} seconds")

    def _be_known(self) -> None:
        known = KNOWN.get(self.name)
        if known is None:
            self._refuse("command", f"must name a program; known without one: {', '.join(KNOWN)}")
        else:
            for name in ("command", "args", "install", "writable"):
                object.__setattr__(self, name, getattr(self, name) or getattr(known, name))

    def _refuse(self, key: str, rule: str) -> None:
        raise InvalidInput(f"acp.agents.{self.name}.{key}", rule)

    def environment(self) -> dict[str, str]:
        """Return the environment variables of its process."""
        names = (*INHERITED, *sorted(self.inherit))
        return {name: os.environ[name] for name in names if name in os.environ} | dict(self.env)

    @property
    def remedy(self) -> str:
        """What to do when its command is not found."""
        how = f"install it with `{self.install}`, or " if self.install else ""
        return f"{how}set acp.agents.{self.name}.command to where it is"


#: Former names of programs, by the present one.
FORMER: Mapping[str, tuple[str, ...]] = MappingProxyType({"claude-agent-acp": ("claude-code-acp",)})


def found_program(agent: AcpAgent, path: str | None) -> str | None:
    """Return the program of an agent, in these folders or those of this process. An adapter that was renamed is found
    under its former name, too: who installed it then need not install it again."""
    names = (agent.command, *FORMER.get(agent.command, ()))
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def _known(name: str, *argv: str, install: str, keeps: tuple[str, ...]) -> AcpAgent:
    return AcpAgent(name=name, command=argv[0], args=argv[1:], install=install, writable=keeps)


#: The adapters of their makers, as they are installed: nothing is fetched while a task runs.
KNOWN: Mapping[str, AcpAgent] = MappingProxyType(
    {
        agent.name: agent
        for agent in (
            _known(
                "claude",
                "claude-agent-acp",
                install="npm install -g @agentclientprotocol/claude-agent-acp",
                keeps=("~/.claude", "~/.claude.json"),
            ),
            _known(
                "codex",
                "codex-acp",
                install="npm install -g @agentclientprotocol/codex-acp",
                keeps=("~/.codex",),
            ),
            _known(
                "gemini", "gemini", "--acp", install="npm install -g @google/gemini-cli", keeps=("~/.gemini",)
            ),
            _known(
                "opencode",
                "opencode",
                "acp",
                install="npm install -g opencode-ai",
                keeps=("~/.config/opencode", "~/.local/share/opencode", "~/.local/state/opencode"),
            ),
        )
    }
)


def chosen(given: Iterable[str | AcpAgent]) -> list[AcpAgent]:
    """Names of known agents, and agents of one's own. The first is the one `runtime: "acp"` means."""
    found: dict[str, AcpAgent] = {}
    for one in given:
        agent = one if isinstance(one, AcpAgent) else KNOWN.get(one)
        if agent is None:
            raise InvalidInput("acp", f"there is no agent {one!r}; known: {', '.join(KNOWN)}; or AcpAgent(…)")
        if agent.name in found:
            raise InvalidInput(f"acp.agents.{agent.name}", "is there twice; rename one")
        found[agent.name] = agent
    return list(found.values())
