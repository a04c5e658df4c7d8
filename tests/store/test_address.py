"""What a URL says about a database, and what the driver gets of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from clutch.errors import StoreError
from clutch.store.postgres_address import LockSpace, database_name, parse_address, with_parts, written_name
from clutch.wiring.engine import place_of


def test_each_host_has_an_address_of_its_own() -> None:
    both = parse_address("postgresql://me:pw@one:1,two/x?sslmode=verify-full&target_session_attrs=any")
    assert both.servers == (
        "postgresql://me:pw@one:1/x?sslmode=verify-full",
        "postgresql://me:pw@two/x?sslmode=verify-full",
    )
    sockets = parse_address("postgres://me@/x?host=/a,/b&port=1,2")
    assert sockets.servers == (
        "postgresql://me@/x?host=/a&port=1",
        "postgresql://me@/x?host=/b&port=2",
    )
    with pytest.raises(StoreError, match="3 hosts and 2 ports"):
        parse_address("postgresql:///x?host=/a,/b,/c&port=1,2")


def test_settings_of_the_server_are_kept_from_the_driver() -> None:
    said = parse_address("postgresql://h/x?work_mem=8MB&options=-c%20search_path%3Dfleet,public%20--jit%3Don")
    assert said.servers == ("postgresql://h/x?",)
    assert said.settings == {"work_mem": "8MB", "search_path": "fleet,public", "jit": "on"}
    assert said.schema == "fleet"
    with pytest.raises(StoreError, match="-c name=value"):
        parse_address("postgresql://h/x?options=-E")


def test_a_way_around_has_the_same_schema() -> None:
    said = parse_address(with_parts("postgresql://pool/x", direct="postgresql://server/x", schema='odd"one'))
    assert said.session.servers == ("postgresql://server/x?",)
    assert said.session.settings == said.settings == {"search_path": '"odd""one"'}
    assert said.session.schema == said.schema == 'odd"one'


def test_files_beside_a_database_are_found_through_a_pooler_and_without() -> None:
    assert database_name("postgresql://me:pw@db/x") == "db:None/x?"
    server = with_parts("postgresql://db/x", schema="fleet")
    through = with_parts("postgresql://pool:6432/x", direct="postgresql://db/x", schema="fleet")
    assert database_name(server) == database_name(through) != database_name("postgresql://db/x")
    assert database_name("postgresql://me@one:1,two:2/x") == "one:1,two:2/x?"


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        (
            "db:None/x?",
            [
                "postgresql://db/x",
                "postgres://me:pw@DB:5432/x?sslmode=require&work_mem=8MB",
                "postgresql:///x?host=db&port=5432",
                "postgresql://db?dbname=x",
            ],
        ),
        (
            "None:None/x?host=/a",
            ["postgresql:///x?host=/a", "postgresql://%2Fa/x", "postgresql:///x?port=5432&host=%2Fa"],
        ),
        ("None:None/x?host=/a&port=5433", ["postgresql:///x?host=/a&port=5433", "postgresql://%2Fa:5433/x"]),
        ("db:5433/x?", ["postgresql://me@db:5433/x", "postgresql:///x?host=db&port=5433"]),
        ("one,two:2/x?", ["postgresql://one,two:2/x", "postgresql://one:5432,two:2/x?sslmode=disable"]),
        ("None:None/x?", ["postgresql:///x", "postgresql://me@/x?sslmode=disable"]),
        (
            "db:None/x?schema=fleet",
            ["postgresql://db/x?schema=fleet", "postgresql://db/x?options=-csearch_path%3Dfleet,public"],
        ),
    ],
)
def test_files_beside_a_database_are_found_however_its_address_is_spelled(
    name: str, spellings: list[str]
) -> None:
    """The first spelling has the name that it had in the first release."""
    assert [database_name(url) for url in spellings] == [name] * len(spellings)
    assert written_name(spellings[0]) == name


def test_a_folder_that_an_earlier_version_named_after_the_spelling_is_still_used(tmp_path: Path) -> None:
    plain, spelled = "postgresql://db/x", "postgresql://me@db:5432/x?sslmode=require"
    assert place_of(tmp_path, "tasks", spelled) == place_of(tmp_path, "tasks", plain)
    earlier = tmp_path / "tasks" / hashlib.sha256(b"db:5432/x?sslmode=require").hexdigest()[:16]
    earlier.mkdir(parents=True)
    assert place_of(tmp_path, "tasks", spelled) == earlier != place_of(tmp_path, "tasks", plain)
    assert place_of(tmp_path, "results", spelled) == place_of(tmp_path, "results", plain)


@pytest.mark.parametrize("url", ["mysql://h/x", "not an address", "/var/lib/x.db"])
def test_another_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(StoreError, match="postgresql://user@host/name") as refused:
        parse_address(url)
    assert url not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:se/kret@127.0.0.1/db",
        "postgresql://u:12/kret@127.0.0.1/db",
        "postgresql://u:se#kret@127.0.0.1/db",
        "postgresql://u:kret[@127.0.0.1/db",
        "postgresql://u:kret@127.0.0.1:notaport/db",
        "postgresql://u:kret@one:1,two:70000/db",
        "postgresql://u:kret@[::1/db",
        "postgresql://u:kret@/db?host=/a&port=x",
        "postgresql://u:kret@/db?host=::1",
        "postgresql://h/db?options='kret",
        with_parts("postgresql://pool/db", direct="postgresql://u:se/kret@h/db"),
    ],
)
def test_an_address_that_no_driver_reads_is_refused_without_its_password(url: str) -> None:
    for read in (parse_address, database_name):
        with pytest.raises(StoreError, match="percent-encode") as refused:
            read(url)
        assert not any(part in str(refused.value) for part in ("kret", "'se'", "notaport"))
        assert refused.value.__context__ is None, "a traceback would show it"


def test_a_password_with_an_at_sign_reaches_the_driver_in_one_piece() -> None:
    assert parse_address("postgresql://me:p@ss:w@h:1/x").servers == ("postgresql://me:p%40ss:w@h:1/x?",)


def test_schemas_share_no_lock_and_no_channel() -> None:
    spaces = [LockSpace.of(name) for name in ("public", "one", "two")]
    assert len({each.lives for each in spaces}) == len({each.channel for each in spaces}) == 3
    assert len({each.migration for each in spaces}) == 3
    assert spaces[0] == LockSpace(0xC107, 0xC107C4, "clutch_hints"), (
        "as in the first release: both may be at work"
    )
