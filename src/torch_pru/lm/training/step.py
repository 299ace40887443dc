"""One optimisation step on one window. Nothing in it asks the device for a number."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_pru.lm.config import RegularisationConfig
from torch_pru.lm.dropout import Masks
from torch_pru.lm.model import Hidden, LanguageModel, State
from torch_pru.lm.softmax import full_precision
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.precision import LossScale, computing


class TrainingStep:
    """Forward, loss, backward, clipping, update, averaging.

    What changes from step to step is in tensors on the device: the caller fills the learning rate in with
    ``optimizer.prepare`` before each call. So a step of a given T can be captured as a CUDA graph.

    Attributes:
        steps: 0-d, steps taken.
        first_bad: 0-d, the first step whose loss or gradient was not finite, or -1.

    Example:
        >>> step = TrainingStep(model, optimizer, masks, world)             # doctest: +SKIP
        >>> optimizer.prepare(30 * 68 / 70)                                 # doctest: +SKIP
        >>> state, loss = step(text[0:68], text[1:69], state)               # doctest: +SKIP
    """

    def __init__(
        self,
        model: LanguageModel,
        optimizer: AveragedSGD,
        masks: Masks,
        world: World,
        *,
        precision: str = "float32",
    ) -> None:
        device = model.embedding.weight.device
        self.model = model
        self.optimizer = optimizer
        self.masks = masks
        self.world = world
        self.precision = precision
        self.loss_scale = LossScale(device) if precision == "float16" else None
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad = torch.full((), -1, dtype=torch.int64, device=device)

    def __call__(self, tokens: Tensor, targets: Tensor, state: State) -> tuple[State, Tensor]:
        """Learn from a window.

        Args:
            tokens: (T, B), T at least 2.
            targets: (T, B), the word after each token.
            state: carried from the window before.

        Returns:
            The state after the window, detached (trap 6), and the mean cross-entropy over the batch of all
            processes, 0-d on the device.
        """
        with computing(self.precision, tokens.device):
            hidden = self.model.hidden(tokens, state, self.masks)
            entropy = self.model.nll(hidden.dropped, targets, self.masks).mean()
        loss = entropy + penalties(hidden, self.model.regularisation)
        scaled = loss if self.loss_scale is None else loss * self.loss_scale.factor
        gradients = [g.contiguous() for g in torch.autograd.grad(scaled, self.optimizer.parameters)]
        # The loss travels with the gradients, so that every process sees the same number.
        entropy = entropy.detach().to(gradients[0].dtype)
        self.world.average([*gradients, entropy])
        if self.loss_scale is not None:
            self.loss_scale.unscale(gradients)
        norm = self.optimizer.apply(gradients)
        self._watch(entropy, norm)
        return [(h.detach(), c.detach()) for h, c in hidden.state], entropy

    @torch.no_grad()
    def _watch(self, entropy: Tensor, norm: Tensor) -> None:
        """Remember the first step that went wrong; the host looks when it waits for the device anyway."""
        self.steps.add_(1)
        wrong = ~(torch.isfinite(entropy) & torch.isfinite(norm)) & (self.first_bad < 0)
        self.first_bad.copy_(torch.where(wrong, self.steps, self.first_bad))


def penalties(hidden: Hidden, rates: RegularisationConfig) -> Tensor | float:
    """AR on the *dropped* output, TAR on the change over time of the *raw* output (trap 5), in float32."""
    total: Tensor | float = 0.0
    if rates.activation:
        total = total + rates.activation * full_precision(hidden.dropped).pow(2).mean()
    if rates.temporal:
        raw = full_precision(hidden.raw)
        total = total + rates.temporal * (raw[1:] - raw[:-1]).pow(2).mean()
    return total
