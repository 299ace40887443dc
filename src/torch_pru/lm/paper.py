"""Published numbers, by the recipe that makes the same model here.

Perplexities are word level. "Paper" is Mehta et al., "Pyramidal Recurrent Unit for Language Modeling"
(EMNLP 2018); "repository" is what the README of the authors' code states, or for AWD-LSTM what its own
authors' code reaches.
"""

from __future__ import annotations

from dataclasses import dataclass

DATA_SETS = {"ptb": "Penn Treebank", "wt2": "WikiText-2"}
"""The prefix of a recipe's name, and the data set it stands for."""


@dataclass(frozen=True)
class Perplexities:
    """Validation and test perplexity; None where it was not published.

    Example:
        >>> Perplexities(58.46, 56.56).test
        56.56
    """

    valid: float | None = None
    test: float | None = None


@dataclass(frozen=True)
class Row:
    """A line of the paper's main table.

    Attributes:
        recipe: the recipe in this package; `corpus` is the part of it before the first hyphen.
        model: the paper's name for it.
        finetuned: whether it is the second stage.
        parameters: millions of all weights, as the paper rounds them.
        valid, test: the paper's perplexities.
        repository: the code's.

    Example:
        >>> next(row for row in MAIN if row.recipe == "ptb-pru-g4").repository
        Perplexities(valid=64.4, test=62.62)
    """

    recipe: str
    model: str
    parameters: int
    valid: float
    test: float
    repository: Perplexities = Perplexities()
    finetuned: bool = False

    @property
    def corpus(self) -> str:
        """``"ptb"`` or ``"wt2"``."""
        return self.recipe.partition("-")[0]


MAIN = (
    Row("ptb-lstm-1000", "LSTM M=1000", 20, 68.57, 66.29, repository=Perplexities(67.8, 66.05)),
    Row("ptb-lstm-1200", "LSTM M=1200", 26, 69.17, 67.16),
    Row("ptb-lstm-1400", "LSTM M=1400", 33, 70.88, 68.55),
    Row("ptb-pru-g1", "PRU g=1 M=1000", 19, 69.80, 67.78, repository=Perplexities(69.99, 68.06)),
    Row("ptb-pru-g2", "PRU g=2 M=1200", 19, 67.17, 64.92, repository=Perplexities(66.39, 64.30)),
    Row("ptb-pru-g4", "PRU g=4 M=1400", 19, 64.76, 62.42, repository=Perplexities(64.40, 62.62)),
    Row("ptb-awd-pru-g1", "AWD-PRU g=1 M=1000", 19, 61.72, 59.54),
    Row("ptb-awd-pru-g2", "AWD-PRU g=2 M=1200", 19, 60.81, 58.65),
    Row("ptb-awd-pru-g4", "AWD-PRU g=4 M=1400", 19, 60.62, 58.33),
    Row("ptb-awd-pru-g4", "AWD-PRU g=4 M=1400, finetuned", 19, 58.46, 56.56, finetuned=True),
    Row("ptb-awd-lstm", "AWD-LSTM", 24, 60.7, 58.8, repository=Perplexities(61.2, 58.8)),
    Row(
        "ptb-awd-lstm",
        "AWD-LSTM, finetuned",
        24,
        60.0,
        57.3,
        repository=Perplexities(58.8, 56.5),
        finetuned=True,
    ),
    Row("wt2-lstm-1000", "LSTM M=1000", 29, 78.93, 75.08),
    Row("wt2-lstm-1200", "LSTM M=1200", 35, 77.93, 74.48),
    Row("wt2-lstm-1400", "LSTM M=1400", 42, 77.55, 74.44),
    Row("wt2-pru-g1", "PRU g=1 M=1000", 28, 79.15, 76.59),
    Row("wt2-pru-g2", "PRU g=2 M=1200", 28, 76.62, 73.79),
    Row("wt2-pru-g4", "PRU g=4 M=1400", 28, 75.46, 72.77),
    Row("wt2-awd-pru-g1", "AWD-PRU g=1 M=1000", 28, 71.84, 68.60),
    Row("wt2-awd-pru-g2", "AWD-PRU g=2 M=1200", 28, 68.57, 65.70),
    Row("wt2-awd-pru-g4", "AWD-PRU g=4 M=1400", 28, 68.17, 65.30),
    Row("wt2-awd-pru-g4", "AWD-PRU g=4 M=1400, finetuned", 28, 67.19, 64.53, finetuned=True),
    Row("wt2-awd-lstm", "AWD-LSTM", 33, 69.1, 66.0, repository=Perplexities(68.7, 65.6)),
    Row(
        "wt2-awd-lstm",
        "AWD-LSTM, finetuned",
        33,
        68.6,
        65.8,
        repository=Perplexities(67.4, 64.7),
        finetuned=True,
    ),
)
"""The paper's main table, in its order. AWD-LSTM's line is its baseline."""


