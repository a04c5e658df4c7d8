"""Beyond loopback: three things have to be said before, each refusal names its remedy, and the guard stays the same."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from clutch import InvalidInput
from clutch.config.keys import Settings
from clutch.surfaces.discovery import rotate_token
from clutch.surfaces.listen import PORT, PORTS_TRIED, ListenSettings, listeners
from clutch.wiring import config_problems
from tests.patience import PATIENCE_S
from tests.surfaces.served import served

EVERYWHERE = "0.0.0.0"  # noqa: S104 (what is refused)


@pytest.mark.parametrize(
    ("agreed", "said"),
    [
        ({}, "gateway.host: 0.0.0.0 can be reached .* gateway.allowRemote: true"),
        ({"allow_remote": True}, "gateway.allowedHosts: must name"),
        (
            {"allow_remote": True, "allowed_hosts": frozenset({"lan.test"})},
            "clutch token --rotate .*makes one",
        ),
    ],
)
def test_s1_nobody_beyond_loopback_is_let_in_by_accident(
    tmp_path: Path, agreed: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        ListenSettings(EVERYWHERE, **agreed).check_agreed(tmp_path)
    ListenSettings("127.0.0.2", **agreed).check_agreed(tmp_path)


def test_a_config_whose_gateway_would_not_start_is_refused_before(tmp_path: Path) -> None:
    remote = Settings(listening=ListenSettings(EVERYWHERE))
    assert "gateway.allowRemote: true" in str(config_problems(remote, tmp_path))


@pytest.mark.parametrize(
    "wrong",
    [{"host": "localhost"}, {"host": "*"}, {"port": 65536}, {"allowed_hosts": frozenset({"*"})}],
)
def test_what_is_no_address_and_no_name_is_refused_where_it_is_said(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="Listening"):
        ListenSettings(**wrong)


def test_s1_another_machine_needs_an_allowed_name_and_the_token(tmp_path: Path) -> None:
    """127.0.0.2 stands for another address of this machine: nobody listens there by default."""
    home, config = tmp_path / "state", tmp_path / "clutch.json"
    home.mkdir(0o700)
    config.write_text('{gateway: {allowRemote: true, allowedHosts: ["lan.test"]}}')
    with pytest.raises(InvalidInput, match="token"), served(home, host=EVERYWHERE, config=config):
        pass
    rotate_token(home)
    with served(home, host=EVERYWHERE, config=config) as db:

        def asked(host: str, token: str | None, **more: str) -> int:
            line = http.client.HTTPConnection("127.0.0.2", db.port, timeout=PATIENCE_S)
            with closing(line):
                headers = {"Host": host, "Authorization": f"Bearer {token}", **more}
                line.request("GET", "/v1/health", headers=headers)
                return line.getresponse().status

        assert asked("lan.test", db.token) == 200
        assert asked("lan.test", "guessed") == 401
        assert asked("lan.test", db.token, Origin="https://lan.test") == 200, "there is a proxy before it"
        assert asked("lan.test", db.token, Origin="https://evil.test") == 403
        assert asked("evil.test", db.token) == 421
        assert db.client.get("/v1/health")["status"] == "ok", "who is on this machine finds it as always"


def test_an_address_of_its_own_is_listened_on_beside_the_one_where_commands_look() -> None:
    with listeners(ListenSettings("127.0.0.3")) as sockets:
        places = [one.getsockname() for one in sockets]
    assert [host for host, _ in places] == ["127.0.0.1", "127.0.0.3"]
    assert len({port for _, port in places}) == 1


def has_ipv6() -> bool:
    try:
        socket.create_server(("::", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_all_addresses_of_both_kinds_are_one_socket_or_a_refusal_where_there_is_no_ipv6() -> None:
    if has_ipv6():
        with listeners(ListenSettings("::")) as (everywhere,):
            assert everywhere.getsockname()[0] == "::"
    else:
        with (
            pytest.raises(InvalidInput, match="port: :::0 cannot be listened on"),
            listeners(ListenSettings("::")),
        ):
            pass


def test_a_gateway_listens_again_where_it_listened_before(tmp_path: Path) -> None:
    """Another gateway had the default port when it was started first; an open page waits at the other one."""
    with listeners(ListenSettings()) as first:
        with served(tmp_path / "state", port=None) as db:
            before = db.port
        assert before != first[0].getsockname()[1]
    with served(tmp_path / "state", port=None) as db:
        assert db.port == before
    (tmp_path / "state" / "port").write_text("damaged")
    with served(tmp_path / "state", port=None) as db:
        assert db.port > 0


def test_the_default_port_is_fixed_and_the_next_free_one_follows() -> None:
    with listeners(ListenSettings()) as first, listeners(ListenSettings()) as second:
        ports = [one[0].getsockname()[1] for one in (first, second)]
    assert PORT <= ports[0] < ports[1]
    with listeners(ListenSettings(port=0)) as any_free:
        assert any_free[0].getsockname()[1] not in range(PORT, PORT + PORTS_TRIED)
