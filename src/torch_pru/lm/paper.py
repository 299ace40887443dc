"""Published numbers, and which settings of this package stand beside each of them.

Perplexities are word level. "Paper" is Mehta et al., "Pyramidal Recurrent Unit for Language Modeling" (EMNLP
2018). "Code" is what the README of the authors' repository states; for AWD-LSTM, what its own authors'
code reaches.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import NamedTuple

from torch_pru.lm.corpora import CORPORA

DATA_SETS = {source.prefix: source.title for source in CORPORA.values()}
"""The prefix of a recipe's name, and the data set it stands for."""


class Perplexities(NamedTuple):
    """Validation and test perplexity; None where it was not published."""

    valid: float | None = None
    test: float | None = None


UNPUBLISHED = Perplexities()


class Setup(NamedTuple):
    """The settings of a row: a recipe, what is changed in it, and the stage of training.

    Example:
        >>> Setup("ptb-sweep", (("levels", "2"), ("groups", "4"))).command
        'pru train ptb-sweep --set levels=2 --set groups=4'
    """

    recipe: str
    changes: tuple[tuple[str, str], ...] = ()
    finetuned: bool = False

    @property
    def command(self) -> str:
        """How to train it. A finetuned row is made by ``pru finetune`` from the row above it."""
        sets = [word for key, value in self.changes for word in ("--set", f"{key}={value}")]
        return shlex.join(["pru", "train", self.recipe, *sets])


@dataclass(frozen=True)
class Row:
    """A row of the paper's main table.

    Attributes:
        model: the paper's name for it.
        parameters: millions of weights, as the paper rounds them.
        paper: the paper's perplexities.
        published: settings as published.
        ours: settings chosen here on validation, or None where there are none.
        code: perplexities of the authors' code.
    """

    model: str
    parameters: int
    paper: Perplexities
    published: Setup
    ours: Setup | None = None
    code: Perplexities = UNPUBLISHED

    @property
    def data_set(self) -> str:
        """``"ptb"`` or ``"wt2"``."""
        return self.published.recipe.partition("-")[0]


def row(
    recipe: str,
    model: str,
    parameters: int,
    valid: float,
    test: float,
    code: Perplexities = UNPUBLISHED,
    *,
    finetuned: bool = False,
) -> Row:
    """A row of the table. One with advanced dropouts has a recipe as published and one with our settings."""
    published, ours = Setup(recipe), None
    if "-awd-" in recipe:
        published, ours = (Setup(name, (), finetuned) for name in (f"{recipe}-published", recipe))
    name = model + (", finetuned" if finetuned else "")
    return Row(name, parameters, Perplexities(valid, test), published, ours, code)


