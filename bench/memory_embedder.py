"""The one embedder of all systems in the memory part: wordllama, 256 numbers a text, from its
wheel. Questions are embedded before they are asked, so that no system's time has that in it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NAME = "wordllama"
SIZE = 256
_AT_ONCE = 64


def available() -> bool:
    """Whether this Python has it, and what it takes."""
    return find_spec(NAME) is not None and find_spec("numpy") is not None


class Embedder:
    """Vectors of length 1, as numpy rows."""

    name = NAME
    size = SIZE

    def __init__(self) -> None:
        package: Any = import_module(NAME)
        home = Path(package.__file__).parent
        self._model = package.WordLlama.load(cache_dir=home, disable_download=True)
        self._known: dict[str, Any] = {}

    def prepare(self, texts: Sequence[str]) -> None:
        """They will be asked for, one at a time."""
        for text, vector in zip(texts, self._model.embed(list(texts), norm=True), strict=True):
            self._known[text] = vector

    def embed(self, texts: Sequence[str]) -> Any:
        if len(texts) == 1 and texts[0] in self._known:
            return self._known[texts[0]][None, :]
        return self._model.embed(list(texts), norm=True)

    def lists(self, texts: Sequence[str]) -> list[list[float]]:
        """For those who want plain numbers."""
        found: list[list[float]] = self.embed(texts).tolist()
        return found


class Ours:
    """One of Ortet's own embedders, likewise; each text is embedded once."""

    def __init__(self, spec: str) -> None:
        from ortet.memory.embedders.lookup import find_embedder

        self._model = find_embedder(spec)
        self._known: dict[str, Any] = {}

    def embed(self, texts: Sequence[str]) -> Any:
        np: Any = import_module("numpy")
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        for start in range(0, len(new), _AT_ONCE):
            some = new[start : start + _AT_ONCE]
            rows = np.asarray(self._model.embed(some))
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
            self._known.update(zip(some, rows, strict=True))
        return np.stack([self._known[text] for text in texts])


def trust(spec: str | None) -> float:
    """How much the order of an embedder counts, as Ortet has it."""
    from ortet.memory.embedders.base import trust_of
    from ortet.memory.embedders.lookup import find_embedder

    return trust_of(find_embedder(spec or NAME)) if spec or available() else 0.0
