"""Evaluation mode that is undone at the end, with or without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module, *, gradients: bool = False) -> Iterator[None]:
    """No dropout of any kind inside; every module's mode is as before afterwards.

    With ``gradients=True`` the ``nn.LSTM`` layers stay in training mode, because cuDNN refuses a
    backward pass otherwise. Their own dropout is switched off, so the numbers are the same.

    Example:
        >>> model = nn.Dropout(0.5)
        >>> with evaluating(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    modes = [(module, module.training) for module in model.modules()]
    dropouts = [(module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)]
    try:
        model.eval()
        if gradients:
            for layer, _ in dropouts:
                layer.dropout = 0.0
                layer.training = True
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for layer, dropout in dropouts:
            layer.dropout = dropout
