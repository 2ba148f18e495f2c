"""Syntax highlighting: splits source text into lines of (CSS class, text) pairs.

A module of its own, because it is the only one that uses Pygments.
"""

from __future__ import annotations

from typing import Any

StyledText = tuple[str, str]

_MAX_TEXT_CHARACTERS = 256 << 10
_MAX_LINE_CHARACTERS = 2000
"""Largest text and longest line that are highlighted.

Longer ones are rarely code and could keep a lexer busy for a long time.
"""


def highlight_lines(path: str, text: str) -> list[list[StyledText]]:
    """Return the lines of a text, highlighted by the type of the file name."""
    lines = text.split("\n")
    lexer = _lexer(path) if len(text) <= _MAX_TEXT_CHARACTERS else None
    if lexer is None or any(len(line) > _MAX_LINE_CHARACTERS for line in lines):
        return [[("", line)] for line in lines]
    found: list[list[StyledText]] = [[]]
    for kind, value in lexer.get_tokens(text):
        class_ = _class(kind)
        first, *rest = value.split("\n")
        if first:
            found[-1].append((class_, first))
        for line in rest:
            found.append([(class_, line)] if line else [])
    del found[len(lines) :]  # lexers add a final line break
    found += [[] for _ in range(len(lines) - len(found))]
    return found


def _lexer(path: str) -> Any:
    from pygments.lexers import get_lexer_for_filename  # type: ignore[import-untyped]
    from pygments.util import ClassNotFound  # type: ignore[import-untyped]

    try:
        return get_lexer_for_filename(path.rpartition("/")[2] or "x", stripnl=False, ensurenl=False)
    except (ClassNotFound, ValueError):
        return None


def _class(kind: Any) -> str:
    from pygments.token import Token  # type: ignore[import-untyped]

    for class_, kinds in (
        ("k", (Token.Keyword, Token.Operator.Word, Token.Name.Tag)),
        ("s", (Token.Literal.String,)),
        ("c", (Token.Comment,)),
        ("m", (Token.Literal.Number,)),
        ("n", (Token.Name.Function, Token.Name.Class, Token.Name.Decorator, Token.Name.Attribute)),
        ("k", (Token.Generic.Heading, Token.Generic.Strong)),
    ):
        if any(kind in one for one in kinds):
            return class_
    return ""
