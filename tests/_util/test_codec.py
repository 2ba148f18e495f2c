from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard  # noqa: F401 - used where it is loaded
from hypothesis import given
from hypothesis import strategies as st

from ortet._util.codec import (
    ZSTD_MAGIC,
    Compressor,
    Decompressor,
    Hasher,
    StoredRecord,
    checksum,
    decode,
    decompress,
    decompress_bounded,
    encode,
    to_json,
)
from ortet.errors import Corrupt


class Pair(StoredRecord, frozen=True):
    left: int
    right: dict[str, int] = {}


class PairV2(StoredRecord, frozen=True):
    left: int
    right: dict[str, int] = {}
    extra: str = "default"


def test_the_same_value_has_one_encoding() -> None:
    assert encode(Pair(1, {"b": 2, "a": 1})) == encode(Pair(1, {"a": 1, "b": 2}))


def test_fields_may_be_appended() -> None:
    assert decode(PairV2, encode(Pair(1))) == PairV2(1)
    assert decode(Pair, encode(PairV2(1, extra="new"))) == Pair(1)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x93\x01", encode("text"), encode(Pair(1)) + b"\0"]
)
def test_malformed_bytes_decode_to_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(Pair, data)


def test_object_ids_match_the_blake3_test_vectors() -> None:
    """Test vectors of BLAKE3 itself: the id of an object must never change."""
    assert Hasher().oid(b"").hex() == (
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    )
    assert Hasher().oid(b"ortet").hex() == Hasher().oid(memoryview(b"ortet")).hex()


def test_tenants_share_no_ids() -> None:
    one, two, open_ = Hasher(b"1" * 32), Hasher(b"2" * 32), Hasher()
    assert len({hasher.oid(b"same") for hasher in (one, two, open_)}) == 3
    assert len({one.key_id, two.key_id, open_.key_id}) == 3
    assert open_.key_id == bytes(8)


@given(st.binary(max_size=10_000))
def test_compressed_data_decompresses_to_the_same_bytes(data: bytes) -> None:
    assert decompress(Compressor().compress(data), len(data)) == data


def test_compressed_data_says_its_size() -> None:
    data = b"text " * 100
    packed = Compressor().compress(data)
    assert packed.startswith(ZSTD_MAGIC)
    assert decompress_bounded(packed, 500) == data
    for bad, most in ((packed, 499), (packed[:-3], 500), (ZSTD_MAGIC, 500), (b"garbage", 500)):
        with pytest.raises(Corrupt):
            decompress_bounded(bad, most)


@pytest.mark.parametrize("loaded", [True, False])
def test_an_expander_expands_with_and_without_the_c_module(
    monkeypatch: pytest.MonkeyPatch, *, loaded: bool
) -> None:
    if not loaded:
        monkeypatch.delitem(sys.modules, "zstandard")
    expander, compressor = Decompressor(), Compressor()
    for data in (b"", b"a", b"text " * 100, random.Random(1).randbytes(300_000)):
        assert expander.decompress(compressor.compress(data), len(data)) == data
    packed = compressor.compress(b"text " * 100)
    for bad, most in ((packed, 499), (packed[:-3], 500), (ZSTD_MAGIC, 500), (b"garbage", 500)):
        with pytest.raises(Corrupt):
            expander.decompress(bad, most)
    assert expander.decompress(packed, 500) == b"text " * 100
    assert (expander._context is not None) is loaded


def test_an_expander_is_used_by_many_threads() -> None:
    expander, compressor = Decompressor(), Compressor()
    texts = [f"{number} ".encode() * 2000 for number in range(50)]
    packed = [compressor.compress(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: expander.decompress(one, 1 << 20), packed * 20))
    assert found == texts * 20


def test_a_compressor_is_reusable() -> None:
    compressor = Compressor()
    packed = [compressor.compress(b"a" * n) for n in (1, 1000, 10)]
    assert [decompress(p, n) for p, n in zip(packed, (1, 1000, 10), strict=True)] == [
        b"a" * n for n in (1, 1000, 10)
    ]


def test_a_bomb_is_refused_without_expanding_it() -> None:
    bomb = Compressor().compress(bytes(50_000_000))
    with pytest.raises(Corrupt) as caught:
        decompress(bomb, 1000)
    assert "1001 bytes" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"garbage", Compressor().compress(b"whole" * 100)[:-3]])
def test_damaged_compression_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decompress(data, 500)


def test_a_checksum_does_not_depend_on_the_split() -> None:
    assert checksum(b"ab", b"c") == checksum(b"abc")
    assert checksum(b"abc") != checksum(b"abd")
    assert len(checksum(b"")) == 8


def test_to_json_sorts_keys_and_writes_no_spaces() -> None:
    assert to_json({"b": 1, "a": [2]}) == '{"a":[2],"b":1}'
