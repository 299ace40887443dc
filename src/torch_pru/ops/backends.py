"""The registry of backends, and the only place where one is chosen.

A *piece* is a function that several backends implement under the same name and with the same signature; see
``PIECES``. A *backend* is a module with some of these functions and with
``unsupported_reason(piece, *arguments, **options)``, which takes the arguments of the piece and returns None,
or a string that says why the backend cannot run it. If a backend may be unable to run anything on this
machine, its ``missing_reason()`` says so; it is asked once. :func:`run` chooses a backend and calls its
function. To add a backend, write such a module and :func:`register` it.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_pru.errors import PRUError, check_choice
from torch_pru.ops.torch_private import Mode, are_plain, assume_constant_result, current_mode

log = logging.getLogger(__name__)

PIECES = {
    "layer": "all steps of a layer in one direction",
    "recurrence": "the sequential part of a layer",
    "input_gates": "the contribution of a layer's input to its gates",
    "drop": "values under a dropout or weight-drop mask",
    "add_rows": "the gradient of an embedding lookup",
    "cross_entropy": "the decoder and its cross-entropy",
    "penalties": "AR and TAR",
    "sgd_update": "clipped, averaged SGD on all weights",
    "dynamic_update": "the update of dynamic evaluation",
    "token_model": "generation, token by token",
}
WITH_MODE = frozenset(("layer", "recurrence", "input_gates", "drop"))
"""Pieces with a keyword ``eager``: False if a compiler, a transform or a tensor subclass is involved. Then do
not cache tensors, and call operators through the dispatcher."""


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
        name: the name of the backend.
        run: its function.
        reason: why it is not the backend with the highest priority for the device; None if it is.
    """

    name: str
    run: Callable[..., Any]
    reason: str | None


class Loaded(NamedTuple):
    """A backend that was imported.

    Attributes:
        missing: why it cannot run anything on this machine; None if it can.
    """

    name: str
    module: ModuleType
    missing: str | None


_backends: dict[str, Backend] = {}
_loaded: dict[str, Loaded] = {}
_candidates: dict[tuple[str, str], tuple[Loaded, ...]] = {}
"""The loaded backends that have a piece, for a type of device, highest priority first."""


def register(name: str, module: str | ModuleType, *, priority: int, device: str | None = None) -> None:
    """Add a backend, or replace the one of this name.

    Args:
        name: what ``PRU(..., backend=name)`` asks for.
        module: the module, or its import path, which is imported at first use.
        priority: the backend with the highest priority that can run a piece does.
        device: the type of device that it runs on, such as ``"cuda"``; None for any.
    """
    _backends[name] = Backend(name, module, priority, device)
    forget()


def unregister(name: str) -> None:
    """Remove a backend."""
    del _backends[name]
    forget()


def forget() -> None:
    """Look for the backends again at the next call, and ask them again whether they are missing."""
    _loaded.clear()
    _candidates.clear()


def names() -> tuple[str, ...]:
    """What ``backend=`` may be: ``"auto"`` and the registered backends."""
    return ("auto", *_backends)


def choose(piece: str, *arguments: Any, requested: str = "auto", **options: Any) -> Choice:
    """The backend that runs ``piece`` with these arguments.

    Args:
        piece: one of ``PIECES``.
        arguments, options: of the piece. The first tensor among them determines the device.
        requested: the name of a backend, which raises if it cannot run the call; or ``"auto"`` for the one
            with the highest priority that can.
    """
    name, backend, reason = _choose(piece, arguments, options, requested)
    return Choice(name, getattr(backend, piece), reason)


def run(piece: str, *arguments: Any, requested: str = "auto", **options: Any) -> Any:
    """Run ``piece`` on the backend that :func:`choose` names."""
    _, backend, _ = _choose(piece, arguments, options, requested)
    return getattr(backend, piece)(*arguments, **options)


