"""WordLlama: a text's vector is the mean of its tokens' vectors. Small, and its wheel holds all.

The files of the wheel are read here: its package sets up logging for the whole program when it is
imported, and brings an HTTP client along, to average rows of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortet.memory.embedders.base import require_package
from ortet.memory.embedders.tensors import read_tensors

_MODEL = "l2_supercat"
_MAX_TEXT_CHARS = 20_000
"""Characters that are looked at: the mean of more says nothing."""


class WordLlama:
    """256 numbers a text, about ten thousand short texts a second on one core, no download."""

    size = 256
    trust = 0.75  # measured, as those of the others: bench/memory_weights.py
    name = f"wordllama:{_MODEL}_{size}"

    def __init__(self) -> None:
        require_package("tokenizers", "embed")
        self._folder = Path(require_package("wordllama", "embed"))

    def embed(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        made = np.zeros((len(texts), self.size), np.float32)
        for row, text in zip(made, texts, strict=True):
            # One at a time: a batch would start threads, which a later fork(2) does not survive.
            ids = self._tokenizer.encode(text[:_MAX_TEXT_CHARS], add_special_tokens=False).ids
            if ids:
                np.mean(self._table[ids], axis=0, dtype=np.float32, out=row)
        return made

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        found = Tokenizer.from_file(
            str(self._folder / "tokenizers" / f"{_MODEL}_tokenizer_config.json")
        )
        found.no_truncation()
        found.no_padding()
        return found

    @cached_property
    def _table(self) -> NDArray[np.float16]:
        weights = read_tensors(self._folder / "weights" / f"{_MODEL}_{self.size}.safetensors")
        return weights["embedding.weight"]
