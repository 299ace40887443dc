"""The error of this package, and checks of arguments that raise it."""

from __future__ import annotations

import difflib
import itertools
import operator
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


class PRUError(ValueError, RuntimeError):
    """Raised for invalid input. The message names the argument, its value, and what would be valid.

    It is a ``ValueError``, which describes it, and a ``RuntimeError``, which is what ``nn.LSTM``
    raises, so that code written around ``nn.LSTM`` keeps catching it.

    Example:
        >>> from torch_pru import PRU, PRUError
        >>> try:
        ...     PRU(400, 1400, groups=3)
        ... except PRUError as error:
        ...     print(error)
        groups=3 does not divide hidden_size=1400; use 1, 2, 4, 5, 7, 8, 10 or 14
    """


class PRUTypeError(PRUError, TypeError):
    """A :class:`PRUError` where PyTorch raises a ``TypeError``: an argument has the wrong type."""


class SharedError(PRUError):
    """Raised by every process of a distributed run; only the first one reports it."""


def shown(value: object) -> str:
    """``value`` for a message: its ``repr`` in one line, shortened if it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of an integer with thousands of digits, or of a stranger's object
        return f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` with the known name that is closest to ``name``; empty if none is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def check_choice(argument: str, value: object, choices: Iterable[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise PRUError(f"{given(argument, value)} is not known; use {either(map(repr, choices))}{hint}")


def given(argument: str, value: object) -> str:
    """An argument and its value as they were written: ``split='tset'``, or ``--split tset``."""
    return f"{argument} {value}" if argument.startswith("--") else f"{argument}={shown(value)}"


def either(choices: Iterable[str]) -> str:
    """``"a, b or c"``."""
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


LARGEST_SIZE = 2**63 - 1  # of a PyTorch dimension


def check_positive(argument: str, value: object) -> int:
    """``value`` as an ``int``; raise unless it is an integer from 1 to the largest size PyTorch can express.

    The integers of NumPy are accepted, too.
    """
    number = as_integer(value)
    if number is None:
        raise PRUTypeError(f"{argument}={shown(value)} must be a positive integer")
    if abs(number) > LARGEST_SIZE:  # may have too many digits to be shown
        raise PRUError(f"{argument} is out of range; use an integer from 1 to 2**63 - 1")
    if number < 1:
        raise PRUError(f"{argument}={shown(value)} must be a positive integer")
    return number


def check_size(argument: str, value: object) -> int:
    """:func:`check_positive` in the words of ``nn.LSTM``."""
    number = as_integer(value)
    if number is None:
        kind = type(value).__name__
        raise PRUTypeError(f"{argument} should be of type int, got: {kind} ({argument}={shown(value)})")
    if -LARGEST_SIZE <= number < 1:
        raise PRUError(f"{argument} must be greater than zero; got {argument}={shown(value)}")
    return check_positive(argument, number)


def as_integer(value: object) -> int | None:
    """``value`` as an ``int`` if it is an integer of Python or NumPy, else None; a bool is not an integer."""
    if isinstance(value, bool | Tensor) or type(value).__name__ in ("bool", "bool_"):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def check_bool(argument: str, value: object) -> bool:
    """Raise unless ``value`` is True or False, in the words of ``nn.LSTM``."""
    if not isinstance(value, bool):
        kind = type(value).__name__
        raise PRUTypeError(
            f"{argument} should be of type bool, got: {kind} ({argument}={shown(value)}); use True or False"
        )
    return value


def check_flag(argument: str, value: object) -> bool:
    """``value`` as a bool; raise unless it is True, False, 1, 0 or NumPy's version of one of them."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    if as_integer(value) in (0, 1):
        return bool(value)
    raise PRUTypeError(f"{argument}={shown(value)} must be True or False")


def check_dtype(dtype: object) -> None:
    """Raise unless ``dtype`` is a real floating-point dtype, or None for the default."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise PRUTypeError(f"dtype={shown(dtype)} must be a dtype, such as torch.float32")
    if dtype is not None and not dtype.is_floating_point:
        raise PRUError(f"dtype={shown(dtype)} must be a real floating-point dtype, such as torch.float32")


def check_not_negative(argument: str, value: float) -> None:
    """Raise if ``value`` is negative, infinite or NaN."""
    if not 0 <= value < float("inf"):
        raise PRUError(f"{argument}={shown(value)} must be 0 or greater")


def check_probability(argument: str, value: object, *, one_allowed: bool = False) -> None:
    """Raise unless ``value`` is a number in [0, 1), or in [0, 1] if ``one_allowed``."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not (0 <= value < 1 or (one_allowed and value == 1)):  # type: ignore[operator]
        interval = "[0, 1]" if one_allowed else "[0, 1)"
        raise PRUError(f"{argument}={shown(value)} must be a number in {interval}")


