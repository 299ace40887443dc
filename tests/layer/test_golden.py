"""The authors' own numbers: outputs, states and every gradient, to 1e-10."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from torch_pru import PRU, PRUCell, load_reference_weights

from . import literal
from .comparing import arrays_of

COPIED = sorted((Path(__file__).parent / "golden").glob("*.npz"))
SHARED = ("pru_n16_m16_k2_g4", "pru_n16_m32_k2_g4", "pru_n32_m16_k3_g2", "pru_n64_m64_k4_g1")
# In the names of a golden file, and the authors' gate order in its blocks.
FORGET, CONTENT, INPUT, OUTPUT = range(4)


def sizes(path: Path) -> tuple[int, int, int, int]:
    found = re.fullmatch(r"pru_n(\d+)_m(\d+)_k(\d+)_g(\d+)", path.stem)
    assert found is not None
    return tuple(int(number) for number in found.groups())  # type: ignore[return-value]


def authors_mapping(arrays: dict[str, Tensor], levels: int, prefix: str = "") -> dict[str, Tensor]:
    names = {
        f"pt.pyramid.{i}.{kind}": f"{prefix}level{i}_{kind}"
        for i in range(levels)
        for kind in ("weight", "bias")
    }
    names |= {"glt.W": f"{prefix}context_weight", "glt.bias": f"{prefix}context_bias"}
    return {theirs: arrays[ours] for theirs, ours in names.items()}


def options(path: Path) -> dict[str, object]:
    _, _, levels, groups = sizes(path)
    windows = tuple(3 + 2 * (levels - 1 - level) for level in range(1, levels))  # K=4: 7, 5, 3
    return {"levels": levels, "groups": groups, "pool_window": windows}


def read(path: Path) -> tuple[dict[str, Tensor], PRU]:
    arrays = {name: torch.from_numpy(np.asarray(array)) for name, array in np.load(path).items()}
    n, m, levels, _ = sizes(path)
    pru = PRU(n, m, **options(path), dtype=torch.float64)
    load_reference_weights(pru, authors_mapping(arrays, levels))
    return arrays, pru


def check(path: Path, backend: str) -> None:
    arrays, pru = read(path)
    pru.backend = backend
    x, h0, c0 = (arrays[name].clone().requires_grad_() for name in ("x", "h0", "c0"))
    out, (hn, cn) = pru(x, (h0[None], c0[None]))
    results = {"out": out, "hn": hn[0], "cn": cn[0]}
    loss = sum((value * arrays[f"loss_weight_{name}"]).sum() for name, value in results.items())
    loss.backward()
    grads = PRU(pru.input_size, pru.hidden_size, **options(path), dtype=torch.float64)
    load_reference_weights(grads, authors_mapping(arrays, sizes(path)[2], "grad_"))
    expected = {"out": arrays["out"], "hn": arrays["hn"], "cn": arrays["cn"], "loss": arrays["loss"]}
    expected |= {name: arrays[f"grad_{name}"] for name in ("x", "h0", "c0")}
    expected |= {name: gradient.detach() for name, gradient in grads.named_parameters()}
    actual = {**results, "loss": loss, "x": x.grad, "h0": h0.grad, "c0": c0.grad}
    actual |= {name: parameter.grad for name, parameter in pru.named_parameters()}
    check_context_bias(actual, expected)
    assert actual.keys() == expected.keys()
    for name in expected:
        assert (actual[name] - expected[name]).abs().max() < 1e-10, name


def check_context_bias(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Its gradient is stored in float32; but both biases of a gate have one gradient: the other is exact."""
    rounded = expected["bias_hh_l0"]
    difference = (actual["bias_hh_l0"] - rounded).abs().max()
    assert difference < rounded.abs().max() * torch.finfo(torch.float32).eps
    expected["bias_hh_l0"] = expected["bias_ih_l0"]


def test_two_golden_files_are_here():
    assert [path.stem for path in COPIED] == ["pru_n16_m16_k2_g4", "pru_n16_m32_k2_g4"]


@pytest.mark.parametrize("backend", ["loop", "reference", "auto"])
@pytest.mark.parametrize("path", COPIED, ids=lambda path: path.stem)
def test_copied_arrays(path: Path, backend: str):
    check(path, backend)


@pytest.mark.parametrize("backend", ["loop", "reference"])
@pytest.mark.parametrize("name", SHARED)
def test_all_arrays(golden_folder: Path, name: str, backend: str):
    check(golden_folder / f"{name}.npz", backend)


def test_no_golden_file_is_left_out(golden_folder: Path):
    assert tuple(path.stem for path in sorted(golden_folder.glob("*.npz"))) == SHARED


@pytest.mark.parametrize("path", COPIED, ids=lambda path: path.stem)
def test_a_cell_stepped_by_hand(path: Path):
    arrays, _ = read(path)
    n, m, levels, _ = sizes(path)
    cell = PRUCell(n, m, **options(path), dtype=torch.float64)
    load_reference_weights(cell, authors_mapping(arrays, levels))
    h, c = arrays["h0"], arrays["c0"]
    for t, x in enumerate(arrays["x"]):
        h, c = cell(x, (h, c))
        assert (h - arrays["out"][t]).abs().max() < 1e-10
    assert (c - arrays["cn"]).abs().max() < 1e-10


@pytest.mark.parametrize("path", COPIED, ids=lambda path: path.stem)
def test_the_literal_equations_agree_with_the_authors(path: Path):
    """The other half of the proof: what the property tests compare against is the authors' unit."""
    arrays, pru = read(path)
    settings = literal.Settings(pru.input_size, pru.hidden_size, **options(path))
    states = (arrays[name][None].numpy() for name in ("h0", "c0"))
    out, hn, cn = literal.run(settings, arrays_of(pru), arrays["x"].numpy(), *states)
    for name, value in {"out": out, "hn": hn[0], "cn": cn[0]}.items():
        assert np.abs(value - arrays[name].numpy()).max() < 1e-10, name


@pytest.mark.parametrize("path", COPIED, ids=lambda path: path.stem)
def test_gates_go_to_their_places(path: Path):
    """Level 0 of the authors has blocks forget, content, input, output; ours nn.LSTM's order."""
    arrays, pru = read(path)
    blocks = arrays["level0_weight"].chunk(4)
    ours = pru.weight_ih_l0_k1.chunk(4)
    for gate, block in enumerate((INPUT, FORGET, CONTENT, OUTPUT)):
        assert torch.equal(ours[gate], blocks[block])
