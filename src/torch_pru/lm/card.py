"""The model card of a run: the model, its training, its scores, and the license of its text."""

from __future__ import annotations

from torch_pru.lm.corpora import LICENSES
from torch_pru.lm.evaluation.scores import Scores, load_scores
from torch_pru.lm.evaluation.static import format_perplexity
from torch_pru.lm.model import parameter_counts
from torch_pru.lm.records import read_object
from torch_pru.lm.run import RunFolder
from torch_pru.lm.visible import visible


def model_card(run: RunFolder, *, int8: bool = False) -> str:
    """A model card in Markdown, with the metadata that model hubs read.

    Args:
        run: a run folder with weights.
        int8: whether the card is for a copy of the weights in 8 bits.
    """
    config = run.config
    corpus = config.data.corpus
    lines = [
        *(
            "---",
            "library_name: torch-pru",
            "pipeline_tag: text-generation",
            "tags: [language-model, rnn]",
            "---",
        ),
        *(f"# {plain(config.name)}", ""),
        *(describe(run), ""),
        *("| | |", "|---|---|"),
        f"| text | {corpus if corpus in LICENSES else 'not published'} |",
        f"| recipe | {training_of(run)} |",
        f"| software | {software_of(run)} |",
        *(["| weights | in 8 bits here; the scores are those of the weights in float32 |"] if int8 else []),
        "",
        *score_lines(load_scores(run.path)),
        "",
        *("## License of the text", "", LICENSES.get(corpus, "The text is the user's own."), ""),
        *("## Limits", ""),
        "The model only knows the words of its vocabulary. It reproduces the biases of its training text.",
    ]
    return "\n".join(lines) + "\n"


def describe(run: RunFolder) -> str:
    """The model in one sentence."""
    model = run.config.model
    unit = "an LSTM" if model.kind == "lstm" else "a Pyramidal Recurrent Unit (Mehta et al., EMNLP 2018)"
    counts = parameter_counts(run.model())
    sizes = ", ".join(map(str, model.hidden))
    return (
        f"A language model with {unit}: {counts.total:,} parameters ({counts.recurrent:,} recurrent), layers "
        f"of {sizes} units, and a vocabulary of {len(run.vocabulary):,} words."
    )


def training_of(run: RunFolder) -> str:
    """Recipe, stage, seed and epoch."""
    stage = "finetuned" if run.stage == "finetune" else "trained"
    return (
        f"`{plain(run.config.name)}`, {stage}, seed {run.config.training.seed}, best epoch {run.best_epoch()}"
    )


def software_of(run: RunFolder) -> str:
    """Versions and commit, as far as the run has recorded them."""
    recorded = read_object(run.files, "environment.json") if run.files.has("environment.json") else {}
    names = {"torch-pru": "torch_pru", "PyTorch": "torch", "commit": "commit"}
    return ", ".join(f"{name} {plain(recorded.get(key) or 'unknown')}" for name, key in names.items())


def score_lines(scores: Scores | None) -> list[str]:
    """A table of all recorded scores, or a sentence that there are none."""
    if scores is None or not any(scores.results.values()):
        return ["No scores are recorded; `pru evaluate` makes them."]
    rows = [
        f"| {plain(method)} | {plain(split)} | {format_perplexity(found['perplexity'])} | "
        f"{found.get('tokens', 0):,} | {plain(found.get('precision', 'float32'))} |"
        for method, splits in scores.results.items()
        for split, found in splits.items()
    ]
    return [
        "| evaluation | split | perplexity | tokens | precision |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"SHA-256 of the scored weights: `{plain(scores.weights)}`",
    ]


def plain(value: object) -> str:
    """What a run has recorded, as Markdown shows it in a table: neither markup nor another cell.

    Example:
        >>> plain("2.13 | <b>")
        '2.13 \\\\| &lt;b>'
    """
    return visible(str(value)[:200]).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")
