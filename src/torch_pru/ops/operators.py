"""How an operator is made known to PyTorch, with little Python between a call and its kernel.

Compilers see one node with known shapes. ``torch.library.custom_op`` gives the same, but at every call it
binds arguments to the schema, flattens lists and compares the storage of all results: on a GPU an eager
caller would wait for that and not for the device. For the same reason the dispatcher is called only where
somebody wants to see the operator: it would convert all arguments and results, twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DispatchKey, DispatchKeySet
from torch.autograd import Function, forward_ad

from torch_pru.errors import PRUError

NAMESPACE = "torch_pru"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # registrations live as long as this does

Run = Callable[..., Any]


class Operator:
    """An operator that runs ``run``, whose annotations are its schema.

    Args:
        name: it is ``torch.ops.torch_pru.<name>``.
        run: the implementation for all devices. No result of it is an argument or another result.
        fake: the same, but makes no more than unwritten results of the right shapes, dtypes and strides.
        differentiable: called instead where a gradient is wanted; a ``Function`` that calls
            :meth:`below_autograd`.
    """

    def __init__(self, name: str, run: Run, fake: Run, differentiable: Run) -> None:
        schema = torch.library.infer_schema(run, mutates_args=())
        LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        self._dispatched: Run = getattr(getattr(torch.ops, NAMESPACE), name).default
        self._run, self._differentiable = run, differentiable
        unseen = torch._disable_dynamo  # where the caller was not compiled, what it calls shall not be either
        LIBRARY.impl(name, unseen(run), "CompositeExplicitAutograd")
        with_autograd = unseen(lambda *arguments: self._with_autograd(self._dispatched, arguments))
        LIBRARY.impl(name, with_autograd, "Autograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)

    def __call__(self, *arguments: Any) -> Any:
        if is_watched(arguments) or torch._C._dispatch_tls_is_dispatch_key_excluded(AUTOGRAD):
            return self._dispatched(*arguments)
        return self._with_autograd(self._run, arguments)

    def _with_autograd(self, run: Run, arguments: tuple[Any, ...]) -> Any:
        """``run``, or where a gradient is wanted what comes to it by :meth:`below_autograd`."""
        backwards = torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)
        if backwards or has_tangents():  # forwards, a ``Function`` says that it cannot
            return self._differentiable(*arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return run(*arguments)

    def below_autograd(self, *arguments: Any) -> Any:
        """What the operator gives when autograd, which has done its part, is left out."""
        run = self._dispatched if is_watched(arguments) else self._run
        with torch._C._AutoDispatchBelowAutograd():
            return run(*arguments)


DERIVATIVES = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)
AUTOGRAD = DispatchKey.AutogradFunctionality
PLAIN = frozenset((Tensor, nn.Parameter, type(None), bool, int, float, str, torch.dtype))
UNWATCHED = frozenset(
    keys.raw_repr()
    for keys in (
        DispatchKeySet(DispatchKey.BackendSelect),  # in inference mode
        DispatchKeySet(DispatchKey.BackendSelect) | DispatchKeySet(DispatchKey.ADInplaceOrView),
    )
)
"""What the dispatcher goes through in a thread where no mode, transform, tracer or vmap is at work."""


def is_watched(arguments: Iterable[Any]) -> bool:
    """Whether a compiler, a transform, a mode, a profiler or a kind of tensor has to do with an operator."""
    return is_transformed() or torch.autograd._profiler_enabled() or not are_plain(arguments)


def is_transformed() -> bool:
    """Whether a compiler, a transform or a mode is at work in this thread: its tensors are not to be kept."""
    return (
        torch.compiler.is_compiling()
        or torch._C._dispatch_tls_local_include_set().raw_repr() not in UNWATCHED
        or torch._C._len_torch_function_stack() > 0
    )


def has_tangents() -> bool:
    """Whether derivatives are taken forwards, as tangents that tensors carry along."""
    return forward_ad._current_level >= 0


def is_differentiated() -> bool:
    """Whether tangents or ``torch.func`` take a derivative, which a hand-written backward cannot give.

    Not asked of a compiler, which cannot look at the transforms that it compiles.
    """
    if torch.compiler.is_compiling():
        return False
    transforms = torch._C._functorch.get_interpreter_stack() if is_transformed() else None
    return has_tangents() or any(transform.key() in DERIVATIVES for transform in transforms or ())


def are_plain(arguments: Iterable[Any]) -> bool:
    """Whether no tensor among them, or in a list of them, is of a kind with operators of its own."""
    for argument in arguments:
        kind = type(argument)
        if kind is list or kind is tuple:
            plain = are_plain(argument)
        else:
            plain = kind in PLAIN and not (kind is Tensor and argument.is_meta)
        if not plain:
            return False
    return True


class OnceDifferentiable(Function):
    """A function of tensors to tensors, itself a backward pass, that has none: asked for it, it says why."""

    @staticmethod
    def forward(ctx, run, reason, *arguments):
        ctx.reason = reason
        return tuple(run(*arguments))

    @staticmethod
    def backward(ctx, *grads):
        raise PRUError(f"double backward through {ctx.reason}")
