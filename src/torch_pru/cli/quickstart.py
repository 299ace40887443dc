"""What a run on the built-in text shows at its end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table

from torch_pru.cli.console import output
from torch_pru.cli.evaluate import keep
from torch_pru.cli.progress import bar

if TYPE_CHECKING:
    from torch_pru.lm.run import RunFolder

NEXT = """\
What to try next:
  {generate} --prompt "In the beginning" --temperature 0.8
  {evaluate} --split test --cache --tune
  pru train --set corpus=DIR   your own train.txt, valid.txt and test.txt
  pru recipes                  the paper's models
  pru data ptb                 then: pru train ptb-pru-g4"""


def show_quickstart(run: RunFolder) -> None:
    """Perplexities beside those of a count-based model, three sentences, and what to try next."""
    from torch_pru.lm.data import kneser_ney_bigram_perplexity
    from torch_pru.lm.evaluation import Evaluation, generate
    from torch_pru.lm.evaluation.static import format_perplexity
    from torch_pru.lm.run import pru_command

    console = output()
    work = Evaluation(run, run.config.training.device, progress_bar=bar)
    table = Table("perplexity", box=None, pad_edge=False)
    for heading in ("this\nmodel", "Kneser-Ney\nbigram", "better\nby"):  # in two lines it fits 40 columns
        table.add_column(heading, justify="right")
    for split in ("valid", "test"):
        ids = work.corpus.split(split)
        ours = work.scores.perplexity("static", split)
        if ours is None:  # else it is on record for these very weights
            entry = work.score("static", ids)
            keep(work, split, {"static": entry})
            ours = entry["perplexity"]
        bigram = kneser_ney_bigram_perplexity(work.corpus.train, ids, len(work.corpus.vocabulary))
        table.add_row(split, format_perplexity(ours), format_perplexity(bigram), f"{1 - ours / bigram:.0%}")
    console.print(table)
    words = generate(work.model, run.vocabulary, temperature=0.8, seed=run.config.training.seed)
    for sentence in islice(sentences(words), 3):
        console.print()
        console.print(Padding(sentence, (0, 0, 0, 2), expand=False))
    commands = {verb: pru_command(verb, run.path) for verb in ("generate", "evaluate")}
    console.print("\n" + NEXT.format(**commands), soft_wrap=True)


def sentences(words: Iterator[str]) -> Iterator[str]:
    """Words joined up to each ``<eos>``, empty sentences left out; one of 60 words is broken off.

    Example:
        >>> list(islice(sentences(iter(["<eos>", "he", "wept", "<eos>", "and"] * 2)), 2))
        ['he wept', 'and']
    """
    sentence: list[str] = []
    for word in words:
        if word != "<eos>":
            sentence.append(word)
        if sentence and (word == "<eos>" or len(sentence) == 60):
            yield " ".join(sentence)
            sentence = []
