"""The page that compares two commits: files, facts, plan, messages.

A module of its own, because a comparison is a page with its own limits.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from ortet.errors import NotFound
from ortet.history.diff.tree_diff import is_directory_touch
from ortet.journal.conversation.text import text_of
from ortet.sessions.history.compare import compare, files_between
from ortet.web.request import PageRequest
from ortet.web.views.commit import file_line
from ortet.web.views.patch import file_patch

_MAX_FILES = 300
_MAX_PATCH_LINES = 4000
"""Maximum number of patch lines on the page. Patches of further files are loaded when opened."""
_MAX_MESSAGES = 100


def compare_page(page_request: PageRequest) -> Response:
    """Render the comparison.

    Commits may have any of their names. With `?file=N`, render one patch.
    """
    row = page_request.row()
    with page_request.hub() as hub:
        old, new = (
            page_request.resolve_commit(hub, page_request.path_params[name]) for name in ("a", "b")
        )
        if "file" in page_request.query:
            changes = [one for one in files_between(hub, old, new) if not is_directory_touch(one)]
            number = page_request.query["file"]
            plain = number.isascii() and number.isdigit() and len(number) < 10
            if not (plain and int(number) < len(changes)):
                raise NotFound("no_file", "the two differ in no such file: load the page again")
            return page_request.render(
                "patch.html", patch=file_patch(hub.objects, changes[int(number)])
            )
        found = compare(hub, old, new, limit=_MAX_MESSAGES)
        room, files = _MAX_PATCH_LINES, list[dict[str, Any]]()
        changes = [one for one in found.files if not is_directory_touch(one)]
        for change in changes[:_MAX_FILES]:
            patch = file_patch(hub.objects, change) if room > 0 else None
            if patch is not None:
                room -= sum(len(s.old) + len(s.new) for hunk in patch.hunks for s in hunk) + 2
            files.append({**file_line(change), "patch": patch})
        return page_request.render(
            "compare.html",
            row=row,
            old=hub.history.info(old),
            new=hub.history.info(new),
            found=found,
            files=files,
            more=len(changes) - len(files),
            said=text_of,
        )
