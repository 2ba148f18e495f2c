"""Lookup of an embedder by its name.

The classes of embedders are imported when they are chosen, because their packages are optional.
"""

from __future__ import annotations

import re
from typing import Any

from ortet.errors import Invalid
from ortet.memory.embedders.base import Embedder, require_package, trust_of

_ENDPOINT = re.compile(r"(?P<model>.+)@(?P<url>https?://.+)")


def check_embedder(spec: str | Embedder) -> None:
    """Raise Invalid if the value cannot be an embedder. Installed packages are not checked."""
    if not isinstance(spec, str):
        _check_embedder_object(spec)
        trust_of(spec)
        return
    kind, _, rest = spec.partition(":")
    plain = kind in ("wordllama", "minilm") and not rest
    named = kind == "sentence-transformers" and rest
    if not (plain or named or (kind == "openai" and _ENDPOINT.fullmatch(rest))):
        raise Invalid(
            "unknown_embedder",
            f"{spec!r} names no embedder: give wordllama, minilm, sentence-transformers:NAME, "
            "openai:MODEL@http://host/v1, or an object with a name and embed(texts)",
        )


def find_embedder(spec: str | Embedder, *, api_key: str = "") -> Embedder:
    """Return the embedder for a name, or the given object.

    The model is loaded at first use.

    Args:
        spec: "wordllama", "minilm", "sentence-transformers:NAME", "openai:MODEL@http://host/v1", or
            an object that is an embedder.
        api_key: Key for the endpoint. It is sent nowhere else.

    Raises:
        Unsupported: If a package is missing. The message says what to install.
        Invalid: If the value is not an embedder.
    """
    check_embedder(spec)
    if not isinstance(spec, str):
        require_package("numpy", "embed")
        return spec
    kind, _, rest = spec.partition(":")
    require_package("numpy", "embed")
    match kind:
        case "wordllama":
            from ortet.memory.embedders.wordllama import WordLlama

            return WordLlama()
        case "minilm":
            from ortet.memory.embedders.minilm import MiniLM

            return MiniLM()
        case "sentence-transformers":
            from ortet.memory.embedders.sentence_transformers import SentenceTransformers

            return SentenceTransformers(rest)
        case "openai" if match := _ENDPOINT.fullmatch(rest):
            from ortet.memory.embedders.openai import OpenAIEmbedder

            return OpenAIEmbedder(match["model"], match["url"], api_key=api_key)
    raise AssertionError(spec)


def _check_embedder_object(embedder: Any) -> None:
    name = getattr(embedder, "name", None)
    if not isinstance(name, str) or not name or not callable(getattr(embedder, "embed", None)):
        raise Invalid(
            "bad_embedder",
            f"{type(embedder).__name__} is no embedder: give it a name, which is text and says "
            "which "
            "model it is, and a method embed(texts)",
        )
