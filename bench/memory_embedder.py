"""The one embedder of all systems in the memory part: wordllama, 256 numbers a text, from its
wheel. What was embedded once is kept, so that no system's time has the embedding of the query."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NAME = "wordllama"
SIZE = 256


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

    def embed(self, texts: Sequence[str]) -> Any:
        numpy: Any = import_module("numpy")
        new = list(dict.fromkeys(text for text in texts if text not in self._known))
        if new:
            for text, vector in zip(new, self._model.embed(new, norm=True), strict=True):
                self._known[text] = vector
        return numpy.stack([self._known[text] for text in texts])

    def lists(self, texts: Sequence[str]) -> list[list[float]]:
        """For those who want plain numbers."""
        found: list[list[float]] = self.embed(texts).tolist()
        return found
