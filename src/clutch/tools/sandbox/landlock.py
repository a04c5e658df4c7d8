"""Landlock: a process gives up files for good, without any privilege and without another program.

Only for the file tools, when bubblewrap is not there. Landlock knows files and, lately, TCP; it leaves UDP, other
processes and every limit open. The file worker runs nothing but our own code, so that is enough for it, with
`seccomp` taking the network away; a shell is a stranger's code and gets no box from this.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same number on every machine
VERSION_FLAG = 1
PATH_BENEATH = 1
PR_SET_NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
USE = EXECUTE | READ_FILE | READ_DIR
#: the file rights each version of the interface knows; a right not named is a right not taken away
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
TCP = 3  # bind, connect; from version 4 on


def version() -> int:
    """Of the kernel's interface; 0 where there is none. The file tools need 3: before it, truncating is free."""
    if sys.platform != "linux":
        return 0
    return max(0, _call(CREATE_RULESET, None, 0, VERSION_FLAG))


def confine(writable: Sequence[str], readable: Sequence[str]) -> None:
    """From here on this process reaches these directories and no others."""
    known = version()
    rights = RIGHTS[min(known, max(RIGHTS))]
    described = struct.pack("=QQ", rights, TCP) if known >= 4 else struct.pack("=Q", rights)
    rules = _checked(_call(CREATE_RULESET, described, len(described), 0))
    try:
        for path in writable:
            _allow(rules, path, rights & ~EXECUTE)
        for path in readable:
            _allow(rules, path, USE)
        _checked(ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(_call(RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not os.path.isdir(path):
        rights &= ~READ_DIR  # the kernel takes no right that a file cannot have
    try:
        _checked(_call(ADD_RULE, rules, PATH_BENEATH, struct.pack("=Qi", rights, place), 0))
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    plain = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(libc.syscall(ctypes.c_long(number), *plain))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return result
