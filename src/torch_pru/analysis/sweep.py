"""The cost of levels and groups in perplexity, and their saving in recurrent parameters."""

from __future__ import annotations

from dataclasses import dataclass

from torch_pru.analysis.curves import finished_epochs
from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.evaluation.scores import load_scores
from torch_pru.lm.evaluation.static import perplexity
from torch_pru.lm.model import parameter_counts, skeleton
from torch_pru.lm.run import RunFolder


@dataclass(frozen=True)
class SweepPoint:
    """The saving and the perplexity of a run.

    Attributes:
        corpus: name of the corpus.
        size: sizes of the layers, as in ``"1400-1400-400"``.
        unit: ``"pru"`` or ``"lstm"``.
        levels, groups: K and g; 1 if the transform has none.
        variant: other differences from the PRU of the paper's tables, or an empty string.
        recurrent: number of recurrent parameters.
        lstm: number of parameters of LSTM layers of the same sizes.
        perplexity: validation perplexity.
        scored: whether it is a score of ``pru evaluate``; otherwise it is the lowest during training.
        regime: dropout regime, in the paper's words, and whether the run is finetuned.

    Example:
        >>> parameters = 1_400_000, 2_880_000
        >>> point = SweepPoint("ptb", "600", "pru", 2, 4, "", *parameters, 80.0, True)
        >>> f"{point.saving:.0%}"
        '51%'
    """

    corpus: str
    size: str
    unit: str
    levels: int
    groups: int
    variant: str
    recurrent: int
    lstm: int
    perplexity: float
    scored: bool
    regime: str = "standard dropout"

    @property
    def saving(self) -> float:
        """The share of the LSTM's recurrent parameters that is saved."""
        return 1 - self.recurrent / self.lstm


def sweep_point(run: RunFolder) -> SweepPoint:
    """The sweep point of a run folder, which needs no weights.

    Example:
        >>> point = sweep_point(RunFolder.open("runs/ptb-pru-g4-1"))        # doctest: +SKIP
        >>> point.levels, point.groups, f"{point.saving:.0%}"               # doctest: +SKIP
        (2, 4, '51%')
    """
    model = run.config.model
    scores = load_scores(run.path)
    scored = None if scores is None else scores.perplexity("static", "valid")
    lstm = ModelConfig(unit="lstm", embedding=model.embedding, hidden=model.hidden, experts=model.experts)
    pru = model.kind == "pru"
    return SweepPoint(
        corpus=run.config.data.corpus,
        size="-".join(map(str, model.hidden)),
        unit=model.kind,
        levels=model.levels if pru and model.input_transform == "pyramidal" else 1,
        groups=model.groups if pru and model.context_transform == "grouped" else 1,
        variant=variant(model),
        recurrent=recurrent_parameters(model),
        lstm=recurrent_parameters(lstm),
        perplexity=lowest_seen(run) if scored is None else scored,
        scored=scored is not None,
        regime=regime(run),
    )


def regime(run: RunFolder) -> str:
    """The dropout regime of a run, one of the paper's two, and its stage."""
    dropout = "advanced dropouts" if run.config.regularization.variational else "standard dropout"
    return dropout + (", finetuned" if run.stage == "finetune" else "")


def lowest_seen(run: RunFolder) -> float:
    """The lowest validation perplexity during training, including that of the initial weights."""
    return perplexity(finished_epochs(run)[-1]["best_valid_loss"])


def recurrent_parameters(model: ModelConfig) -> int:
    """The number of recurrent parameters.

    Example:
        >>> recurrent_parameters(ModelConfig(unit="lstm", embedding=400, hidden=(1000, 1000, 400)))
        15859200
    """
    return parameter_counts(skeleton(model, RegularizationConfig())).recurrent


def variant(model: ModelConfig) -> str:
    """The differences of a model from the usual PRU, apart from K and g.

    Example:
        >>> variant(ModelConfig(embedding=600, hidden=(600,), pooling="max", residual=False))
        'max pooling, no residual'
    """
    if model.kind == "lstm":
        return ""
    usual = ModelConfig(embedding=model.embedding, hidden=model.hidden, experts=model.experts)
    texts = {
        "context_transform": f"{model.context_transform} context",
        "input_transform": f"{model.input_transform} input",
        "pooling": f"{model.pooling} pooling",
        "level_split": f"{model.level_split} levels",
        "pool_window": f"window {model.pool_window}",
        "residual": "residual" if model.residual else "no residual",
        "input_groups": f"{model.input_groups} input groups",
        "init": f"{model.init} init",
    }
    return ", ".join(text for name, text in texts.items() if getattr(model, name) != getattr(usual, name))
