"""Static evaluation: the perplexity of a model whose weights do not change."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torch_pru.errors import check_positive
from torch_pru.lm.data.columns import columns, to_device
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.progress import ProgressCallback

WINDOW = 1000
"""Steps per pass."""

MAX_LOGITS = {"cuda": 2**24, "cpu": 2**21}
"""Logits in memory at a time: in float32, 64 MiB on a GPU and 8 MiB on a CPU, where the cache holds them."""


@dataclass(frozen=True)
class Score:
    """The result of an evaluation.

    Attributes:
        nll: mean negative log-likelihood per token, in nats.
        tokens: the number of predicted tokens.
        seconds: how long the evaluation took.
        losses: (tokens,) on the CPU, the negative log-likelihood of each token, in order; None if
            the text was read in several columns.

    Example:
        >>> Score(nll=4.0, tokens=82429, seconds=12.0).perplexity
        54.598150033144236
    """

    nll: float
    tokens: int
    seconds: float
    losses: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def perplexity(self) -> float:
        """exp(nll)."""
        return perplexity(self.nll)


def perplexity(nll: float) -> float:
    """exp(nll), infinite if that is too large for a float.

    Example:
        >>> perplexity(0.0), perplexity(1000.0), perplexity(math.nan)
        (1.0, inf, nan)
    """
    return math.inf if nll >= 700 else math.exp(nll)


def format_perplexity(perplexity: float) -> str:
    """A perplexity with two decimals, or with four digits if it is very large.

    Example:
        >>> format_perplexity(61.234), format_perplexity(1e290)
        ('61.23', '1e+290')
    """
    return f"{perplexity:.2f}" if perplexity < 1e6 else f"{perplexity:.4g}"


class WindowScores(NamedTuple):
    """The predictions in one window: n = T * B, time first."""

    hidden: Tensor  # (n, E)
    targets: Tensor  # (n,)
    nll: Tensor  # (n,) at least float32


def score(
    model: LanguageModel,
    ids: Tensor,
    *,
    batch: int = 1,
    window: int = WINDOW,
    progress: ProgressCallback | None = None,
) -> Score:
    """Perplexity of a text, on the device of the model.

    The recurrent state is carried from window to window, so ``window`` affects memory and speed but not the
    result. At batch 1 every token but the first is scored. A larger batch cuts the text into columns, each of
    which starts without context, and drops the remainder: faster and slightly pessimistic, meant for
    decisions during training. (The AWD-LSTM code divides by N instead of N - 1 tokens per column, which
    lowers PTB's validation perplexity at batch 10 by 0.03.)

    Args:
        model: the language model, evaluated without dropout; its training mode is left unchanged.
        ids: (N,) the text.
        batch: columns that are read in parallel; reported scores use 1.
        window: steps per pass.
        progress: called after each window.
    """
    start, done = time.perf_counter(), 0
    losses = torch.empty(0)
    for scores in score_windows(model, ids, batch=batch, window=window, progress=progress):
        if not done:  # room for all of them at once: a list that is joined at the end takes twice as much
            losses = scores.nll.new_empty((len(ids) // batch - 1) * batch)
        losses[done : done + len(scores.nll)] = scores.nll
        done += len(scores.nll)
    return score_of(losses, start, ordered=batch == 1)


def score_of(losses: Tensor, start: float, *, ordered: bool = True) -> Score:
    """The score of a text from the losses of all its tokens.

    Args:
        losses: (n,), float32 or wider. The sum is computed in float64.
        start: when the evaluation started, by ``time.perf_counter``.
        ordered: whether the losses are in the order of the text.
    """
    nll = losses.sum(dtype=torch.float64).item() / len(losses)
    return Score(nll, len(losses), time.perf_counter() - start, losses.cpu() if ordered else None)


@torch.no_grad()
def score_windows(
    model: LanguageModel,
    ids: Tensor,
    *,
    batch: int,
    window: int,
    progress: ProgressCallback | None = None,
) -> Iterator[WindowScores]:
    """Yield hidden states, targets and losses of ``ids`` (N,), window by window."""
    check_positive("window", window)
    text = columns(ids, batch)
    device = model.embedding.weight.device
    steps = len(text) - 1
    with eval_mode(model):
        state = model.initial_state(batch)
        for start in range(0, steps, window):
            stop = min(start + window, steps)
            rows = text[start : stop + 1].to(device, torch.int64)
            hidden = model.hidden(rows[:-1], state, None)
            state = hidden.state
            flat = hidden.raw.flatten(0, 1)
            targets = rows[1:].flatten()
            yield WindowScores(flat, targets, losses(model, flat, targets))
            if progress is not None:
                progress(stop * batch, steps * batch)


def text_columns(model: LanguageModel, ids: Tensor, batch: int) -> Tensor:
    """``ids`` (N,) as columns (T, B) on the model's device."""
    return to_device(columns(ids, batch), model.embedding.weight.device)


def rows_at_once(model: LanguageModel) -> int:
    """How many tokens' logits are computed at a time."""
    kind = "cuda" if model.embedding.weight.is_cuda else "cpu"
    return max(1, MAX_LOGITS[kind] // model.logits_per_token)


def losses(model: LanguageModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """``model.nll`` of ``hidden`` (n, E), computed in pieces to bound the memory of the logits."""
    rows = rows_at_once(model)
    pieces = [model.nll(h, t) for h, t in zip(hidden.split(rows), targets.split(rows), strict=True)]
    return torch.cat(pieces)


@contextmanager
def eval_mode(model: nn.Module, *, gradients: bool = False) -> Iterator[None]:
    """Inside this context the model is in evaluation mode; afterwards every module is in its previous mode.

    With ``gradients=True``, ``nn.LSTM`` layers stay in training mode, because cuDNN cannot compute gradients
    in evaluation mode. Those of a language model have no dropout, so the results are the same.

    Example:
        >>> model = nn.Dropout(0.5)
        >>> with eval_mode(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        if gradients:
            for module in model.modules():
                if isinstance(module, nn.LSTM):
                    module.training = True
        yield
    finally:
        for module, mode in modes:
            module.training = mode
