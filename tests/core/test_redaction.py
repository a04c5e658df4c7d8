"""Secrets do not reach whoever reads somebody else's transcript."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.redaction import MARK, redact, redact_all

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"

SECRETS = {
    "aws": ("key AKIAIOSFODNN7EXAMPLE here", "AKIAIOSFODNN7EXAMPLE"),
    "openai": ("use sk-proj-abcdefghij0123456789XYZ now", "abcdefghij0123456789"),
    "anthropic": ("sk-ant-api03-AAAABBBBCCCCDDDD-x_y", "AAAABBBBCCCCDDDD"),
    "stripe": ("sk_live_4eC39HqLyjWDarjtT1zdp7dc", "4eC39HqLyjWDarjtT1zdp7dc"),
    "github": ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "0123456789abcdefghij"),
    "github fine": ("github_pat_11ABCDEFG0123456789_abcdefghijklm", "11ABCDEFG0123456789"),
    "gitlab": ("glpat-ABCDEFGHIJKLMNOPQRST", "ABCDEFGHIJKLMNOPQRST"),
    "slack": ("xoxb-123456789012-abcdefGHIJKL", "123456789012-abcdefGHIJKL"),
    "google": ("AIzaSyA-1234567890abcdefghijklmnopqrstu", "SyA-1234567890"),
    "jwt": (f"cookie={JWT};", "eyJzdWIiOiIxMjM0NTY3ODkwIn0"),
    "bearer": ("Authorization: Bearer abc.def-ghi_123", "abc.def-ghi_123"),
    "basic": ("authorization: basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    "address": ("postgres://app:hunter2@db.example.com/x", "hunter2"),
    "pem": (f"before\n{PEM}\nafter", "MIIEow"),
    "pem without end": ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk", "b3BlbnNzaC1rZXk"),
    "env": ("export DB_PASSWORD=hunter2hunter2", "hunter2"),
    "yaml": ("password: correct-horse", "correct-horse"),
    "json": ('{"apiKey": "0a1b2c3d4e", "n": 1}', "0a1b2c3d4e"),
    "json with spaces": ('{"client_secret" : "two words here"}', "two words here"),
    "python": ("api_key = 'abcd1234'", "abcd1234"),
    "ruby": ("secret => s3cr3tvalue", "s3cr3tvalue"),
    "query": ("https://x.example/?token=abcdef123456&page=2", "abcdef123456"),
    "json newline": ('{"out": "KEY:\\nsk-proj-abcdefghij0123456789XYZ"}', "abcdefghij0123456789"),
    "json tab": ('"\\tghp_0123456789abcdefghijABCDEFGHIJ012345"', "0123456789abcdefghij"),
    "json unicode": ('"\\u000ask-proj-abcdefghij0123456789XYZ"', "abcdefghij0123456789"),
    "python bytes": (r"b'\x0aAKIAIOSFODNN7EXAMPLE'", "AKIAIOSFODNN7EXAMPLE"),
    "percent": ("https://h/?q=my%20sk-proj-abcdefghij0123456789XYZ", "abcdefghij0123456789"),
    "percent newline": ("a%0Aglpat-ABCDEFGHIJKLMNOPQRST", "ABCDEFGHIJKLMNOPQRST"),
    "coloured": ("\x1b[1;31msk-proj-abcdefghij0123456789XYZ\x1b[0m", "abcdefghij0123456789"),
    "json bearer": (r'{"h": "x\nBearer abc.def-ghi_123"}', "abc.def-ghi_123"),
    "percent bearer": ("?auth=Bearer%20abc.def-ghi_123", "abc.def-ghi_123"),
    "percent name": ("q=token%3Dabcdef123456%26page", "abcdef123456"),
    "json in json": (r'{"a": "{\"apiKey\": \"0a1b2c3d4e\"}"}', "0a1b2c3d4e"),
    "telegram": ("bot 123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1", "AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1"),
}


@pytest.mark.parametrize(("text", "secret"), SECRETS.values(), ids=SECRETS)
def test_a_secret_is_taken_out_and_marked(text: str, secret: str) -> None:
    shown = redact(text)
    assert secret not in shown.text
    assert MARK in shown.text
    assert shown.is_any


@pytest.mark.parametrize(
    "text",
    [
        "the token count is 15",
        "max_tokens=4096, total tokens: 120000",
        "I asked for the password and got none",
        "password: null",
        '"secret": "${DB_SECRET}"',
        "token=$CI_TOKEN",
        "see https://example.com/a:b and mail me@example.com",
        "commit 3229f19 of branch sk-learn",
        "a basic idea; the bearer of news",
        r'{"path": "C:\\task-list-of-the-second-quarter"}',
        "50%20risk-adjusted-returns-of-funds",
        "-----BEGIN PUBLIC KEY-----\nMIIBIjAN\n-----END PUBLIC KEY-----",
    ],
)
def test_ordinary_words_stay_as_they_are(text: str) -> None:
    assert redact(text) == (text, 0)


def test_what_stands_around_a_secret_stays() -> None:
    assert redact(f"a\n{PEM}\nb").text == f"a\n{MARK}\nb"
    assert redact('{"apiKey": "0a1b2c3d4e", "n": 1}').text == f'{{"apiKey": "{MARK}", "n": 1}}'
    assert redact("postgres://app:hunter2@db/x").text == f"postgres://app:{MARK}@db/x"
    assert redact(r'{"a": "{\"apiKey\": \"0a1b2c3d4e\"}"}').text == rf'{{"a": "{{\"apiKey\": \"{MARK}\"}}"}}'
    assert redact("?token=abcdef123456&page=2").text == f"?token={MARK}&page=2"


def test_all_that_is_below_a_secret_name_is_taken_out_also_numbers() -> None:
    told = {"credentials": {"value": "hunter22", "of": [{"pin": 1234}]}, "password": 12345678, "is": True}
    kept = {"tokens": 12, "password": None, "secret": {"set": True, "from": "$DB_SECRET"}}
    hidden = {"credentials": {"value": MARK, "of": [{"pin": MARK}]}, "password": MARK, "is": True}
    assert redact_all([told, kept]) == [hidden, kept]


@given(st.lists(st.sampled_from([text for text, _ in SECRETS.values()]) | st.text(max_size=40), max_size=6))
def test_redacting_again_changes_nothing(pieces: list[str]) -> None:
    once = redact("\n".join(pieces)).text
    assert redact(once).text == once


@pytest.mark.parametrize(
    "evil",
    [
        "eyJ" + "a" * 200_000,
        "-----BEGIN " + "RSA " * 50_000,
        "-----BEGIN PRIVATE KEY-----" * 5_000,
        "password" * 30_000,
        "password=" * 30_000,
        'token: "' + "x" * 200_000,
        "://" * 60_000 + "a:" * 10_000,
        "sk-" * 70_000,
        "bearer " * 30_000,
        "SG." + "a." * 100_000,
        "\\n" * 100_000,
        "%20" * 70_000,
        "token\\" * 30_000,
        'token\\": \\"' + "x" * 200_000,
        'token\\": \\"' * 15_000,
    ],
)
def test_no_text_makes_it_slow(evil: str) -> None:
    began = time.process_time()
    redact(evil)
    assert time.process_time() - began < 2.0