@dataclass(frozen=True)
class Adapted:
    """A published score with dynamic evaluation or a cache.

    Attributes:
        recipe: the recipe of the model.
        finetuned: whether the model is the finetuned one.
        method: "dynamic" or "cache".
        source: "paper", or who else published it.
        perplexities: with the method.

    Example:
        >>> ADAPTED[0].recipe, ADAPTED[0].perplexities.test
        ('ptb-pru-g4', 55.23)
    """

    recipe: str
    method: str
    perplexities: Perplexities
    source: str = "paper"
    finetuned: bool = False


ADAPTED = (
    Adapted("ptb-pru-g4", "dynamic", Perplexities(None, 55.23)),
    Adapted("ptb-lstm-1000", "dynamic", Perplexities(None, 58.79)),
    Adapted("ptb-awd-lstm", "dynamic", Perplexities(51.6, 51.1), "Krause et al.", finetuned=True),
    Adapted("ptb-awd-lstm", "cache", Perplexities(53.2, 52.5), "AWD-LSTM code", finetuned=True),
    Adapted("wt2-awd-lstm", "dynamic", Perplexities(46.4, 44.3), "Krause et al.", finetuned=True),
    Adapted("wt2-awd-lstm", "cache", Perplexities(52.2, 50.6), "AWD-LSTM code", finetuned=True),
)

ABLATIONS = {
    "ablation-lt-lt": ("LT / LT", 74.80, 89.30),
    "ablation-glt-glt": ("GLT / GLT", 84.38, 104.13),
    "ablation-glt-pt": ("GLT / PT", 82.67, 99.57),
    "ablation-glt-pt-grouped": ("GLT / PT, levels grouped too", 82.67, 99.57),
    "ablation-lt-pt": ("LT / PT", 74.18, 88.31),
    "ablation-pt-pt": ("PT / PT", 75.80, 90.56),
    "ablation-lt-pt-no-residual": ("LT / PT, no residual", 75.61, 89.27),
}
"""Recipe without its corpus: context / input transform, validation on PTB and WT-2 (K = g = 4)."""

POOLING = {
    "pooling-skip": ("skip", 75.12, 89.24),
    "pooling-max": ("max", 87.6, 107.63),
    "pooling-average": ("average", 73.86, 88.88),
    "pooling-convolution": ("convolution", 81.56, 93.16),
}
"""Recipe without its corpus: sub-sampling, validation on PTB and WT-2 (g=1, K=4)."""

SWEEP = {
    f"sweep-k{levels}-g{groups}": f"K={levels} g={groups}" for groups in (1, 2, 4) for levels in (1, 2, 3, 4)
}
"""Recipe without its corpus: levels and groups. The paper shows these as a figure only."""


@dataclass(frozen=True)
class Cited:
    """A line that the paper takes from others.

    Example:
        >>> CITED[0].model
        'Variational LSTM'
    """

    model: str
    parameters: str
    ptb: Perplexities
    wt2: Perplexities = Perplexities()


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
