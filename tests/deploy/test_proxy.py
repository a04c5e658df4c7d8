"""The gateway behind nginx with TLS, as deploy/proxy/nginx.conf sets it up: a real nginx of the machine on loopback."""

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
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
OUTSIDE = """
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


def _certificate(folder: Path) -> None:
    made = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}",
        "-keyout", str(folder / "privkey.pem"), "-out", str(folder / "fullchain.pem"),
    ]  # fmt: skip
    subprocess.run(made, check=True, capture_output=True)


@contextmanager
def _nginx(folder: Path, gateway: int) -> Iterator[int]:
    """The site as it is in deploy/, with other ports and files. Yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = (ROOT / "deploy/proxy/nginx.conf").read_text()
    for before, after in (
        ("127.0.0.1:8765", f"127.0.0.1:{gateway}"),
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/clutch/tls", str(folder)),
    ):
        assert before in site
        site = site.replace(before, after)
    config = folder / "nginx.conf"
    config.write_text(OUTSIDE.format(folder=folder, site=site))
    assert NGINX is not None
    subprocess.run([NGINX, "-t", "-q", "-c", str(config)], check=True, capture_output=True)
    with subprocess.Popen([NGINX, "-c", str(config)]) as process:
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
            raise AssertionError(f"nginx ended with {process.wait(0.05)}")
    raise TimeoutError(f"nginx does not listen on port {port}")


class ByName(http.client.HTTPSConnection):
    """Connects to loopback, and checks the certificate for the name of the host."""

    def __init__(self, port: int, folder: Path) -> None:
        self.context = ssl.create_default_context(cafile=str(folder / "fullchain.pem"))
        super().__init__(HOST, port, timeout=PATIENCE_S, context=self.context)

    def connect(self) -> None:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        self.sock = self.context.wrap_socket(plain, server_hostname=HOST)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, int, Path]]:
    if NGINX is None:
        pytest.skip("no nginx here; Debian, Ubuntu: apt install nginx-light")
    folder = tmp_path_factory.mktemp("proxy")
    _certificate(folder)
    config = folder / "clutch.json"
    config.write_text(json.dumps({"gateway": {"allowedHosts": [HOST]}}))
    state = tmp_path_factory.mktemp("gateway") / "state"
    with served(state, config=config) as here, _nginx(folder, here.port) as port:
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
    assert _asked(proxied, "/v1/health", host="elsewhere.example")[0] in (400, 403, 421)


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
