"""The protocol of embedders, and the lookup of an embedder by name."""

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
    """A model that turns texts into vectors.

    `name` identifies the model. Use another name whenever the same text would give another vector:
    vectors of two names are never compared.

    `embed` returns one vector for each text. All have the same size, and none is zero; their length
    does not matter. One thread at a time calls it, not always the thread that created it. The
    optional attribute `size` is the expected size. The optional attribute `trust` is the weight of
    its ranking relative to the ranking by words (1).
    """

    @property
    def name(self) -> str: ...

    def embed(self, texts: Sequence[str], /) -> Floats: ...


DEFAULT_TRUST = 0.5
"""Trust of an embedder that has no attribute `trust`."""


def trust_of(embedder: Embedder) -> float:
    """Return the weight of the embedder's ranking. Raise Invalid if it is not from 0 to 10."""
    trust = getattr(embedder, "trust", DEFAULT_TRUST)
    if isinstance(trust, bool) or not isinstance(trust, int | float) or not 0 <= trust <= 10:
        raise Invalid("bad_embedder", f"trust of an embedder is {trust!r}: give 0 to 10")
    return float(trust)


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
        case "openai" if found := _ENDPOINT.fullmatch(rest):
            from ortet.memory.embedders.openai import OpenAIEmbedder

            return OpenAIEmbedder(found["model"], found["url"], api_key=api_key)
    raise AssertionError(spec)


def require_package(package: str, extra: str) -> str:
    """Return the directory of an optional package, without importing it.

    Raises:
        Unsupported: If it is missing. The message says what to install.
    """
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
