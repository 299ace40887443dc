"""SGD with gradient clipping, weight decay and a running average of the weights; loss scaling for float16.

``torch.optim.ASGD`` steps with the learning rate of its *previous* call, so that the learning rate of a
window would be used for the next window. Here a step uses the learning rate that was set for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.ops import backends
from torch_pru.ops import torch_private as private


class NonFiniteCheck(NamedTuple):
    """Records the first step with a NaN or infinite loss or gradient. Everything stays on the device."""

    loss: Tensor  # 0-d, of this step
    step_count: Tensor  # 0-d, the number of steps before this one; incremented
    first_bad_step: Tensor  # 0-d, the first step whose loss or gradient was not finite, or -1


class AveragedSGD(torch.optim.Optimizer):
    """SGD with clipping by the norm over all weights, coupled weight decay, and weight averaging.

    One step, where g is the gradient of all weights p:
    g <- g min(1, clip / |g|);  g <- g + weight_decay p;  p <- p - lr g;
    while averaging, also a <- a + (p - a) / n, where n counts the steps since averaging started.

    A CUDA graph can capture ``step``: the learning rate and 1/n are read from tensors on the device, which
    ``prepare_step`` sets before each step, outside of the graph. ``step`` never synchronizes with the device.

    Args:
        params: parameters or named parameters, of one dtype and on one device.
        clip: maximum norm of the gradient over all weights.
        weight_decay: L2 penalty, applied after clipping.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([3.0]))
        >>> optimizer = AveragedSGD([weight], clip=0.25)
        >>> optimizer.prepare_step(lr=2.0)
        >>> weight.grad = torch.tensor([100.0])
        >>> _ = optimizer.step()
        >>> round(weight.item(), 4)
        2.5
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[tuple[str, Tensor]],
        *,
        clip: float,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": 0.0, "clip": clip, "weight_decay": weight_decay})
        self.params: list[Tensor] = self.param_groups[0]["params"]
        like = self.params[0]
        self.lr = torch.zeros((), device=like.device, dtype=like.dtype)
        self.average_weight = torch.zeros((), device=like.device, dtype=like.dtype)  # 1 / n
        self.averages: list[Tensor] | None = None
        self.averaged_steps = 0
        choice = backends.choose("sgd_update", self.params, self.params, None, **self._options())
        self._update = choice.run

    def start_averaging(self) -> None:
        """Start a new average with the next step, which replaces the previous average if there is one."""
        if self.averages is None:
            self.averages = [parameter.detach().clone() for parameter in self.params]
        self.averaged_steps = 0  # the first step has weight 1, so the average's old value does not matter

    def prepare_step(self, lr: float) -> None:
        """Set the learning rate of the next step, and the weight of that step in the average."""
        self.param_groups[0]["lr"] = lr
        self.lr.fill_(lr)
        if self.averages is not None:
            self.averaged_steps += 1
            self.average_weight.fill_(1 / self.averaged_steps)

    def gradients(self) -> list[Tensor]:
        """The gradient of every parameter; all parameters must have one."""
        gradients = [parameter.grad for parameter in self.params if parameter.grad is not None]
        if len(gradients) != len(self.params):
            raise PRUError("a parameter has no gradient; compute the gradients of all parameters first")
        return gradients

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: None = None, *, grad_scale: Tensor | None = None, check: NonFiniteCheck | None = None
    ) -> Tensor:
        """Update the weights from their ``grad``, which is not modified.

        Args:
            closure: not supported.
            grad_scale: 0-d, what the loss was multiplied by; the gradients are divided by it. If they
                overflowed, the step is taken with a gradient of zero, and overflow is not flagged as
                divergence.
            check: updated with this step.

        Returns:
            0-d, the norm of the gradients before unscaling and clipping.
        """
        options = self._options(factor=grad_scale, watch=check)
        return self._update(self.params, self.gradients(), self.averages, **options)

    def _options(self, factor: Tensor | None = None, watch: NonFiniteCheck | None = None) -> dict[str, Any]:
        group = self.param_groups[0]
        return {
            "rate": self.lr,
            "share": self.average_weight,
            "factor": factor,
            "watch": watch,
            "clip": group["clip"],
            "decay": group["weight_decay"],
        }

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Inside this context, the parameters hold the averaged weights, if averaging has started.

        The values are swapped in place.

        Example:
            >>> weight = torch.nn.Parameter(torch.tensor([3.0]))
            >>> optimizer = AveragedSGD([weight], clip=0.25)
            >>> optimizer.start_averaging()
            >>> for _ in range(3):
            ...     optimizer.prepare_step(lr=4.0)
            ...     weight.grad = torch.tensor([100.0])
            ...     _ = optimizer.step()
            >>> with optimizer.averaged_weights():
            ...     round(weight.item(), 4)  # the mean of 2, 1 and 0
            1.0
            >>> round(weight.item(), 4)
            0.0
        """
        if self.averages is None:
            yield
            return
        raw = [parameter.detach().clone() for parameter in self.params]
        with torch.no_grad():
            private.foreach_copy_(self.params, self.averages)
        try:
            yield
        finally:
            with torch.no_grad():
                private.foreach_copy_(self.params, raw)

    def state_dict(self) -> dict[str, Any]:
        """The average by parameter name (empty before averaging starts), and how many steps it covers.

        Hyperparameters are not part of it: they belong to the configuration of the run.
        """
        averages = {} if self.averages is None else dict(zip(self._names(), self.averages, strict=True))
        return {"averages": averages, "averaged_steps": self.averaged_steps}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned."""
        if state_dict["averages"]:
            self.start_averaging()
            assert self.averages is not None
            for name, average in zip(self._names(), self.averages, strict=True):
                average.copy_(state_dict["averages"][name])
        self.averaged_steps = state_dict["averaged_steps"]

    def _names(self) -> list[str]:
        """Names of the parameters; without names, their numbers."""
        numbers = [str(number) for number in range(len(self.params))]
        return self.param_groups[0].get("param_names", numbers)


