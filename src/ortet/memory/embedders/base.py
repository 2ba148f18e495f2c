"""Embedders turn texts into vectors whose angle says how alike they are; any will do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ortet.errors import Invalid, Unsupported

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = Sequence[Sequence[float]] | NDArray[np.floating[Any]]


class Embedder(Protocol):
    """What a caller may pass in. `name` is the identity of the model: give another whenever the
    same text would become another vector, for vectors of two names are never compared.

    `embed` gives one vector a text, all of one size, none of them zero; how long they are does
    not matter. It is called by one thread at a time, which need not be the one that made it. An
    attribute `size`, if there is one, is the size that is checked; `trust`, if there is one, is how
    much its order counts beside that of the words, 1 for as much.
    """

    @property
    def name(self) -> str: ...

    def embed(self, texts: Sequence[str], /) -> Floats: ...


DEFAULT_TRUST = 0.5
"""Of an embedder that does not say how good it is."""


def trust_of(embedder: Embedder) -> float:
    """How much its order counts; Invalid for what is no weight."""
    trust = getattr(embedder, "trust", DEFAULT_TRUST)
    if isinstance(trust, bool) or not isinstance(trust, int | float) or not 0 <= trust <= 10:
        raise Invalid("bad_embedder", f"trust of an embedder is {trust!r}: give 0 to 10")
    return float(trust)


_ENDPOINT = re.compile(r"(?P<model>.+)@(?P<url>https?://.+)")


def check_embedder(spec: str | Embedder) -> None:
    """Invalid for what cannot be one, whatever is installed here."""
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
    """The embedder that is meant: "wordllama", "minilm", "sentence-transformers:NAME",
    "openai:MODEL@http://host/v1", or an object that is one.

    Its model is loaded when it is first used. Unsupported says what to install; `api_key` is
    shown to an endpoint and to nobody else.
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
        case "openai" if found := _ENDPOINT.fullmatch(rest):
            from ortet.memory.embedders.openai import OpenAIEmbedder

            return OpenAIEmbedder(found["model"], found["url"], api_key=api_key)
    raise AssertionError(spec)


def require_package(package: str, extra: str) -> str:
    """Where an optional package lies, found without running it; Unsupported says what to do."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise Unsupported(
            "not_installed",
            f"{package} is not installed and this embedder needs it: pip install 'ortet[{extra}]'",
        )
    return found.submodule_search_locations[0]


def _check_embedder_object(embedder: Any) -> None:
    name = getattr(embedder, "name", None)
    if not isinstance(name, str) or not name or not callable(getattr(embedder, "embed", None)):
        raise Invalid(
            "bad_embedder",
            f"{type(embedder).__name__} is no embedder: give it a name, which is text and says "
            "which "
            "model it is, and a method embed(texts)",
        )
