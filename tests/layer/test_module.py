"""PRU as a module among others: text, copies, files, dtypes, autocast, other processes."""

from __future__ import annotations

import copy
import io
import os
import pickle

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, prune

from torch_pru import PRU, PRUCell, PRUError

from .comparing import assert_all_close, gradients, paper, set_backend

VARIANTS = [
    {},
    {"pooling": "convolution", "context_transform": "pyramidal"},
    {"input_groups": 2, "levels": 3, "pool_window": (5, 3)},
    {"input_transform": "grouped", "context_transform": "linear", "weight_drop": 0.3},
]


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((8, 8), {}, "PRU(8, 8, levels=2, groups=4, residual=True)"),
        ((8, 12, 3), {}, "PRU(8, 12, num_layers=3, levels=2, groups=4, residual=(False, True, True))"),
        ((8, 8, 2), {"bidirectional": True}, "residual=(True, False))"),
        ((8, 8, 2), {"residual": False}, "residual=False)"),
        ((8, 12), {"residual": "auto"}, "residual=False)"),
        ((8, 8), {"input_transform": "linear", "residual": True}, "residual=True)"),
        ((8, 8), {"input_transform": "grouped"}, "residual=False)"),
        ((8, 8), {"weight_drop": 0.5, "pooling": "max"}, "weight_drop=0.5"),
        ((8, 8), {"weight_drop": 0.5, "pooling": "max"}, "pooling='max'"),
        (
            (8, 8, 2),
            {"batch_first": True, "dropout": 0.1, "bias": False},
            "bias=False, batch_first=True, dropout=0.1",
        ),
        ((8, 8), {"levels": 3, "pool_window": (5, 3)}, "pool_window=(5, 3)"),
    ],
)
def test_repr_says_what_differs_and_where_the_residual_is(arguments: tuple, options: dict, text: str):
    assert text in repr(PRU(*arguments, **paper(options)))


def test_repr_is_one_line_in_a_larger_model():
    assert "(1): PRU(8, 8, levels=2" in repr(nn.Sequential(nn.Linear(8, 8), PRU(8, 8, levels=2, groups=4)))


def test_repr_of_a_subclass_with_its_own_arguments():
    class Small(PRU):
        def __init__(self, size: int) -> None:
            super().__init__(size, size, levels=2, groups=4)

    assert repr(Small(8)) == "Small(8, 8, levels=2, groups=4, residual=True)"


