"""Tokens of texts in several languages, and the text that tokens make."""

from __future__ import annotations

import pytest

from torch_pru.errors import PRUError
from torch_pru.lm.data.tokenizer import Tokenizer, choose_tokenizer, raw_pieces


@pytest.mark.parametrize(
    ("name", "text", "tokens"),
    [
        ("words", "Don't stop, John's dog!", ["don't", "stop", ",", "john", "'s", "dog", "!"]),
        ("cased-words", "Don’t “Stop”", ["Don't", '"', "Stop", '"']),
        ("words", "in 1,234.5 or 7.", ["in", "1,234.5", "or", "7", "."]),
        ("words", "a\r\nb\rc\n", ["a", "<eos>", "b", "<eos>", "c", "<eos>"]),
        ("words", "cafe\u0301 <unk>", ["café", "<unk>"]),  # NFC
        ("words", "الْعَرَبِيَّة، لغة", ["الْعَرَبِيَّة", "،", "لغة"]),
        ("words", "हिन्दी में", ["हिन्दी", "में"]),
        ("spaces", "a  b\r\n\nc", ["a", "b", "<eos>", "<eos>", "c"]),
        ("characters", "道 A\t\n", ["道", "▁", "A", "␉", "<eos>"]),
    ],
)
def test_tokens(name: str, text: str, tokens: list[str]) -> None:
    assert Tokenizer(name)(text) == tokens


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("words", "He said: \"I don't know (yet), my dog's is 7.\"\nThen we left.\n"),
        ("cased-words", "The U-turn, 50% of it!\nWhy?\n"),
        ("characters", "def f(x):\n\treturn x + 1\n"),
        ("characters", "道可道，非常道。\n"),
    ],
)
def test_joined_tokens_are_the_text_again(name: str, text: str) -> None:
    tokenizer = Tokenizer(name)
    assert tokenizer.join(tokenizer(text)) == text


def test_published_corpora_are_joined_too() -> None:
    tokens = ["the", "<unk>", "did", "n't", "rise", "N", "%", "in", "the", "u.s.", "<eos>", "<unk>", "said"]
    assert Tokenizer("spaces").join(tokens, sentence_case=True) == (
        "The <unk> didn't rise N% in the u.s.\n<unk> said"
    )
    assert Tokenizer("spaces").join(["a", "well", "@-@", "known", "1", "@,@", "000"]) == "a well-known 1,000"


def test_raw_tokens_have_spaces_between_them() -> None:
    assert "".join(raw_pieces(["a", ".", "<eos>", "b", "<eos>"])) == "a .\nb\n"


@pytest.mark.parametrize(
    ("sample", "name", "reason"),
    [
        ("Call me Ishmael. Some years ago, never mind how long, I went.", "words", ""),
        ("كان يا ما كان في قديم الزمان", "words", ""),
        ("나는 학교에 갑니다. 오늘은 날씨가 좋다.", "words", ""),
        ("吾輩は猫である。名前はまだ無い。", "characters", "without spaces"),
        ("ประเทศไทยเป็นประเทศ", "characters", "without spaces"),
        ("def f(x):\n    return [g(y) for y in x]\n", "characters", "source code"),
        ("12 34 56\n", "spaces", "no letters"),
    ],
)
def test_the_tokenizer_is_chosen_by_the_text(sample: str, name: str, reason: str) -> None:
    found, why = choose_tokenizer(sample)
    assert found == name
    assert reason in why
    assert bool(why) == bool(reason)


def test_an_unknown_tokenizer_is_refused() -> None:
    with pytest.raises(PRUError, match=r"tokenizer='word' is not known; .*did you mean 'words'"):
        Tokenizer("word")
