"""Print a table of the lines and branches that a run reached, one row for each package.

The input is the report of `coverage json`. The program is started by scripts/coverage.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path, PurePosixPath
from typing import Any

PACKAGE = "ortet"


def package_of(path: str) -> str:
    """Return the package that a file counts for: `ortet` for a module directly in it."""
    parts = PurePosixPath(path).parts
    inside = parts[parts.index(PACKAGE) :]
    return "/".join(inside[:2]) if len(inside) > 2 else inside[0]


def table(report: Any) -> str:
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for path, found in report["files"].items():
        for name in (package_of(path), "all"):
            sums[name].update(
                lines=found["summary"]["num_statements"],
                reached=found["summary"]["covered_lines"],
                branches=found["summary"]["num_branches"],
                taken=found["summary"]["covered_branches"],
            )
    rows = [
        "| package | lines | reached | branches | taken |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, found in sorted(sums.items(), key=lambda row: (row[0] == "all", row[0])):
        lines, branches = found["lines"], found["branches"]
        rows.append(
            f"| {name} | {lines} | {_share(found['reached'], lines)}"
            f" | {branches} | {_share(found['taken'], branches)} |"
        )
    return "\n".join(rows)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
