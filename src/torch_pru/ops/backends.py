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
    _modules.clear()
    _candidates.clear()


def unregister(name: str) -> None:
    """Remove a backend."""
    del _backends[name]
    _modules.clear()
    _candidates.clear()


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
    first_reason, device = None, _device_type(arguments)
    for name, backend in _candidates_for(piece, device):
        reason = backend.unsupported_reason(piece, *arguments, **options)
        if reason is None:
            return Choice(name, _bound(backend, piece, options), first_reason)
        if first_reason is None:
            first_reason = f"{name}: {reason}"
            _log_once(piece, first_reason, device)
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


_Candidates = tuple[tuple[str, ModuleType], ...]
_modules: dict[str, ModuleType] = {}
_candidates: dict[tuple[str, str], _Candidates] = {}


def module(name: str) -> ModuleType:
    """A registered backend's module."""
    if torch.compiler.is_compiling():
        _load_all()
    elif name not in _modules:
        _load(name)
    return _modules[name]


def _candidates_for(piece: str, device: str) -> _Candidates:
    """Name and module of the backends that have a piece, for a type of device, highest priority first."""
    if torch.compiler.is_compiling():
        _load_all()
    elif (piece, device) not in _candidates:
        _collect(device)
    return _candidates[piece, device]


@torch.compiler.assume_constant_result  # a compiler reads what this leaves, and does not trace the imports
def _load_all() -> None:
    for device in ("cpu", "cuda", "meta"):
        if ("layer", device) not in _candidates:
            _collect(device)


def _collect(device: str) -> None:
    fitting = [backend for backend in _backends.values() if backend.device in (None, device)]
    fitting.sort(key=lambda backend: -backend.priority)
    loaded = [(backend.name, _load(backend.name)) for backend in fitting]
    for piece in PIECES:
        _candidates[piece, device] = tuple(pair for pair in loaded if hasattr(pair[1], piece))


def _load(name: str) -> ModuleType:
    found = _backends[name].module
    _modules[name] = importlib.import_module(found) if isinstance(found, str) else found
    return _modules[name]


_logged: set[str] = set()


def _log_once(piece: str, reason: str, device: str) -> None:
    """Say once that a slower path is taken: a warning on a GPU, where it costs most."""
    if not torch.compiler.is_compiling() and reason not in _logged:  # a compiler must not read it
        _logged.add(reason)
        level = logging.INFO if device == "cpu" else logging.WARNING
        log.log(level, "%s runs on a slower backend (%s)", piece, reason)


register("reference", "torch_pru.ops.reference", priority=0)
register("loop", "torch_pru.ops.cpu.loop", priority=10)
register("lstm", "torch_pru.ops.cpu.lstm", priority=20, device="cpu")
register("native", "torch_pru.ops.native", priority=30, device="cpu")
register("cuda", "torch_pru.ops.cuda", priority=20, device="cuda")