def _choose(
    piece: str, arguments: tuple[Any, ...], options: dict[str, Any], requested: str
) -> tuple[str, ModuleType, str | None]:
    """Name and module of a backend, and why it is not the fastest one; ``eager`` is added to ``options``."""
    mode = current_mode()
    if piece in WITH_MODE:
        options["eager"] = mode is Mode.EAGER and are_plain(arguments)
    if requested != "auto":
        return *_requested(requested, piece, arguments, options), None
    if mode is Mode.DERIVATIVE:
        return "reference", module("reference"), "torch.func or forward-mode AD takes a derivative"
    first_reason, device = None, _device_type(arguments)
    for name, backend, missing in _candidates_for(piece, device):
        reason = missing or backend.unsupported_reason(piece, *arguments, **options)
        if reason is None:
            return name, backend, first_reason
        if first_reason is None:
            first_reason = f"{name}: {reason}"
            _log_once(piece, first_reason, device)
    raise PRUError(f"no backend can run {piece!r}: {first_reason}")


def preferred(piece: str, device: str) -> str:
    """The name of the backend with the highest priority for a piece on a type of device."""
    return next(name for name, _, missing in _candidates_for(piece, device) if missing is None)


def _requested(
    name: str, piece: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[str, ModuleType]:
    """The backend of this name, or the reference if it does not have the piece."""
    check_choice("backend", name, names())
    _, backend, missing = _loaded_backend(name)
    if not hasattr(backend, piece):
        return "reference", module("reference")
    reason = missing or backend.unsupported_reason(piece, *arguments, **options)
    if reason is not None:
        raise PRUError(f"backend={name!r} cannot run this call: {reason}; use backend='auto'")
    return name, backend


def _device_type(arguments: Iterable[Any]) -> str:
    for argument in arguments:
        if isinstance(argument, Tensor):
            return "cpu" if argument.is_cpu else "cuda" if argument.is_cuda else argument.device.type
        if isinstance(argument, (list, tuple)) and argument:
            return _device_type(argument)
    raise PRUError("none of the arguments is a tensor")


def module(name: str) -> ModuleType:
    """A registered backend's module."""
    return _loaded_backend(name).module


def _loaded_backend(name: str) -> Loaded:
    if torch.compiler.is_compiling():
        _load_all()
    elif name not in _loaded:
        _load(name)
    return _loaded[name]


def _candidates_for(piece: str, device: str) -> tuple[Loaded, ...]:
    if torch.compiler.is_compiling():
        _load_all()
    elif (piece, device) not in _candidates:
        _collect(device)
    return _candidates[piece, device]


@assume_constant_result  # so that a compiler does not trace the imports
def _load_all() -> None:
    for device in ("cpu", "cuda", "meta"):
        if ("layer", device) not in _candidates:
            _collect(device)


def _collect(device: str) -> None:
    fitting = [backend for backend in _backends.values() if backend.device in (None, device)]
    fitting.sort(key=lambda backend: -backend.priority)
    loaded = [_load(backend.name) for backend in fitting]
    for piece in PIECES:
        _candidates[piece, device] = tuple(one for one in loaded if hasattr(one.module, piece))


def _load(name: str) -> Loaded:
    found = _backends[name].module
    found = importlib.import_module(found) if isinstance(found, str) else found
    missing_reason = getattr(found, "missing_reason", None)
    _loaded[name] = Loaded(name, found, missing_reason and missing_reason())
    return _loaded[name]


_logged: set[str] = set()


def _log_once(piece: str, reason: str, device: str) -> None:
    """Log once that a slower backend is used: as a warning on a GPU, where it costs most."""
    if not torch.compiler.is_compiling() and reason not in _logged:
        _logged.add(reason)
        level = logging.INFO if device == "cpu" else logging.WARNING
        log.log(level, "%s runs on a slower backend (%s)", piece, reason)


register("reference", "torch_pru.ops.reference", priority=0)
register("loop", "torch_pru.ops.cpu.loop", priority=10)
register("lstm", "torch_pru.ops.cpu.lstm", priority=20, device="cpu")
register("native", "torch_pru.ops.native", priority=30, device="cpu")
register("cuda", "torch_pru.ops.cuda", priority=20, device="cuda")
