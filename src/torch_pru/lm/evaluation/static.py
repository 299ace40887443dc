"""Static evaluation: the perplexity of a model whose weights stay as they are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_pru.errors import check_positive
from torch_pru.lm.data.columns import columns
from torch_pru.lm.evaluation.mode import evaluating
from torch_pru.lm.model import LanguageModel

Progress = Callable[[int, int], None]
"""Called with the tokens scored so far and the tokens there are."""

WINDOW = 1000
"""Steps of one pass over a text."""


@dataclass(frozen=True)
class Score:
    """What an evaluation found.

    Attributes:
        nll: mean negative log-likelihood of a token, in nats.
        tokens: how many tokens were predicted and scored, each once.
        seconds: how long it took.

    Example:
        >>> Score(nll=4.0, tokens=82429, seconds=12.0).perplexity
        54.598150033144236
    """

    nll: float
    tokens: int
    seconds: float

    @property
    def perplexity(self) -> float:
        """exp(nll)."""
        return perplexity(self.nll)


def perplexity(nll: float) -> float:
    """exp(nll), infinite where that is too large for a float.

    Example:
        >>> perplexity(0.0), perplexity(1000.0), perplexity(math.nan)
        (1.0, inf, nan)
    """
    return math.inf if nll >= 700 else math.exp(nll)


def in_digits(perplexity: float) -> str:
    """A perplexity to be read: two decimals, or four digits of one so large that they say nothing.

    Example:
        >>> in_digits(61.234), in_digits(1e290)
        ('61.23', '1e+290')
    """
    return f"{perplexity:.2f}" if perplexity < 1e6 else f"{perplexity:.4g}"


class Scored(NamedTuple):
    """A window after its pass: n = T * B predictions, time first."""

    hidden: Tensor  # (n, E)
    targets: Tensor  # (n,)
    nll: Tensor  # (n,) float32 at least


def score(
    model: LanguageModel,
    ids: Tensor,
    *,
    batch: int = 1,
    window: int = WINDOW,
    progress: Progress | None = None,
) -> Score:
    """Perplexity of ``ids`` under ``model``, on the device the model is on.

    The state is carried through, so the window changes only memory and speed, not the number. At
    batch 1 every token but the first is scored: N - 1 of N. A larger batch cuts the text into
    columns, each begun without context, and drops the remainder: quicker, a little pessimistic, and
    meant to steer training. (The AWD-LSTM code divides by N instead and so flatters itself by 0.03
    on PTB's validation set at batch 10.)

    Args:
        model: the language model; it is evaluated without dropout and left in the mode it was in.
        ids: (N,) token ids.
        batch: columns read side by side; reported scores are at 1.
        window: steps of one pass.
        progress: called after each window.

    Example:
        >>> from torch_pru.lm.run import RunFolder                          # doctest: +SKIP
        >>> run = RunFolder.open("runs/quickstart-1")                       # doctest: +SKIP
        >>> score(run.model(), corpus.test).perplexity                      # doctest: +SKIP
        96.4
    """
    start = time.perf_counter()
    total: Tensor | None = None
    tokens = 0
    for scored in scored_windows(model, ids, batch=batch, window=window, progress=progress):
        # float64 on the device: 245,568 float32 terms would lose digits, and .item() would wait.
        part = scored.nll.sum(dtype=torch.float64)
        total = part if total is None else total + part
        tokens += len(scored.nll)
    assert total is not None  # columns() refuses a text without a prediction
    return Score(total.item() / tokens, tokens, time.perf_counter() - start)


@torch.no_grad()
def scored_windows(
    model: LanguageModel,
    ids: Tensor,
    *,
    batch: int,
    window: int,
    progress: Progress | None = None,
) -> Iterator[Scored]:
    """Walk over ``ids`` (N,) and yield each window's hidden states, targets and losses."""
    check_positive("window", window)
    text = text_columns(model, ids, batch)
    steps = len(text) - 1
    with evaluating(model):
        state = model.initial_state(batch)
        for start in range(0, steps, window):
            stop = min(start + window, steps)
            hidden = model.hidden(text[start:stop], state, None)
            state = hidden.state
            flat = hidden.raw.flatten(0, 1)
            targets = text[start + 1 : stop + 1].flatten()
            yield Scored(flat, targets, losses(model, flat, targets))
            if progress is not None:
                progress(stop * batch, steps * batch)


def text_columns(model: LanguageModel, ids: Tensor, batch: int) -> Tensor:
    """``ids`` (N,) as (T, B) int64 columns on the model's device; T is at least 2, or it is refused."""
    device = next(model.parameters()).device
    return columns(ids, batch).to(device=device, dtype=torch.int64)


def losses(model: LanguageModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """``model.nll`` of ``hidden`` (n, E) in pieces, so that the logits never take much memory."""
    rows = max(1, LOGITS // model.logits_per_token)
    pieces = [model.nll(h, t) for h, t in zip(hidden.split(rows), targets.split(rows), strict=True)]
    return torch.cat(pieces)


LOGITS = 2**24  # logits held at once: 64 MiB in float32
