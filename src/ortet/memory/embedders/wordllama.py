"""WordLlama: the vector of a text is the mean of the vectors of its tokens.

The files of the wheel are read here directly. Importing its package would set up logging for the
whole program and load an HTTP client. This is a module of its own because it needs an optional
package.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortet.memory.embedders.base import require_package
from ortet.memory.embedders.minilm import read_tensors

_MODEL = "l2_supercat"
_MAX_TEXT_CHARS = 20_000
"""Characters that are embedded. A mean over more text has no meaning."""


class WordLlama:
    """Embedder with 256 numbers per text, about 10,000 short texts per second on one core.

    It needs no download.
    """

    size = 256
    trust = 0.75  # measured with bench/memory_weights.py, as for the other embedders
    name = f"wordllama:{_MODEL}_{size}"

    def __init__(self) -> None:
        require_package("tokenizers", "embed")
        self._folder = Path(require_package("wordllama", "embed"))

    def embed(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), self.size), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            # One at a time: a batch starts threads, which do not survive a later fork(2).
            ids = self._tokenizer.encode(text[:_MAX_TEXT_CHARS], add_special_tokens=False).ids
            if ids:
                np.mean(self._table[ids], axis=0, dtype=np.float32, out=row)
        return vectors

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(
            str(self._folder / "tokenizers" / f"{_MODEL}_tokenizer_config.json")
        )
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _table(self) -> NDArray[np.float16]:
        weights = read_tensors(self._folder / "weights" / f"{_MODEL}_{self.size}.safetensors")
        return weights["embedding.weight"]
