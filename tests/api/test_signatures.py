"""What an IDE and `help()` show of the public names: every parameter with its type, every class and method with a
sentence, and no parameter behind `**options`."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import clutch
import clutch.sync
import clutch.testing
from clutch.api.spawn import SpawnOptions

CLASSES = {
    f"{module.__name__}.{name}": value
    for module, names in (
        (clutch, clutch.__all__),
        (clutch.testing, clutch.testing.__all__),
        (clutch.sync, ("Clutch", "Task")),
    )
    for name in names
    if inspect.isclass(value := getattr(module, name))
}
FUNCTIONS = {
    "as_completed": clutch.as_completed,
    "gather": clutch.gather,
    "simulate": clutch.testing.simulate,
}
#: Of an engine in this process; a program that has no event loop does not reach into it.
FOR_SURFACES = {"is_config_changed", "local_gateway", "reload", "services", "stats"}
#: Parameters of the tool that programs do not have: another name of the timeout, and whether agents need the result.
OF_AGENTS = {"timeout_seconds", "expects_completion"}


def methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        is_public = not name.startswith("_") or (name == "__init__" and not issubclass(kind, BaseException))
        if is_public and inspect.isfunction(function) and function.__module__.startswith("clutch"):
            yield name, function


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [one for one in inspect.signature(function).parameters.values() if one.name not in ("self", "cls")]


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_a_public_class_and_its_methods_say_what_they_are(kind: type) -> None:
    is_made_up = dataclasses.is_dataclass(kind) and str(kind.__doc__).startswith(f"{kind.__name__}(")
    assert kind.__dict__.get("__doc__"), kind
    assert not is_made_up, kind
    assert [name for name, one in methods(kind) if not one.__doc__ and name != "__init__"] == []


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_every_parameter_has_a_name_and_a_type(kind: type) -> None:
    for name, function in methods(kind):
        for one in parameters(function):
            is_of_function = str(one.annotation).startswith(
                "P."
            )  # the parameters of the function that is passed on
            assert one.kind is not one.VAR_KEYWORD or is_of_function, (name, one)
            assert one.annotation is not one.empty, (name, one)
            assert one.annotation not in ("Any", "object"), (name, one)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_public_function_says_what_it_does(function: Callable[..., Any]) -> None:
    assert function.__doc__
    assert all(
        one.annotation is not one.empty and one.kind is not one.VAR_KEYWORD for one in parameters(function)
    )


@pytest.mark.parametrize(
    ("behind", "plain"), [(clutch.Clutch, clutch.sync.Clutch), (clutch.Task, clutch.sync.Task)]
)
def test_the_methods_without_an_event_loop_are_the_same(behind: type, plain: type) -> None:
    own = dict(methods(plain))
    for name, function in methods(behind):
        if name not in FOR_SURFACES and not (name == "__init__" and behind is clutch.Task):
            wanted = [(one.name, one.kind, one.default) for one in parameters(function)]
            assert [(one.name, one.kind, one.default) for one in parameters(own[name])] == wanted, name


@pytest.mark.parametrize("name", ["spawn", "check_spawn", "map"])
def test_every_parameter_of_a_spawn_is_one_of_the_method(name: str) -> None:
    per_item = {"label", "idempotency_key"} if name == "map" else set()
    known = {one.name: str(one.annotation) for one in parameters(getattr(clutch.Clutch, name))}
    for field, kind in SpawnOptions.__annotations__.items():
        if field not in OF_AGENTS | per_item:
            assert known[field].removesuffix(" | None") == kind.__forward_arg__.removesuffix(" | None"), field


def test_every_setting_of_a_policy_has_a_public_type() -> None:
    public, unknown = set(CLASSES.values()), []
    todo: list[type] = [clutch.Policy, clutch.ToolSettings, clutch.Provider, clutch.AcpAgent]
    while todo:
        kind = todo.pop()
        for field, hint in typing.get_type_hints(kind).items():
            named = [one for one in _classes(hint) if one.__module__.startswith("clutch")]
            unknown += [f"{kind.__name__}.{field}: {one.__name__}" for one in named if one not in public]
            todo += [one for one in named if dataclasses.is_dataclass(one)]
    assert unknown == []


def _classes(hint: Any) -> Iterator[type]:
    if inspect.isclass(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from _classes(part)
