"""``pru recipes`` and ``pru params``: what can be trained, and how large it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from torch_pru.cli.console import output, say
from torch_pru.cli.settings import SET_HELP, parse_settings
from torch_pru.cli.tables import print_table
from torch_pru.lm.corpora import CORPORA

if TYPE_CHECKING:
    from torch_pru.lm.config import Config

TRANSFORMS = {"linear": "LT", "grouped": "GLT", "pyramidal": "PT"}

NOTES = {
    "paper": "paper valid, paper test: the paper's perplexities before finetuning",
    "epochs": "200-500 epochs: at least 200, at most 500 (early stopping)",
    "model": "K: levels, g: groups; LT, GLT, PT: linear, grouped and pyramidal transform of context/input",
}
"""What columns mean."""

SPARE = ("epochs", "model", "paper\ntest")
"""Columns that a narrow terminal does not show; the first one is left out first."""


def recipes(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only recipes starting with this: ptb, wt2-awd, ...")
    ] = "",
) -> None:
    """List recipes and the paper's scores.

    Recipes whose name ends in -published have the paper's settings; without it, they have our own.
    """
    from torch_pru.errors import PRUError, did_you_mean
    from torch_pru.lm.recipe import list_recipes, load_recipe

    names = [name for name in list_recipes() if name.startswith(prefix)]
    if not names:
        raise PRUError(f"no recipe starts with {prefix!r}{did_you_mean(prefix, list_recipes())}")
    console = output()
    headings = ("recipe", "model", "epochs", "paper\nvalid", "paper\ntest")
    rows = [
        (name, describe(config), range_of_epochs(config), *paper_scores(name))
        for name, config in zip(names, map(load_recipe, names), strict=True)
    ]
    left_out = print_table(console, headings, rows, left=("recipe", "model"), wrapped=("model",), spare=SPARE)
    for column, note in NOTES.items():
        if column not in left_out:
            say(console, note, style="dim")


def params(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, or a TOML file.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP),
    ] = None,
) -> None:
    """Count a recipe's parameters."""
    from torch_pru.lm.config import is_subwords
    from torch_pru.lm.data import load_corpus
    from torch_pru.lm.model import parameter_counts, skeleton
    from torch_pru.lm.recipe import load_recipe

    config = load_recipe(recipe, parse_settings(settings))
    name, tokenizer = config.data.corpus, config.data.tokenizer
    if name in CORPORA and not is_subwords(tokenizer):
        size = CORPORA[name].vocabulary_size
    else:
        size = len(load_corpus(name, tokenizer).vocabulary)
    counts = parameter_counts(skeleton(config.model, config.regularization, size))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("embedding", f"{counts.embedding:,}")
    table.add_row("recurrent", f"{counts.recurrent:,}")
    table.add_row("decoder (without the tied embedding)", f"{counts.decoder:,}")
    table.add_row("total", f"{counts.total:,}")
    output().print(table)


def describe(config: Config) -> str:
    """A model in a few words; transforms other than the PRU's own as the paper writes them, context/input.

    Example:
        >>> from torch_pru.lm.recipe import load_recipe
        >>> describe(load_recipe("ptb-pru-g4")), describe(load_recipe("ptb-ablation-lt-lt"))
        ('PRU 1400-1400-400 K=2 g=4', 'PRU 600 LT/LT')
        >>> describe(load_recipe("ptb-pooling-max")), describe(load_recipe("ptb-awd-lstm-964"))
        ('PRU 600 K=4 g=1 max', 'LSTM (fused) 964-964-400')
    """
    model = config.model
    fused = model.unit == "fused-lstm" or is_lstm(config)
    kind = "LSTM (fused)" if fused else model.kind.upper()
    words = [kind, "-".join(str(size) for size in model.hidden)]
    if model.unit == "pru" and not fused:
        transforms = (model.context_transform, model.input_transform)
        if transforms != ("grouped", "pyramidal"):
            words.append("/".join(TRANSFORMS[name] for name in transforms))
        words += [f"K={model.levels}"] if "pyramidal" in transforms else []
        words += [f"g={model.groups}"] if "grouped" in transforms else []
        words += [f"input g={model.input_groups}"] if model.input_groups > 1 else []
        words += [model.pooling] if model.pooling != "average" else []
        words += ["no residual"] if model.residual is False and "pyramidal" in transforms else []
    if model.experts > 1:
        words.append(f"{model.experts} softmaxes")
    return " ".join(words)


def is_lstm(config: Config) -> bool:
    """Whether a PRU's settings make it an LSTM, which then runs on the PRU's kernels."""
    model = config.model
    transforms = (model.context_transform, model.input_transform)
    default = transforms == ("grouped", "pyramidal")
    return model.unit == "pru" and default and model.levels == model.groups == 1 and model.residual is False


def range_of_epochs(config: Config) -> str:
    """How many epochs a training has: "500", or "200-500" where it may end early."""
    epochs, early = config.training.epochs, config.training.early_stop_from
    return f"{early}-{epochs}" if 0 < early < epochs else str(epochs)


def paper_scores(recipe: str) -> tuple[str, str]:
    """The paper's validation and test perplexity before finetuning; empty if the paper has none.

    Example:
        >>> paper_scores("ptb-pru-g4")
        ('64.76', '62.42')
    """
    from torch_pru.lm.paper import published_scores

    valid, test = ("" if score is None else f"{score:.2f}" for score in published_scores(recipe))
    return valid, test