def check_dense(argument: str, value: object) -> None:
    """Raise unless ``value`` is a dense tensor."""
    if not isinstance(value, Tensor):
        raise PRUTypeError(f"{argument} is a {type(value).__name__}; expected a Tensor")
    if value.is_nested or value.layout != torch.strided:
        raise PRUError(f"{argument} must be a dense tensor, neither sparse nor nested")


def check_tensor(argument: str, value: object, like: Tensor, *, called: str = "input") -> None:
    """Raise unless ``value`` is a dense tensor with the device and dtype of ``like``; autocast: any float.

    Args:
        called: what the tensor is named in the advice on converting it.
    """
    check_dense(argument, value)
    assert isinstance(value, Tensor)
    if value.device != like.device:
        raise PRUError(
            f"Input and parameter tensors are not at the same device: {argument} is on {value.device}, "
            f"the parameters are on {like.device}; move one of them"
        )
    autocast = not value.is_meta and torch.is_autocast_enabled(value.device.type)
    converted = autocast and value.is_floating_point()
    if not value.is_floating_point() and like.is_floating_point():
        raise PRUError(f"{argument} has dtype {value.dtype}; convert it to {like.dtype}")
    if value.dtype != like.dtype and not converted:
        raise PRUError(
            f"{argument} dtype ({value.dtype}) does not match weight dtype ({like.dtype}). "
            f"Convert {called}: {called}.to({like.dtype}), or convert model: model.to({value.dtype})"
        )
    if not value.is_floating_point():  # a layer converted after it was made
        raise PRUError(f"{argument} has dtype {value.dtype}; expected a real floating-point dtype")


def check_pair(hx: object, names: Iterable[str]) -> None:
    """Raise unless ``hx`` is a pair of dense tensors."""
    names = tuple(names)
    if not isinstance(hx, tuple | list) or len(hx) != 2:
        raise PRUError(f"hx must be a pair ({', '.join(names)}); got a {type(hx).__name__}")
    for name, state in zip(names, hx, strict=True):
        check_dense(f"hx: {name}", state)


def check_states(hx: object, shapes: dict[str, tuple[int, ...]], like: Tensor) -> None:
    """Raise unless ``hx`` is a pair of states of these shapes, with the device and dtype of ``like``.

    Args:
        shapes: those of h and c by their names.
    """
    check_pair(hx, shapes)
    assert isinstance(hx, tuple | list)
    for (name, shape), state in zip(shapes.items(), hx, strict=True):
        if state.device != like.device:
            raise PRUError(
                f"Input and hidden tensors are not at the same device: {name} is on {state.device}, "
                f"input is on {like.device}; move one of them"
            )
        check_tensor(f"hx: {name}", state, like, called=name)
        if state.shape != shape:
            raise PRUError(f"Expected hidden state {name} of size {shape}, got {tuple(state.shape)}")


def check_packed(packed: PackedSequence) -> None:
    """Raise unless the fields of ``packed`` fit together: PyTorch's native code relies on it."""
    data, sizes = packed.data, packed.batch_sizes
    if not isinstance(sizes, Tensor) or sizes.dtype != torch.int64 or sizes.dim() != 1 or not sizes.is_cpu:
        raise PRUError("packed input: batch_sizes must be a one-dimensional int64 tensor on the CPU")
    steps = sizes.tolist()
    if not steps or steps[-1] < 1 or any(now < later for now, later in itertools.pairwise(steps)):
        raise PRUError(
            f"packed input: batch_sizes {_shortened(steps)} must be positive and must not increase"
        )
    if sum(steps) != data.shape[0]:
        raise PRUError(f"packed input: batch_sizes add up to {sum(steps)}, but data has {data.shape[0]} rows")
    for name in ("sorted_indices", "unsorted_indices"):
        _check_order(name, getattr(packed, name), steps[0], data.device)


def _check_order(name: str, order: Tensor | None, batch: int, device: torch.device) -> None:
    """Raise unless ``order`` is None or holds indices of a batch. On a GPU the values are not read."""
    if order is None:
        return
    if not isinstance(order, Tensor) or order.dtype != torch.int64 or order.device != device:
        raise PRUError(f"packed input: {name} must be an int64 tensor on {device}, where data is")
    if order.shape != (batch,):
        raise PRUError(f"packed input: {name} has shape {tuple(order.shape)}; expected ({batch},)")
    if order.is_cpu and order.sort().values.tolist() != list(range(batch)):
        raise PRUError(f"packed input: {name} must contain each of 0 to {batch - 1} once")


def _shortened(numbers: list[int]) -> str:
    """The list as text, with at most eight numbers."""
    return str(numbers) if len(numbers) <= 8 else f"[{', '.join(map(str, numbers[:8]))}, ...]"


@contextmanager
def renaming_arguments(**names: str) -> Iterator[None]:
    """In the message of an error raised inside, rename arguments: ``their_name="our_name"``.

    A name may be a regular expression.
    """
    try:
        yield
    except PRUError as error:
        text = str(error)
        for theirs, ours in names.items():
            text = re.sub(rf"\b{theirs}\b", ours, text)
        raise type(error)(text) from None
