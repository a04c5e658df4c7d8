"""What a boxed command tries, and nothing of what becomes of it: `witness` looks at that from outside.

A script prints ESCAPED only when the forbidden thing itself succeeded. `{token}`, `{other}`, `{outside}`, `{port}`,
`{udp}`, `{unix}`, `{abstract}`, `{sentinel}`, `{python}` are filled in by the witness. Python scripts are the ones
that need a system call no command makes.
"""

from __future__ import annotations

SHELL = {
    "read the token": "cat {token}",
    "read the token by ..": "cat ../../../../../../../../..{token}",
    "read the token through /proc/1/root": "cat /proc/1/root{token}; cat /proc/self/root{token}",
    "read the token through a symlink": "ln -s {token} link && cat link",
    "read the token through a hard link": "ln {token} hard && cat hard",
    "read the token through the cwd of others": "cat /proc/[0-9]*/cwd{token}",
    "read /etc/shadow": "cat /etc/shadow && echo ESCAPED",
    "read another workspace": "cat {other}/secret",
    "look at the home directory": "cat ~root/.ssh/* {outside}/home/.ssh/id && echo ESCAPED",
    "read secrets from the environment": "env; export; cat /proc/self/environ",
    "read secrets from the environment of others": "cat /proc/[0-9]*/environ | tr '\\0' '\\n'",
    "read the command lines of others": "cat /proc/[0-9]*/cmdline | tr '\\0' ' '",
    "write outside": "echo x >{outside}/written",
    "write outside through a symlink": "ln -s {outside} way && echo x >way/written",
    "overwrite the token": "echo x >{token}",
    "delete another workspace": "rm -rf {other}",
    "rename the workspace": 'mv "$PWD" {outside}/moved && echo ESCAPED',
    "write to /usr": "touch /usr/bin/x && echo ESCAPED",
    "write to /etc": "echo x >>/etc/passwd && echo ESCAPED",
    "write kernel settings": "echo x >/proc/sys/kernel/core_pattern && echo ESCAPED",
    "ask the kernel for a reboot": "echo h >/proc/sysrq-trigger && echo ESCAPED",
    "signal a process outside": "kill -9 {sentinel} && echo ESCAPED",
    "signal everybody": "kill -9 -1",
    "trace a process outside": "cat /proc/{sentinel}/maps && echo ESCAPED",
    "become root by su or sudo": "su -c 'echo ESCAPED' || sudo -n echo ESCAPED",
    "become root by a setuid file": "cp /bin/sh s && chmod u+s s && ./s -p -c '[ $(id -u) = 0 ] && echo ESCAPED'",
    "take a new user namespace": "unshare -Ur echo ESCAPED",
    "enter a namespace": "nsenter -t 1 -m -u -n echo ESCAPED",
    "mount something": "mkdir m; mount -t tmpfs none m && echo ESCAPED",
    "remount /usr for writing": "mount -o remount,rw /usr && echo ESCAPED",
    "change the root": "chroot . /bin/sh -c 'echo ESCAPED' || chroot / sh -c 'echo ESCAPED'",
    "make a device": "mknod d b 8 0 && echo ESCAPED || mknod c c 1 1 && echo ESCAPED",
    "read the disk": "cat /dev/sd* /dev/vd* /dev/nvme* /dev/mem && echo ESCAPED",
    "leave a daemon": "setsid sh -c 'while :; do echo {marker} >/dev/null; sleep 0.1; done' & exit 0",
    "leave a daemon by a double fork": "(setsid nohup sh -c 'sleep 600; : {marker}' >/dev/null 2>&1 &) ; exit 0",
    "leave something in /tmp and /dev/shm": "echo x >/tmp/{marker}; echo x >/dev/shm/{marker}",
    "load a library into the next program": "echo 'LD_PRELOAD=/x' >/etc/ld.so.preload && echo ESCAPED",
    "plant a git hook": "echo 'echo {marker}' >.git/hooks/pre-commit && echo ESCAPED",
    "plant a git hook in a swapped repository": "mv .git old && mkdir -p .git/hooks && echo ESCAPED",
    "plant a program in the git config": "git config core.fsmonitor 'echo {marker}' && echo ESCAPED",
    "plant a program in a copy of the git config": "cp -r .git evil && git config -f evil/config core.fsmonitor "
    "'echo x >{outside}/written' && echo ../evil >.git/commondir && echo ESCAPED",
    "cover the repository": "mount --bind /tmp .git && echo ESCAPED",
    "remove the repository": "rm -rf .git; [ -e .git/HEAD ] || echo ESCAPED",
    "change the index of the repository": "echo x >file && git add file && echo ESCAPED",
    "make a repository of a submodule": "mkdir -p module && cd module && git init -q && "
    "git config core.fsmonitor 'echo x >{outside}/written' && echo ESCAPED",
}

_CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def number(x86, arm): return x86 if os.uname().machine == "x86_64" else arm
def said(result): print("ESCAPED" if result >= 0 else "no")
"""

PYTHON = {
    "exchange the repository": _CALL
    + """
import shutil
shutil.copytree(".git", "evil")
said(libc.renameat2(-100, b".git", -100, b"evil", 2))
""",
    "reach the network": """
import socket
socket.create_connection(("192.0.2.1", 80), 1)
print("ESCAPED")
""",
    "connect to a TCP port of the machine": """
import socket
socket.create_connection(("127.0.0.1", {port}), 2).sendall(b"x")
""",
    "send UDP to the machine": """
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", {udp}))
""",
    "connect to a unix socket": """
import socket
socket.socket(socket.AF_UNIX).connect("{unix}")
""",
    "connect to an abstract unix socket": """
import socket
socket.socket(socket.AF_UNIX).connect("\\0{abstract}")
""",
    "open a raw socket": """
import socket
for family, kind in ((socket.AF_INET, socket.SOCK_RAW), (socket.AF_PACKET, socket.SOCK_RAW)):
    try:
        socket.socket(family, kind, 255)
        print("ESCAPED")
    except OSError:
        pass
""",
    "trace by ptrace": _CALL + "said(libc.ptrace(16, {sentinel}, 0, 0))",
    "use the key rings": _CALL + "said(libc.syscall(number(250, 219), 0, -3, 0))",
    "load a program into the kernel": _CALL
    + "said(libc.syscall(number(321, 280), 0, (ctypes.c_uint32 * 16)(2, 4, 8, 1), 64))",
    "watch the machine by perf": _CALL
    + "said(libc.syscall(number(298, 241), (ctypes.c_uint64 * 16)(1 | (128 << 32)), 0, -1, -1, 0))",
    "use io_uring": _CALL + "said(libc.syscall(425, 8, ctypes.create_string_buffer(120)))",
    "type into the terminal": """
import fcntl, termios
for name in ("/dev/tty", "/dev/console", "/dev/tty0", "/dev/pts/0"):
    try:
        fcntl.ioctl(open(name), termios.TIOCSTI, b"x")
        print("ESCAPED")
    except OSError:
        pass
""",
    "open a file by its handle": _CALL
    + "said(libc.open_by_handle_at(-100, ctypes.create_string_buffer(64), 0))",
    "set another user": """
import os
for change in (os.setuid, os.seteuid, os.setgid):
    try:
        change(0)
        print("ESCAPED")
    except OSError:
        pass
""",
}
