"""migrate: the tables of a store as this release wants them, at a moment that one chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ortet.cli.call import Call, verb

if TYPE_CHECKING:
    from collections.abc import Callable


class Migrated(msgspec.Struct, frozen=True):
    """The format of a store's catalog; the same twice where there was nothing to do."""

    before: int
    after: int


@verb()
def migrate(call: Call) -> None:
    """Bring the tables of the store up to date.

    Whoever opens a store first with a new release does so, in one transaction: with this verb at a
    moment that you choose, after a backup. Again, it does nothing. A store behind http:// is its
    server's to migrate.

    \b
    Example:
      ortet migrate
    """
    look = _look(call)
    before = look()
    call.open_hub(create=False)
    found = Migrated(before, look())
    line = f"the catalog has format {found.after}: nothing to do"
    if found.before != found.after:
        line = f"the catalog had format {found.before} and has {found.after} now"
    call.emit(found, [line])


def _look(call: Call) -> Callable[[], int]:
    from ortet.config.environment import store_path, store_url
    from ortet.config.open_shared_store import is_shared
    from ortet.config.store_format import format_in_database, format_in_file

    url = store_url(cwd=call.here)
    if is_shared(url):
        return lambda: format_in_database(url)
    path = store_path(url) / "catalog.db"
    return lambda: format_in_file(path)
