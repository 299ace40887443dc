"""``pru generate``: text from a run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer

from torch_pru.cli.console import messages, output


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="Text to continue.")] = "",
    words: Annotated[
        int, typer.Option(min=1, help="Maximum number of tokens, including punctuation and line breaks.")
    ] = 100,
    count: Annotated[int, typer.Option(min=1, help="Number of texts.")] = 1,
    until: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Stop each text at the first occurrence of TEXT, for example '.'"),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(
            help="Below 1: more likely words; above 1: more surprising ones; 0: always the likeliest."
        ),
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Draw from the K likeliest words only.")
    ] = None,
    top_p: Annotated[
        float,
        typer.Option(metavar="P", help="Draw from the likeliest words whose probabilities add up to P."),
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same text.")
    ] = None,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Allow <unk>, the token for words outside the vocabulary.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the model's tokens, separated by spaces.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Generate text with a trained model.

    Words are printed as they are generated. Spacing and capitalization are restored; --raw prints the tokens
    unchanged.
    """
    from torch_pru.lm.data.tokenizer import raw_pieces
    from torch_pru.lm.device import autocast, choose_device, usable_precision
    from torch_pru.lm.evaluation import generate as generate_words
    from torch_pru.lm.run import RunFolder

    folder = RunFolder.open(run)
    chosen = choose_device(device)
    model = folder.model(device=chosen)
    vocabulary, tokenizer = folder.vocabulary, folder.tokenizer
    given = tokenizer(prompt)
    case = is_lower_case(vocabulary.words)
    console = output()
    for number in range(count):
        tokens = generate_words(
            model,
            vocabulary,
            given,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=None if seed is None else (seed + number) % 2**63,
            unknown=unknown,
        )
        if number == 0 and (unread := ", ".join(word for word in given if word not in vocabulary)):
            messages().print(f"outside the vocabulary, read as <unk>: {unread}", soft_wrap=True)
        with autocast(usable_precision(folder.config.training.precision, chosen, model), chosen):
            written = chain(given, islice(tokens, words))
            pieces = raw_pieces(written) if raw else tokenizer.pieces(written, sentence_case=case)
            for piece in up_to(until, pieces, skip=len(given)):
                console.print(piece, end="", soft_wrap=True)
                console.file.flush()
        console.print("\n" if number < count - 1 else "")


def is_lower_case(words: tuple[str, ...]) -> bool:
    """Whether a text was lower-cased: of its words, hardly any has a capital (in PTB, N for a number).

    Example:
        >>> is_lower_case(("the", "cat")), is_lower_case(("The", "cat"))
        (True, False)
    """
    letters = [word for word in words if word[0].isalpha()]
    return sum(word != word.lower() for word in letters) < 0.01 * len(letters)


def up_to(end: str | None, pieces: Iterator[str], *, skip: int) -> Iterator[str]:
    """Pieces of a text up to and including the first ``end`` after the first ``skip`` pieces.

    Example:
        >>> "".join(up_to(".", iter(["a.", " b", ".", " c"]), skip=1))
        'a. b.'
    """
    text = ""
    for number, piece in enumerate(pieces):
        yield piece
        if end is not None and number >= skip:
            text = (text + piece)[-len(piece) - len(end) :]
            if end in text:
                return
