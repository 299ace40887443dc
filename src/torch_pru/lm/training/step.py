"""One optimisation step on one window. Nothing in it asks the device for a number."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pru.lm.dropout import Masks
from torch_pru.lm.model import LanguageModel, State
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.optimizer import AveragedSGD, Watch
from torch_pru.lm.training.penalties import penalties
from torch_pru.lm.training.precision import LossScale, computing
from torch_pru.ops.lookup import add_rows


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
        embedding = model.embedding.weight
        device = embedding.device
        self.model = model
        self.optimizer = optimizer
        self.place_of_embedding = [weight is embedding for weight in optimizer.parameters].index(True)
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
            The state after the window, detached, and the mean cross-entropy over the batch of all
            processes, 0-d on the device.
        """
        vectors = F.embedding(tokens, self.model.embedding.weight.detach()).requires_grad_()
        with computing(self.precision, tokens.device):
            hidden = self.model.hidden(tokens, state, self.masks, vectors)
            entropy = self.model.nll(hidden.dropped, targets, self.masks).mean()
        loss = entropy + penalties(hidden, self.model.regularisation)
        gradients = self._gradients(loss, tokens, vectors)
        # The loss travels with the gradients, so that every process sees the same number.
        entropy = entropy.detach().to(gradients[0].dtype)
        self.world.average([*gradients, entropy])
        watch = Watch(entropy, self.steps, self.first_bad)
        factor = None if self.loss_scale is None else self.loss_scale.factor
        norm = self.optimizer.apply(gradients, factor=factor, watch=watch)
        if self.loss_scale is not None:
            self.loss_scale.adjust(norm)
        return [(h.detach(), c.detach()) for h, c in hidden.state], entropy

    def _gradients(self, loss: Tensor, tokens: Tensor, vectors: Tensor) -> list[Tensor]:
        """The gradients of all weights, times the loss scale's factor.

        The embedding is used twice, by the decoder and by the lookup of ``vectors``. The lookup's share, a
        few rows, is added to the decoder's in place; autograd would add two tensors of the embedding's size.
        """
        scaled = loss if self.loss_scale is None else loss * self.loss_scale.factor
        *gradients, rows = torch.autograd.grad(scaled, [*self.optimizer.parameters, vectors])
        add_rows(gradients[self.place_of_embedding], tokens.flatten(), rows.flatten(0, 1))
        return gradients
