"""Split text of most scripts into sentences, and detect prompt injection."""

from __future__ import annotations

import re

import msgspec

# A run of marks matches from its first mark only, so that a megabyte of dots is linear.
_END = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s|\Z)"
    r"|[。！？｡؟۔।॥።။]++[」』）”’»\"')\]]*+"
    r"|\n"
)
_FENCES = ("```", "~~~")
_TITLES = frozenset(["dr", "mr", "mrs", "ms", "nr", "prof", "st", "vs", "e.g", "i.e", "z.b", "d.h"])
"""Words after which a full stop never ends a sentence."""
_ABBREVIATIONS = frozenset(
    ["approx", "ca", "cf", "etc", "fig", "inc", "ltd", "bzw", "usw", "resp", "jr"]
)
"""Words after which a full stop ends a sentence if an upper-case letter follows."""

_MIN_WRAPPED_LINE_CHARS = 60
"""Length from which a line without an end mark continues on the next line in lower case."""

_BEFORE = re.compile(r"[\w.]*\Z")
_LOOK_BACK = 12

_PROMPT_INJECTION = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}"
    r"\b(?:instructions?|prompts?|rules|guidelines|guardrails|directions|above|polic(?:y|ies))\b"
    r"|\b(?:previous|prior|earlier|above|system|developer|your) "
    r"(?:instructions?|prompts?|directives?)\b"
    r"|\byou (?:are|will be) now\b|\bfrom now on,? you(?:'re| are| will be)\b"
    r"|\b(?:act|behave|respond) as (?:if|though|an?|my)\b|\bpretend (?:to be|you|that you)\b"
    r"|\b(?:jailbreak|developer mode|dan mode|god mode|unrestricted mode)\b"
    r"|\bdo(?: not|n['’]t) (?:tell|inform|alert|mention (?:this|it) to) "
    r"(?:the |your )?(?:users?|humans?|operators?|anyone)\b"
    r"|\b(?:reveal|print|repeat|leak|exfiltrate|show me)\b.{0,30}"
    r"\b(?:system prompt|secrets?|api keys?|passwords?|credentials)\b"
    r"|\b(?:always|never|must) (?:obey|refuse|comply|decline)\b"
    r"|</?(?:system|instructions?|assistant|user|tool)\b|\[/?inst\]|<\|"
    r"|^\W{0,4}(?:system|assistant|developer)\s?:"
    r"|(?:忽略|无视|無視).{0,12}(?:指令|指示|提示|規則|规则)"
    r"|\bignor(?:iere|ez|a)\b.{0,40}\b(?:anweisungen|instructions|instrucciones)\b",
    re.I | re.M,
)


class SpokenTurn(msgspec.Struct, frozen=True):
    """The text of one speaker in one turn."""

    speaker: str
    text: str


def split_sentences(text: str) -> list[str]:
    """Return the sentences in order, each on one line. Fenced code is left out."""
    prose = _without_code(text) if any(fence in text for fence in _FENCES) else text
    found: list[str] = []
    start = 0
    for end in _END.finditer(prose):
        if _ends(prose, start, end):
            found.append(prose[start : end.end()])
            start = end.end()
    found.append(prose[start:])
    lines = (" ".join(sentence.split()) for sentence in found)
    return [line for line in lines if any(map(str.isalnum, line))]


def is_prompt_injection(text: str) -> bool:
    """Return True if a text tries to steer the model that reads it.

    Such text is quoted, never followed, and nothing is learned from it.
    """
    return _PROMPT_INJECTION.search(text) is not None


def clip(text: str, limit: int) -> str:
    """Cut a text to at most `limit` characters, between words if possible, with a mark."""
    if len(text) <= limit:
        return text
    cut = text[: max(0, limit - 1)]
    space = cut.rfind(" ")
    return (cut[:space] if space > limit // 2 else cut).rstrip() + "…"[:limit]


def _without_code(text: str) -> str:
    kept: list[str] = []
    fence, opened = "", 0
    for line in text.split("\n"):
        mark = line.lstrip(" ")[:3]
        kept.append(line)
        if not fence and mark in _FENCES:
            fence, opened = mark, len(kept) - 1
        elif fence and mark == fence:
            del kept[opened:]  # a fence that is never closed stays in the text
            kept.append("")
            fence = ""
    return "\n".join(kept)


def _ends(prose: str, start: int, end: re.Match[str]) -> bool:
    mark = end[0]
    if mark == "\n":
        return not _is_wrapped_line(prose, start, end.start())
    if mark != ".":
        return True
    found = _BEFORE.search(prose, max(start, end.start() - _LOOK_BACK), end.start())
    before = found[0] if found else ""
    word = before.casefold()
    if word in _TITLES or (len(before) == 1 and before.isupper() and before != "I"):
        return False
    if word in _ABBREVIATIONS:
        return prose[end.end() : end.end() + 2].strip().isupper()
    # "1. first do this"
    return not (word.isdigit() and not prose[start : end.start() - len(word)].strip())


def _is_wrapped_line(prose: str, start: int, at: int) -> bool:
    line = max(start, prose.rfind("\n", start, at) + 1)
    return at - line >= _MIN_WRAPPED_LINE_CHARS and prose[at + 1 : at + 2].islower()