MAIN = (
    row("ptb-lstm-1000", "LSTM M=1000", 20, 68.57, 66.29, Perplexities(67.8, 66.05)),
    row("ptb-lstm-1200", "LSTM M=1200", 26, 69.17, 67.16),
    row("ptb-lstm-1400", "LSTM M=1400", 33, 70.88, 68.55),
    row("ptb-pru-g1", "PRU g=1 M=1000", 19, 69.80, 67.78, Perplexities(69.99, 68.06)),
    row("ptb-pru-g2", "PRU g=2 M=1200", 19, 67.17, 64.92, Perplexities(66.39, 64.30)),
    row("ptb-pru-g4", "PRU g=4 M=1400", 19, 64.76, 62.42, Perplexities(64.40, 62.62)),
    row("ptb-awd-pru-g1", "AWD-PRU g=1 M=1000", 19, 61.72, 59.54),
    row("ptb-awd-pru-g2", "AWD-PRU g=2 M=1200", 19, 60.81, 58.65),
    row("ptb-awd-pru-g4", "AWD-PRU g=4 M=1400", 19, 60.62, 58.33),
    row("ptb-awd-pru-g4", "AWD-PRU g=4 M=1400", 19, 58.46, 56.56, finetuned=True),
    row("ptb-awd-lstm", "AWD-LSTM", 24, 60.7, 58.8, Perplexities(61.2, 58.8)),
    row("ptb-awd-lstm", "AWD-LSTM", 24, 60.0, 57.3, Perplexities(58.8, 56.5), finetuned=True),
    row("wt2-lstm-1000", "LSTM M=1000", 29, 78.93, 75.08),
    row("wt2-lstm-1200", "LSTM M=1200", 35, 77.93, 74.48),
    row("wt2-lstm-1400", "LSTM M=1400", 42, 77.55, 74.44),
    row("wt2-pru-g1", "PRU g=1 M=1000", 28, 79.15, 76.59),
    row("wt2-pru-g2", "PRU g=2 M=1200", 28, 76.62, 73.79),
    row("wt2-pru-g4", "PRU g=4 M=1400", 28, 75.46, 72.77),
    row("wt2-awd-pru-g1", "AWD-PRU g=1 M=1000", 28, 71.84, 68.60),
    row("wt2-awd-pru-g2", "AWD-PRU g=2 M=1200", 28, 68.57, 65.70),
    row("wt2-awd-pru-g4", "AWD-PRU g=4 M=1400", 28, 68.17, 65.30),
    row("wt2-awd-pru-g4", "AWD-PRU g=4 M=1400", 28, 67.19, 64.53, finetuned=True),
    row("wt2-awd-lstm", "AWD-LSTM", 33, 69.1, 66.0, Perplexities(68.7, 65.6)),
    row("wt2-awd-lstm", "AWD-LSTM", 33, 68.6, 65.8, Perplexities(67.4, 64.7), finetuned=True),
)
"""The paper's main table, in its order. The rows of AWD-LSTM are its baseline."""


@dataclass(frozen=True)
class Adapted:
    """A score with dynamic evaluation or with a continuous cache.

    Attributes:
        setup: the model.
        method: ``"dynamic"`` or ``"cache"``.
        published: perplexities with the method.
        source: ``"paper"``, or who else published them.
    """

    setup: Setup
    method: str
    published: Perplexities = UNPUBLISHED
    source: str = ""


ADAPTED = (
    Adapted(Setup("ptb-pru-g4"), "dynamic", Perplexities(None, 55.23), "paper"),
    Adapted(Setup("ptb-lstm-1000"), "dynamic", Perplexities(None, 58.79), "paper"),
    Adapted(Setup("ptb-awd-lstm", (), True), "dynamic", Perplexities(51.6, 51.1), "Krause et al."),
    Adapted(Setup("ptb-awd-lstm", (), True), "cache", Perplexities(53.2, 52.5), "AWD-LSTM code"),
    Adapted(Setup("wt2-awd-lstm", (), True), "dynamic", Perplexities(46.4, 44.3), "Krause et al."),
    Adapted(Setup("wt2-awd-lstm", (), True), "cache", Perplexities(52.2, 50.6), "AWD-LSTM code"),
)


@dataclass(frozen=True)
class Ablation:
    """A row of a table with one column per data set.

    Attributes:
        label: first column.
        recipe: name of the recipe without its data set.
        changes: settings changed in the recipe.
        ptb, wt2: the paper's validation perplexities, or None.
    """

    label: str
    recipe: str
    ptb: float | None = None
    wt2: float | None = None
    changes: tuple[tuple[str, str], ...] = ()

    def setup(self, data_set: str) -> Setup:
        """Its settings on ``"ptb"`` or ``"wt2"``."""
        return Setup(f"{data_set}-{self.recipe}", self.changes)


TRANSFORMS = (
    Ablation("LT / LT", "ablation-lt-lt", 74.80, 89.30),
    Ablation("GLT / GLT", "ablation-glt-glt", 84.38, 104.13),
    Ablation("GLT / PT", "ablation-glt-pt", 82.67, 99.57),
    Ablation("GLT / PT, levels grouped too", "ablation-glt-pt-grouped", 82.67, 99.57),
    Ablation("LT / PT", "ablation-lt-pt", 74.18, 88.31),
    Ablation("PT / PT", "ablation-pt-pt", 75.80, 90.56),
    Ablation("LT / PT, no residual", "ablation-lt-pt-no-residual", 75.61, 89.27),
)
"""Transform of the context and of the input, K = g = 4."""

