"""A run's tokenizer and vocabulary as a fast tokenizer of Transformers."""

from __future__ import annotations

import re
import sys

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from torch_pru.errors import PRUError
from torch_pru.lm.data.subwords import Subwords
from torch_pru.lm.data.text import EOS, UNKNOWN
from torch_pru.lm.data.tokenizer import SPACE, TAB, Tokenizer, word_pattern
from torch_pru.lm.data.vocabulary import Vocabulary

WHITE_SPACE = "".join(filter(str.isspace, map(chr, range(sys.maxunicode + 1))))
"""What Python's ``str.split`` splits at: more than the white space of ``tokenizers``."""


def fast_tokenizer(tokenizer: Tokenizer, vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """Numbers a text as ``vocabulary.encode(tokenizer(text))`` does, after an ``<eos>``.

    Line ends become ``<eos>``, which is also what a text begins with and what pads a batch.

    Example:
        >>> fast = fast_tokenizer(Tokenizer("spaces"), Vocabulary(["<eos>", "<unk>", "god", "said"]))
        >>> fast("god said golf").input_ids
        [0, 2, 3, 1]
    """
    if EOS not in vocabulary:
        raise PRUError(f"the vocabulary has no {EOS!r}, which a text begins with")
    fast = tokenizer.fast if isinstance(tokenizer, Subwords) else _word_level(tokenizer, vocabulary)
    special = {"bos_token": EOS, "eos_token": EOS, "pad_token": EOS}
    if vocabulary.unknown is not None:
        special["unk_token"] = UNKNOWN
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )


def _word_level(tokenizer: Tokenizer, vocabulary: Vocabulary) -> FastTokenizer:
    ids = {word: number for number, word in enumerate(vocabulary.words)}
    fast = FastTokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    fast.normalizer = normalizers.Sequence(_normalizers(tokenizer.name))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(_pattern(tokenizer.name)), "removed", invert=True)
    fast.post_processor = processors.TemplateProcessing(
        single=f"{EOS} $A", pair=f"{EOS} $A {EOS} $B", special_tokens=[(EOS, ids[EOS])]
    )
    if tokenizer.name == "characters":
        fast.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.Replace(TAB, "\t"), decoders.Fuse()]
        )
    return fast


def _normalizers(name: str) -> list[normalizers.Normalizer]:
    """What happens to a text before it is cut, as in `Tokenizer`."""
    replace = normalizers.Replace
    if name == "spaces":
        return [replace("\n", f" {EOS} ")]
    common = [normalizers.NFC(), replace("\r\n", "\n"), replace("\r", "\n")]
    if name == "characters":
        others = re.escape("".join(sign for sign in WHITE_SPACE if sign not in "\n\t"))
        return [*common, replace("\n", EOS), replace("\t", TAB), replace(Regex(f"[{others}]"), SPACE)]
    curly = [replace(sign, straight) for sign, straight in zip("‘’“”", "''\"\"", strict=True)]
    # Python lower-cases a sigma at the end of a word to another letter than elsewhere.
    final_sigma = replace(Regex(r"(?<=\p{L})Σ(?!\p{L})"), "ς")
    lower = [final_sigma, normalizers.Lowercase()] if name == "words" else []
    return [*common, *curly, *lower, replace("\n", f" {EOS} ")]


def _pattern(name: str) -> str:
    """What a token is."""
    if name == "spaces":
        return f"[^{re.escape(WHITE_SPACE)}]+"
    if name == "characters":
        return f"{EOS}|."
    return f"{EOS}|{word_pattern().pattern}".replace(r"\s", re.escape(WHITE_SPACE))
