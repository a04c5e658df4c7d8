"""What a model is told of the built-in tools: their arguments, in as few words as will do.

Every request of every child carries these words. What they do stands in `files` and `web`; `ask_human` is
carried out by the engine.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from clutch.tools.arguments import Arguments

Path = Annotated[str, Field(min_length=1)]
Glob = Annotated[str, Field(description="*.py or src/**/*.py", min_length=1, max_length=200)]
Ignored = Annotated[bool, Field(description="also what is in .gitignore")]
Choice = Annotated[str, Field(min_length=1, max_length=200)]
CHOICES_MAX = 20  # more than a person wants to read
QUESTION_CHARS_MAX = 4000


class ReadArguments(Arguments):
    path: Path
    start: int = Field(1, description="first line; negative: from the end")
    limit: int = Field(400, ge=1, le=5000, description="lines")


class ListArguments(Arguments):
    path: Path = "."
    recursive: bool = False
    glob: Glob | None = None
    ignored: Ignored = False
    limit: int = Field(500, ge=1, le=2000)


class SearchArguments(Arguments):
    pattern: str = Field(description="Python regular expression", min_length=1, max_length=1000)
    path: Path = "."
    glob: Glob | None = None
    recursive: bool = True
    ignored: Ignored = False
    limit: int = Field(100, ge=1, le=500)
    per_file: int = Field(20, ge=1, le=500)


class WriteArguments(Arguments):
    path: Path
    text: str


class Edit(Arguments):
    old: str
    new: str
    all: bool = False


class EditArguments(Arguments):
    path: Path
    edits: Annotated[list[Edit], Field(min_length=1, max_length=100)]


class FetchArguments(Arguments):
    url: str
    max_chars: int = Field(20_000, ge=100, le=100_000)


class AskArguments(Arguments):
    question: str = Field(min_length=1, max_length=QUESTION_CHARS_MAX)
    choices: list[Choice] | None = Field(None, max_length=CHOICES_MAX)


READ = "Read a text file with line numbers."
LIST = "List a folder with sizes."
SEARCH = "Search text files line by line."
WRITE = "Write a text file, making the folders it needs."
EDIT = "Replace texts in a file, in order, all or none. Each old must occur exactly once, or set all."
FETCH = "Read a public web page as text."
ASK = "Ask a person and wait. Only for what you cannot find out or decide yourself."
