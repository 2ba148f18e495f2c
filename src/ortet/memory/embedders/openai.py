"""Embedder for any HTTP endpoint with OpenAI's /v1/embeddings."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from ortet.memory.embedders.base import Floats

_MAX_TEXT_CHARS = 8000
"""Characters of a text that are sent. Most models refuse more than 8192 tokens."""
_MAX_RESPONSE_BYTES = 256 << 20
"""Largest size of a response."""


class _EmbeddingItem(msgspec.Struct):
    index: int
    embedding: list[float]


class _EmbeddingsResponse(msgspec.Struct):
    data: list[_EmbeddingItem]


class OpenAIEmbedder:
    """Embedder that calls an HTTP endpoint. Its name is the model and the address.

    The key is sent to that address only. It is not in names, errors or files. Redirects are
    refused.
    """

    trust = 1.0

    def __init__(
        self, model: str, url: str, *, api_key: str = "", timeout: float = 30.0, batch: int = 128
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise Invalid(
                "bad_url",
                "an embedder's address looks like https://host/v1: give it without a user or a "
                "password, the key as api_key",
            )
        self.name = f"openai:{model}@{parts.netloc}{parts.path.rstrip('/')}"
        self._model = model
        self._url = f"{url.rstrip('/')}/embeddings"
        self._key = api_key
        self._timeout = timeout
        self._batch = batch
        self._opener = urllib.request.build_opener(_NoRedirect)

    def embed(self, texts: Sequence[str], /) -> Floats:
        vectors: list[list[float]] = []
        for start in range(0, len(texts), self._batch):
            vectors += self._request_embeddings(
                [text[:_MAX_TEXT_CHARS] for text in texts[start : start + self._batch]]
            )
        return vectors

    def _request_embeddings(self, texts: Sequence[str]) -> list[list[float]]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        body = msgspec.json.encode({"model": self._model, "input": texts})
        request = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                answer = response.read(_MAX_RESPONSE_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                message = self._without_key(error.read(300).decode("utf-8", "replace"))
            raise Unavailable(
                "embedder_refused",
                f"{self._url} answered {error.code}: {message}",
                status=error.code,
            ) from None
        except (OSError, HTTPException) as error:
            message = self._without_key(str(error))
            raise Unavailable("no_embedder", f"{self._url} cannot be reached: {message}") from None
        try:
            items = msgspec.json.decode(answer, type=thread_safe_struct(_EmbeddingsResponse)).data
        except msgspec.DecodeError as error:
            raise Unavailable(
                "embedder_nonsense", f"{self._url} answered with no embeddings: {error}"
            ) from None
        items.sort(key=lambda item: item.index)
        if [item.index for item in items] != list(range(len(texts))):
            raise Unavailable(
                "embedder_nonsense",
                f"{self._url} gave {len(items)} vectors for {len(texts)} texts",
            )
        return [item.embedding for item in items]

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "…") if self._key else text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because urllib would send the key to the new address."""

    def redirect_request(self, *_given: Any, **_named: Any) -> None:
        return None
