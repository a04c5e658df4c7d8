"""Figures that are read from the source text of the product, without running it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from tests.house import limits

PRODUCT = Path(__file__).parents[2] / "src" / "clutch"
NOT_PRODUCT = "testing"
WRITERS = "transactions"

Places: TypeAlias = dict[str, list[str]]

_WRITE = re.compile(
    r"\b(?:INSERT\s+(?:OR\s+\w+\s+)?INTO|REPLACE\s+INTO|DELETE\s+FROM|(?<!DO )(?<!FOR )(?<!KEY )UPDATE)"
    r"\s+(?!SET\b)([\w{}]+)"
)
_UNTYPED = "Callable[..., Tx"
_LOOP = re.compile(r"(^|[._])loop(\(\))?$")


@dataclass(frozen=True, slots=True)
class Source:
    """One product file. `path` is relative to the product folder."""

    path: str
    text: str
    tree: ast.Module

    @property
    def line_count(self) -> int:
        return len(self.text.splitlines())

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).stem

    @property
    def layer(self) -> str:
        folder = PurePosixPath(self.path).parent
        return str(folder) if str(folder) in limits.INNER_LAYERS else (folder.parts or (".",))[0]


def sources(root: Path = PRODUCT) -> list[Source]:
    found = (path.relative_to(root) for path in sorted(root.rglob("*.py")))
    paths = [path for path in found if path.parts[0] != NOT_PRODUCT]
    texts = [(root / path).read_text(encoding="utf-8") for path in paths]
    return [Source(path.as_posix(), text, ast.parse(text)) for path, text in zip(paths, texts, strict=True)]


# --------------------------------------------------------------------------------------------------
# Sizes


def function_lengths(source: Source) -> Iterator[tuple[str, int]]:
    """Qualified name and lines of each function, from its `def` line to its end."""
    module = source.path.removesuffix(".py").replace("/", ".")
    yield from _lengths(source.tree, module)


def _lengths(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        name = f"{prefix}.{child.name}" if isinstance(child, _NAMED) else prefix
        if isinstance(child, _FUNCTIONS):
            yield name, (child.end_lineno or child.lineno) - child.lineno + 1
        yield from _lengths(child, name)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NAMED = (*_FUNCTIONS, ast.ClassDef)


def many_parameters(source: Source) -> Iterator[str]:
    """Functions that take more arguments by position than a call can show."""
    methods = {
        id(node)
        for owner in ast.walk(source.tree)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, _FUNCTIONS) and "staticmethod" not in _decorators(node)
    }
    for node in ast.walk(source.tree):
        if isinstance(node, _FUNCTIONS) and not _decorators(node) & set(limits.MANY_PARAMETERS):
            count = len(node.args.posonlyargs) + len(node.args.args) - (id(node) in methods)
            if count > limits.POSITIONAL_MAX:
                yield f"{source.path}:{node.lineno} {node.name} ({count})"


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The last word of each decorator: `command` of `@tasks.command("ps")`."""
    called = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    return {ast.unparse(one).rsplit(".", 1)[-1] for one in called}


def comment_share(found: Iterable[Source]) -> float:
    """Share of the lines that contain a comment."""
    lines = commented = 0
    for source in found:
        tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
        commented += sum(token.type == tokenize.COMMENT for token in tokens)
        lines += source.line_count
    return round(commented / lines, 3) if lines else 0.0


# --------------------------------------------------------------------------------------------------
# Names


def ing_modules(found: Iterable[Source]) -> list[str]:
    return [source.path for source in found if source.name.endswith(limits.VERB_ENDING)]


def modules_twice(found: Iterable[Source]) -> Places:
    """Module names that repeat within one layer. Whether two layers mean the same noun is for a reviewer to judge."""
    named = ((f"{source.layer}:{source.name}", source.path) for source in found if source.name[0] != "_")
    return _repeated(named)


