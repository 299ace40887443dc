"""Text to numbers: corpora, where they come from, vocabularies, columns, and a count-based baseline."""

from .columns import columns
from .corpus import Corpus, encode_text, load_corpus
from .kneser_ney import kneser_ney_bigram_perplexity
from .sources import adopt, fetch
from .vocabulary import Vocabulary

__all__ = [
    "Corpus",
    "Vocabulary",
    "adopt",
    "columns",
    "encode_text",
    "fetch",
    "kneser_ney_bigram_perplexity",
    "load_corpus",
]
