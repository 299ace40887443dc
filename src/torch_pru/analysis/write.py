"""Write analyses of runs to a folder: figures, numbers and a page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from torch_pru.analysis.kinds import ANALYSES, Options
from torch_pru.analysis.page import Picture, Section, page
from torch_pru.analysis.runs import Comparison, open_runs
from torch_pru.analysis.saliency import Sentence
from torch_pru.analysis.speech import load_tagger
from torch_pru.errors import PRUError, check_choice
from torch_pru.lm.data.storage import write_aside
from torch_pru.lm.progress import ProgressBar, no_progress_bar


def analyze(
    folders: Iterable[str | Path],
    out: str | Path,
    *,
    only: Iterable[str] | None = None,
    sentences: Iterable[str] | None = None,
    top1: bool = False,
    device: torch.device | str = "cpu",
    progress_bar: ProgressBar = no_progress_bar,
) -> list[Section]:
    """Write figures (SVG, PNG), their numbers (JSON) and ``index.html`` for runs, side by side.

    Without ``only``, analyses that are not possible are left out; their sections say why.

    Args:
        folders: run folders. All analyses but ``curves`` and ``sweep`` need their weights.
        out: the folder to write to.
        only: names of analyses in `ANALYSES`; all by default.
        sentences: for ``saliency``, with the word to predict in brackets; see `parse_sentence`.
        top1: ``saliency`` explains each model's most likely word instead of the reference.
        device: device of the models.
        progress_bar: shows progress.

    Returns:
        The sections of the page.

    Example:
        >>> runs = ["runs/ptb-pru-g4-1"]                                    # doctest: +SKIP
        >>> sections = analyze(runs, "figures", only=["curves"])            # doctest: +SKIP
        >>> sections[0].sentence                                            # doctest: +SKIP
        'Lowest validation perplexity during training: 64.61 after epoch 482 of 500 for ptb-pru-g4-1.'
    """
    chosen = choose(only)
    compared = Comparison(open_runs(folders), device)
    options = prepare(compared, chosen, only is not None, sentences, top1, progress_bar)
    folder, sections = Path(out), []
    for name in chosen:
        try:
            data = ANALYSES[name].compute(compared, options)
        except PRUError as error:
            if only is not None:
                raise
            sections.append(Section(name, ANALYSES[name].title, f"Left out: {error}", []))
            continue
        write_json(folder / f"{name}.json", data)
        sections.append(write_section(folder, name, data))
    title = f"Analysis of {', '.join(compared.runs)}"
    write_file(folder / "index.html", page(title, sections).encode())
    return sections


def choose(only: Iterable[str] | None) -> list[str]:
    """The requested analyses, in the order of `ANALYSES`.

    Example:
        >>> choose(["sweep", "curves"])
        ['curves', 'sweep']
    """
    asked = list(ANALYSES) if only is None else list(only)
    for name in asked:
        check_choice("only", name, ANALYSES)
    if not asked:
        raise PRUError(f"only=[] selects nothing; use some of {', '.join(ANALYSES)}")
    return [name for name in ANALYSES if name in asked]


def prepare(
    compared: Comparison,
    chosen: list[str],
    asked: bool,
    sentences: Iterable[str] | None,
    top1: bool,
    progress_bar: ProgressBar,
) -> Options:
    """Find errors before the long computations start: in the sentences, and in what ``only`` needs."""
    if "saliency" not in chosen and (sentences is not None or top1):
        raise PRUError(
            "sentences and top1 are options of saliency, which is not selected; select it, or leave them out"
        )
    import torch_pru.analysis.figures.style  # noqa: F401 (raises if Matplotlib is missing)

    given: list[Sentence] = []
    weighed = [name for name in chosen if asked and ANALYSES[name].weights]
    if weighed:
        _ = compared.models, compared.vocabulary
    if weighed and (sentences is None or weighed != ["saliency"]):
        _ = compared.corpus
    if asked and "embeddings" in chosen:
        load_tagger()
    if sentences is not None:
        given = compared.sentences(sentences)
    return Options(given, top1, progress_bar)


def write_section(folder: Path, name: str, data: Any) -> Section:
    """Draw and write the figures of an analysis."""
    from torch_pru.analysis.figures.style import render

    sentence, drawn = ANALYSES[name].show(data)
    pictures = []
    for one in drawn:
        svg = render(one.figure, "svg")
        write_file(folder / f"{one.name}.svg", svg)
        write_file(folder / f"{one.name}.png", render(one.figure, "png"))
        pictures.append(Picture(one.name, svg, one.alt, one.sentence))
    return Section(name, ANALYSES[name].title, sentence, pictures)


def write_json(path: Path, data: Any) -> None:
    """Write dictionaries and lists of dataclasses as JSON."""
    write_file(path, (json.dumps(data, default=dataclasses.asdict) + "\n").encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with write_aside(path) as file:
        file.write(content)
