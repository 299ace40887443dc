"""How an operator is made known to PyTorch, with little Python between a call and its kernel.

Compilers see one node with known shapes. ``torch.library.custom_op`` gives the same, but at every call it
binds arguments to the schema, flattens lists and compares the storage of all results: on a GPU an eager
caller would wait for that and not for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function

from torch_pru.errors import PRUError

NAMESPACE = "torch_pru"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # registrations live as long as this does

Run = Callable[..., Any]


def define(name: str, run: Run, fake: Run, differentiable: Run) -> Run:
    """An operator that runs ``run``, whose annotations are its schema.

    Args:
        name: it is ``torch.ops.torch_pru.<name>``.
        run: the implementation for all devices. No result of it is an argument or another result.
        fake: the same, but makes no more than unwritten results of the right shapes, dtypes and strides.
        differentiable: called instead where a gradient is wanted; a ``Function`` that calls the operator by
            :func:`below_autograd`.
    """
    schema = torch.library.infer_schema(run, mutates_args=())
    LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    unseen = torch._disable_dynamo  # where the caller was not compiled, what it calls shall not be either
    LIBRARY.impl(name, unseen(run), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    operator = getattr(getattr(torch.ops, NAMESPACE), name).default

    def with_autograd(*arguments: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            return differentiable(*arguments)
        return below_autograd(operator, *arguments)

    LIBRARY.impl(name, unseen(with_autograd), "Autograd")
    return operator


def below_autograd(operator: Run, *arguments: Any) -> Any:
    """What an operator gives when autograd, which has done its part, is left out."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


class OnceDifferentiable(Function):
    """An operator of tensors to tensors, itself a backward pass, that has none: asked for it, it says why."""

    @staticmethod
    def forward(ctx, operator, reason, *arguments):
        ctx.reason = reason
        return tuple(below_autograd(operator, *arguments))

    @staticmethod
    def backward(ctx, *grads):
        raise PRUError(f"double backward through {ctx.reason}")
