"""The page's tokenizer beside the package's, for every character there is."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest

from torch_pru.lm.data.tokenizer import TOKENIZERS, Tokenizer

PAGE = Path(__file__).parents[2] / "page"
PROGRAM = """
import { tokenize } from './src/tokenizer.js';
import { readFileSync } from 'node:fs';
const { name, texts } = JSON.parse(readFileSync(0, 'utf8'));
process.stdout.write(JSON.stringify(texts.map((text) => tokenize(name, text).map(({ token }) => token))));
"""
ODD = [
    *(
        "\n",
        "\r\n",
        "\r",
        " ",
        "\t",
        "\u00a0",
        "\u2028",
        "\x1c",
        "\x85",
        "\ufeff",
        "\0",
        "'",
        "’",
        "“",
        "”",
        "'s",
        "s",
    ),
    *(
        "-",
        "--",
        ".",
        ",",
        "3",
        "3.5",
        "٣",
        "½",
        "Ⅷ",
        "<unk>",
        "<eos>",
        "_",
        "a",
        "Σ",
        "ΑΣ",
        "İ",
        "ß",
        "é",
        "e\u0301",
    ),
    *(
        "\u0301",
        "क",
        "क्षि",
        "한",
        "각",
        "漢",
        "😀",
        "👩‍👩‍👧",
        "𝒳",
        "𐐀",
        "\U00011038",
        "ﬁ",
        "Å",
        "…",
        "&",
        "<script>",
        "n't",
    ),
]


def tokens_of_the_page(name: str, texts: list[str]) -> list[list[str]]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node is installed")
    given = json.dumps({"name": name, "texts": texts})
    command = [node, "--input-type=module", "--eval", PROGRAM]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True, cwd=PAGE)
    found: list[list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_are_the_same(name: str):
    draw = random.Random(1)
    texts = ["".join(draw.choices(ODD, k=draw.randrange(1, 12))) for _ in range(3000)]
    tokenizer = Tokenizer(name)
    for text, found in zip(texts, tokens_of_the_page(name, texts), strict=True):
        assert found == tokenizer(text), (name, text)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_character(name: str):
    """Alone and between two letters; but not those that Python's version of Unicode does not know."""
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    known = [each for each in characters if unicodedata.category(each) not in ("Cn", "Co")]
    assert len(known) > 140_000
    tokenizer = Tokenizer(name)
    texts = [text for each in known for text in (each, f"a{each}B")]
    different = [
        text
        for text, found in zip(texts, tokens_of_the_page(name, texts), strict=True)
        if found != tokenizer(text)
    ]
    assert different == []
