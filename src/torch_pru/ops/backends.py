"""Who runs a piece of work: the one place where a backend is chosen.

A *piece* is a function that backends offer under one name and with one signature; see ``PIECES``. A *backend*
is a module with some of these functions and with ``unsupported_reason(piece, *arguments, **options)``, which
takes the arguments of the piece and returns None, or why the backend cannot run it. The choice is made once,
by :func:`choose`, and handed down. To add a backend, write such a module and :func:`register` it.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_pru.errors import PRUError, check_choice
from torch_pru.ops.torch_private import Mode, are_plain, current_mode

log = logging.getLogger(__name__)

PIECES = {
    "layer": "all steps of a layer in one direction",
    "recurrence": "the sequential part of a layer",
    "input_gates": "what a layer's input contributes to the gates",
    "drop": "values under a dropout or weight-drop mask",
    "add_rows": "the gradient of an embedding lookup",
    "cross_entropy": "the decoder and its cross-entropy",
    "penalties": "AR and TAR",
    "sgd_update": "clipped, averaged SGD on all weights",
    "dynamic_update": "the update of dynamic evaluation",
    "token_model": "generation, token by token",
}
WITH_MODE = frozenset(("layer", "recurrence", "input_gates", "drop"))
"""Pieces with a keyword ``eager``: False while something besides plain computation is going on, such as a
compiler, a transform or a tensor subclass. Tensors must not be cached then, and operators be dispatched."""


@dataclass(frozen=True)
class Backend:
    """One entry of the registry."""

    name: str
    module: str | ModuleType
    priority: int
    device: str | None


class Choice(NamedTuple):
    """A backend for one call.

    Attributes:
        name: the backend's.
        run: its function; takes the arguments that it was chosen for.
        reason: why it is not the backend with the highest priority for the device; None where it is.
    """

    name: str
    run: Callable[..., Any]
    reason: str | None


_backends: dict[str, Backend] = {}


def register(name: str, module: str | ModuleType, *, priority: int, device: str | None = None) -> None:
    """Add a backend, or replace the one of this name.

    Args:
        name: what ``PRU(..., backend=name)`` asks for.
        module: the module, or its import path; it is then imported when it is first needed.
        priority: of those that can run a piece, the one with the highest priority does.
        device: the type of device that it runs on, such as ``"cuda"``; None for any.
    """
    _backends[name] = Backend(name, module, priority, device)
    _sorted_candidates.cache_clear()
    _loaded.cache_clear()


def unregister(name: str) -> None:
    """Remove a backend."""
    del _backends[name]
    _sorted_candidates.cache_clear()
    _loaded.cache_clear()


def names() -> tuple[str, ...]:
    """What ``backend=`` may be: ``"auto"`` and the registered backends."""
    return ("auto", *_backends)


def choose(piece: str, *arguments: Any, requested: str = "auto", **options: Any) -> Choice:
    """The backend that runs ``piece`` with these arguments.

    Args:
        piece: one of ``PIECES``.
        arguments, options: of the piece. The first tensor among them determines the device.
        requested: ``"auto"`` for the one with the highest priority that can, or the name of a backend, which
            is an error where it cannot.
    """
    mode = current_mode()
    if piece in WITH_MODE:
        options["eager"] = mode is Mode.EAGER and are_plain(arguments)
    if requested != "auto":
        return _requested(requested, piece, arguments, options)
    if mode is Mode.DERIVATIVE:
        run = _bound(module("reference"), piece, options)
        return Choice("reference", run, "torch.func or forward-mode AD takes a derivative")
    first_reason = None
    for name, backend in _candidates(piece, _device_type(arguments)):
        reason = backend.unsupported_reason(piece, *arguments, **options)
        if reason is None:
            return Choice(name, _bound(backend, piece, options), first_reason)
        if first_reason is None:
            first_reason = f"{name}: {reason}"
            _log_once(piece, first_reason, _device_type(arguments))
    raise PRUError(f"no backend can run {piece!r}: {first_reason}")


def run(piece: str, *arguments: Any, requested: str = "auto", **options: Any) -> Any:
    """The result of ``piece`` from the backend that :func:`choose` gives."""
    return choose(piece, *arguments, requested=requested, **options).run(*arguments, **options)


def _requested(name: str, piece: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Choice:
    check_choice("backend", name, names())
    backend = module(name)
    if not hasattr(backend, piece):
        backend = module("reference")
    elif (reason := backend.unsupported_reason(piece, *arguments, **options)) is not None:
        raise PRUError(f"backend={name!r} cannot run this call: {reason}; use backend='auto'")
    return Choice(name, _bound(backend, piece, options), None)


def _bound(backend: ModuleType, piece: str, options: dict[str, Any]) -> Callable[..., Any]:
    function = getattr(backend, piece)
    return functools.partial(function, eager=options["eager"]) if piece in WITH_MODE else function


def _device_type(arguments: Iterable[Any]) -> str:
    for argument in arguments:
        if isinstance(argument, Tensor):
            return "cpu" if argument.is_cpu else "cuda" if argument.is_cuda else argument.device.type
        if isinstance(argument, (list, tuple)) and argument:
            return _device_type(argument)
    raise PRUError("there is no tensor among the arguments")


@torch.compiler.assume_constant_result  # a compiler asks once, and does not trace the import
def module(name: str) -> ModuleType:
    """A registered backend's module."""
    return _loaded(name)


@functools.cache
def _loaded(name: str) -> ModuleType:
    found = _backends[name].module
    return importlib.import_module(found) if isinstance(found, str) else found


@torch.compiler.assume_constant_result
def _candidates(piece: str, device: str) -> tuple[tuple[str, ModuleType], ...]:
    """Name and module of the backends that have a piece, for a type of device, highest priority first."""
    return _sorted_candidates(piece, device)


@functools.cache
def _sorted_candidates(piece: str, device: str) -> tuple[tuple[str, ModuleType], ...]:
    fitting = [backend for backend in _backends.values() if backend.device in (None, device)]
    fitting.sort(key=lambda backend: -backend.priority)
    loaded = ((backend.name, _loaded(backend.name)) for backend in fitting)
    return tuple((name, found) for name, found in loaded if hasattr(found, piece))


_logged: set[str] = set()


def _log_once(piece: str, reason: str, device: str) -> None:
    """Say once that a slower path is taken: a warning on a GPU, where it costs most."""
    if reason not in _logged and not torch.compiler.is_compiling():
        _logged.add(reason)
        level = logging.INFO if device == "cpu" else logging.WARNING
        log.log(level, "%s runs on a slower backend (%s)", piece, reason)


register("reference", "torch_pru.ops.reference", priority=0)
register("loop", "torch_pru.ops.cpu", priority=10)
register("native", "torch_pru.ops.native", priority=30, device="cpu")
register("cuda", "torch_pru.ops.cuda", priority=20, device="cuda")
