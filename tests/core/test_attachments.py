"""Files given at spawn: what is refused with which code, and that no content stays in a transcript."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core import attachments
from clutch.core.attachments import (
    MANIFEST,
    Attachment,
    AttachmentErrorCode,
    AttachmentInput,
    AttachmentRules,
    Encoding,
    Place,
    SavedFiles,
    SavedRoot,
    Side,
    StoredFile,
    WrittenFile,
    is_restorable,
    lost_files,
    name_problem,
    receipt,
    redacted,
    saved_files,
    task_path,
    to_save,
)
from clutch.core.ids import task_id
from clutch.core.messages import Answer, Call, Result, Results
from clutch.core.policy import Limits
from clutch.core.spawn import SpawnAdmission, SpawnCounts, SpawnRefusal, SpawnRequest, admit
from clutch.errors import InvalidInput

RULES = AttachmentRules(files_max=3, file_bytes_max=10, total_bytes_max=20)


def refused(*given: AttachmentInput, rules: AttachmentRules = RULES) -> tuple[str, str]:
    """The field and the code."""
    with pytest.raises(InvalidInput) as caught:
        attachments.attachments(given, rules)
    return caught.value.field, caught.value.rule.split(":")[0]


def coded(content: bytes, name: str = "a") -> AttachmentInput:
    return AttachmentInput(name, base64.b64encode(content).decode(), Encoding.BASE64)


@pytest.mark.scenario(46)
@pytest.mark.parametrize(
    "name",
    ["", ".", "..", MANIFEST, "a/b", "/a", "a\\b", "a\0b", "a\nb", "\x1b[2J", "\x7f", "\u2028", "a\u202eb", "é" * 128],
)  # fmt: skip
def test_each_bad_name_is_refused_with_its_code(name: str) -> None:
    assert refused(AttachmentInput(name, "x")) == ("attachments[0].name", "attachments_invalid_name")


@pytest.mark.parametrize(
    "name", ["a", ".hidden", "...", "a b.txt", "Grüße.md", "👩‍💻.txt", "manifest.json", "é" * 127]
)
def test_an_ordinary_name_passes(name: str) -> None:
    assert attachments.attachments([AttachmentInput(name, "x")], RULES) == (Attachment(name, b"x"),)


@pytest.mark.scenario(46)
def test_a_name_given_twice_has_its_own_code() -> None:
    assert refused(AttachmentInput("a", "1"), AttachmentInput("b", "2"), AttachmentInput("a", "3")) == (
        "attachments[2].name", "attachments_duplicate_name",
    )  # fmt: skip


@pytest.mark.parametrize("text", ["%%%", "YQ", "YQ=", "YR==", "YQ==\n", " YQ==", "YQ==YQ==", "_-8="])
def test_only_strict_base64_is_taken(text: str) -> None:
    assert refused(AttachmentInput("a", text, Encoding.BASE64)) == (
        "attachments[0].content", "attachments_invalid_base64",
    )  # fmt: skip


def test_limits_hold_to_the_byte() -> None:
    full = (coded(b"x" * 10, "a"), coded(b"y" * 10, "b"))
    assert len(attachments.attachments(full, RULES)) == 2
    assert refused(coded(b"x" * 11))[1] == AttachmentErrorCode.FILE_BYTES
    assert refused(AttachmentInput("a", "é" * 6))[1] == AttachmentErrorCode.FILE_BYTES, (
        "bytes count, not characters"
    )
    assert refused(*full, AttachmentInput("c", "z")) == ("attachments", AttachmentErrorCode.TOTAL_BYTES)
    assert refused(*(AttachmentInput(name, "") for name in "abcd")) == (
        "attachments",
        AttachmentErrorCode.FILE_COUNT,
    )


@pytest.mark.scenario(45)
def test_where_attachments_are_off_admission_refuses_them_and_nobody_looks_at_them() -> None:
    off = AttachmentRules(enabled=False)
    unread = attachments.attachments([AttachmentInput("../a", "%%%", Encoding.BASE64)], off)
    verdict = admit(SpawnRequest("x", attachments=unread), SpawnCounts("main", 0), Limits(attachments=off))
    assert isinstance(verdict, SpawnRefusal)
    assert verdict.error.startswith("attachments_disabled")
    assert verdict.limit == {"key": "tools.sessions_spawn.attachments.enabled"}
    assert isinstance(
        admit(SpawnRequest("x"), SpawnCounts("main", 0), Limits(attachments=off)), SpawnAdmission
    )


@given(st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=12)), max_size=5))
def test_what_passes_is_within_every_limit_and_is_what_was_given(files: list[tuple[str, bytes]]) -> None:
    given = [coded(content, name) for name, content in files]
    try:
        taken = attachments.attachments(given, RULES)
    except InvalidInput:
        assert refused(*given)[1] in tuple(AttachmentErrorCode)
        return
    assert [(file.name, file.content) for file in taken] == files
    assert len({file.name for file in taken}) == len(taken) <= RULES.files_max
    assert sum(len(file.content) for file in taken) <= RULES.total_bytes_max
    assert not any(name_problem(file.name) for file in taken)


def test_a_receipt_names_every_file_with_size_and_hash() -> None:
    stored = Attachment("a", b"hello").stored
    assert stored == StoredFile("a", 5, hashlib.sha256(b"hello").hexdigest())
    assert receipt([stored]) == {
        "count": 1,
        "totalBytes": 5,
        "files": [{"name": "a", "bytes": 5, "sha256": stored.sha256}],
    }


# ---- paths -------------------------------------------------------------------------------------------------


def test_paths_of_a_task_are_told_from_all_others() -> None:
    child = task_id(7)
    assert task_path("/task/in/a/b") == Place(None, Side.IN, "a/b")
    assert task_path("/task/out") == Place(None, Side.OUT, ".")
    assert task_path(f"/tasks/{child}/out/x") == Place(7, Side.OUT, "x")
    assert [task_path(path) for path in ("task/in/a", "/etc/x", "src/task", "", None, 3)] == [None] * 6


@pytest.mark.parametrize(
    "path", ["/task", "/task/", "/task/up/x", "/tasks/../in/x", "/tasks/x/out/y", "/tasks"]
)
def test_a_path_that_only_looks_like_a_tasks_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="path"):
        task_path(path)


# ---- transcripts -------------------------------------------------------------------------------------------


def spawning(given: Any) -> Answer:
    return Answer("", (Call("sessions_spawn", {"task": "x", "attachments": given}),), stop="tools")


def test_a_redacted_call_keeps_name_size_and_hash() -> None:
    before = spawning([{"name": "a", "content": "c2VjcmV0", "encoding": "base64"}])
    (call,) = redacted(before).calls
    digest = hashlib.sha256(b"secret").hexdigest()
    assert call.args == {"task": "x", "attachments": [{"name": "a", "bytes": 6, "sha256": digest}]}


def test_an_answer_without_files_is_left_alone() -> None:
    other = Answer("", (Call("sessions_spawn", {"task": "x"}), Call("write", {"attachments": ["mine"]})))
    assert redacted(other) is other


SECRET = "s3cr3t-contents"
_json = st.recursive(
    st.sampled_from([SECRET, None, 1, "name"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "content", "x"]), inner)
    ),
)


@given(_json)
def test_whatever_a_model_wrote_there_no_content_stays(written: Any) -> None:
    """Only as the name of a file, which is shown."""
    once = redacted(spawning(written))
    assert redacted(once) is once
    kept = once.calls[0].args["attachments"]
    unnamed = [one | {"name": ""} for one in kept] if isinstance(kept, list) else kept
    assert SECRET not in json.dumps(unnamed)


# ---- what a session wrote --------------------------------------------------------------------------------------------

WRITTEN = st.builds(
    WrittenFile,
    st.sampled_from(SavedRoot),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join),
    st.integers(0, 30),
)


@given(st.lists(WRITTEN, max_size=20, unique=True), st.integers(0, 40), st.integers(0, 100))
def test_every_written_file_is_stored_within_the_limits_or_left_out(
    found: list[WrittenFile], each: int, together: int
) -> None:
    kept, left_out = to_save(found, file_bytes_max=each, bytes_max=together)
    assert sorted([*kept, *left_out]) == sorted(found)
    assert sum(file.bytes for file in kept) <= together
    assert all(file.bytes <= each for file in kept)
    room = together - sum(file.bytes for file in kept)
    assert all(file.bytes > min(each, room) for file in left_out)


@given(st.lists(WRITTEN, max_size=5), st.lists(st.text(max_size=5), max_size=3), st.booleans())
def test_list_of_saved_files_is_read_as_it_was_written(
    found: list[WrittenFile], names: list[str], has_repository: bool
) -> None:
    listed = SavedFiles(7, tuple((file, "0" * 64) for file in found), tuple(names), (), has_repository)
    assert saved_files(listed.to_text()) == listed


def test_what_was_written_after_the_last_save_is_lost() -> None:
    kept = "/results/0123456789abcdef.txt"
    entries = [
        Answer("", (Call("write", {"path": "saved"}),)),
        Results((Result(0, "write", "ok"),)),
        Answer("", (Call("edit", {"path": "late"}), Call("write", {"path": "/task/out/late"}))),
        Results((Result(0, "edit", "ok"), Result(1, "write", f"all of it: {kept}"))),
    ]
    saved = SavedFiles(12)
    assert lost_files(entries, saved=saved, base=10, is_isolated=True) == ("late", "/task/out/late", kept)
    assert lost_files(entries, saved=saved, base=10, is_isolated=False) == ("/task/out/late", kept)
    assert lost_files(entries, saved=SavedFiles(14), base=10, is_isolated=True) == ()
    assert lost_files(entries, saved=None, base=10, is_isolated=True)[0] == "saved"
    known = SavedFiles(12, ((WrittenFile(SavedRoot.RESULTS, kept.removeprefix("/results/"), 1), "0" * 64),))
    assert kept not in lost_files(entries, saved=known, base=10, is_isolated=True)


@pytest.mark.parametrize("path", ["a/../b", "/a", "", "a//b", ".git/config", "a/.git", "AGENTS.md", "a/."])
def test_stored_path_that_leads_elsewhere_or_is_protected_is_not_written(path: str) -> None:
    assert not is_restorable(path)
    assert is_restorable("a/b.c")
