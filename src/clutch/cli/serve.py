"""`clutch serve`: run a gateway until it is stopped or drained, or, in the background, until it is idle.

The first SIGTERM or Ctrl-C stops it: it claims no more sessions, model calls are cancelled, tools get a moment to end,
and all sessions are released. The second signal does not wait."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
import time
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOBase, TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clutch.api.gateway import Leaving
from clutch.cli.output import answering, command_for, gateway, home_of, print_object, print_text, report, say
from clutch.contain import BackgroundTasks
from clutch.core.redaction import redact
from clutch.core.text.format import visible
from clutch.errors import ClutchError, NoGateway, extra
from clutch.logs import logger
from clutch.surfaces import discovery
from clutch.surfaces.discovery import TOKEN_FILE, is_owned, may_start, read_private, rotate_token, start
from clutch.surfaces.http_client import GatewayClient, connect

if TYPE_CHECKING:
    from clutch.wiring import Clutch

# --------------------------------------------------------------------------------------------------
# `clutch stop` and `clutch drain`: end the gateway of a state directory, and wait until it has gone.

GONE_WITHIN_S = 60.0  #: a stop gives each turn a few seconds; after this time it hangs
PAUSE_S = 0.1
DRAIN_LOOK_S = 0.5
SHOWN_MAX = 5


def stop(state: Path | None, *, as_json: bool) -> None:
    with answering("stop", as_json=as_json):
        home = home_of(state)
        client = _found(home)
        if client is not None:
            client.post("/v1/stop")
            _until_gone(home, client)
        _say_ended("stop", home, client, as_json=as_json)


def drain(state: Path | None, *, timeout_s: float | None, as_json: bool) -> None:
    """Wait for the running turns and stop; say what it waits for whenever that changes."""
    with answering("drain", as_json=as_json):
        home = home_of(state)
        client = _found(home)
        if client is not None:
            _drained(home, client, timeout_s)
            _until_gone(home, client)
        _say_ended("drain", home, client, as_json=as_json)


def drain_node(state: Path | None, node: str, *, undo: bool, as_json: bool) -> None:
    """Ask the gateway of the state directory to take any node of its fleet out of service, or to put it back."""
    with answering("drain", as_json=as_json):
        said = connect(home_of(state)).post("/v1/nodes/drain", {"node": node, "undo": undo})
        one = said["nodes"][0]
        text = f"{one['name']}: in service again." if undo else f"{one['name']}: draining."
        if not undo and one["sessions"]:
            text += f" It hands {one['sessions']} running sessions to other nodes: `{command_for(state, 'nodes')}`."
        report("drain", said, text, as_json=as_json)


def restart(state: Path | None) -> str | None:
    """Restart a background gateway with the present config and environment.

    Return `restarted`; `running` for a gateway that another program started; None where no gateway runs."""
    home = home_of(state)
    client = _found(home)
    if client is None:
        return None
    pid = client.address.pid
    if not client.address.is_background or not may_start(home):
        say(
            f"The gateway (pid {pid}) keeps the previous config: another program started it. Restart it to apply."
        )
        return "running"
    client.post("/v1/stop")
    _until_gone(home, client)
    say(f"Restarted the gateway with the new config (pid {start(home).pid}, was {pid}).")
    return "restarted"


def _found(home: Path) -> GatewayClient | None:
    return None if discovery.find(home) is None else connect(home)


def _drained(home: Path, client: GatewayClient, timeout_s: float | None) -> None:
    """Drain until the gateway stops, also when another command stops it."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    shown = ""
    while discovery.find(home) == client.address or (discovery.find(home) is None and is_owned(home)):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            said = client.post("/v1/drain", {} if left is None else {"timeoutSeconds": left})
        except NoGateway:
            return
        if said["status"] == "stopping":
            return
        if (words := _waits_for(said["waitingFor"])) != shown:
            say(shown := words)
        time.sleep(DRAIN_LOOK_S)


def _waits_for(waiting: list[Mapping[str, Any]]) -> str:
    if not waiting:
        return "Waiting for nothing more."
    named = [
        f"{visible(one['label'] or one['sessionKey'], 40)} ({one['phase'] or 'turn'})" for one in waiting
    ]
    more = f" and {len(named) - SHOWN_MAX} more" if len(named) > SHOWN_MAX else ""
    return f"Waiting for {len(named)}: {', '.join(named[:SHOWN_MAX])}{more}"


def _until_gone(home: Path, client: GatewayClient) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while discovery.find(home) == client.address:
        if time.monotonic() > deadline:
            pid = client.address.pid
            raise NoGateway(
                f"the gateway (pid {pid}) has not stopped {GONE_WITHIN_S:.0f} s after `clutch stop`; kill it",
                f"kill -9 {pid}",
            )
        time.sleep(PAUSE_S)


def _say_ended(command: str, home: Path, client: GatewayClient | None, *, as_json: bool) -> None:
    """Report the end. No running gateway is a success."""
    status, pid = ("none", None) if client is None else ("stopped", client.address.pid)
    if as_json:
        print_object(command, {"status": status, "pid": pid, "state": str(home)})
    else:
        say(f"Gateway not running for {home}." if pid is None else f"Stopped the gateway (pid {pid}).")


