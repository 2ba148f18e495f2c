"""Command migrate: update the tables of a store to the format of this release.

It is a module of its own because it reads the catalog's format before the store is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ortet.cli.call import CliCall, verb

if TYPE_CHECKING:
    from collections.abc import Callable


class MigrationResult(msgspec.Struct, frozen=True):
    """The catalog's format before and after. They are equal if there was nothing to do."""

    before: int
    after: int


@verb()
def migrate(call: CliCall) -> None:
    """Update the tables of the store to the format of this release.

    The first program of a new release that opens a store does this in one transaction. Use this
    command to choose the moment, after a backup. A second run does nothing. A store behind http://
    is migrated by its server.

    \b
    Example:
      ortet migrate
    """
    read_format = _format_reader(call)
    before = read_format()
    call.open_hub(create=False)
    result = MigrationResult(before, read_format())
    line = f"the catalog has format {result.after}: nothing to do"
    if result.before != result.after:
        line = f"the catalog had format {result.before} and has {result.after} now"
    call.output.emit(result, [line])


def _format_reader(call: CliCall) -> Callable[[], int]:
    from ortet.config.environment import store_path, store_url
    from ortet.config.open_shared_store import is_shared
    from ortet.config.store_format import read_postgres_format, read_sqlite_format

    url = store_url(cwd=call.cwd)
    if is_shared(url):
        return lambda: read_postgres_format(url)
    path = store_path(url) / "catalog.db"
    return lambda: read_sqlite_format(path)