def test_residual_per_layer():
    assert [spec.residual for spec in PRU(8, 12, 3, levels=2, groups=4).specs] == [False, True, True]
    assert [spec.residual for spec in PRU(8, 8, 2, bidirectional=True, levels=2, groups=4).specs] == [
        True,
        True,
        False,
        False,
    ]
    assert [spec.residual for spec in PRU(8, 8, 2, residual=True, levels=2, groups=4).specs] == [True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype_reaches_every_parameter_and_result(dtype: torch.dtype):
    pru = PRU(8, 8, 2, pooling="convolution", dtype=dtype, levels=2, groups=4)
    assert {parameter.dtype for parameter in pru.parameters()} == {dtype}
    y, (h, c) = pru(torch.randn(3, 2, 8, dtype=dtype))
    assert y.dtype == h.dtype == c.dtype == dtype


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_device_reaches_every_parameter_and_result(options: dict):
    pru = PRU(12, 16, 2, device="meta", **paper(options))
    assert {parameter.device.type for parameter in pru.parameters()} == {"meta"}
    pru = pru.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in pru.parameters():
            parameter.fill_(torch.nan)
    pru.reset_parameters()
    assert all(parameter.isfinite().all() for parameter in pru.parameters())
    assert pru(torch.randn(3, 2, 12))[0].device.type == "cpu"


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_copies_compute_the_same(options: dict):
    pru = PRU(12, 16, 2, bidirectional=True, **paper(options)).eval()
    buffer = io.BytesIO()
    torch.save(pru.state_dict(), buffer)
    buffer.seek(0)
    loaded = PRU(12, 16, 2, bidirectional=True, **paper(options)).eval()
    x = torch.randn(3, 2, 12)
    assert not torch.equal(loaded(x)[0], pru(x)[0])
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    deep, pickled = copy.deepcopy(pru), pickle.loads(pickle.dumps(pru))
    for other in (loaded, deep, pickled):
        assert torch.equal(other(x)[0], pru(x)[0])
        assert repr(other) == repr(pru)
        mine = {parameter.data_ptr() for parameter in pru.parameters()}
        assert not mine & {parameter.data_ptr() for parameter in other.parameters()}


def test_a_copy_takes_the_generator_along():
    pru = PRU(8, 8, weight_drop=0.5, levels=2, groups=4)
    pru.generator = torch.Generator().manual_seed(3)
    x, other = torch.randn(3, 2, 8), copy.deepcopy(pru)
    assert torch.equal(pru(x)[0], other(x)[0])


@pytest.mark.parametrize("backend", ["auto", "loop", "reference"])
def test_autocast_computes_in_bfloat16(backend: str):
    pru = PRU(16, 16, 2, bidirectional=True, init="lstm", backend=backend, levels=2, groups=4)
    x, h0, c0 = torch.randn(6, 3, 16), torch.randn(4, 3, 16), torch.randn(4, 3, 16)
    exact = pru(x, (h0, c0))
    with torch.autocast("cpu", torch.bfloat16):
        y, (h, c) = pru(x, (h0, c0))
        assert pru(x)[0].dtype == torch.bfloat16
    assert (y.dtype, h.dtype, c.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    for mine, theirs in zip((y, h, c), (exact[0], *exact[1]), strict=True):
        assert 0 < (mine - theirs).abs().max() < 0.03
    y.float().square().sum().backward()
    grads = {name: parameter.grad.clone() for name, parameter in pru.named_parameters()}
    pru.zero_grad()
    exact[0].square().sum().backward()
    for name, parameter in pru.named_parameters():
        assert grads[name].dtype == torch.float32
        assert (grads[name] - parameter.grad).norm() < 0.03 * parameter.grad.norm(), name


@pytest.mark.parametrize("pooling", ["max", "convolution"])
def test_autocast_of_contexts_without_a_fast_path(pooling: str):
    pru = PRU(16, 16, context_transform="pyramidal", pooling=pooling, levels=2)
    states = torch.zeros(1, 3, 16), torch.zeros(1, 3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        y, (h, c) = pru(torch.randn(4, 3, 16), states)
    assert (y.dtype, h.dtype, c.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)


def test_autocast_converts_no_whole_numbers():
    """A cell state of whole numbers would be given back as whole numbers."""
    pru, x, states = PRU(8, 16, levels=2, groups=4), torch.randn(4, 3, 8), torch.zeros(1, 3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(PRUError, match=r"input has dtype torch.int64; convert it to torch.float32"):
            pru(x.long())
        with pytest.raises(PRUError, match=r"h_0 has dtype torch.int64; convert it to torch.float32"):
            pru(x, (states.long(), states))
        with pytest.raises(PRUError, match=r"c_0 has dtype torch.bool; convert it to torch.float32"):
            pru(x, (states, states.bool()))


def test_autocast_leaves_float64_alone():
    """As ``nn.LSTM`` does, also where the weights go through DropConnect."""
    pru, x = (
        PRU(8, 16, weight_drop=0.5, dtype=torch.float64, levels=2, groups=4),
        torch.randn(4, 3, 8, dtype=torch.float64),
    )
    torch.manual_seed(0)
    expected = pru(x)[0]
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(pru(x)[0], expected)


def test_meta_has_no_autocast():
    pru = PRU(8, 16, weight_drop=0.5, device="meta", levels=2, groups=4)
    assert pru(torch.empty(4, 3, 8, device="meta"))[0].shape == (4, 3, 16)
    with pytest.raises(PRUError, match=r"input dtype \(torch.float64\) does not match weight dtype"):
        pru(torch.empty(4, 3, 8, device="meta", dtype=torch.float64))


def test_a_replica_uses_its_own_weights():
    """As ``nn.DataParallel`` makes it: plain tensors in the place of parameters."""
    pru, x = PRU(8, 16, residual=False, bias=False, levels=2, groups=4), torch.randn(4, 3, 8)
    before = pru(x)[0]
    replica = pru._replicate_for_data_parallel()
    for name, parameter in pru.named_parameters():
        setattr(replica, name, torch.zeros_like(parameter))
    assert not replica(x)[0].any()
    assert torch.equal(pru(x)[0], before)


@pytest.mark.parametrize("pooling", ["average", "convolution"])
def test_pruning_by_name(pooling: str):
    pru, x = PRU(8, 16, pooling=pooling, levels=2, groups=4), torch.randn(4, 3, 8)
    names = ["weight_hh_l0", "weight_ih_l0_k2", *(["pool_ih_l0_k2"] if pooling == "convolution" else [])]
    for name in names:
        prune.l1_unstructured(pru, name, amount=0.5)
    pruned = pru(x)[0]
    for name in names:
        assert (getattr(pru, name) == 0).sum() == round(getattr(pru, f"{name}_mask").numel() / 2)
    pruned.sum().backward()
    assert pru.weight_hh_l0_orig.grad is not None
    for name in names:
        prune.remove(pru, name)
    torch.testing.assert_close(pru(x)[0], pruned)


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm], ids=["new", "old"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weight_norm_by_name(norm):
    pru, x = PRU(8, 16, levels=2, groups=4), torch.randn(4, 3, 8)
    before = pru(x)[0]
    norm(pru, "weight_hh_l0")
    torch.testing.assert_close(pru(x)[0], before)
    length = next(value for name, value in pru.named_parameters() if value.shape == (64, 1))
    with torch.no_grad():
        length.mul_(50)
    assert not torch.allclose(pru(x)[0], before)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_weights_of_any_strides(options: dict):
    pru = PRU(12, 16, 2, bidirectional=True, **paper(options)).eval()
    x, other = torch.randn(3, 2, 12), copy.deepcopy(pru)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if parameter.dim() == 2:
                by_column = parameter.t().contiguous().t()
                setattr(other, name, nn.Parameter(by_column))
                assert not by_column.is_contiguous() or 1 in by_column.shape
    y, y_other = pru(x)[0], other(x)[0]
    torch.testing.assert_close(y_other, y)
    expected = gradients([y], **dict(pru.named_parameters()))
    assert_all_close(gradients([y_other], **dict(other.named_parameters())), expected)
    torch.manual_seed(1)
    pru.reset_parameters()
    torch.manual_seed(1)
    other.reset_parameters()
    assert_all_close(other.state_dict(), pru.state_dict())


def test_cell_has_the_layers_parameters():
    cell, pru = PRUCell(8, 8, levels=2, groups=4), PRU(8, 8, levels=2, groups=4)
    layout = {"_l0_k1": "_k1", "_l0_k2": "_k2", "_l0": ""}
    for name in pru.state_dict():
        of_cell = next(name.replace(old, new) for old, new in layout.items() if old in name)
        pru.get_parameter(name).data.copy_(cell.get_parameter(of_cell))
    x = torch.randn(2, 8)
    torch.testing.assert_close(pru(x[None])[0][0], cell(x)[0])


def test_states_halfway_through_a_window_go_on_to_the_rest():
    for backend in ("loop", "reference"):
        pru = set_backend(PRU(8, 8, 2, bidirectional=False, levels=2, groups=4), backend)
        x = torch.randn(6, 2, 8)
        whole, (h, c) = pru(x)
        first, state = pru(x[:4])
        second, state = pru(x[4:], state)
        torch.testing.assert_close(torch.cat([first, second]), whole)
        torch.testing.assert_close(state, (h, c))


def _train_one_step(rank: int, address: str, results: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    pru, x = _model_and_batch()
    wrapped = DistributedDataParallel(pru)
    wrapped(x[:, 2 * rank : 2 * rank + 2])[0].square().mean().backward()
    torch.save({name: p.grad for name, p in pru.named_parameters()}, f"{results}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # the interpreter's own way out now and then aborts in a thread of PyTorch's reducer


def _model_and_batch() -> tuple[PRU, torch.Tensor]:
    torch.manual_seed(1)
    return PRU(8, 8, 2, bidirectional=True, dtype=torch.float64, levels=2, groups=4), torch.randn(
        5, 4, 8, dtype=torch.float64
    )


def test_two_processes_have_the_gradient_of_one(tmp_path):
    mp.spawn(_train_one_step, (f"file://{tmp_path}/meet", str(tmp_path)), nprocs=2)
    pru, x = _model_and_batch()
    pru(x)[0].square().mean().backward()
    expected = {name: parameter.grad for name, parameter in pru.named_parameters()}
    for rank in range(2):
        assert_all_close(torch.load(tmp_path / f"{rank}.pt", weights_only=True), expected, rtol=0, atol=1e-12)