# --------------------------------------------------------------------------------------------------
# The log of a gateway: one line per event, without colours and secrets.
#
# In the foreground it goes to stderr, with priorities for journald where stderr is the journal; in the background to
# `gateway.log`, a private file with one rotated copy.

LOG_FILE = "gateway.log"
LINE_CHARS_MAX = 8000
ON_TERMINAL = "%(levelname)s: %(message)s"
IN_FILE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class OneLine(logging.Formatter):
    """Writes a record and its traceback in one line, redacted."""

    def __init__(self, form: str, *, is_journal: bool = False) -> None:
        super().__init__(form)
        self._is_journal = is_journal

    def format(self, record: logging.LogRecord) -> str:
        line = visible(redact(super().format(record)).text, LINE_CHARS_MAX)
        return f"<{_PRIORITY.get(record.levelno, 5)}>{line}" if self._is_journal else line


class PrivateFile(RotatingFileHandler):
    def __init__(self, home: Path, bytes_max: int) -> None:
        self._home = home
        super().__init__(home / LOG_FILE, maxBytes=bytes_max, backupCount=1)

    def _open(self) -> TextIOWrapper:
        """Open the file for its owner only: it may contain task texts."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self.file = os.open(self._home / LOG_FILE, flags, 0o600)
        os.fchmod(self.file, 0o600)
        return os.fdopen(self.file, "a", encoding="utf-8")


class Redacting(TextIOBase):
    """A stream for printed text: whole lines, redacted like those of the log."""

    def __init__(self, file: int) -> None:
        self._file, self._rest = file, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._put(f"{line}\n")
        if len(self._rest) > LINE_CHARS_MAX:
            self.flush()
        return len(text)

    def flush(self) -> None:
        self._put(self._rest)
        self._rest = ""

    def _put(self, text: str) -> None:
        if text:
            os.write(self._file, redact(text).text.encode("utf-8", "replace"))


def to_terminal() -> None:
    handler = logging.StreamHandler()
    is_journal = "JOURNAL_STREAM" in os.environ
    handler.setFormatter(OneLine("%(message)s" if is_journal else ON_TERMINAL, is_journal=is_journal))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def to_file(home: Path, bytes_max: int) -> None:
    """Log to the file, with everything printed; what the interpreter prints at its end is not redacted."""
    handler = PrivateFile(home, bytes_max)
    handler.setFormatter(OneLine(IN_FILE))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    for output in (1, 2):
        os.dup2(handler.file, output)
    sys.stdout, sys.stderr = Redacting(1), Redacting(2)


# --------------------------------------------------------------------------------------------------
# Memory of the gateway process. A program that embeds `Clutch` chooses its own settings.

#: New objects before a collection of the youngest. A transaction leaves a few cycles at most, and a batch holds
#: thousands of objects that are freed without a collection: the default of 700 took 4 % of the writer's time.
YOUNG_MAX: Final = 10_000

#: Collections of the youngest before the older objects are collected. Nearly none of those are garbage, and with
#: hundreds of watchers a collection blocked all requests for 70 ms each minute.
OLDER_AFTER: Final = 100

M_ARENA_MAX: Final = -8  #: parameter of glibc's `mallopt`


def share_one_heap() -> None:
    """Let all threads use one heap: with a heap per thread, memory freed in one cannot be used by another. Must run
    before threads start. Without glibc it has no effect."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def collect_rarely() -> None:
    """Exclude loaded modules from collections, each of which would stop all turns for a tenth of a second."""
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, OLDER_AFTER)


SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 2.0  #: between two checks for a changed config

