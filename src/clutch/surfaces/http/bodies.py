"""What a caller may send, strictly: an unknown field, a text where a number belongs, or half a JSON is an error.

Sizes are checked while reading, so that nobody makes us hold more than we would take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from clutch.core.keys import ROW_NUMBER_MAX
from clutch.protocol.listing import PAGE_MAX
from clutch.surfaces.problems import Problem

BODY_BYTES_MAX = 1024 * 1024

M = TypeVar("M", bound=BaseModel)


class Body(BaseModel):
    """JSON: types are what they are."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Words(Body):
    text: str


class Query(BaseModel):
    """Behind the `?` everything is text, and is read as what it should be."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PageQuery(Query):
    """A piece of a transcript."""

    after: Annotated[int, Field(ge=0, le=ROW_NUMBER_MAX)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_MAX)] = PAGE_MAX


async def read_body(request: Request, model: type[M], bytes_max: int = BODY_BYTES_MAX) -> tuple[M, bytes]:
    """Also the bytes as they came. An empty body is an empty object."""
    raw = await _read(request, bytes_max)
    if raw and request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Problem("invalid_input", "Content-Type: must be application/json", field="Content-Type")
    return checked_body(raw, model), raw


def checked_body(raw: bytes, model: type[M]) -> M:
    try:
        return model.model_validate_json(raw or b"{}")
    except ValidationError as error:
        raise _named(error) from error


def read_query(request: Request, model: type[M]) -> M:
    given = request.query_params
    repeated = [name for name in given if len(given.getlist(name)) > 1]
    if repeated:
        raise Problem("invalid_input", "a parameter is given twice", field=repeated[0])
    return checked_query(given, model)


def checked_query(given: Mapping[str, Any], model: type[M]) -> M:
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        raise _named(error) from error


async def _read(request: Request, bytes_max: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > bytes_max:
        raise _too_large(bytes_max)
    read = bytearray()
    async for piece in request.stream():
        read += piece
        if len(read) > bytes_max:
            raise _too_large(bytes_max)
    return bytes(read)


def _too_large(bytes_max: int) -> Problem:
    return Problem(
        "too_large", f"the body has more than {bytes_max} bytes", rule=f"at most {bytes_max} bytes"
    )


def _named(error: ValidationError) -> Problem:
    """The first thing that is wrong, by the name of its field; never the value that was given."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"])) or "body"
    rule = "is not a field here" if first["type"] == "extra_forbidden" else first["msg"]
    return Problem("invalid_input", f"{field}: {rule}", field=field, rule=rule)
