"""Subwords: what is learned, that no text is lost, and which files are refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="needs tokenizers, of the extra torch-pru[lm]")

from torch_pru.errors import PRUError
from torch_pru.lm.config import DataConfig
from torch_pru.lm.data import Subwords, Tokenizer, encode_text, load_corpus, located, prepare_text
from torch_pru.lm.data import text as text_module

LINES = [f"the {kind} sat on the {place}, naïvely" for kind in ("cat", "dog") for place in ("mat", "roof")]


@pytest.fixture(scope="module")
def subwords() -> Subwords:
    return Subwords.learn("bpe:320", ["\n".join(LINES * 20)])


def test_any_text_comes_back(subwords: Subwords):
    drawn = random.Random(1)
    odd = "".join(
        chr(drawn.choice([0x20, 0x41, 0xE9, 0x3B1, 0x9053, 0x1F600, 0x2003, 0x09])) for _ in range(500)
    )
    for text in (*LINES, odd, "  two  spaces \n\nempty line", "<unk> <pad> [MASK]", "道可道"):
        assert subwords.join(subwords(text)) == text
        assert subwords.size(subwords(text)).bytes == len(text.encode())
    assert subwords("a\r\nb\rc\nd").count("<eos>") == 3
    assert subwords.encode("the cat") == [subwords.tokens.index(token) for token in subwords("the cat")]
    assert "Ġthe" in subwords.tokens


def test_a_character_appears_when_it_is_whole(subwords: Subwords):
    pieces = list(subwords.pieces(subwords("a道b")))
    assert "".join(pieces) == "a道b"
    assert pieces[:5] == ["a", "", "", "道", "b"]
    assert subwords.join(subwords("道")[:2]) == "\ufffd"  # cut in the middle


def test_words_are_those_between_white_space():
    drawn = random.Random(2)
    subwords = Subwords.learn("bpe:300", ["ab ba"])
    for _ in range(50):
        text = "".join(drawn.choice("ab  \n\t") for _ in range(30))
        expected = len(text.split()) + text.count("\n")
        assert subwords.size(subwords(text)).words == expected
        assert Tokenizer("characters").size(Tokenizer("characters")(text)).words == expected
        assert Tokenizer("spaces").size(Tokenizer("spaces")(text)).words == expected
    joined = Tokenizer("words").size(["he", "said", ",", '"', "no", '"', ".", "<eos>"])
    assert joined == (4, len('he said, "no".\n'))


def test_the_same_text_gives_the_same_file(subwords: Subwords):
    again = Subwords.learn("bpe:320", (f"{line}\n" for line in LINES * 20))
    assert again.to_bytes() == subwords.to_bytes()
    read = Subwords.from_bytes(subwords.to_bytes(), "tokenizer.json")
    assert read.to_bytes() == subwords.to_bytes()
    assert read.tokens[0] == "<eos>"
    assert len(read.tokens) <= 320


def test_only_the_training_text_is_learned_from(tmp_path: Path):
    for split, word in (("train", "wombat"), ("valid", "zebrafish"), ("test", "zebrafish")):
        (tmp_path / f"{split}.txt").write_text(f"the {word} sat\n" * 400)
    prepared = prepare_text([tmp_path], "mine", tokenizer="bpe:320", data_root=tmp_path / "data")
    for corpus in (
        load_corpus(tmp_path, "bpe:320"),
        load_corpus("mine", data_root=tmp_path / "data"),
    ):
        assert "Ġwombat" in corpus.vocabulary
        assert not any("zebra" in token for token in corpus.vocabulary.words)
        assert corpus.subwords is not None
        spelled = [corpus.vocabulary.word(number) for number in corpus.valid[:30].tolist()]
        assert corpus.subwords.join(spelled).startswith("the zebrafish sat\n")
    assert prepared.unknown == {"train": 0, "valid": 0, "test": 0}
    with pytest.raises(
        PRUError, match="was prepared with --tokens bpe:320, so tokenizer='words' does not fit"
    ):
        load_corpus("mine", "words", data_root=tmp_path / "data")


def test_parts_of_one_text_hold_all_of_it(tmp_path: Path):
    lines = [f"line {number} 道 {'x' * (number % 7)}" for number in range(4000)]
    (tmp_path / "book.txt").write_text("\n".join(lines) + "\n")
    prepare_text([tmp_path / "book.txt"], "book", tokenizer="bpe:400", data_root=tmp_path)
    corpus = load_corpus("book", data_root=tmp_path)
    assert corpus.subwords is not None
    parts = [
        corpus.subwords.join(map(corpus.vocabulary.word, corpus.split(split).tolist())).splitlines()
        for split in ("train", "valid", "test")
    ]
    assert sorted(line for part in parts for line in part) == sorted(lines)
    assert 0.03 < len(parts[1]) / len(lines) < 0.08


def test_tokens_do_not_depend_on_blocks(subwords: Subwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from torch_pru.lm.data import Vocabulary

    (tmp_path / "a.txt").write_text("\n".join(LINES * 50))
    vocabulary = Vocabulary(subwords.tokens)
    whole = encode_text(tmp_path / "a.txt", vocabulary, subwords).ids.tolist()
    monkeypatch.setattr(text_module, "CHUNK", 100)
    assert encode_text(tmp_path / "a.txt", vocabulary, subwords).ids.tolist() == whole


def test_a_file_of_others(subwords: Subwords, tmp_path: Path):
    content = json.loads(subwords.to_bytes())
    del content["added_tokens"], content["post_processor"], content["normalizer"]
    vocab = content["model"]["vocab"]
    del vocab["<eos>"]
    content["model"]["vocab"] = {token: number for number, token in enumerate(vocab)}
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]  # as before 0.20
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(content))
    found = Subwords.load(path)
    assert found.tokens[-1] == "<eos>"
    assert found("the cat\n") == subwords("the cat\n")
    assert located(DataConfig(str(tmp_path), str(path))).tokenizer == str(path)


HOSTILE = {
    "its model is 'Unigram'": lambda content: content["model"].update(type="Unigram"),
    "its pre-tokenizer must be ByteLevel": lambda content: content.update(
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": "(a+)+$"},
            "behavior": "Removed",
            "invert": False,
        }
    ),
    "it has dropout": lambda content: content["model"].update(dropout=0.5),
    "ids must be integers": lambda content: content["model"]["vocab"].update({"the": True}),
    "ids must count from 0": lambda content: content["model"]["vocab"].update({"the": 2**32 + 1}),
    "1 of the 256 bytes have no token": lambda content: content["model"]["vocab"].pop("Ġ"),
    "a token is not made of bytes": lambda content: content["model"]["vocab"].update({"a b": 320}),
    "a merge is not a pair": lambda content: content["model"]["merges"].append(["x", "yz"]),
    "the tokens or merges are missing": lambda content: content["model"].update(merges={}),
    "it is malformed": lambda content: content.update(model=[1, 2]),
}


@pytest.mark.parametrize("reason", HOSTILE)
def test_what_is_refused(reason: str, subwords: Subwords):
    content = json.loads(subwords.to_bytes())
    HOSTILE[reason](content)
    if "made of bytes" in reason:
        content["model"]["vocab"]["a b"] = len(subwords.tokens)
    if "no token" in reason:
        vocab = content["model"]["vocab"]
        content["model"]["vocab"] = {token: number for number, token in enumerate(vocab)}
    with pytest.raises(PRUError, match=reason) as error:
        Subwords.from_bytes(json.dumps(content).encode(), "tokenizer.json")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("tokenizer.json is not the file of a byte-level BPE: ")


def test_what_else_is_in_a_file_is_not_used(subwords: Subwords):
    content = json.loads(subwords.to_bytes())
    content["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
    content["added_tokens"] = [{"id": 5, "content": "the", "special": True}]
    content["truncation"] = {"max_length": 1}
    found = Subwords.from_bytes(json.dumps(content).encode(), "tokenizer.json")
    assert found.to_bytes() == subwords.to_bytes()


def test_names_of_tokenizers(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(PRUError, match="tokenizer='bpe:20' is too small; use at least bpe:300"):
        DataConfig(tokenizer="bpe:20")
    with pytest.raises(PRUError, match=r"tokenizer='bpe:' needs a vocabulary size, such as bpe:8000$"):
        DataConfig(tokenizer="bpe:")
    for name in ("bpe:0", "bpe:many", "bpe8000", "BPE:8000", "bpe:10000000"):
        with pytest.raises(
            PRUError, match=f"'{name}' is not .* number from 300 to 9999999, such as bpe:8000$"
        ):
            DataConfig(tokenizer=name)
    with pytest.raises(
        PRUError, match=r"'word' is not known; .* such as 'bpe:8000', .*; did you mean 'words'\?$"
    ):
        DataConfig(tokenizer="word")
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(PRUError, match=r"needs tokenizers; pip install 'torch-pru\[lm\]'"):
        Subwords.learn("bpe:300", ["a"])
