"""``export``: `torch.onnx.export` for modules that contain a PRU, an ``nn.LSTM`` or a language model."""

from __future__ import annotations

import copy
import inspect
import os
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.onnx import ONNXProgram

from torch_pru import PRU
from torch_pru.convert import convert_lstm
from torch_pru.errors import PRUError
from torch_pru.onnx.translation import translation_table

STEPS, BATCH = Dim("steps", min=1), Dim("batch", min=1)


def export(
    module: nn.Module,
    args: Tensor | tuple[Any, ...] = (),
    f: str | os.PathLike[str] | None = None,
    *,
    dynamic_shapes: Any = None,
    custom_translation_table: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    **options: Any,
) -> ONNXProgram:
    """Export a module to ONNX. The arguments are those of ``torch.onnx.export``.

    Every ``nn.LSTM`` is exported as the PRU that computes the same (`PRU.from_lstm`), because PyTorch exports
    it for one number of steps only. The module is exported in ``eval()`` and left as it is.

    Args:
        module: anything that contains a PRU or an ``nn.LSTM``.
        args: an example of its arguments. Of a PRU or ``nn.LSTM`` only their number of dimensions counts, and
            whether states are among them.
        f: where to save, if anywhere.
        dynamic_shapes: as for ``torch.onnx.export``. By default the number of steps and the batch of a PRU or
            ``nn.LSTM`` are dynamic, and the shapes of any other module are those of ``args``.
        custom_translation_table: for operators of your own; those of this package are added.
        options: further arguments of ``torch.onnx.export``, such as ``input_names``.

    Example:
        >>> program = export(nn.LSTM(40, 60), (torch.randn(7, 3, 40),), "lstm.onnx")     # doctest: +SKIP
    """
    if options.pop("dynamo", True) is not True:
        raise PRUError("dynamo=False is not supported; only the dynamo exporter can export PRUs")
    exported = convert_lstm(copy.deepcopy(module), report=None).eval()
    for rnn in (part for part in exported.modules() if isinstance(part, PRU)):
        check_contexts(rnn)
    args = args if isinstance(args, tuple) else (args,)
    if dynamic_shapes is None and isinstance(exported, PRU):
        named = options.pop("kwargs", None) or {}
        args = inspect.signature(exported.forward).bind_partial(*args, **named).args
        args, dynamic_shapes = dynamic_example(exported, args)
        options = {**default_names(args), **options}
    table = {**translation_table, **(custom_translation_table or {})}
    options = {"verbose": False, **options, "dynamic_shapes": dynamic_shapes}
    try:
        with warnings.catch_warnings():
            # Several inputs share the axis of the batch, which has one name all the same.
            warnings.filterwarnings("ignore", message="# The axis name")
            # PyTorch's own call of what PyTorch has deprecated.
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            program = torch.onnx.export(exported, args, f, custom_translation_table=table, **options)
    except torch.onnx.OnnxExporterError as error:
        if (reason := reason_of(error)) is None:
            raise
        raise PRUError(reason) from error
    assert program is not None
    return program


def reason_of(error: BaseException | None) -> str | None:
    """One line for an operator without a translation, or for what a translation has refused; else None."""
    while error is not None:
        if isinstance(error, PRUError):
            return str(error)
        if found := re.match(r"No ONNX function found for .*op='([^']+)', overload='([^']+)'", str(error)):
            name = f"torch.ops.{found[1]}.{found[2]}"
            return f"{name} has no translation to ONNX; give one in custom_translation_table"
        error = error.__cause__
    return None


def check_contexts(rnn: PRU) -> None:
    """Raise for a layer that runs step by step: the loop over the steps would have a fixed length."""
    if rnn.proj_size:
        raise PRUError(f"a layer with proj_size={rnn.proj_size} cannot be exported to ONNX")
    for spec in rnn.specs:
        if not spec.context.is_linear:
            raise PRUError(
                f"a pyramidal context with pooling={spec.context.pooling!r} cannot be exported to ONNX; "
                f"use pooling='average' or 'skip', or context_transform='grouped'"
            )


def dynamic_example(rnn: PRU, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """Arguments like ``args`` of sizes that an exporter takes for dynamic, and their dynamic shapes.

    Not those of ``args``: PyTorch takes a size of 1 for a constant.
    """
    if not args or not isinstance(args[0], Tensor):
        raise PRUError(
            "args must be the input of the layer, and its states if there are any: (x,) or (x, (h, c))"
        )
    given = args[0]
    batched = given.dim() == 3
    first = rnn.batch_first and batched
    sizes: tuple[int, ...] = (3, 2) if batched else (3,)
    dims: dict[int, Any] = {1: STEPS, 0: BATCH} if first else {0: STEPS, 1: BATCH} if batched else {0: STEPS}
    x = given.new_zeros(*(sizes[::-1] if first else sizes), rnn.input_size)
    if len(args) == 1 or args[1] is None:
        return (x,), (dims,)
    shape = (len(rnn.specs), 2, rnn.hidden_size) if batched else (len(rnn.specs), rnn.hidden_size)
    states = tuple(given.new_zeros(shape) for _ in range(2))
    state_dims = {1: BATCH} if batched else {}
    return (x, states), (dims, (state_dims, state_dims))


def default_names(args: tuple[Any, ...]) -> dict[str, list[str]]:
    """Names of the inputs and outputs of a layer, as ``nn.LSTM`` documents them."""
    inputs = ["input"] if len(args) == 1 else ["input", "h_0", "c_0"]
    return {"input_names": inputs, "output_names": ["output", "h_n", "c_n"]}
