"""One module writes a table, so that all changes of its rows can be read in one file; reads write nothing."""

from __future__ import annotations

from functools import cache

from tests.house import figures, limits


@cache
def found() -> list[figures.Source]:
    """Parsed when a test asks for it: every process collects this file, and one runs its tests."""
    return [source for source in figures.sources() if source.path.startswith(f"{figures.WRITERS}/")]


def test_no_table_is_written_by_two_modules() -> None:
    assert figures.tables_with_two_writers(found()) == {}


def test_every_exception_is_still_needed() -> None:
    for table, (modules, reason) in limits.SHARED_TABLES.items():
        writers = {source.path for source in found() if table in figures.written_tables(source.tree)}
        assert writers == modules, (table, reason)


def test_a_copier_names_no_table_but_the_record_of_its_move() -> None:
    for path in limits.COPIERS:
        (copier,) = [source for source in found() if source.path == path]
        assert {table for table in figures.written_tables(copier.tree) if "{" not in table} == {"meta"}


def test_reads_write_nothing() -> None:
    reads = [source for source in found() if source.path.startswith(f"{figures.WRITERS}/read/")]
    assert reads
    assert {source.path: tables for source in reads if (tables := figures.written_tables(source.tree))} == {}
