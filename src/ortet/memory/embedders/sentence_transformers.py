"""Embedder for any model of sentence-transformers, by name or directory.

This is a module of its own because it needs an optional package.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ortet.memory.embedders.base import require_package

if TYPE_CHECKING:
    from ortet.memory.embedders.base import Floats


class SentenceTransformers:
    """Embedder that runs a sentence-transformers model. `model` is its name or directory."""

    trust = 1.0

    def __init__(self, model: str) -> None:
        require_package("sentence_transformers", "transformers")
        self.name = f"sentence-transformers:{model}"
        self._model_name = model

    def embed(self, texts: Sequence[str], /) -> Floats:
        vectors: Floats = self._model.encode(
            list(texts), convert_to_numpy=True, show_progress_bar=False
        )
        return vectors

    @cached_property
    def _model(self) -> Any:
        # Loading takes seconds and hundreds of megabytes, so it waits for the first text.
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found,unused-ignore]

        return SentenceTransformer(self._model_name)
