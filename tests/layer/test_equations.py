"""Every option against the paper's equations, on random odd shapes, with all gradients."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torch_pru import PRU
from torch_pru.cell import step

from . import literal
from .comparing import arrays_of, assert_all_close, gradients, loss_weights, set_backend
from .literal import Settings

TRANSFORMS = ("linear", "grouped", "pyramidal")
POOLINGS = ("average", "max", "skip", "convolution")
QUIET = settings(
    deadline=None, derandomize=True, max_examples=150, suppress_health_check=[HealthCheck.too_slow]
)


def fits(reads: int, hidden: int, kind: str, levels: int, split: str, groups: int, level_groups: int) -> bool:
    """Whether a transform of ``reads`` features to ``hidden`` can be made."""
    if kind == "linear":
        return True
    if kind == "grouped":
        return reads % groups == 0 and hidden % groups == 0
    if reads % 2 ** (levels - 1) or (split == "equal" and hidden % levels):
        return False
    if split == "halving" and levels > 1 and hidden < 2**levels:
        return False
    smallest_input = reads // 2 ** (levels - 1)
    return min(smallest_input, *literal.level_sizes(hidden, levels, split)) >= level_groups


@st.composite
def layers(draw: st.DrawFn, linear_context: bool) -> Settings:
    kinds = {name: draw(st.sampled_from(TRANSFORMS)) for name in ("input_transform", "context_transform")}
    levels, split = draw(st.integers(1, 4)), draw(st.sampled_from(("halving", "equal")))
    groups, input_groups = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    if kinds["input_transform"] == "linear":
        input_groups = 1
    pooled_context = kinds["context_transform"] == "pyramidal"
    pooling = draw(st.sampled_from(("average", "skip") if linear_context and pooled_context else POOLINGS))
    odd = st.sampled_from((1, 3, 5, 7))
    windows = st.one_of(odd, st.tuples(*[odd] * (levels - 1)))
    stack = {
        "num_layers": draw(st.integers(1, 2)),
        "bidirectional": draw(st.booleans()),
        "bias": draw(st.booleans()),
    }
    wide = 2 if stack["bidirectional"] else 1
    many = groups if input_groups == 1 else input_groups

    def input_fits(reads: int, hidden: int) -> bool:
        return fits(reads, hidden, kinds["input_transform"], levels, split, many, input_groups)

    def hidden_fits(hidden: int, state: int) -> bool:
        context = fits(state, hidden, kinds["context_transform"], levels, split, groups, 1)
        return context and (stack["num_layers"] == 1 or input_fits(wide * state, hidden))

    pairs = [(n, m) for m in range(1, 25) if hidden_fits(m, m) for n in range(1, 25) if input_fits(n, m)]
    assume(pairs)
    sizes = draw(st.sampled_from(pairs + [pair for pair in pairs if pair[0] == pair[1]] * 3))
    projections = [] if linear_context else [p for p in range(1, sizes[1]) if hidden_fits(sizes[1], p)]
    proj_size = draw(st.just(0) | st.sampled_from([0, *projections]))
    above = wide * (proj_size or sizes[1])
    every_layer_fits = sizes[0] == sizes[1] and (stack["num_layers"] == 1 or above == sizes[1])
    return Settings(
        *sizes,
        **stack,
        **kinds,
        levels=levels,
        level_split=split,
        groups=groups,
        input_groups=input_groups,
        pooling=pooling,
        pool_window=3 if pooling == "skip" else draw(windows),
        residual=draw(st.sampled_from(("auto", False, True) if every_layer_fits else ("auto", False))),
        proj_size=proj_size,
    )


@st.composite
def problems(draw: st.DrawFn, linear_context: bool = False) -> tuple[Settings, list[int], int]:
    """Settings, lengths of the columns, seed."""
    steps, batch = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    lengths = draw(st.just([steps] * batch) | st.lists(st.integers(1, steps), min_size=batch, max_size=batch))
    return draw(layers(linear_context)), lengths, draw(st.integers(0, 2**16))


def used(options: dict) -> dict:
    """Without those that have no effect, which a layer refuses."""
    kinds = options["input_transform"], options["context_transform"]
    unused = [] if "grouped" in kinds else ["groups"]
    if "pyramidal" not in kinds or options["levels"] == 1:
        unused += ["pooling", "level_split", "pool_window"]
    unused += [] if "pyramidal" in kinds else ["levels"]
    return {name: value for name, value in options.items() if name not in unused}


def build(chosen: Settings, seed: int) -> PRU:
    pru = PRU(**used(asdict(chosen)), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in pru.parameters():  # biases too: zeros would hide them
            parameter.normal_(std=0.4, generator=generator)
    return pru


def inputs(chosen: Settings, lengths: list[int], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed + 1)
    rows = chosen.num_layers * (2 if chosen.bidirectional else 1)
    batch = len(lengths)
    shapes = {"x": (max(lengths), batch, chosen.input_size)}
    shapes |= {"h0": (rows, batch, chosen.state_size), "c0": (rows, batch, chosen.hidden_size)}
    drawn = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()
    }
    return {name: tensor.requires_grad_() for name, tensor in drawn.items()}


def run(pru: PRU, given_inputs: dict[str, Tensor], lengths: list[int]) -> list[Tensor]:
    """Outputs and states; as a packed sequence unless all columns are of one length."""
    x, h0, c0 = given_inputs["x"], given_inputs["h0"], given_inputs["c0"]
    if min(lengths) == x.shape[0]:
        out, (h, c) = pru(x, (h0, c0))
        return [out, h, c]
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    out, (h, c) = pru(packed, (h0, c0))
    return [pad_packed_sequence(out, total_length=x.shape[0])[0], h, c]


@QUIET
@given(problems())
def test_outputs_states_and_gradients_are_those_of_the_equations(problem):
    chosen, lengths, seed = problem
    pru, tensors = build(chosen, seed), inputs(chosen, lengths, seed)
    results = run(pru, tensors, lengths)
    arrays = arrays_of(pru)
    plain = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    for mine, theirs in zip(results, literal.run(chosen, arrays, **plain, lengths=lengths), strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs, rtol=0, atol=1e-11)

    # All gradients at once: their sum over a random direction against a central difference.
    mine = gradients(results, **tensors, **dict(pru.named_parameters()))
    random = np.random.default_rng(seed)
    direction = {name: random.normal(size=gradient.shape) for name, gradient in mine.items()}
    weights = [weight.numpy() for weight in loss_weights(results)]

    def loss(step: float) -> float:
        moved = {name: array + step * direction[name] for name, array in {**plain, **arrays}.items()}
        given_inputs = {name: moved.pop(name) for name in plain}
        values = literal.run(chosen, moved, **given_inputs, lengths=lengths)
        return sum(float((value * weight).sum()) for value, weight in zip(values, weights, strict=True))

    step = 1e-5
    slope = (loss(step) - loss(-step)) / (2 * step)
    assert sum((mine[name].numpy() * direction[name]).sum() for name in mine) == pytest.approx(
        slope, rel=1e-6, abs=1e-6
    )


@QUIET
@given(problems(linear_context=True))
def test_loop_and_reference_agree_in_everything(problem):
    chosen, lengths, seed = problem
    pru, tensors = build(chosen, seed), inputs(chosen, lengths, seed)
    found = {}
    for backend in ("loop", "reference"):
        results = run(set_backend(pru, backend), tensors, lengths)
        values = dict(zip(("out", "hn", "cn"), results, strict=True))
        grads = gradients(results, **tensors, **dict(pru.named_parameters()))
        found[backend] = values | {f"gradient of {name}": gradient for name, gradient in grads.items()}
    assert_all_close(found["loop"], found["reference"], rtol=0, atol=1e-11)


@pytest.mark.parametrize("context", TRANSFORMS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_pooling_with_every_context(pooling: str, context: str):
    """No luck needed: each pair once, three levels, uneven groups of the input's levels."""
    chosen = Settings(12, 20, levels=3, groups=2, input_groups=3, pooling=pooling, context_transform=context)
    pru, tensors, lengths = build(chosen, 5), inputs(chosen, [2, 3], 5), [2, 3]
    results = run(pru, tensors, lengths)
    plain = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    expected = literal.run(chosen, arrays_of(pru), **plain, lengths=lengths)
    for mine, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs, rtol=0, atol=1e-11)


@QUIET
@given(problems())
def test_the_step_of_the_cell_is_the_unit(problem):
    """What :mod:`torch_pru.cell` shows as one step, in a loop, against the literal equations."""
    chosen, lengths, seed = problem
    chosen = replace(chosen, num_layers=1, bidirectional=False)
    pru, tensors = build(chosen, seed), inputs(chosen, lengths, seed)
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    expected, _, _ = literal.run(chosen, arrays_of(pru), **arrays)
    h, c = tensors["h0"][0], tensors["c0"][0]
    for x, result in zip(tensors["x"], expected, strict=True):
        h, c = step(x, h, c, pru.weights(0), pru.specs[0])
        np.testing.assert_allclose(h.detach().numpy(), result, rtol=0, atol=1e-11)
