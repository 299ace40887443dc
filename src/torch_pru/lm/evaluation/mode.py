"""Evaluation mode that is undone at the end, with or without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module, *, gradients: bool = False) -> Iterator[None]:
    """No dropout of any kind inside; every module's mode is as before afterwards.

    With ``gradients=True`` the ``nn.LSTM`` layers stay in training mode, because cuDNN refuses a
    backward pass otherwise. A language model's have no dropout of their own, so the numbers are the same.

    Example:
        >>> model = nn.Dropout(0.5)
        >>> with evaluating(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        if gradients:
            for module in model.modules():
                if isinstance(module, nn.RNNBase):
                    module.training = True
        yield
    finally:
        for module, mode in modes:
            module.training = mode
