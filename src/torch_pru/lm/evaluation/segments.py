"""A text read a few tokens at a time, with the gradient of each segment's loss.

On a GPU a segment is one CUDA graph: where to read, the state and the sum of the losses are on the device,
and the host waits only to say how far it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from torch_pru.errors import check_positive
from torch_pru.lm.evaluation.mode import evaluating
from torch_pru.lm.evaluation.replay import Replayed, can_replay, on_device
from torch_pru.lm.evaluation.static import Progress
from torch_pru.lm.model import Hidden, LanguageModel, State, flat

SHOWN = 200
"""Segments between two calls of ``progress`` on a GPU."""

Learn = Callable[[tuple[Tensor, ...], int], None]
"""Called with the gradients of a segment's *sum* of losses, one a parameter, and how many losses there are.

The sum, because in float16 the gradients of a mean over many tokens would vanish."""


class SegmentReader:
    """Reads a text from its beginning as often as asked, and hands on the gradient of every segment.

    Args:
        model: in ``read`` it is evaluated without dropout; the weights are those of each moment.
        text: (T, B), on the model's device; the first row is never predicted.
        segment: steps of one gradient; the last segment may be shorter.
        learn: what to do with the gradients. On a GPU it is captured: it must work on tensors that stay where
            they are, and never ask for a number.

    Attributes:
        total: 0-d float64, the sum of all losses since ``read`` began.

    Example:
        >>> reader = SegmentReader(model, text, 5, learn)                       # doctest: +SKIP
        >>> segments = reader.read()                                            # doctest: +SKIP
        >>> mean = reader.total / text[1:].numel()                              # doctest: +SKIP
    """

    def __init__(self, model: LanguageModel, text: Tensor, segment: int, learn: Learn) -> None:
        check_positive("segment", segment)
        self.model, self.text, self.segment, self.learn = model, text, segment, learn
        self.state = model.initial_state(text.shape[1])
        self.total = torch.zeros((), dtype=torch.float64, device=text.device)
        self.first_row = torch.zeros((), dtype=torch.int64, device=text.device)
        self.rows = torch.arange(segment, device=text.device)
        self._replayed = Replayed(can_replay(model))

    def read(self, progress: Progress | None = None) -> int:
        """Read the whole text, beginning with a state of zeros: the number of segments."""
        steps, batch = len(self.text) - 1, self.text.shape[1]
        starts = range(0, steps, self.segment)
        on_gpu = self.text.is_cuda
        self._rewind()
        with on_device(self.text.device), taking_gradients(self.model):
            for number, start in enumerate(starts, start=1):
                if start + self.segment <= steps:
                    self._replayed(self._read_whole)
                else:
                    self._read(steps - start)
                due = not on_gpu or number % SHOWN == 0 or number == len(starts)
                if progress is not None and due:
                    if on_gpu:
                        torch.cuda.current_stream().synchronize()
                    progress(min(start + self.segment, steps) * batch, steps * batch)
        return len(starts)

    @torch.no_grad()
    def _rewind(self) -> None:
        self.total.zero_()
        self.first_row.zero_()
        torch._foreach_zero_(flat(self.state))

    def _read_whole(self) -> None:
        self._read(self.segment)

    def _read(self, length: int) -> None:
        """Go on by ``length`` steps."""
        rows = self.rows[:length] + self.first_row
        nll, gradients, hidden = read_segment(self.model, self.text[rows], self.text[rows + 1], self.state)
        with torch.no_grad():
            self.total += nll.sum(dtype=torch.float64)
            self.first_row += length
            torch._foreach_copy_(flat(self.state), flat(hidden.state))
            self.learn(gradients, nll.numel())


def learned_parameters(model: LanguageModel) -> list[Tensor]:
    """The parameters that gradients are taken of, in the order of ``model.parameters()``."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def read_segment(
    model: LanguageModel, tokens: Tensor, targets: Tensor, state: State
) -> tuple[Tensor, tuple[Tensor, ...], Hidden]:
    """Losses (n,) of ``targets`` (T, B), the gradients of their sum, and what the layers gave.

    To be called inside `taking_gradients`. The gradients are those of `learned_parameters`.
    """
    hidden = model.hidden(tokens, state, None)
    nll = model.nll(hidden.raw.flatten(0, 1), targets.flatten())
    gradients = torch.autograd.grad(nll.sum(), learned_parameters(model), materialize_grads=True)
    return nll, gradients, hidden


@contextmanager
def taking_gradients(model: LanguageModel) -> Iterator[None]:
    """Evaluation mode with gradients, also where the caller has switched them off.

    The caller's autocast holds, but every weight is cast anew: its cache would keep weights of segments ago.
    """
    kind = model.embedding.weight.device.type
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    casts = torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)
    with torch.enable_grad(), evaluating(model, gradients=True), casts:
        yield
