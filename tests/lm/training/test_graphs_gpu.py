"""Steps replayed as CUDA graphs: new masks at every replay, and the losses of the steps as they stand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from small import NO_DROPOUT, small_masks, small_model
from torch import distributed as dist

from torch_pru.lm.graphs import can_capture
from torch_pru.lm.model import Masks
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.step import GraphedStep, TrainingStep
from torch_pru.lm.training.windows import rotate_columns

pytestmark = pytest.mark.gpu
WORDS, BATCH = 40, 4


def build(precision: str, seed: int = 1) -> tuple[TrainingStep, torch.Tensor]:
    torch.manual_seed(seed)
    device = torch.device("cuda")
    model = small_model(unit="pru").to(device).train()
    optimizer = AveragedSGD(model.parameters(), clip=0.25, weight_decay=1e-6)
    masks = Masks(torch.Generator(device).manual_seed(seed))
    text = torch.randint(
        0, WORDS, (400, BATCH), device=device, generator=torch.Generator(device).manual_seed(7)
    )
    return TrainingStep(model, optimizer, masks, precision=precision), text


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float32"])
def test_graphs_give_the_losses_of_plain_steps(precision: str) -> None:
    """200 steps with the same masks, averaging from the middle on, another text in the same place later."""
    losses: dict[str, list[float]] = {}
    for way in ("graphs", "plain"):
        step, text = build(precision)
        graphed = GraphedStep(step, text)
        state = step.model.initial_state(BATCH)
        losses[way] = []
        for number in range(200):
            if number == 100:
                step.optimizer.start_averaging()
            if number == 150:
                text.copy_(rotate_columns(text, torch.tensor([3, 141, 59, 265], device=text.device)))
            first, length = 7 * (number % 40), 9 + number % 3
            step.optimizer.prepare_step(0.5)
            if way == "graphs":
                state, loss = graphed(first, length, state)
            else:
                tokens, targets = text[first : first + length], text[first + 1 : first + length + 1]
                state, loss = step(tokens, targets, state)
            losses[way].append(loss.item())
        assert way == "plain" or sum(graph is not None for graph in graphed.graphs.graphs.values()) == 6
    for ours, theirs in zip(losses["graphs"], losses["plain"], strict=True):
        assert abs(ours - theirs) <= 1e-3 * theirs


def average(tensors: Sequence[torch.Tensor]) -> None:
    """What `World.average` does with several processes, in one."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


@pytest.mark.skipif(not dist.is_nccl_available(), reason="needs NCCL")
def test_graphs_with_an_exchange_over_nccl() -> None:
    """With one rank, the exchange changes nothing; the process group ends once the graphs are destroyed."""
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    losses: dict[str, list[float]] = {}
    for way in ("exchanged", "alone"):
        step, text = build("float32")
        if way == "exchanged":
            step.average = average
        graphed, state = GraphedStep(step, text), step.model.initial_state(BATCH)
        losses[way] = []
        for number in range(40):
            step.optimizer.prepare_step(0.5)
            state, loss = graphed(7 * number, 9 + number % 3, state)
            losses[way].append(loss.item())
        assert all(graph is not None for graph in graphed.graphs.graphs.values())
        graphed.graphs.release()
        assert not graphed.graphs.graphs
    dist.destroy_process_group()
    assert losses["exchanged"] == pytest.approx(losses["alone"], rel=1e-3)


def test_two_replays_draw_different_masks() -> None:
    step, text = build("bfloat16")
    graphed = GraphedStep(step, text)
    losses = []
    for _ in range(40):
        step.optimizer.prepare_step(0.0)  # the weights stay: only the masks differ
        _, loss = graphed(0, 9, step.model.initial_state(BATCH))
        losses.append(loss.item())
    assert len(set(losses)) > 30  # two masks may give one loss to the last bit, all of them may not


def test_a_mask_is_right_on_average_over_replays() -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    masks, total = Masks(generator), torch.zeros(64, device="cuda")
    ones = torch.ones(1, 1, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        total += masks.dropout(ones, 0.4, shared=True).flatten()
    for _ in range(1000):
        graph.replay()
    assert (total / 1000 - 1).abs().max() < 0.15  # five standard deviations of the mean
    assert (total / 1000).mean().item() == pytest.approx(1, abs=0.02)


def test_without_memory_for_a_graph_steps_run_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    step, text = build("bfloat16")
    graphed, run = GraphedStep(step, text), GraphedStep._run

    def run_short_of_memory(self: GraphedStep, length: int) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise torch.OutOfMemoryError("injected")
        run(self, length)

    monkeypatch.setattr(GraphedStep, "_run", run_short_of_memory)
    for _ in range(4):
        step.optimizer.prepare_step(0.5)
        _, loss = graphed(0, 9, graphed.state)
        assert loss.isfinite()
    assert graphed.graphs.full
    assert list(graphed.graphs.graphs.values()) == [None]
    assert step.step_count == 4


def test_a_replay_notes_the_first_bad_step() -> None:
    step, text = build("bfloat16")
    graphed = GraphedStep(step, text)
    for number in range(6):
        step.optimizer.prepare_step(0.5)
        if number == 4:
            with torch.no_grad():
                step.model.embedding.weight.fill_(torch.nan)
        graphed(0, 9, graphed.state)
    assert graphed.graphs.graphs[9, False] is not None
    assert (step.step_count.item(), step.first_bad_step.item()) == (6, 5)


def gradients_of_a_step(precision: str, device: torch.device) -> list[torch.Tensor]:
    """By the weights' order, of a model without dropout whose words are no multiple of 8."""
    words = 37
    dtype = torch.float64 if precision == "float64" else torch.float32
    model = small_model(unit="pru", words=words, **NO_DROPOUT, activation=2.0, temporal=1.0)
    model = model.to(device, dtype).train()
    seen: list[torch.Tensor] = []

    class Seeing(AveragedSGD):
        def step(self, closure=None, *, grad_scale=None, check=None):
            scale = 1.0 if grad_scale is None else grad_scale
            seen.extend(parameter.grad / scale for parameter in self.params)
            return super().step(grad_scale=grad_scale, check=check)

    optimizer = Seeing(model.parameters(), clip=0.25, weight_decay=1e-6)
    masks = small_masks() if device.type == "cpu" else Masks(torch.Generator(device).manual_seed(1))
    step = TrainingStep(model, optimizer, masks, precision=precision)
    text = torch.randint(0, words, (10, BATCH), generator=torch.Generator().manual_seed(7)).to(device)
    optimizer.prepare_step(1.0)
    step(text[:-1], text[1:], model.initial_state(BATCH))
    return [gradient.detach().double().cpu() for gradient in seen]


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 1e-2)])
def test_the_gradients_of_a_whole_step(precision: str, bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # float32 without rounding to TF32
    ours = gradients_of_a_step(precision, torch.device("cuda"))
    exact = gradients_of_a_step("float64", torch.device("cpu"))
    difference = torch.cat([(a - b).flatten() for a, b in zip(ours, exact, strict=True)])
    assert difference.norm() <= bound * torch.cat([b.flatten() for b in exact]).norm()
    for a, b in zip(ours, exact, strict=True):
        assert (a - b).norm() <= 5 * bound * b.norm()


def test_what_cannot_be_captured_is_said() -> None:
    assert can_capture(small_model(unit="pru").cuda())
    assert not can_capture(small_model(unit="lstm").cuda())
