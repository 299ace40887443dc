"""One training step: forward pass, loss, backward pass and update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pru.lm.config import RegularizationConfig
from torch_pru.lm.device import autocast
from torch_pru.lm.graphs import GraphCache
from torch_pru.lm.model import Hidden, LanguageModel, Masks, State, flat
from torch_pru.lm.training.optimizer import AveragedSGD, LossScale, NonFiniteCheck
from torch_pru.ops import backends
from torch_pru.ops import torch_private as private


class TrainingStep:
    """Forward pass, loss, backward pass and optimizer step on one window.

    It never synchronizes with the device, and what changes from step to step is held in tensors on the
    device: the caller sets the learning rate with ``optimizer.prepare_step`` before each call. So the steps
    on windows of one length can be captured as a CUDA graph.

    Args:
        model: in ``train()`` mode.
        optimizer: of all its parameters.
        masks: draws the dropout masks.
        average: replaces tensors by their mean over the processes of the run; None for a single process.
        precision: compute precision, as in the settings.

    Attributes:
        step_count: 0-d, steps taken.
        first_bad_step: 0-d, the first step whose loss or gradient was not finite, or -1.
    """

    def __init__(
        self,
        model: LanguageModel,
        optimizer: AveragedSGD,
        masks: Masks,
        *,
        average: Callable[[list[Tensor]], None] | None = None,
        precision: str = "float32",
    ) -> None:
        device = model.embedding.weight.device
        self.model = model
        self.optimizer = optimizer
        self.masks = masks
        self.average = average
        self.autocast = autocast(precision, device)
        self.loss_scale = LossScale(device) if precision == "float16" else None
        self.step_count = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad_step = torch.full((), -1, dtype=torch.int64, device=device)

    def __call__(self, tokens: Tensor, targets: Tensor, state: State) -> tuple[State, Tensor]:
        """Train on one window.

        Args:
            tokens: (T, B), T at least 2.
            targets: (T, B), the word after each token.
            state: the recurrent state after the previous window.

        Returns:
            The recurrent state after this window, detached, and the mean cross-entropy over the batch of all
            processes, 0-d on the device.
        """
        vectors = F.embedding(tokens, self.model.embedding.weight.detach()).requires_grad_()
        with self.autocast:
            hidden = self.model.hidden(tokens, state, self.masks, vectors)
            entropy = self.model.nll(hidden.dropped, targets, self.masks).mean()
        loss = entropy + penalties(hidden, self.model.regularization)
        self._backward(loss, tokens, vectors)
        gradients = self.optimizer.gradients()
        entropy = entropy.detach().to(gradients[0].dtype)
        if self.average is not None:  # the loss, too, so that every process sees the same number
            self.average([*gradients, entropy])
        check = NonFiniteCheck(entropy, self.step_count, self.first_bad_step)
        if self.loss_scale is None:
            self.optimizer.step(check=check)
        else:
            self.loss_scale.update(self.optimizer.step(grad_scale=self.loss_scale.scale, check=check))
        self.optimizer.zero_grad()
        return [(h.detach(), c.detach()) for h, c in hidden.state], entropy

    def _backward(self, loss: Tensor, tokens: Tensor, vectors: Tensor) -> None:
        """Set the gradients of all parameters, multiplied by the loss scale.

        The embedding is used twice, by the decoder and by the lookup of ``vectors``. The gradient of the
        lookup, a few rows, is added to that of the decoder in place; autograd would add two tensors of the
        embedding's size. ``backward`` would also copy gradients that are views or belong to two parameters.
        """
        scaled = loss if self.loss_scale is None else loss * self.loss_scale.scale
        *gradients, rows = torch.autograd.grad(scaled, [*self.optimizer.params, vectors])
        for parameter, gradient in zip(self.optimizer.params, gradients, strict=True):
            parameter.grad = gradient
            if parameter is self.model.embedding.weight:
                backends.run("add_rows", gradient, tokens.flatten(), rows.flatten(0, 1))


def penalties(hidden: Hidden, rates: RegularizationConfig) -> Tensor | float:
    """Activation regularization (AR) and temporal activation regularization (TAR), in float32.

    AR is the mean square of the *dropped* output, TAR that of the change over time of the *raw* output.

    Args:
        hidden: of a window with at least two steps.
        rates: ``activation`` and ``temporal`` are the factors of the two means; 0 leaves a term out.

    Returns:
        0-d, or 0.0 if both are left out.
    """
    dropped = hidden.dropped if rates.activation else None
    raw = hidden.raw if rates.temporal else None
    if dropped is None and raw is None:
        return 0.0
    return backends.run("penalties", dropped, raw, rates.activation, rates.temporal)


class GraphedStep:
    """A :class:`TrainingStep` that is captured as a CUDA graph for each length of window.

    Args:
        step: what to capture.
        text: (T_total, B), the columns of the training text, on the device.
    """

    def __init__(self, step: TrainingStep, text: Tensor) -> None:
        self.step = step
        self.text = text
        self.state: State = step.model.initial_state(text.shape[1])
        self.loss = torch.zeros((), device=text.device)
        self.first_row = torch.zeros((), dtype=torch.int64, device=text.device)
        self.rows = torch.arange(len(text), device=text.device)
        self.graphs = GraphCache(text.device, step.masks.generator)

    def __call__(self, first: int, length: int, state: State) -> tuple[State, Tensor]:
        """Train on the window of ``length`` rows that starts at row ``first``, as ``TrainingStep`` does.

        The next call overwrites the state and the loss that this one returns.
        """
        self.first_row.fill_(first)
        if state is not self.state:
            private.foreach_copy_(flat(self.state), flat(state))
        averaging = self.step.optimizer.averages is not None
        self.graphs((length, averaging), lambda: self._run(length))
        return self.state, self.loss

    def _run(self, length: int) -> None:
        window = self.text[self.rows[: length + 1] + self.first_row].long()
        state, loss = self.step(window[:-1], window[1:], self.state)
        private.foreach_copy_([*flat(self.state), self.loss], [*flat(state), loss])


class LossSum:
    """A sum of losses on the device; only ``mean`` synchronizes with it."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.tokens = 0

    def add(self, loss: Tensor, tokens: int) -> None:
        """Add the mean loss (0-d) of a number of tokens."""
        self.total.add_(loss.double() * tokens)
        self.tokens += tokens

    def mean(self) -> float:
        """The mean over all tokens, NaN if there are none."""
        return self.total.item() / self.tokens if self.tokens else float("nan")

    def reset(self) -> None:
        """Start again from zero."""
        self.total.zero_()
        self.tokens = 0

    def state_dict(self) -> dict[str, Any]:
        """The sum and the number of tokens."""
        return {"total": self.total, "tokens": self.tokens}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned."""
        self.total.copy_(state_dict["total"])
        self.tokens = state_dict["tokens"]
