"""Which kind of filesystem a path lies on. SQLite's locks and shared memory fail silently over a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from clutch.errors import UnsupportedStore

NETWORK_FILESYSTEMS: Final = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.cephfs", "fuse.glusterfs",
    "fuse.juicefs", "fuse.gcsfuse", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs",
})  # fmt: skip

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: Path) -> str:
    """Its type as the kernel names it; "" where the system does not tell."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return ""
    return filesystem_in(mounts.read_text(encoding="utf-8", errors="surrogateescape"), path.resolve())


def filesystem_in(mounts: str, path: Path) -> str:
    """The type of the mount nearest to `path`; of two on one point the later one hides the other."""
    nearest, kind = -1, ""
    for line in mounts.splitlines():
        _, point, candidate, *_ = line.split(" ")
        mount = Path(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), point))
        if path.is_relative_to(mount) and len(mount.parts) >= nearest:
            nearest, kind = len(mount.parts), candidate
    return kind


def refuse_network_filesystem(path: Path, kind: str) -> None:
    if kind in NETWORK_FILESYSTEMS:
        raise UnsupportedStore(
            f"{path} lies on a network filesystem ({kind}), where SQLite loses data; "
            "set CLUTCH_HOME to a local disk, or use --database postgresql://…"
        )
