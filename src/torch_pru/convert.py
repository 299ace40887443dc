"""``convert_lstm``: every ``nn.LSTM`` inside a model replaced by a PRU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from torch_pru.errors import PRUError
from torch_pru.layer import PRU


def convert_lstm(
    model: nn.Module,
    *,
    report: Callable[[str], object] | None = print,
    **options: Any,
) -> nn.Module:
    """Replace every ``nn.LSTM`` inside ``model`` by a PRU, in place, as ``convert_sync_batchnorm`` does.

    Without options each PRU computes exactly what its LSTM computed (see :meth:`PRU.from_lstm`). With
    options, such as ``levels`` and ``groups``, each is a new PRU of the same sizes, to be trained.
    Subclasses of ``nn.LSTM`` are left alone.

    Args:
        model: the model; if it is an ``nn.LSTM`` itself, only the returned one is converted.
        report: called with one line per layer and one for the whole model, with the number of parameters
            before and after. None for no report.
        options: of :class:`PRU`, for instance ``levels="auto", groups="auto"``.

    Returns:
        The converted model.

    Raises:
        PRUError: with the name of the module, if a PRU cannot have its sizes or options.

    Example:
        >>> from torch import nn
        >>> tagger = nn.ModuleDict({"rnn": nn.LSTM(400, 1400), "head": nn.Linear(1400, 10)})
        >>> tagger = convert_lstm(tagger, levels=2, groups=4)
        rnn: 10,091,200 -> 3,931,200 parameters, PRU(400, 1400, levels=2, groups=4, residual=False)
        total: 10,105,210 -> 3,945,210 parameters
    """
    before = _count(model)
    converted: dict[int, PRU] = {}  # by the LSTM: one that occurs twice is converted once
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) is not nn.LSTM:
            continue
        if id(module) not in converted:
            pru = _converted(module, name or "model", options)
            converted[id(module)] = pru
            if report is not None:
                report(f"{name or 'model'}: {_count(module):,} -> {_count(pru):,} parameters, {pru}")
        if not name:
            return converted[id(module)]
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, converted[id(module)])
    if report is not None:
        total = f"total: {before:,} -> {_count(model):,} parameters"
        report(total if converted else "no nn.LSTM found; the model is unchanged")
    return model


def _converted(lstm: nn.LSTM, name: str, options: dict[str, Any]) -> PRU:
    try:
        return _fresh(lstm, options) if options else PRU.from_lstm(lstm)
    except PRUError as error:
        raise type(error)(f"{name}: {error}") from error


def _fresh(lstm: nn.LSTM, options: dict[str, Any]) -> PRU:
    """A new PRU of the sizes of ``lstm``."""
    like = next(lstm.parameters())
    arguments = (lstm.input_size, lstm.hidden_size, lstm.num_layers, lstm.bias, lstm.batch_first)
    given: dict[str, Any] = {
        "dropout": lstm.dropout,
        "bidirectional": lstm.bidirectional,
        "proj_size": lstm.proj_size,
        "device": like.device,
        "dtype": like.dtype,
    }
    pru = PRU(*arguments, **given | options)
    return pru.train(lstm.training)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