def classes_twice(found: Iterable[Source]) -> Places:
    classes = ((node, source.path) for source in found for node in source.tree.body)
    twice = _repeated(
        (node.name, path)
        for node, path in classes
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    allowed = {name: modules for name, (modules, _) in limits.SHARED_CLASSES.items()}
    return {name: paths for name, paths in twice.items() if not set(paths) <= allowed.get(name, frozenset())}


def _repeated(named: Iterable[tuple[str, str]]) -> Places:
    places = defaultdict(list)
    for name, path in named:
        places[name].append(path)
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


# --------------------------------------------------------------------------------------------------
# Tables and their writers


def tables_with_two_writers(found: Iterable[Source]) -> Places:
    """Tables that more modules write than may, each with its writers.

    A table name that is computed and cannot be resolved is listed too: its writer cannot be checked."""
    writers = defaultdict(set)
    for source in found:
        if source.path.startswith(f"{WRITERS}/") and source.path not in limits.COPIERS:
            for table in written_tables(source.tree):
                writers[table].add(source.path)
    return {
        table: sorted(paths)
        for table, paths in sorted(writers.items())
        if "{" in table
        or (len(paths) > 1 and not paths <= limits.SHARED_TABLES.get(table, (frozenset(), ""))[0])
    }


def written_tables(tree: ast.Module) -> set[str]:
    known = _constants(tree)
    names = (match for text in _texts(tree) for match in _WRITE.findall(text))
    return {table for name in names for table in known.get(name.strip("{}"), {name})}


def _texts(node: ast.AST) -> Iterator[str]:
    """Each string expression below the node as one text; docstrings are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        text = _text(child)
        if text is None:
            yield from _texts(child)
        else:
            yield text


def _text(node: ast.AST) -> str | None:
    """The constant parts of a string expression, with `{name}` for each computed part. None: not a string."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=ast.Name(id=name)):
            return f"{{{name}}}"
        case ast.FormattedValue():
            return "{}"
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "" for part in parts)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            sides = (_text(left), _text(right))
            return None if sides == (None, None) else "".join("{}" if one is None else one for one in sides)
        case _:
            return None


def _constants(tree: ast.Module) -> dict[str, set[str]]:
    """Names of the module that stand for constant strings: assigned ones, and loop variables over them."""
    known: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = _strings(node.value, known)
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For | ast.comprehension) and isinstance(loop.target, ast.Name):
            known.setdefault(loop.target.id, set()).update(_strings(loop.iter, known))
    return {name: texts for name, texts in known.items() if texts}


def _strings(node: ast.expr, known: dict[str, set[str]]) -> set[str]:
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return {text for part in parts for text in _strings(part, known)}
        case ast.Name(id=name):
            return known.get(name, set())
        case _:
            return set()


# --------------------------------------------------------------------------------------------------
# Calls


def untyped_tx_calls(found: Iterable[Source]) -> list[str]:
    """Functions that take a transaction and its arguments without their types."""
    functions = ((source, node) for source in found for node in ast.walk(source.tree))
    return [
        f"{source.path}:{node.lineno} {node.name}"
        for source, node in functions
        if isinstance(node, _FUNCTIONS) and _is_untyped(node.args)
    ]


def _is_untyped(args: ast.arguments) -> bool:
    if args.vararg is None or _written(args.vararg) != "Any":
        return False
    return any(_UNTYPED in _written(arg) for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs))


def _written(arg: ast.arg) -> str:
    return "" if arg.annotation is None else ast.unparse(arg.annotation)


def bare_tasks(found: Iterable[Source]) -> list[str]:
    """Calls that start an asyncio task without a task group, outside of the one module that may."""
    return [
        f"{source.path}:{node.lineno}"
        for source in found
        if source.path != limits.TASK_HELPER
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and _is_bare_task(node.func)
    ]


def _is_bare_task(called: ast.expr) -> bool:
    match called:
        case ast.Name(id="create_task" | "ensure_future") | ast.Attribute(attr="ensure_future"):
            return True
        case ast.Attribute(attr="create_task", value=owner):
            written = ast.unparse(owner)
            return written == "asyncio" or _LOOP.search(written) is not None
        case _:
            return False
