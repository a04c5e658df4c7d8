"""`python -m clutch.testing.providers`: the server as a process of its own; its first line is its URL.

Without `--behave` it plays an agent's work: so many tool calls, one at a time, then a final text. It ends when its
standard input does, so that it does not outlive the process that started it; with `--stay` it does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import sys

from clutch.core.messages import Usage
from clutch.testing.providers.script import Format, Reply, Text, ToolCall, WireRequest
from clutch.testing.providers.server import Behave, Providers


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m clutch.testing.providers",
        description="A model provider on loopback: OpenAI's chat completions and responses, Anthropic's messages."
        " The first line it prints is its address; what to give to clients is printed on stderr.",
        epilog="It ends when its standard input does (Ctrl-D on a terminal).",
    )
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--stay", action="store_true", help="until it is interrupted, whatever stdin does")
    parser.add_argument("--behave", help="module:function, called with each WireRequest")
    parser.add_argument("--calls", type=int, default=2, help="tool calls before the final text")
    parser.add_argument("--tool", default="read", help="the tool to call")
    parser.add_argument("--arguments", default='{"path":"README.md"}', help="its arguments, as JSON")
    parser.add_argument("--chunks", type=int, default=10, help="pieces of the final text")
    parser.add_argument(
        "--latency", type=float, default=0.2, help="seconds an answer takes, spread over its pieces"
    )
    parser.add_argument("--keep-log", action="store_true", help="keep every request, not only the counts")
    said = parser.parse_args()
    behave = _named(said.behave) if said.behave else _worker(said)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(Providers(behave, port=said.port, keep_log=said.keep_log), stays=said.stay))


def _named(path: str) -> Behave:
    module, _, name = path.partition(":")
    found: Behave = getattr(importlib.import_module(module), name)
    return found


def _worker(said: argparse.Namespace) -> Behave:
    """Two replies made once: what happens per request is only the choice between them."""
    arguments = json.dumps(json.loads(said.arguments))
    half = len(arguments) // 2
    call = ToolCall(said.tool, (arguments[:half], arguments[half:]))
    working = Reply([call], Usage(1000, 20, cache_read=800), drip_s=said.latency / 4)
    words = [Text(f"word {number} ") for number in range(said.chunks)]
    last = Reply(words, Usage(1000, 2 * said.chunks, cache_read=800), drip_s=said.latency / (said.chunks + 1))

    def behave(request: WireRequest) -> Reply:
        return working if _results(request) < said.calls else last

    return behave


def _results(request: WireRequest) -> int:
    match request.format:
        case Format.CHAT:
            return sum(message["role"] == "tool" for message in request.messages)
        case Format.RESPONSES:
            return sum(item.get("type") == "function_call_output" for item in request.messages)
        case Format.MESSAGES:
            blocks = (block for message in request.messages for block in message["content"])
            return sum(isinstance(block, dict) and block["type"] == "tool_result" for block in blocks)


async def _serve(server: Providers, *, stays: bool) -> None:
    async with server:
        print(server.url, flush=True)
        _say(f"OpenAI and compatible: baseUrl {server.openai_url}")
        _say(f"Anthropic: baseUrl {server.anthropic_url}")
        if stays:
            await asyncio.Event().wait()
        _say("ends with its standard input (Ctrl-D); --stay keeps it until Ctrl-C")
        await asyncio.to_thread(sys.stdin.read)
        _say("standard input has ended, and so has this server")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
