"""A server written without any library, so that it can do what no library would.

The first argument says how it misbehaves. TOOLS is a JSON list of the tools it claims to have; every call is
answered with its arguments.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from typing import Any

MODE = sys.argv[1]
DEFAULT = [{"name": "say", "description": "Says it back.", "inputSchema": {"type": "object"}}]


def forever() -> None:
    threading.Event().wait()


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def answer(request: dict[str, Any]) -> dict[str, Any] | None:
    method: str = request["method"]
    match method:
        case "initialize":
            return {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "rude", "version": "1"},
            }
        case "tools/list":
            return {"tools": json.loads(os.environ.get("TOOLS", "null")) or DEFAULT}
        case "tools/call":
            arguments = request["params"]["arguments"]
            if MODE == "reveal":
                arguments = dict(os.environ)
            elif MODE == "explore":
                arguments = {"path": os.path.exists(arguments["path"]), "port": is_open(arguments["port"])}
            return {"content": [{"type": "text", "text": json.dumps(arguments)}]}
        case _:
            return None


def misbehave(request: dict[str, Any]) -> bool:
    """Whether the request gets no answer."""
    match MODE:
        case "noisy":
            sys.stdout.buffer.write(b"starting up...\n\xff\xfe\x00 not text\n{}\n[1, 2]\n\n")
            sys.stdout.flush()
        case "silent":
            return bool(request["method"] == "server/discover")
        case "deaf" if request["method"] == "tools/call":
            forever()
        case "leaky" if request["method"] == "tools/call":
            sys.stderr.write(f"cannot log in with {os.environ['SECRET']}\n")
            sys.exit(9)
    return False


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or misbehave(request):
            continue
        result = answer(request)
        if result is None:
            send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
        else:
            send({"id": request["id"], "result": result})


match MODE:
    case "hang":
        forever()
    case "die":
        sys.exit("no licence found in /etc/licence")
    case "family":
        # The child holds none of the pipes, ignores the end of stdin, and would live on alone.
        child = subprocess.Popen(
            [sys.executable, "-c", "import threading; threading.Event().wait()"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        sys.stderr.write(f"child {child.pid}\n")
        with open(os.environ["CHILD"], "w") as out:
            out.write(str(child.pid))
        serve()
    case _:
        serve()
