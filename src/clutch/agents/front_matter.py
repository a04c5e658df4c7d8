"""The YAML between two `---` lines at the top of a Markdown file, with the line of every key.

A small part of YAML is enough and nothing else is accepted: one mapping of texts, flags, numbers and lists, without
aliases and tags. An alias can make a small file a large value, and a tag names a class. PyYAML is loaded with the
first file that has front matter: most processes meet none."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from clutch.core.definitions import FileProblem, FrontMatter
from clutch.core.text.format import visible

#: Far more than names, descriptions and lists of tools need.
FRONT_MATTER_CHARS_MAX = 16 * 1024
#: A mapping in a mapping, with lists: `metadata` of a skill.
DEPTH_MAX = 4
FENCE = "---"
#: All files are read again before turns, and YAML takes up to half a second for one: as many as the
#: folders of a workspace may hold.
KNOWN_MAX = 1024


def front_matter(data: bytes) -> FrontMatter:
    """Raises FileProblem."""
    found = _known(data)
    if isinstance(found, FileProblem):
        # One that is raised again and again would collect tracebacks.
        raise FileProblem(found.line, found.text)
    return found


@lru_cache(maxsize=KNOWN_MAX)
def _known(data: bytes) -> FrontMatter | FileProblem:
    try:
        return _front_matter(data)
    except FileProblem as error:
        return FileProblem(error.line, error.text)


def _front_matter(data: bytes) -> FrontMatter:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileProblem(data[: error.start].count(b"\n") + 1, "is not UTF-8 text") from error
    if "\0" in text:
        raise FileProblem(text[: text.index("\0")].count("\n") + 1, "has a NUL character")
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != FENCE:
        raise FileProblem(1, f"must begin with front matter: a line {FENCE}, keys, and a line {FENCE}")
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == FENCE), None)
    if end is None:
        raise FileProblem(1, f"the front matter has no end: a line {FENCE} is missing")
    head = "\n".join(lines[1:end])
    if len(head) > FRONT_MATTER_CHARS_MAX:
        raise FileProblem(1, f"the front matter must have at most {FRONT_MATTER_CHARS_MAX} characters")
    values, at = _parsed(head)
    return FrontMatter(values, {**at, "": end + 2}, "\n".join(lines[end + 1 :]))


def _parsed(head: str) -> tuple[dict[str, Any], dict[str, int]]:
    import yaml

    try:
        depth = 0
        for event in yaml.parse(head, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            _check(yaml, event, depth)
        node = yaml.compose(head, Loader=yaml.SafeLoader)
        if node is None:
            return {}, {}
        return _mapping(yaml, node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 2 if mark is None else mark.line + 2
        raise FileProblem(
            line, f"not valid YAML: {visible(str(error.problem or error.context), 200)}"
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FileProblem(2, f"not valid YAML: {visible(str(error), 200)}") from error


def _check(yaml: Any, event: Any, depth: int) -> None:
    line = event.start_mark.line + 2
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
        raise FileProblem(line, "aliases and anchors are not accepted; write the value out")
    if getattr(event, "tag", None) is not None:
        raise FileProblem(line, "tags are not accepted; write a plain value")
    if any(one == "\0" or "\ud800" <= one <= "\udfff" for one in getattr(event, "value", "")):
        raise FileProblem(line, "has an escape of a character that cannot be stored")
    if depth > DEPTH_MAX:
        raise FileProblem(line, f"nests deeper than {DEPTH_MAX} levels")


def _mapping(yaml: Any, node: Any) -> tuple[dict[str, Any], dict[str, int]]:
    if not isinstance(node, yaml.MappingNode):
        raise FileProblem(
            node.start_mark.line + 2, "the front matter must be keys with values, such as `name: x`"
        )
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        line, name = key.start_mark.line + 2, str(getattr(key, "value", ""))
        if name in values:
            raise FileProblem(line, f"{visible(name, 60)}: is there twice; keep one")
        values[name], lines[name] = _value(yaml, value), line
    return values, lines


def _value(yaml: Any, node: Any) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_value(yaml, one) for one in node.value]
    if isinstance(node, yaml.MappingNode):
        return _mapping(yaml, node)[0]
    kind = node.tag.rpartition(":")[2]
    if kind == "bool":
        return node.value.lower() in ("yes", "true", "on")
    if kind == "int" and node.value.isascii() and node.value.isdigit() and len(node.value) <= 9:
        return int(node.value)
    return None if kind == "null" else str(node.value)
