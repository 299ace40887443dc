"""Operators registered with PyTorch, with little Python between a call and its kernel.

Compilers see one node with known shapes. ``torch.library.custom_op`` offers the same, but at every call it
binds arguments to the schema, flattens lists and compares the storage of all results: on a GPU, an eager
caller would wait for that and not for the device. For the same reason the dispatcher is called only if a
compiler, a mode or a transform needs to see the operator: it converts all arguments and results, twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from torch_pru.errors import PRUError
from torch_pru.ops import torch_private as private
from torch_pru.ops.torch_private import Mode, are_plain, current_mode

NAMESPACE = "torch_pru"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # registrations live as long as this does

Run = Callable[..., Any]


class Operator:
    """An operator of PyTorch.

    Args:
        schema: ``"name(Tensor x, ...) -> Tensor"``; the operator is ``torch.ops.torch_pru.<name>``.
        run: the implementation for all devices. Its results must not be arguments, nor alias each other.
        fake: the same, but returns uninitialized results of the right shapes, dtypes and strides.
        differentiable: called instead of ``run`` if a gradient is wanted; a ``Function`` that calls
            :meth:`below_autograd`. For a backward pass, why it cannot be differentiated: an error says so.
    """

    def __init__(self, schema: str, run: Run, fake: Run, differentiable: Run | str) -> None:
        name = schema.partition("(")[0]
        LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        self._dispatched: Run = getattr(getattr(torch.ops, NAMESPACE), name).default
        if isinstance(differentiable, str):
            differentiable = functools.partial(OnceDifferentiable.apply, self.below_autograd, differentiable)
        self._run, self._differentiable = run, differentiable
        unseen = private.disable_dynamo  # if the caller was not compiled, what it calls must not be either
        LIBRARY.impl(name, unseen(run), "CompositeExplicitAutograd")
        with_autograd = unseen(lambda *arguments: self._with_autograd(self._dispatched, arguments))
        LIBRARY.impl(name, with_autograd, "Autograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)

    def __call__(self, *arguments: Any, eager: bool | None = None) -> Any:
        """``eager``: the result of :func:`is_eager` for the arguments, if it is already known."""
        if is_eager(arguments) if eager is None else eager:
            return self._with_autograd(self._run, arguments)
        return self._dispatched(*arguments)

    def _with_autograd(self, run: Run, arguments: tuple[Any, ...]) -> Any:
        """``run``, or ``differentiable`` if a gradient is wanted."""
        backwards = torch.is_grad_enabled() and private.any_requires_grad(*arguments)
        if backwards or private.in_forward_ad():  # the ``Function`` raises that it has no jvp
            return self._differentiable(*arguments)
        with private.below_autograd():
            return run(*arguments)

    def below_autograd(self, *arguments: Any) -> Any:
        """The result of the operator, called from inside a ``Function``."""
        run = self._run if is_eager(arguments) else self._dispatched
        with private.below_autograd():
            return run(*arguments)


def is_eager(arguments: tuple[Any, ...]) -> bool:
    """Whether nothing but autograd needs to see a call of an operator with these arguments."""
    return current_mode() is Mode.EAGER and are_plain(arguments)


ONCE = "this backend is not possible; use float64, or build the layer as PRU(..., backend='reference')"
"""Why there is no double backward of a layer."""


class OnceDifferentiable(Function):
    """A backward pass that cannot be differentiated again: a double backward raises with a reason."""

    @staticmethod
    def forward(ctx, run, reason, *arguments):
        ctx.reason = reason
        return tuple(run(*arguments))

    @staticmethod
    def backward(ctx, *grads):
        raise PRUError(f"double backward through {ctx.reason}")


def differentiable_gradients(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients of ``function(*inputs)``, which can be differentiated; None where they are not needed.

    For a backward pass that is called with ``create_graph=True`` and cannot be differentiated itself.

    Args:
        function: the forward pass once more, in plain PyTorch.
        inputs: the tensors that ``function`` takes.
        needed: for each of them, whether its gradient is wanted.
        grads: the gradient of each result; None for zero.
    """
    with torch.enable_grad():
        # A view of each, so that a tensor that is given twice has a gradient for each place.
        views = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
        results = function(*views)
    wanted = [view for view, need in zip(views, needed, strict=True) if need and view is not None]
    pairs = [(result, grad) for result, grad in zip(results, grads, strict=True) if grad is not None]
    outputs, given = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, given, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]
