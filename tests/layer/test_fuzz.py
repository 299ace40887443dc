"""Random constructor calls and inputs: a result or one of our errors, never a crash, never a long wait."""

from __future__ import annotations

import random
import time
import warnings
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from torch_pru import PRU, GroupedLinear, PRUCell, PyramidalTransform

LONGEST = 2.0  # seconds of CPU time for one call

SIZES = [1, 2, 3, 4, 7, 8, 16, 24, 33, 64]
STRANGE = [
    *(0, -1, -8, True, False, 2.0, 0.5, float("nan"), float("inf"), None, "8", "", b"8", [], [8], (8, 8), {}),
    *(10**30, -(10**30), 10**5000, 2**45, 2**62, 2**63 - 1, 2**63),
    *(np.int64(8), np.float32(8), np.array(8), np.array([8, 8]), np.True_, 1j, object(), int, torch.float16),
    *(torch.tensor(8), torch.tensor([8.0]), nn.Identity()),
]
OPTIONS: dict[str, list[object]] = {
    "bias": [True, False, 0, 1],
    "levels": ["auto", 1, 2, 3, 4, 5, 64, 10**9],
    "groups": ["auto", 1, 2, 3, 4, 8],
    "input_groups": [1, 2, 3, 5],
    "pooling": ["average", "max", "skip", "convolution", "mean"],
    "level_split": ["halving", "equal", "half"],
    "pool_window": [1, 3, 5, 7, 2, 1023, 1025, (3,), (3, 5), [5], (), "33", (3, "5"), (10**30,)],
    "residual": ["auto", True, False, 1],
    "input_transform": ["linear", "grouped", "pyramidal", "dense"],
    "context_transform": ["linear", "grouped", "pyramidal", None],
    "init": ["authors", "orthogonal", "lstm", "xavier"],
    "backend": ["auto", "reference", "loop", "fast"],
    "dtype": [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64, "float32"],
}
OF_LAYERS: dict[str, list[object]] = {
    "num_layers": [1, 2, 3, 10**12],
    "batch_first": [True, False],
    "dropout": [0.0, 0.5, 1.0, 1.5, -0.1],
    "bidirectional": [True, False],
    "weight_drop": [0.0, 0.5, 1.0],
    "proj_size": [0, 0, 0, 1, 4, -1],
}


def some_arguments(dice: random.Random, make: type[nn.Module]) -> dict[str, object]:
    """Mostly values that fit; now and then one that does not, or something strange."""
    pools = {name: [*values, *values[:2] * 3] for name, values in OPTIONS.items()}
    if make is PRU:
        pools |= {name: [*values, *values[:2] * 3] for name, values in OF_LAYERS.items()}
    names = ("input_size", "hidden_size")
    if make in (GroupedLinear, PyramidalTransform):
        names = ("in_features", "out_features")
        kept = ("groups", "bias", "dtype")
        kept += ("levels", "pooling", "level_split", "pool_window") if make is PyramidalTransform else ()
        pools = {name: values for name, values in pools.items() if name in kept}
    arguments: dict[str, object] = {name: dice.choice(SIZES) for name in names}
    for name in dice.sample(sorted(pools), dice.randint(0, min(5, len(pools)))):
        arguments[name] = dice.choice(pools[name])
    if dice.random() < 0.3:
        arguments[dice.choice(sorted(arguments))] = dice.choice(STRANGE)
    if dice.random() < 0.02:
        arguments["unknown"] = 1
    return arguments


