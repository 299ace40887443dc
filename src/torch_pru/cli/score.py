"""``pru score``: the log-probability of every token of a text."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torch_pru.cli.console import messages
from torch_pru.cli.progress import bar
from torch_pru.errors import PRUError, check_choice

if TYPE_CHECKING:
    from torch_pru.lm.scoring import ScoredWords, WordScore

STDIN = 0


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A text, or - for standard input.")],
    output_format: Annotated[
        str, typer.Option("--format", help="tsv, or jsonl for one JSON object per line.")
    ] = "tsv",
    per: Annotated[
        str, typer.Option(help="A line per token, or per word: the sum over the subwords or characters.")
    ] = "token",
    bos: Annotated[
        bool,
        typer.Option(
            "--bos/--no-bos",
            help="Score the first token, too, as if an <eos> stood before it: there is no token for the "
            "beginning of a text. With --no-bos it has no score and is not counted, as in pru evaluate.",
        ),
    ] = True,
    adapt: Annotated[
        bool, typer.Option("--adapt", help="Learn from the text while reading it (dynamic evaluation).")
    ] = False,
    cache: Annotated[bool, typer.Option("--cache", help="Remember recent words (continuous cache).")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Print log-probabilities of tokens.

    The text is split into tokens as the run's corpus is; punctuation marks and the <eos> after every line are
    tokens, too. The columns are the token (with --per word, the word), its log-probability (natural
    logarithm), its surprisal in bits, and 1 if it is read as <unk>, else 0. A token is read as <unk> if it is
    outside the run's vocabulary, or <unk> in the text itself; its score is that of <unk>. The totals are
    printed to standard error.

    A text of any length is read in constant memory.
    """
    from torch_pru.lm.evaluation.static import format_perplexity, perplexity
    from torch_pru.lm.scoring import Scorer, by_word
    from torch_pru.lm.visible import count

    check_choice("--format", output_format, FORMATS)
    check_choice("--per", per, ("token", "word"))
    line_of = FORMATS[output_format]
    scorer = Scorer.open(run, device=device, adapt=adapt, cache=cache, progress_bar=bar)
    total, scored, unknown = 0.0, 0, 0

    def parts() -> Iterator[ScoredWords]:
        nonlocal total, scored, unknown
        for part in scorer.read_file(STDIN if str(file) == "-" else file, bos=bos):
            yield part
            total, scored, unknown = total + part.total, scored + part.count, unknown + sum(part.unknown)

    scores: Iterator[WordScore] = chain.from_iterable(parts())
    if per == "word" and not scorer.tokenizer.whole_words:
        scores = by_word(scores, scorer.tokenizer)
    heading = f"{per}\tlog_probability\tsurprisal\tunknown\n" if output_format == "tsv" else ""
    for one in scores:
        sys.stdout.write(heading + line_of(one, per))
        heading = ""  # printed with the first line, when the file could be opened
    if scored == 0:
        raise PRUError(nothing_to_score(file, bos=bos))
    mean = format_perplexity(perplexity(-total / scored))
    summary = f"{count(scored, 'token')}, log-probability {total:.6f}, perplexity {mean}"
    messages().print(f"{summary}, read as <unk>: {unknown:,}", soft_wrap=True)


def nothing_to_score(file: Path, *, bos: bool) -> str:
    """The message about a text without a token to score.

    Example:
        >>> nothing_to_score(Path("-"), bos=True)
        'standard input has no tokens to score'
        >>> nothing_to_score(Path("a.txt"), bos=False)
        'a.txt has no tokens to score; with --no-bos, a text needs at least 2 tokens'
    """
    name = "standard input" if str(file) == "-" else str(file)
    return f"{name} has no tokens to score" + (
        "" if bos else "; with --no-bos, a text needs at least 2 tokens"
    )


def tsv_line(score: WordScore, per: str = "token") -> str:
    """The columns of a token or word; a missing score is empty.

    Example:
        >>> from torch_pru.lm.scoring import WordScore
        >>> tsv_line(WordScore("god", -1.5, unknown=False))
        'god\\t-1.5\\t2.16404256\\t0\\n'
    """
    if math.isnan(score.log_probability):
        return f"{score.word}\t\t\t{score.unknown:d}\n"
    return f"{score.word}\t{score.log_probability:.9g}\t{score.surprisal:.9g}\t{score.unknown:d}\n"


def json_line(score: WordScore, per: str = "token") -> str:
    """The same as a JSON object, with the token or word under the name ``per``; a missing score is null.

    Example:
        >>> from torch_pru.lm.scoring import WordScore
        >>> json_line(WordScore("god", -1.5, unknown=False))
        '{"token": "god", "log_probability": -1.5, "surprisal": 2.16404256, "unknown": false}\\n'
    """
    missing = math.isnan(score.log_probability)
    values = {
        per: score.word,
        "log_probability": None if missing else float(f"{score.log_probability:.9g}"),
        "surprisal": None if missing else float(f"{score.surprisal:.9g}"),
        "unknown": score.unknown,
    }
    return json.dumps(values, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[WordScore, str], str]] = {"tsv": tsv_line, "jsonl": json_line}
