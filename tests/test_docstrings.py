"""Every example in a docstring does what it shows."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import torch_pru

MODULES = sorted(module.name for module in pkgutil.walk_packages(torch_pru.__path__, "torch_pru."))

EXTRAS = {
    "torch_pru.hf": "transformers",
    "torch_pru.hf.harness": "lm_eval",
    "torch_pru.lm.ray_cluster": "ray",
    "torch_pru.lm.ray_trials": "ray",
    "torch_pru.onnx": "onnxscript",
    "torch_pru.page": "onnx",
}
"""Parts of the package that need another package."""


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_examples(name: str) -> None:
    for package, needed in EXTRAS.items():
        if name.startswith(package):
            pytest.importorskip(needed, reason=f"{package} needs {needed}")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    modules = ("torch_pru.layer", "torch_pru.transforms", "torch_pru.lm.config", "torch_pru.lm.data.columns")
    for name in modules:
        assert doctest.testmod(importlib.import_module(name)).attempted > 0
