"""The gateway behind a proxy with TLS, as deploy/proxy sets it up: a real nginx and a real Caddy on loopback."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.surfaces.served import Served, served

ROOT = Path(__file__).parents[2]
HOST = "clutch.example.org"
PATH = f"{os.environ['PATH']}:/usr/sbin"
NGINX_AROUND = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {site}
}}
"""
#: Nothing of it leaves loopback: the certificate is given, its issuer is not asked, and no command is listened for.
CADDY_AROUND = """
{{
    admin off
    default_bind 127.0.0.1
    auto_https off
    skip_install_trust
    ocsp_stapling off
    grace_period 1s
    storage file_system {folder}/storage
}}
{site}
"""


def _certificate(folder: Path) -> None:
    made = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}",
        "-keyout", str(folder / "privkey.pem"), "-out", str(folder / "fullchain.pem"),
    ]  # fmt: skip
    subprocess.run(made, check=True, capture_output=True)


def _replaced(name: str, *places: tuple[str, str]) -> str:
    """The file as it is in deploy/proxy, with other ports and files."""
    text = (ROOT / "deploy/proxy" / name).read_text()
    for before, after in places:
        assert before in text
        text = text.replace(before, after)
    return text


def _nginx(program: str, folder: Path, gateway: int, port: int) -> list[str]:
    site = _replaced(
        "nginx.conf",
        ("127.0.0.1:8765", f"127.0.0.1:{gateway}"),
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/clutch/tls", str(folder)),
    )
    config = folder / "nginx.conf"
    config.write_text(NGINX_AROUND.format(folder=folder, site=site))
    subprocess.run([program, "-t", "-q", "-c", str(config)], check=True, capture_output=True)
    return [program, "-c", str(config)]


def _caddy(program: str, folder: Path, gateway: int, port: int) -> list[str]:
    site = _replaced(
        "Caddyfile",
        (
            "{$CLUTCH_HOST:clutch.example.org} {",
            f"{HOST}:{port} {{\n\ttls {folder}/fullchain.pem {folder}/privkey.pem",
        ),
        ("{$CLUTCH_GATEWAY:127.0.0.1:8765}", f"127.0.0.1:{gateway}"),
    )
    config = folder / "Caddyfile"
    config.write_text(CADDY_AROUND.format(folder=folder, site=site))
    said = ["--config", str(config), "--adapter", "caddyfile"]
    subprocess.run([program, "validate", *said], check=True, capture_output=True)
    return [program, "run", *said]


#: By the name of the program: its package, and how it is started.
PROXIES = {"nginx": ("nginx-light", _nginx), "caddy": ("caddy", _caddy)}


@contextmanager
def _running(name: str, program: str, folder: Path, gateway: int) -> Iterator[int]:
    """Yields the port on which the proxy listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = PROXIES[name][1](program, folder, gateway, port)
    places = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with subprocess.Popen(command, env=os.environ | places) as process:
        try:
            _wait_until_it_listens(process, port)
            yield port
        finally:
            process.terminate()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"the proxy ended with {process.wait(0.05)}")
    raise TimeoutError(f"the proxy does not listen on port {port}")


class ByName(http.client.HTTPSConnection):
    """Connects to loopback, and checks the certificate for the name of the host."""

    def __init__(self, port: int, folder: Path) -> None:
        self.context = ssl.create_default_context(cafile=str(folder / "fullchain.pem"))
        super().__init__(HOST, port, timeout=PATIENCE_S, context=self.context)

    def connect(self) -> None:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        self.sock = self.context.wrap_socket(plain, server_hostname=HOST)


@pytest.fixture(scope="module", params=PROXIES)
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, int, Path]]:
    program = shutil.which(request.param, path=PATH)
    if program is None:
        pytest.skip(f"no {request.param} here; Debian, Ubuntu: apt install {PROXIES[request.param][0]}")
    folder = tmp_path_factory.mktemp("proxy")
    _certificate(folder)
    config = folder / "clutch.json"
    config.write_text(json.dumps({"gateway": {"allowedHosts": [HOST]}}))
    state = tmp_path_factory.mktemp("gateway") / "state"
    with served(state, config=config) as here, _running(request.param, program, folder, here.port) as port:
        yield here, port, folder


def _asked(proxied: tuple[Served, int, Path], path: str, **headers: str) -> tuple[int, bytes]:
    here, port, folder = proxied
    line = ByName(port, folder)
    try:
        line.request("GET", path, headers={"authorization": f"Bearer {here.token}", "host": HOST, **headers})
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def test_a_browser_of_the_proxys_name_is_answered(proxied: tuple[Served, int, Path]) -> None:
    status, body = _asked(proxied, "/v1/health", origin=f"https://{HOST}")
    assert (status, json.loads(body)["status"]) == (200, "ok")
    assert _asked(proxied, "/")[0] == 200


def test_another_origin_and_another_host_are_refused(proxied: tuple[Served, int, Path]) -> None:
    assert _asked(proxied, "/v1/health", origin="https://elsewhere.example")[0] == 403
    status, body = _asked(proxied, "/v1/health", host="elsewhere.example")
    # Caddy answers names that it has no site for by itself, with nothing.
    assert status in (400, 403, 421) or not body


def test_events_come_through_at_once(proxied: tuple[Served, int, Path]) -> None:
    """The stream never ends: what a proxy kept back would not arrive at all."""
    here, port, folder = proxied
    line = ByName(port, folder)
    try:
        line.request("GET", "/v1/events", headers={"authorization": f"Bearer {here.token}", "host": HOST})
        answer = line.getresponse()
        assert re.match("text/event-stream", answer.headers["content-type"])
        task = here.client.post("/v1/tasks", {"task": "say it"})["taskId"]
        while (said := answer.readline().decode()) and task not in said:
            pass
        assert task in said
    finally:
        line.close()