class LossScale:
    """Keeps float16 gradients in range, without synchronizing with the device.

    The loss is multiplied by ``scale`` before the backward pass, and the optimizer divides the gradients by
    it. A step whose gradients overflow is skipped (the optimizer takes the gradient as zero), and the scale
    is halved; after 2,000 steps without overflow it is doubled. ``torch.amp.GradScaler`` does the same, but
    synchronizes at every step.

    Example:
        >>> loss_scale = LossScale(torch.device("cpu"))
        >>> loss_scale.update(torch.tensor(torch.inf))
        >>> loss_scale.scale.item()
        2048.0
    """

    INITIAL, MAXIMUM, GROWTH_INTERVAL = 2.0**12, 2.0**20, 2000

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), self.INITIAL, device=device)
        self.good_steps = torch.zeros((), device=device)  # since the last overflow or growth

    @torch.no_grad()
    def update(self, grad_norm: Tensor) -> None:
        """Set the scale of the next step from the norm (0-d) of this step's scaled gradients."""
        finite = torch.isfinite(grad_norm)
        self.good_steps.copy_(torch.where(finite, self.good_steps + 1, 0.0))
        grow = self.good_steps >= self.GROWTH_INTERVAL
        self.good_steps.masked_fill_(grow, 0.0)
        change = torch.where(finite, torch.where(grow, 2.0, 1.0), 0.5)
        self.scale.mul_(change).clamp_(1.0, self.MAXIMUM)

    def state_dict(self) -> dict[str, Tensor]:
        """The scale and the number of steps without overflow."""
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Load what ``state_dict`` returned."""
        self.scale.copy_(state_dict["scale"])
        self.good_steps.copy_(state_dict["good_steps"])
