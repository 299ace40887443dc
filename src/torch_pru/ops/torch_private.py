"""Every private name of PyTorch that this package uses, and nothing else that is private.

Each of them saves time that was measured, or has no public counterpart. ``pyproject.toml`` has an upper bound
on the version of PyTorch because of them, and a test says which name a new version no longer has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._C import DispatchKey, DispatchKeySet
from torch.autograd import forward_ad

from torch_pru.ops.spec import LayerSpec, TransformSpec

# Operators without the dispatcher's and Dynamo's overhead: 10 to 20 microseconds per call.
disable_dynamo = torch._disable_dynamo
below_autograd = torch._C._AutoDispatchBelowAutograd
any_requires_grad = torch._C._any_requires_grad

# The kernels of oneDNN and of nn.LSTM, without the modules around them.
lstm = torch._VF.lstm
onednn_is_enabled = torch._C._get_mkldnn_enabled
onednn_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # only in builds with oneDNN

# Updates of many tensors in one call.
foreach_norm: Any = torch._foreach_norm
foreach_mul: Any = torch._foreach_mul
foreach_mul_: Any = torch._foreach_mul_
foreach_add_: Any = torch._foreach_add_
foreach_sub: Any = torch._foreach_sub
foreach_sub_: Any = torch._foreach_sub_
foreach_lerp_: Any = torch._foreach_lerp_
foreach_addcmul_: Any = torch._foreach_addcmul_
foreach_copy_: Any = torch._foreach_copy_
foreach_zero_: Any = torch._foreach_zero_
foreach_div_: Any = torch._foreach_div_
foreach_sqrt: Any = torch._foreach_sqrt


Function = TypeVar("Function", bound=Callable[..., Any])


def assume_constant_result(function: Function) -> Function:
    """As that of ``torch.compiler``, which imports the whole compiler for it: a second of every import."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def current_stream(index: int) -> int:
    """The handle of PyTorch's current stream on a GPU."""
    return torch._C._cuda_getCurrentRawStream(index)


def is_exporting() -> bool:
    """Whether ``torch.export`` traces. In PyTorch 2.10, the public function is also true when compiling."""
    return torch.compiler._is_exporting_flag


class Mode(Enum):
    """What is going on in this thread besides plain computation."""

    EAGER = auto()  # nothing
    OBSERVED = auto()  # a compiler, tracer, transform, mode or profiler, or an operator inside of another
    DERIVATIVE = auto()  # torch.func or forward-mode AD take a derivative


_DERIVATIVES = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)
_AUTOGRAD = DispatchKey.AutogradFunctionality
_EAGER_KEYS = frozenset(
    keys.raw_repr()
    for keys in (
        DispatchKeySet(DispatchKey.BackendSelect),  # in inference mode
        DispatchKeySet(DispatchKey.BackendSelect) | DispatchKeySet(DispatchKey.ADInplaceOrView),
    )
)
"""What the dispatcher includes in a thread where no mode, transform, tracer or vmap is active."""


def current_mode() -> Mode:
    """The mode of this thread; a compiler, which cannot look at transforms, always sees ``OBSERVED``."""
    if torch.compiler.is_compiling():
        return Mode.OBSERVED
    if in_forward_ad():
        return Mode.DERIVATIVE
    if _has_mode():
        transforms = torch._C._functorch.get_interpreter_stack() or ()
        derivative = any(transform.key() in _DERIVATIVES for transform in transforms)
        return Mode.DERIVATIVE if derivative else Mode.OBSERVED
    if torch.autograd._profiler_enabled() or _is_inside_operator():
        return Mode.OBSERVED
    return Mode.EAGER


def _is_inside_operator() -> bool:
    """Whether autograd is excluded, as inside of somebody's operator; inference mode excludes it, too."""
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOGRAD)
    return excluded and not torch.is_inference_mode_enabled()


def is_transformed() -> bool:
    """Whether a compiler, a transform or a mode is active in this thread: its tensors must not be cached."""
    return torch.compiler.is_compiling() or _has_mode()


def _has_mode() -> bool:
    """Whether a transform or a mode is active in this thread."""
    keys = torch._C._dispatch_tls_local_include_set().raw_repr()
    return keys not in _EAGER_KEYS or torch._C._len_torch_function_stack() > 0


def in_forward_ad() -> bool:
    """Whether forward-mode AD is active."""
    return forward_ad._current_level >= 0


_PLAIN = frozenset((nn.Parameter, type(None), bool, int, float, str, torch.dtype, LayerSpec, TransformSpec))


def are_plain(arguments: Iterable[Any]) -> bool:
    """Whether no tensor among the arguments or in their sequences is a subclass or on the meta device."""
    for argument in arguments:
        kind = type(argument)
        if kind in _PLAIN:
            continue
        if kind is Tensor:
            plain = not argument.is_meta
        else:
            plain = isinstance(argument, (list, tuple)) and (not argument or are_plain(argument))
        if not plain:
            return False
    return True