POOLING = (
    Ablation("skip", "pooling-skip", 75.12, 89.24),
    Ablation("max", "pooling-max", 87.6, 107.63),
    Ablation("average", "pooling-average", 73.86, 88.88),
    Ablation("convolution", "pooling-convolution", 81.56, 93.16),
)
"""Sub-sampling, g = 1, K = 4."""


def sweep_cell(levels: int, groups: int, input_groups: int = 1) -> Ablation:
    """A cell of the sweep. The paper shows these as a figure, without numbers."""
    changes = {"levels": levels, "groups": groups} | (
        {"input_groups": input_groups} if input_groups > 1 else {}
    )
    return Ablation(
        f"K={levels} g={groups}", "sweep", changes=tuple((key, str(value)) for key, value in changes.items())
    )


SWEEP = tuple(sweep_cell(levels, groups) for groups in (1, 2, 4) for levels in (1, 2, 3, 4))
"""Levels by groups."""

GROUPED_SWEEP = tuple(sweep_cell(levels, groups, groups) for groups in (2, 4) for levels in (1, 2, 3, 4))
"""The same with grouped level matrices, which the paper's "77% fewer" parameters at K=2, g=4 require."""

LEVEL_SIZES = (
    Ablation("3M/4 and M/4, as in the paper's tables", "pru-g4", 64.76, 75.46),
    Ablation("M/2 each, as in the paper's text", "pru-g4", changes=(("level_split", "equal"),)),
)
"""Two ways to divide the units among the levels; PRU g=4 M=1400 with standard dropout."""


def published_scores(recipe: str) -> Perplexities:
    """The paper's perplexities beside which a recipe stands, before finetuning.

    Example:
        >>> published_scores("ptb-awd-pru-g4"), published_scores("wt2-pooling-skip").valid
        (Perplexities(valid=60.62, test=58.33), 89.24)
    """
    setup = Setup(recipe)
    for row in MAIN:
        if setup in (row.published, row.ours):
            return row.paper
    for one in (*TRANSFORMS, *POOLING):
        for data_set, score in (("ptb", one.ptb), ("wt2", one.wt2)):
            if setup == one.setup(data_set):
                return Perplexities(score)
    return UNPUBLISHED


@dataclass(frozen=True)
class Cited:
    """A line that the paper takes from others."""

    model: str
    parameters: str
    ptb: Perplexities
    wt2: Perplexities = UNPUBLISHED


CITED = (
    Cited("Variational LSTM", "20 M", Perplexities(None, 78.6)),
    Cited("Variational LSTM", "66 M", Perplexities(None, 73.4)),
    Cited("CharCNN", "19 M", Perplexities(None, 78.9)),
    Cited("Pointer Sentinel-LSTM", "19 M", Perplexities(72.4, 70.9)),
    Cited("RHN", "23 M", Perplexities(67.9, 65.4)),
    Cited("NAS cell", "25 M", Perplexities(None, 64.0)),
    Cited("NAS cell", "54 M", Perplexities(None, 62.4)),
    Cited("Variational LSTM, tied", "24 M; 28 M", Perplexities(75.7, 73.2), Perplexities(91.5, 87.0)),
    Cited("SRU, 6 layers", "24 M", Perplexities(63.4, 60.3)),
    Cited("QRNN", "18 M", Perplexities(82.1, 78.3)),
    Cited("RAN", "22 M", Perplexities(None, 78.5)),
    Cited("4-layer skip LSTM", "24 M", Perplexities(60.9, 58.3)),
    Cited("Quantized LSTM", "", Perplexities(None, 89.8), Perplexities(None, 100.1)),
    Cited("Quantized LSTM, 2 bit", "", Perplexities(None, 95.8), Perplexities(None, 106.1)),
)
