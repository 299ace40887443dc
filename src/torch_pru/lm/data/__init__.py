"""Text to numbers: corpora, where they come from, vocabularies, columns, and a count-based baseline."""

from torch_pru.lm.data.columns import columns
from torch_pru.lm.data.corpus import Corpus, count_unknown, encode_text, load_corpus, word_splitter
from torch_pru.lm.data.kneser_ney import kneser_ney_bigram_perplexity
from torch_pru.lm.data.sources import adopt, fetch
from torch_pru.lm.data.vocabulary import Vocabulary

__all__ = [
    "Corpus",
    "Vocabulary",
    "adopt",
    "columns",
    "count_unknown",
    "encode_text",
    "fetch",
    "kneser_ney_bigram_perplexity",
    "load_corpus",
    "word_splitter",
]