log = logger("clutch.serve")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of the command line; None: as in the config."""

    state: Path | None
    database: str | None
    model: str | None
    workspace: Path | None
    host: str | None
    port: int | None
    config: Path | None
    is_headless: bool
    is_background: bool


def serve(wishes: ServeOptions, *, as_json: bool) -> None:
    with answering("serve", as_json=as_json):
        if not wishes.is_background:
            to_terminal()
        share_one_heap()
        asyncio.run(_serve(wishes, as_json=as_json))


async def _serve(wishes: ServeOptions, *, as_json: bool) -> None:
    home, is_background = home_of(wishes.state), wishes.is_background
    clutch = _clutch(wishes, home)
    rules = clutch.policy.serving
    leaving = clutch.leaving = Leaving(
        clutch, rules.idle_exit_s if is_background else None, is_background=is_background
    )
    _stop_on_signals(leaving)
    async with clutch:
        collect_rarely()
        if is_background:
            to_file(home, rules.log_bytes_max)
        tell = log.info if is_background else say
        _greet(clutch, home, tell, is_background=is_background)
        if as_json:
            print_object("serve", {"url": clutch.url, "state": str(home)})
        if clutch.url is None and is_background:
            # No command can reach this gateway to stop it.
            leaving.stop("another gateway answers here")
        async with BackgroundTasks() as tasks:
            tasks.start(_follow_config(clutch, tell), "clutch-config")
            tasks.start(leaving.watch(), "clutch-idle-exit")
            await leaving.told.wait()
        tell(f"Stopping: {leaving.why}. Work resumes at the next start; a second signal does not wait.")


def _clutch(wishes: ServeOptions, home: Path) -> Clutch:
    from clutch.wiring import Clutch

    return Clutch(
        embedded=True,
        state=home,
        database=wishes.database,
        model=wishes.model,
        workspace=wishes.workspace,
        host=wishes.host,
        port=wishes.port,
        config=wishes.config,
        headless=wishes.is_headless,
    )


def _greet(clutch: Clutch, home: Path, tell: Callable[[str], None], *, is_background: bool) -> None:
    if clutch.url is None:
        tell(f"Another gateway answers for {home}; this one works for the same database.")
        return
    tell(f"Listening at {clutch.url}; state in {home}.{'' if is_background else ' Ctrl-C stops it.'}")
    if clutch.listening.is_remote:
        tell(f"Other machines reach it at {clutch.listening.host}, without encryption: TLS is your proxy's.")


async def _follow_config(clutch: Clutch, tell: Callable[[str], None]) -> None:
    """Reload a changed config every `LOOK_S` seconds, and at once on SIGHUP. An invalid config changes nothing."""
    hang_up = asyncio.Event()
    # With a terminal, SIGHUP means that the terminal was closed.
    if not sys.stdin.isatty():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up.set)
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(hang_up.wait(), LOOK_S)
        if await asyncio.to_thread(clutch.is_config_changed) or hang_up.is_set():
            hang_up.clear()
            await _reload(clutch, tell)


async def _reload(clutch: Clutch, tell: Callable[[str], None]) -> None:
    try:
        found = await clutch.reload()
    except ClutchError as error:
        problems = "; ".join(str(error).splitlines())
        tell(f"Config not loaded; keeping the previous one: {problems}")
        return
    tell(f"Config loaded; changed: {', '.join(found.taken) or 'nothing'}.")
    if found.waiting:
        tell(f"Restart to apply: {', '.join(found.waiting)}.")


def _stop_on_signals(leaving: Leaving) -> None:
    loop = asyncio.get_running_loop()

    def told(one: signal.Signals) -> None:
        leaving.stop(one.name)
        for each in SIGNALS:
            loop.remove_signal_handler(each)

    for one in SIGNALS:
        loop.add_signal_handler(one, told, one)


# --------------------------------------------------------------------------------------------------
# `clutch mcp`: stdin and stdout carry the protocol, messages go to stderr.


def serve_mcp(state: Path | None, *, agent_id: str, session: str | None) -> None:
    """Serve MCP on stdin and stdout. Names are checked before a client connects."""
    with answering("mcp", as_json=False):
        with extra("mcp", "`clutch mcp`"):
            from clutch.surfaces.mcp_server import serve as serve_stdio
            from clutch.surfaces.mcp_server import session_key

        session_key(agent_id, session or "client")
        gateway(state, is_new_work=True)
        asyncio.run(serve_stdio(lambda: gateway(state, is_new_work=True), agent_id, session))


# --------------------------------------------------------------------------------------------------
# `clutch open`: sign in a browser. The code is behind the `#` of the address, which browsers do not send to servers.

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  #: one of them is set where Linux can open a browser


def open_page(state: Path | None, *, only_prints: bool, as_json: bool) -> None:
    """Open the page, or print its address with a one-time code."""
    with answering("open", as_json=as_json):
        client = gateway(state, is_new_work=True)
        made = client.post("/v1/browser/code")
        url, lasts_s = f"{client.address.url}/#{made['code']}", made["expiresInSeconds"]
        is_opened = not only_prints and _has_screen() and webbrowser.open(url)
        if as_json:
            return print_object("open", {"url": url, "expiresInSeconds": lasts_s, "opened": is_opened})
        if is_opened:
            return say(f"Opened {client.address.url} in your browser.")
        say(f"One-time link, valid for {lasts_s:g} seconds, on this computer only:")
        print(url)


def _has_screen() -> bool:
    return sys.platform != "linux" or any(os.environ.get(name) for name in SCREENS)


# --------------------------------------------------------------------------------------------------
# `clutch token`: the path of the token, and a new token, which signs out every client of the old one.


def token(state: Path | None, *, rotates: bool, as_json: bool) -> None:
    with answering("token", as_json=as_json):
        path = home_of(state) / TOKEN_FILE
        try:
            # Raises for a token that other users could read.
            read_private(path)
        except FileNotFoundError as error:
            if not rotates:
                remedy = command_for(state, "token", "--rotate")
                raise NoGateway(
                    f"{path.parent} has no token yet: the first gateway makes one, or `{remedy}`", remedy
                ) from error
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if rotates:
            rotate_token(path.parent)
        status = "rotated" if rotates else "kept"
        if as_json:
            print_object("token", {"status": status, "path": str(path)})
        else:
            print_text(f"{status}: {path}")
