"""Text to numbers: corpora, where they come from, vocabularies, columns, and a count-based baseline."""

from torch_pru.lm.data.columns import columns
from torch_pru.lm.data.corpus import Corpus, EncodedText, encode_text, load_corpus, located, tokenizer_of
from torch_pru.lm.data.kneser_ney import kneser_ney_bigram_perplexity
from torch_pru.lm.data.prepare import PreparedText, prepare_text
from torch_pru.lm.data.sources import adopt, fetch
from torch_pru.lm.data.subwords import Subwords
from torch_pru.lm.data.tokenizer import TOKENIZERS, TextSize, Tokenizer
from torch_pru.lm.data.vocabulary import Vocabulary

__all__ = [
    "TOKENIZERS",
    "Corpus",
    "EncodedText",
    "PreparedText",
    "Subwords",
    "TextSize",
    "Tokenizer",
    "Vocabulary",
    "adopt",
    "columns",
    "encode_text",
    "fetch",
    "kneser_ney_bigram_perplexity",
    "load_corpus",
    "located",
    "prepare_text",
    "tokenizer_of",
]
