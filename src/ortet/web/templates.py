"""Jinja templates, and the filters that format times, amounts and ids."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ortet.cli.terminal import output
from ortet.web.static_files import StaticAssets

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATES_DIRECTORY = Path(__file__).parent / "templates"
_TIME_UNITS = ((60, "s"), (60, "min"), (24, "h"), (30, "d"), (12, "mo"))


def make_environment(assets: StaticAssets) -> Environment:
    """Return the template environment. Every value is escaped unless it is Markup."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES_DIRECTORY),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals["static"] = assets.address
    environment.globals["has_static"] = assets.has
    environment.filters |= {
        "ago": ago,
        "amount": amount,
        "line": output.single_line,
        "part": partial(quote, safe=""),
        "plural": output.plural,
        "safe_text": safe_text,
        "short": output.short_id,
        "size": output.format_size,
        "title_of": title_of,
    }
    return environment


def ago(ns: int) -> Markup:
    """Return a time as a relative age. `base.js` updates it while the page is open."""
    from markupsafe import Markup

    try:
        moment = datetime.fromtimestamp(ns / 1e9, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup("<span>{}</span>").format("at no known time")
    exact = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}" data-ago>{}</time>').format(
        exact, exact, elapsed_text(time.time() - ns / 1e9)
    )


def elapsed_text(seconds: float) -> str:
    """Return an age in one unit."""
    if seconds < 5:
        return "now"
    for length, unit in _TIME_UNITS:
        if seconds < length:
            return f"{int(seconds)} {unit} ago"
        seconds /= length
    return f"{int(seconds)} y ago"


def amount(value: float, name: str = "") -> str:
    """Return an amount of money, tokens or any other counter as text."""
    if name == "usd":
        return f"${value:,.2f}" if value >= 1 or not value else f"${value:.4f}"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1000 if unit == 'k' else limit):.1f}{unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"


def safe_text(text: object) -> str:
    """Return text with its line breaks. Control and invisible characters are shown as escapes."""
    return output.safe(str(text), keep="\n\t")


def title_of(message: str) -> str:
    """Return the first line of a commit message."""
    return output.title(message) or "(no message)"
