"""The tool `shell`: one command in a sandbox, its output as it comes, an answer of a bounded size.

A command that takes too long, prints too much or uses too much is ended with all it started, and the answer says so
beside its output, which is often what the model needs. Calls are not repeated after a crash.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic import Field

from clutch.contain import BackgroundTasks, in_thread, to_the_end
from clutch.core.attachments import Side
from clutch.ports import ToolContext, ToolFailed
from clutch.tools.arguments import Arguments
from clutch.tools.sandbox import bubblewrap
from clutch.tools.sandbox.lifetime import FirstProcess, running_sandbox
from clutch.tools.sandbox.policy import ENVIRONMENT, MIB, Sandbox, SandboxLimits, SandboxPolicy
from clutch.tools.sandbox.process import (
    CHUNK_BYTES,
    SandboxKind,
    broken_limit,
    end,
    kill,
    sandbox_kind,
    start,
)
from clutch.tools.sandbox.protected_files import withhold
from clutch.tools.task_files import made
from clutch.tools.workspace import FileAccessError, parts_of

OnOutput = Callable[[str], None]

SECONDS_MAX = 3600


class ShellArguments(Arguments):
    command: str = Field(description="for /bin/sh", min_length=1, max_length=64 * 1024)
    timeout_seconds: float = Field(120, gt=0, le=SECONDS_MAX)
    cwd: str = "."


@dataclass(frozen=True, slots=True)
class Shell:
    """The settings of the tool; `run` is the tool."""

    sandbox: Sandbox = Sandbox.ON
    network: bool = False
    read_only: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    journal: str | None = None
    environment: tuple[str, ...] = ENVIRONMENT
    limits: SandboxLimits = field(default_factory=SandboxLimits)

    async def run(
        self, arguments: ShellArguments, context: ToolContext, on_output: OnOutput | None = None
    ) -> str:
        """Run a shell command in the workspace. No network unless granted."""
        if "\0" in arguments.command:
            raise ToolFailed("command: must not contain NUL")
        try:
            cwd = "/".join([context.workspace, *parts_of(arguments.cwd)])
            if context.files is not None:
                await asyncio.to_thread(made, context.files, Side.OUT)
            policy = self._policy(context.workspace, arguments.timeout_seconds, context.files)
        except (FileAccessError, ValueError, OSError) as error:
            raise ToolFailed(str(error)) from error
        kind = await asyncio.to_thread(sandbox_kind, self.sandbox, for_shell=True)
        command = ["/bin/sh", "-c", arguments.command]
        is_sandboxed = kind is not SandboxKind.NONE
        around = partial(running_sandbox, policy, is_sandboxed=is_sandboxed)
        async with in_thread(around) as sandbox, BackgroundTasks() as tasks:
            starting = tasks.call(
                start(policy, command, kind=kind, cwd=cwd, guards=sandbox.guards, first=sandbox.first),
                "clutch-shell",
            )
            try:
                run = _Run(await asyncio.shield(starting), policy, on_output)
                await run.until_over(sandbox.exposed if is_sandboxed else None)
            finally:
                rename_planted = partial(withhold, policy, sandbox.guards)
                made_new = await to_the_end(_ended(starting, sandbox.first, rename_planted, is_sandboxed))
            if context.on_exit is not None:
                context.on_exit(run.exit_code)
            return "\n".join([run.answer(), *(f"({one})" for one in made_new)])

    def _policy(self, root: str, wall_s: float, files: str | None) -> SandboxPolicy:
        return SandboxPolicy(
            root=root,
            task=files,
            read_only=(*filter(os.path.isdir, self.read_only), *bubblewrap.history_of(root)),
            hidden=self.hidden,
            journal=None if self.sandbox is Sandbox.OFF else self.journal,
            network=self.network,
            environment=self.environment,
            limits=replace(self.limits, wall_s=wall_s),
        )


async def _ended(
    starting: asyncio.Task[Process],
    first: FirstProcess,
    rename_planted: Callable[[], list[str]],
    is_sandboxed: bool,
) -> list[str]:
    """End a command: wait until its processes are gone, then rename what it planted. Return sentences about that."""
    await asyncio.wait([starting])
    if starting.exception() is None:
        await end(starting.result())
    await asyncio.to_thread(first.wait)
    return await asyncio.to_thread(rename_planted) if is_sandboxed else []


@dataclass(slots=True)
class BoundedOutput:
    """The beginning and the end of what was printed, and the count of bytes between."""

    part_bytes: int  #: of the beginning, and of the end
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        missing = self.part_bytes - len(self.head)
        self.head += data[:missing]
        self.tail += data[missing:]
        if len(self.tail) > 2 * self.part_bytes:
            del self.tail[: -self.part_bytes]

    def text(self) -> str:
        tail = self.tail[-self.part_bytes :]
        cut = self.total - len(self.head) - len(tail)
        between = b"\n(... %d bytes cut ...)\n" % cut if cut else b""
        return (bytes(self.head) + between + bytes(tail)).decode("utf-8", "replace")


class _Run:
    def __init__(self, process: Process, policy: SandboxPolicy, on_output: OnOutput | None) -> None:
        self._process = process
        self._policy = policy
        self._on_output = on_output
        self._output = BoundedOutput(policy.limits.output_bytes // 2)
        self._verdict: str | None = None  #: why it was ended, if it did not end by itself
        self._began, self._took_s = time.monotonic(), 0.0

    async def until_over(self, exposed: Callable[[], Awaitable[str]] | None) -> None:
        """Wait until the command has ended or must be ended. `exposed`: of its sandbox."""
        limits = self._policy.limits
        try:
            async with asyncio.timeout(limits.wall_s), asyncio.TaskGroup() as group:
                limit = partial(broken_limit, self._process.pid, self._policy)
                reasons = (limit, exposed) if exposed else (limit,)
                watching = [group.create_task(self._watch(reason)) for reason in reasons]
                await self._read()
                for task in watching:
                    task.cancel()
        except TimeoutError:
            self._verdict = f"it took longer than {limits.wall_s:g} s"
        self._took_s = time.monotonic() - self._began

    @property
    def exit_code(self) -> int | None:
        """None: the command was ended."""
        return self._process.returncode if self._verdict is None else None

    def answer(self) -> str:
        return f"{self._output.text().rstrip()}\n({self._outcome()})".lstrip("\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := await self._process.stdout.read(CHUNK_BYTES):
            self._output.add(data)
            if self._on_output is not None:
                self._on_output(decoder.decode(data))
            if self._output.total > self._policy.limits.flood_bytes:
                self._verdict = f"it printed more than {self._policy.limits.flood_bytes // MIB} MiB"
                return
        await self._process.wait()

    async def _watch(self, reason: Callable[[], Awaitable[str]]) -> None:
        self._verdict = await reason()
        kill(self._process)  # the reader sees the end

    def _outcome(self) -> str:
        took = f"{self._took_s:.1f} s"
        if self._verdict is not None:
            return f"killed after {took}: {self._verdict}"
        return f"exit code {self._process.returncode}, {took}"
