"""Any two commits side by side: files, facts, plan, messages."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from ortet.errors import NotFound
from ortet.history.diff.tree_diff import is_touch
from ortet.journal.conversation.text import text_of
from ortet.sessions.history.compare import compare, files_between
from ortet.web.request import Visit
from ortet.web.views.commit import file_line
from ortet.web.views.patch import patch_of

_FILES = 300
_LINES = 4000
"""Lines that are drawn at once; of files behind that, each when it is opened."""
_MESSAGES = 100


def show(visit: Visit) -> Response:
    """Both commits may be given by any of their names; with `?file=N`, one file alone."""
    row = visit.row()
    with visit.hub() as hub:
        old, new = (visit.commit(hub, visit.path[name]) for name in ("a", "b"))
        if "file" in visit.query:
            changes = [one for one in files_between(hub, old, new) if not is_touch(one)]
            number = visit.query["file"]
            plain = number.isascii() and number.isdigit() and len(number) < 10
            if not (plain and int(number) < len(changes)):
                raise NotFound("no_file", "the two differ in no such file: load the page again")
            return visit.show("patch.html", patch=patch_of(hub.objects, changes[int(number)]))
        found = compare(hub, old, new, limit=_MESSAGES)
        room, files = _LINES, list[dict[str, Any]]()
        changes = [one for one in found.files if not is_touch(one)]
        for change in changes[:_FILES]:
            patch = patch_of(hub.objects, change) if room > 0 else None
            if patch is not None:
                room -= sum(len(s.old) + len(s.new) for hunk in patch.hunks for s in hunk) + 2
            files.append({**file_line(change), "patch": patch})
        return visit.show(
            "compare.html",
            row=row,
            old=hub.history.info(old),
            new=hub.history.info(new),
            found=found,
            files=files,
            more=len(changes) - len(files),
            said=text_of,
        )
