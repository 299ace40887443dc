"""``pru generate``: text from a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from torch_pru.cli.console import messages, output


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    prompt: Annotated[str, typer.Option(help="Words to go on from.")] = "",
    words: Annotated[int, typer.Option(min=1, help="How many words; punctuation and line ends count.")] = 100,
    temperature: Annotated[
        float, typer.Option(help="Below 1 likelier words, above 1 wilder; 0: the likeliest.")
    ] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest words only.")] = None,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest words that add up to this.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same text.")
    ] = None,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Let <unk> be drawn; otherwise it never is.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Write text, word by word.

    Each is shown as it comes; a sentence ends in a line break.
    """
    from itertools import islice

    from torch_pru.lm.data import word_splitter
    from torch_pru.lm.device import choose_device
    from torch_pru.lm.evaluation import generate as generate_words
    from torch_pru.lm.run import RunFolder
    from torch_pru.lm.training.precision import computing, usable_precision

    folder = RunFolder.open(run)
    vocabulary = folder.vocabulary
    given = word_splitter(folder.config.data.corpus)(prompt)
    chosen = choose_device(device)
    model = folder.model(device=chosen)
    drawn = generate_words(
        model,
        vocabulary,
        given,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        unknown=unknown,
    )
    if unread := ", ".join(word for word in given if word not in vocabulary):
        messages().print(f"not in the run's vocabulary, so read as <unk>: {unread}", soft_wrap=True)
    console = output()
    with computing(usable_precision(folder.config.training.precision, chosen, model), chosen):
        for piece in lines_of(given, islice(drawn, words)):
            console.print(piece, end="", soft_wrap=True)
            console.file.flush()
    console.print()


def lines_of(prompt: list[str], drawn: Iterator[str]) -> Iterator[str]:
    """Words with the space or line break before each; ``<eos>`` is a line break.

    Example:
        >>> "".join(lines_of(["in"], iter(["the", "<eos>", "and"])))
        'in the\\nand'
    """
    from torch_pru.lm.data.text import EOS

    yield " ".join(prompt)
    gap = " " if prompt else ""
    for word in drawn:
        if word == EOS:
            yield "\n"
            gap = ""
        else:
            yield gap + word
            gap = " "
