"""Drop the rights of root before a sandbox starts: a program of its own, run as `python -I -S drop_root.py`.

A process of root keeps root's rights over every file of root, and RLIMIT_NPROC does not limit it. Giving the workspace
to another user would take it from its owner. So the workspace is mounted a second time, in a mount namespace of this
process alone, with translated ownership (an idmapped mount): there the owner of the files is UNUSED_UID, a user id that
no account and no service has, and a file written by UNUSED_UID belongs to the owner on disk. Then the process becomes
UNUSED_UID for good and starts bubblewrap, which does the rest as for any plain user.

    drop_root.py COUNT SOURCE... PROGRAM ARGUMENT...     each SOURCE appears as /tmp/0, /tmp/1, ...

It imports only the standard library and no other file of Clutch: it runs as root, and start-up is its only cost.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys

UNUSED_UID = 2_000_000_000  # beyond what systems hand out to people, services and containers
STAGE = "/tmp"  # noqa: S108 - covered by an empty file system of our own before it is used
REFUSED = 125

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REC, MS_SLAVE, MS_NOSUID, MS_NODEV = 0x4000, 0x80000, 0x2, 0x4
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442  # the same number on every machine
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
AT_FDCWD, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x100, 0x1000, 0x8000
MOVE_MOUNT_F_EMPTY_PATH = 4
MOUNT_ATTR_IDMAP = 0x00100000

libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


def kernel(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def system_call(number: int, *arguments: object) -> int:
    plain = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return kernel(libc.syscall(ctypes.c_long(number), *plain))


def translation(uid: int, gid: int) -> int:
    """Return a user namespace that maps `uid` to UNUSED_UID. It lives as long as the descriptor, without a process."""
    ready, tell_ready = os.pipe()
    finish, tell_finish = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell_finish)
        libc.unshare(CLONE_NEWUSER)
        os.write(tell_ready, b".")
        os.read(finish, 1)
        os._exit(0)
    os.read(ready, 1)
    for name, number in (("uid_map", uid), ("gid_map", gid)):
        with open(f"/proc/{child}/{name}", "w", encoding="ascii") as table:
            table.write(f"{number} {UNUSED_UID} 1")
    namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    for end in (ready, tell_ready, finish, tell_finish):
        os.close(end)
    os.waitpid(child, 0)
    return namespace


def tree(source: str, known: dict[tuple[int, int], int]) -> tuple[int, bool]:
    """Return a detached mount of `source` with its owner translated, and whether it is a directory."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE | AT_SYMLINK_NOFOLLOW
    mount = system_call(OPEN_TREE, AT_FDCWD, source.encode(), flags)
    status = os.fstat(mount)
    owner = status.st_uid, status.st_gid
    if owner not in known:
        known[owner] = translation(*owner)
    wanted = MountAttributes(set=MOUNT_ATTR_IDMAP, user_namespace=known[owner])
    size = ctypes.sizeof(wanted)
    system_call(MOUNT_SETATTR, mount, b"", AT_EMPTY_PATH, ctypes.byref(wanted), size)
    return mount, stat.S_ISDIR(status.st_mode)


def stage(sources: list[str]) -> None:
    kernel(libc.unshare(CLONE_NEWNS))
    kernel(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None))
    known: dict[tuple[int, int], int] = {}
    trees = [tree(source, known) for source in sources]
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    kernel(libc.mount(b"none", STAGE.encode(), b"tmpfs", flags, b"mode=755"))
    for number, (mount, is_directory) in enumerate(trees):
        place = f"{STAGE}/{number}"
        if is_directory:
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY))
        system_call(MOVE_MOUNT, mount, b"", AT_FDCWD, place.encode(), MOVE_MOUNT_F_EMPTY_PATH)
        os.close(mount)


def be_killed_first() -> None:
    """When memory is short. Set by root, the value is final: no process of the sandbox can lower it."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def become_unused_uid() -> None:
    if sys.platform == "linux":  # as bubblewrap is
        # Groups go first: without root's rights they could not be dropped any more.
        os.setgroups([])
        os.setresgid(UNUSED_UID, UNUSED_UID, UNUSED_UID)
        os.setresuid(UNUSED_UID, UNUSED_UID, UNUSED_UID)


def main() -> None:
    count = int(sys.argv[1])
    sources, command = sys.argv[2 : 2 + count], sys.argv[2 + count :]
    try:
        stage(sources)
    except OSError as error:
        why = error.strerror
        if error.errno == errno.EINVAL:
            why = "a file system here cannot translate owners (idmapped mounts: Linux 5.12 with ext4, xfs, btrfs ...)"
        print(
            f"cannot make a sandbox as root: {why}; run Clutch as the plain user who owns the workspace",
            file=sys.stderr,
        )
        sys.exit(REFUSED)
    be_killed_first()
    become_unused_uid()
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
