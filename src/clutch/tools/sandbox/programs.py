"""A program that is spoken to for as long as it runs, as the words that start it inside the sandbox.

Its variables reach it through an open file: on a command line everybody could read them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from clutch.ports import Launch, Room, ToolFailed
from clutch.tools.sandbox import command_line, seccomp
from clutch.tools.sandbox.box import Box
from clutch.tools.sandbox.probe import probe
from clutch.tools.sandbox.start import guarding


def boxed_program(
    box: Box, argv: Sequence[str], variables: Mapping[str, str], *, cwd: str
) -> AbstractContextManager[Launch]:
    """Lasts as long as the process. Raises ToolFailed where there is no sandbox. Blocking."""
    offer = probe()
    if offer.bubblewrap is None:
        raise ToolFailed(offer.trouble)
    return _launching(offer.bubblewrap, box, argv, variables, cwd)


@contextmanager
def _launching(
    program: str, box: Box, argv: Sequence[str], variables: Mapping[str, str], cwd: str
) -> Iterator[Launch]:
    with guarding(box) as guards, _open_files(variables) as (secrets, filter_file):
        inside = ("/bin/sh", "-c", f'. /proc/self/fd/{secrets} && exec "$@"', "program", *argv)
        words = command_line.boxed(program, box, inside, cwd=cwd, guards=guards, seccomp_fd=filter_file)
        kept = (secrets,) if filter_file is None else (secrets, filter_file)
        yield Launch(words, "/", box.variables(), kept)


@contextmanager
def _open_files(variables: Mapping[str, str]) -> Iterator[tuple[int, int | None]]:
    filter_file = seccomp.as_file()
    secrets = os.memfd_create("variables")
    try:
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        os.write(secrets, "".join(lines).encode())
        yield secrets, filter_file
    finally:
        for file in filter(None, (secrets, filter_file)):
            os.close(file)


class BoxedPrograms:
    """The `ports.Walls` of this machine. `hidden`: what no program may see, wherever it lies."""

    def __init__(self, hidden: tuple[str, ...] = ()) -> None:
        self._hidden = hidden

    def launching(
        self, argv: Sequence[str], env: Mapping[str, str], room: Room
    ) -> AbstractContextManager[Launch]:
        try:
            box = Box(
                root=room.root,
                read_only=tuple(filter(os.path.exists, room.read_only)),
                writable=tuple(filter(os.path.exists, room.writable)),
                task=room.task,
                hidden=self._hidden,
                network=room.network,
            )
        except ValueError as error:
            raise ToolFailed(str(error)) from error
        return boxed_program(box, argv, env, cwd=room.cwd)
