"""Tokens: the same for what is asked and what was said, in any script, of any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortet.memory.lexical.tokenizer import MAX_WORD_CHARS, Tokenizer


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return Tokenizer()


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("She was running", "runs"),
        ("the conversations", "conversation"),
        ("Caroline's dog", "caroline"),
        ("I don’t know", "don't"),
        ("call parse_config_file now", "config"),
        ("call parse_config_file now", "parse_config_file"),
        ("class HttpServerError", "server"),
        ("class HttpServerError", "HTTPSERVERERROR"),
        ("the XMLParser of it", "parser"),
        ("see src/app/main_loop.py:12", "main_loop.py"),
        ("see src/app/main_loop.py:12", "loop"),
        ("at https://example.com/docs/start", "example.com"),
        ("write to ann@mail.example", "ann@mail.example"),
        ("we use gpt-4 and GPT4", "gpt4"),
        ("check-in is at noon", "checkin"),
        ("since 2024-05-07", "2024-05-07"),
        ("since 2024-05-07", "2024"),
        ("costs 3.14 euros", "3.14"),
        ("written in C++ or C#", "c++"),
        ("我喜欢猫", "猫"),
        ("我喜欢猫", "喜欢"),
        ("東京タワーに行った", "東京"),
        ("ｶﾀｶﾅ", "カタカナ"),
        ("한국어를 배우다", "한국어"),
        ("สวัสดีครับ", "สวัสดี"),
        ("مَرْحَبًا بالعالم", "مرحبا"),
        ("שָׁלוֹם עולם", "שלום"),
        ("हिन्दी में बात", "हिन्दी"),
        ("une soirée au café", "cafe"),
        ("die Straße", "STRASSE"),
        ("İstanbul'da", "istanbul"),
        ("ＦＵＬＬ width", "full"),
        ("pizza 🍕 tonight", "🍕"),
        ("off to space 👩🏽‍🚀", "👩‍🚀"),
        ("team 🇩🇪 won", "🇩🇪"),
        ("with love ❤️", "❤"),
        ("co\u00adoperate", "cooperate"),
        ("“quoted”—dash", "quoted"),
    ],
)
def test_query_terms_match_the_tokens_of_the_text(words: Tokenizer, said: str, asked: str) -> None:
    terms = words.query_terms(asked)
    assert terms
    assert set(terms) <= set(words.tokens(said))


@pytest.mark.parametrize("nothing", ["", " \t\n", "?!… —", "\0\0", "\ud800", "\u200b\u200f"])
def test_text_without_words_has_no_tokens(words: Tokenizer, nothing: str) -> None:
    assert words.tokens(nothing) == []
    assert words.query_terms(nothing) == []


def test_each_flag_emoji_is_one_token(words: Tokenizer) -> None:
    assert words.tokens("🇩🇪🇫🇷") == ["🇩🇪", "🇫🇷"]


def test_marks_that_change_a_letter_are_kept(words: Tokenizer) -> None:
    assert words.tokens("か") != words.tokens("が")
    assert words.tokens("कि") != words.tokens("की")


def test_a_hexadecimal_hash_is_one_token(words: Tokenizer) -> None:
    assert words.tokens("a3f9c2d7") == ["a3f9c2d7"]


def test_tokens_repeat_as_often_as_in_the_text(words: Tokenizer) -> None:
    assert words.tokens("tea or more tea") == ["tea", "or", "more", "tea"]
    assert words.query_terms("tea or more tea") == ["tea", "or", "more"]


def test_long_words_are_cut_to_the_same_token(words: Tokenizer) -> None:
    assert words.tokens("x" * 5000) == words.tokens("x" * 900) == ["x" * MAX_WORD_CHARS]


def test_a_very_long_question_is_cut(words: Tokenizer) -> None:
    asked = words.query_terms("zebra " + " ".join(f"word{number}x" for number in range(200_000)))
    assert asked[0] == "zebra"
    assert len(asked) <= 256


def test_the_token_cache_is_bounded(words: Tokenizer) -> None:
    for start in range(0, 80_000, 10_000):
        words.tokens(" ".join(f"n{number}q" for number in range(start, start + 10_000)))
    assert len(words._cache) <= 1 << 15


@given(st.text())
def test_any_text_has_stable_tokens_without_spaces(words: Tokenizer, text: str) -> None:
    tokens = words.tokens(text)
    assert tokens == words.tokens(text)
    for token in tokens:
        assert token
        assert not any(character.isspace() or character == "\0" for character in token)
        token.encode()
    assert set(words.query_terms(text)) <= set(tokens)


@given(st.lists(st.sampled_from([*"ab-_./:@'+# é猫🍕", "A1", "://"]), max_size=12))
def test_any_mix_of_joints_and_letters_gives_clean_tokens(
    words: Tokenizer, parts: list[str]
) -> None:
    text = "".join(parts)
    tokens = words.tokens(text)
    assert " " not in "".join(tokens)
    assert bool(tokens) == any(part.isalnum() or part == "🍕" for part in parts)
