"""Commands that are made when they are wanted: one of sixty is, and making them all takes longer than most of them run.

Neither is what converts their values loaded before there is something to convert.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command_from_info, get_command_name, get_group_from_info
from typer.models import TyperInfo

_PLAIN: Any = {"pretty_exceptions_short": True, "rich_markup_mode": None}  # as the app has it
FLAGS = {"1": True, "0": False}  #: as variables of the environment usually say it
MAKES = "get_runtime_param"  #: typer's own name for what makes the converter of a value


class Lazily(TyperGroup):
    """`parts`: whose commands it has; `groups`: those that are commands with commands of their own."""

    parts: tuple[typer.Typer, ...] = ()
    groups: tuple[tuple[str, typer.Typer], ...] = ()
    sections: Mapping[str, tuple[str, ...]] = {}  #: all of them, under headings

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        makers: dict[str, Callable[[], Any]] = {}
        for one in (one for part in self.parts for one in part.registered_commands):
            make = partial(get_command_from_info, one, **_PLAIN)
            makers[one.name or get_command_name(getattr(one.callback, "__name__", ""))] = make
        for name, group in self.groups:
            makers[name] = partial(get_group_from_info, TyperInfo(group), suggest_commands=True, **_PLAIN)
        self.commands = Commands(makers)  # type: ignore[assignment]  # nobody adds one

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        del ctx
        widest = max(map(len, self.commands))
        for heading, names in self.sections.items():
            with formatter.section(heading):
                made = [(name, self.commands[name]) for name in names]
                words = formatter.width - widest - 6
                formatter.write_dl(
                    [(name.ljust(widest), one.get_short_help_str(words)) for name, one in made]
                )


class Commands(Mapping[str, Any]):
    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        self._makers = makers
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True, slots=True)
class Converting:
    """What is no text, path or flag already is left to typer and to pydantic, which takes a while to load."""

    otherwise: Callable[[], Any]

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        wanted = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is wanted:
            return value
        if wanted is Path and (not os.path.exists(value) or os.access(value, os.R_OK)):
            return Path(value)
        if wanted is bool and value in FLAGS:
            return FLAGS[value]
        return self.otherwise().coerce(value, param=param, ctx=ctx)


def convert_late(kind: type) -> None:
    """Of a typer that makes its converters elsewhere nothing is changed: commands only start later."""
    makes = getattr(kind, MAKES, None)
    if makes is not None:
        setattr(kind, MAKES, lambda parameter: Converting(partial(makes, parameter)))


for _kind in (TyperArgument, TyperOption):  # typer has no other place to say so
    convert_late(_kind)