def some_tensor(dice: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> object:
    """A tensor of this shape and dtype, most of the time."""
    kind = dice.random()
    if kind < 0.5:
        return torch.randn(shape).to(dtype)
    if kind < 0.6:
        return torch.randn([max(0, size + dice.choice([-1, 0, 1])) for size in shape]).to(dtype)
    if kind < 0.65:
        return torch.randn((*shape[: dice.randint(0, len(shape))], dice.choice([0, 1, 2]))).to(dtype)
    others = [
        lambda: torch.full(shape, torch.nan, dtype=dtype),
        lambda: torch.full(shape, 1e38).to(dtype),
        lambda: torch.randn(shape).to(dice.choice([torch.float64, torch.float16, torch.complex64])),
        lambda: torch.ones(shape, dtype=dice.choice([torch.int64, torch.bool, torch.uint8])),
        lambda: torch.empty(shape, dtype=dtype, device="meta"),
        lambda: torch.randn(shape).to(dtype).to_sparse(),
        lambda: torch.randn(shape[::-1]).to(dtype).permute(*range(len(shape) - 1, -1, -1)),
        lambda: torch.zeros((1,) * len(shape), dtype=dtype).expand(shape),
        lambda: torch.randn(shape).to(dtype).requires_grad_(),
        lambda: torch.randn(shape).numpy(),
        lambda: torch.nested.nested_tensor([torch.randn(2, shape[-1]), torch.randn(1, shape[-1])]),
        lambda: dice.choice(STRANGE),
    ]
    return dice.choice(others)()


def some_packed(dice: random.Random, features: int, dtype: torch.dtype) -> object:
    """A packed sequence whose fields usually, but not always, fit together."""
    lengths = [dice.randint(1, 4) for _ in range(dice.randint(1, 4))]
    good = pack_sequence(
        [torch.randn(length, features).to(dtype) for length in lengths], enforce_sorted=False
    )
    fields = list(good)
    if dice.random() < 0.6:
        place = dice.randrange(4)
        sizes = [dice.choice([-1, 0, 1, 2, 3, 10**9]) for _ in range(dice.randint(0, 4))]
        fields[place] = dice.choice(
            [
                torch.tensor(sizes, dtype=torch.int64),
                torch.tensor(sizes).to(torch.int32),
                torch.tensor([sizes]),
                some_tensor(dice, (sum(lengths), features), dtype),
                dice.choice(STRANGE),
            ]
        )
    return tuple.__new__(PackedSequence, fields)


def some_input(dice: random.Random, module: nn.Module) -> tuple[object, ...]:
    """Arguments for ``forward``."""
    [dtype] = {parameter.dtype for parameter in module.parameters()}
    if isinstance(module, GroupedLinear | PyramidalTransform):
        lead = tuple(dice.choice([0, 1, 2, 3]) for _ in range(dice.randint(0, 3)))
        return (some_tensor(dice, (*lead, module.in_features), dtype),)
    batch = dice.choice([0, 1, 2, 3])
    lead = dice.choice([(), (batch,)])
    if isinstance(module, PRUCell):
        x, shape = some_tensor(dice, (*lead, module.input_size), dtype), (*lead, module.hidden_size)
    elif dice.random() < 0.3:
        x = some_packed(dice, module.input_size, dtype)
        shape = (len(module.specs), dice.randint(1, 4), module.hidden_size)
    else:
        steps = dice.choice([0, 1, 2, 3, 9])
        outer = (*lead, steps) if module.batch_first and lead else (steps, *lead)
        x = some_tensor(dice, (*outer, module.input_size), dtype)
        shape = (len(module.specs), *lead, module.hidden_size)
    if dice.random() < 0.6:
        return (x,)
    states = tuple(some_tensor(dice, shape, dtype) for _ in range(dice.choice([1, 2, 2, 2, 2, 3])))
    return x, dice.choice([states, states, states, list(states), states[0], dice.choice(STRANGE)])


def outcome(call: Callable[[], object]) -> tuple[str, object]:
    """The kind of outcome, and the result; raises if it is a foreign error or takes too long."""
    begin = time.process_time()
    try:
        result, kind = call(), "result"
    except TypeError as error:
        result, kind = error, "TypeError"
    except ValueError as error:
        if type(error).__module__ != "torch_pru.errors":
            raise
        result, kind = error, "PRUError"
    assert kind == "result" or "\n" not in str(result)
    assert time.process_time() - begin < LONGEST
    return kind, result


def fuzz(calls: int, seed: int) -> Counter[str]:
    """Build ``calls`` modules, and run those that can be built on a few inputs."""
    dice, counts = random.Random(seed), Counter[str]()
    torch.manual_seed(seed)
    for _ in range(calls):
        make = dice.choice([PRU, PRU, PRU, PRUCell, GroupedLinear, PyramidalTransform])
        arguments = some_arguments(dice, make)
        kind, module = outcome(lambda make=make, arguments=arguments: make(**arguments))
        counts[f"constructor: {kind}"] += 1
        if kind != "result":
            continue
        assert isinstance(module, nn.Module)
        for _ in range(2):
            given = some_input(dice, module)
            kind, _ = outcome(lambda module=module, given=given: module(*given))
            counts[f"input: {kind}"] += 1
    return counts


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(3))
def test_a_few_hundred_calls(seed: int):
    counts = fuzz(150, seed)
    assert min(counts[f"{what}: result"] for what in ("constructor", "input")) > 20, counts
    assert min(counts[f"{what}: PRUError"] for what in ("constructor", "input")) > 5, counts


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ten_thousand_calls():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = fuzz(10_000, seed=100)
    assert counts["constructor: result"] > 2000, counts
    assert counts["input: PRUError"] > 500, counts
