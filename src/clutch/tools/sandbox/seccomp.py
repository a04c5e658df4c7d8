"""A filter of system calls, as the bytes the kernel takes: calls that no tool needs and many escapes have used.

Bubblewrap isolates a process from files, processes and the network. The kernel itself stays in reach, and namespaces do
not divide some of it: key rings, tracing, terminals that accept typed input. The list forbids rather than allows, so
that ordinary programs work. On a machine whose call numbers are not known here there is no filter; bubblewrap still
isolates.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

#: name: (x86_64, aarch64); -1 where there is no such call
# fmt: off
FORBIDDEN = {
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "mount_setattr": (442, 442),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "unshare": (272, 97), "setns": (308, 268), "open_by_handle_at": (304, 265), "pidfd_getfd": (438, 438),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "acct": (163, 89),
    "quotactl": (179, 60), "syslog": (103, 116), "fanotify_init": (300, 262), "vhangup": (153, 58),
    "iopl": (172, -1), "ioperm": (173, -1),
}
# fmt: on
#: Memory that no process need have mapped, so that the memory limit could not count it. The answer is that of a kernel
#: without the call, for which programs have another way.
UNCOUNTED = {"memfd_create": (319, 279), "memfd_secret": (447, 447), "msgget": (68, 186)}
#: The same for System V, except for segments of the size that a database uses as a lock (64 KiB, times 4096).
SHMGET, SEGMENT_BYTES_MAX = (29, 194), 64 * 1024
#: A sandbox ends with Clutch because its first process gets SIGKILL when its parent dies: this must not be changed.
PRCTL, PR_SET_PDEATHSIG, SIGKILL = (157, 167), 1, 9
SOCKET = (41, 198)
IOCTL = (16, 29)
#: UNIX, INET, INET6, and NETLINK, which reports a program's own addresses. Raw packets, Bluetooth ... are refused.
FAMILIES = (1, 2, 10, 16)
TYPING = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type into the terminal of the user

AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000  # x86_64 has every call a second time under these numbers

LOAD, EQUALS, ABOVE, AT_LEAST, RETURN = 0x20, 0x15, 0x25, 0x35, 0x06
ALLOW, KILL, ANSWER = 0x7FFF0000, 0x80000000, 0x00050000
DENY, UNKNOWN = ANSWER | errno.EPERM, ANSWER | errno.ENOSYS
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, 16  # offsets in the data that the kernel passes to the filter

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def program(machine: str | None = None, *, sockets: bool = True) -> bytes | None:
    """Return the filter, None on a machine not known here. Without `sockets` there is no network of any kind."""
    machine = machine or platform.machine()
    if machine not in AUDIT_ARCHITECTURE:
        return None
    column = list(AUDIT_ARCHITECTURE).index(machine)
    refuse = _line(RETURN, DENY)
    lines = [_line(LOAD, ARCHITECTURE), _line(EQUALS, AUDIT_ARCHITECTURE[machine], 1, 0), _line(RETURN, KILL)]
    lines.append(_line(LOAD, NUMBER))
    if machine == "x86_64":
        lines += [_line(AT_LEAST, X32_BIT, 0, 1), refuse]
    forbidden = [numbers[column] for numbers in FORBIDDEN.values() if numbers[column] >= 0]
    if not sockets:
        forbidden.append(SOCKET[column])
    for number in forbidden:
        lines += [_line(EQUALS, number, 0, 1), refuse]
    for numbers in UNCOUNTED.values():
        lines += [_line(EQUALS, numbers[column], 0, 1), _line(RETURN, UNKNOWN)]
    lines += _small_segments(SHMGET[column])
    lines += _killed_with_us(PRCTL[column])
    lines += _argument(SOCKET[column], 0, FAMILIES, is_allowed=True)
    lines += _argument(IOCTL[column], 1, TYPING, is_allowed=False)
    return b"".join([*lines, _line(RETURN, ALLOW)])


def _argument(number: int, position: int, values: tuple[int, ...], *, is_allowed: bool) -> list[bytes]:
    """Decide one call by its argument. The kernel uses only the lower half of these arguments."""
    answer = (ALLOW, DENY) if is_allowed else (DENY, ALLOW)
    lines = [_line(LOAD, ARGUMENT + 8 * position)]
    for value in values:
        lines += [_line(EQUALS, value, 0, 1), _line(RETURN, answer[0])]
    lines.append(_line(RETURN, answer[1]))
    return [_line(EQUALS, number, 0, len(lines)), *lines]


def _small_segments(number: int) -> list[bytes]:
    """The size is the second argument, of 64 bits: the filter reads it as two halves."""
    low = ARGUMENT + 8
    lines = [
        *(_line(LOAD, low + 4), _line(EQUALS, 0, 1, 0), _line(RETURN, DENY)),
        *(_line(LOAD, low), _line(ABOVE, SEGMENT_BYTES_MAX, 0, 1), _line(RETURN, DENY)),
        _line(RETURN, ALLOW),
    ]
    return [_line(EQUALS, number, 0, len(lines)), *lines]


def _killed_with_us(number: int) -> list[bytes]:
    """Answer success to another signal and change nothing: the process ends with the sandbox in any case."""
    lines = [
        *(_line(LOAD, ARGUMENT), _line(EQUALS, PR_SET_PDEATHSIG, 1, 0), _line(RETURN, ALLOW)),
        *(_line(LOAD, ARGUMENT + 8), _line(EQUALS, SIGKILL, 1, 0), _line(RETURN, ANSWER)),
        _line(RETURN, ALLOW),
    ]
    return [_line(EQUALS, number, 0, len(lines)), *lines]


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def as_file() -> int | None:
    """Return a descriptor with the filter, as bubblewrap takes it. The caller closes it."""
    filter_bytes, file = program(), None
    if sys.platform == "linux" and filter_bytes is not None:
        file = os.memfd_create("filter")
        os.write(file, filter_bytes)
        os.lseek(file, 0, os.SEEK_SET)
    return file


def apply_here(filter_bytes: bytes) -> None:
    """Apply the filter to this process and all its children, for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    lines = ctypes.create_string_buffer(filter_bytes, len(filter_bytes))
    header = struct.pack("HxxxxxxP", len(filter_bytes) // 8, ctypes.addressof(lines))
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "the filter on system calls was refused")
