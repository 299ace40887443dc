"""Speed and memory of a training step: a PRU language model beside the same model with ``nn.LSTM``.

    python benchmarks/training.py                 # on the CPU
    python benchmarks/training.py --device cuda   # on an NVIDIA GPU
    python benchmarks/training.py --json FILE     # and keep the table as a record

All regularization is on, and averaging. The text is random words: a step costs the same whatever they say.
First a step of each model without dropout is checked against float64; where the weights end elsewhere,
nothing is printed but the error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from checking import in_plain_code, relative_error
from timing import interleaved, peak_megabytes, place, table, write_record
from torch import Tensor

from torch_pru.lm.config import Config
from torch_pru.lm.graphs import can_capture
from torch_pru.lm.model import Masks, build_model
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.step import GraphedStep, TrainingStep

WORDS = {"ptb": 10_000, "wikitext-2": 33_278}
STEPS = 70
WITHOUT_DROPOUT = dict.fromkeys(
    ("input_dropout", "hidden_dropout", "output_dropout", "embedding_dropout", "weight_drop"), "0"
)
# How far a step may move a weight, taken as a whole, from where float64 moves it, relative to the way. On a
# CPU the right numbers are 4e-4, 9e-3 and 2e-3 off; a recurrence that forgets its context, 0.2 in all three.
CLOSE = {"float32": 2e-3, "bfloat16": 5e-2, "float16": 1e-2}


@dataclass(frozen=True)
class Row:
    """A recipe, what is changed in it, and the precision."""

    recipe: str
    overrides: dict[str, str] = field(default_factory=dict)
    precision: str = "float32"

    @property
    def config(self) -> Config:
        return load_recipe(self.recipe, self.overrides | {"precision": self.precision})

    @property
    def name(self) -> str:
        config = self.config
        units = {"pru": f"PRU g={config.model.groups}", "lstm": "nn.LSTM", "fused-lstm": "fused LSTM"}
        widths, batch = list(config.model.hidden), config.training.batch
        return f"{self.recipe}: {units[config.model.unit]} {widths}, batch {batch}, {self.precision}"


WIDE_LSTM = {"unit": "lstm", "groups": "1", "init": "authors"}  # nn.LSTM with the widths of a PRU recipe
CPU_ROWS = [Row("ptb-awd-pru-g4"), Row("ptb-awd-pru-g4", WIDE_LSTM)]
CUDA_ROWS = [
    Row("ptb-awd-pru-g4", precision="bfloat16"),
    Row("ptb-awd-pru-g4", precision="float16"),
    Row("ptb-awd-lstm", precision="bfloat16"),
    Row("ptb-awd-lstm", {"unit": "lstm"}, "bfloat16"),
    Row("wt2-awd-pru-g4", {"batch": "80"}, "bfloat16"),
    Row("wt2-awd-lstm", {"unit": "lstm", "batch": "80"}, "bfloat16"),
]


def build_step(row: Row, device: torch.device) -> Callable[[], None]:
    """One training step of a recipe, ready to be called again and again; a CUDA graph where it can be one."""
    step, text = _prepare(row, device)
    rate = row.config.training.learning_rate
    state = step.model.initial_state(text.shape[1])
    graphed = GraphedStep(step, text) if can_capture(step.model) else None

    def call() -> None:
        nonlocal state
        step.optimizer.prepare_step(rate)
        if graphed is not None:
            state, _ = graphed(0, STEPS, state)
        else:
            state, _ = step(text[:-1], text[1:], state)

    return call


def _prepare(row: Row, device: torch.device) -> tuple[TrainingStep, Tensor]:
    config = row.config
    words = WORDS[config.data.corpus]
    model = build_model(config, words, device).train()
    decay = config.regularization.weight_decay
    optimizer = AveragedSGD(model.parameters(), clip=config.training.clip, weight_decay=decay)
    optimizer.start_averaging()
    masks = Masks(torch.Generator(device).manual_seed(1))
    step = TrainingStep(model, optimizer, masks, precision=row.precision)
    numbers = torch.Generator().manual_seed(1)
    text = torch.randint(words, (STEPS + 1, config.training.batch), generator=numbers)
    return step, text.to(device)


def check(row: Row, device: torch.device) -> None:
    """Stop unless a step moves every weight in this precision as it does in float64."""
    ours, exact = (changes_by_a_step(row, precision, device) for precision in (row.precision, "float64"))
    for name, right in exact.items():
        error = relative_error(ours[name], right)
        if not error <= CLOSE[row.precision]:
            sys.exit(
                f"{row.name}: a step's change of {name} has a relative error of {error:.1e}; no times shown"
            )


def changes_by_a_step(row: Row, precision: str, device: torch.device) -> dict[str, Tensor]:
    """What a step adds to each weight; without dropout, whose masks are others in another precision."""
    step, text = _prepare(Row(row.recipe, row.overrides | WITHOUT_DROPOUT, precision), device)
    if precision == "float64":
        in_plain_code(step.model)
    embedding = step.model.embedding.weight
    with torch.no_grad():
        # A new model's vectors are so small that its gates stand half open, whichever is which.
        embedding.copy_(torch.randn(embedding.shape, generator=torch.Generator().manual_seed(2)))
    before = {name: weight.detach().clone() for name, weight in step.model.named_parameters()}
    step.optimizer.prepare_step(row.config.training.learning_rate)
    step(text[:-1], text[1:], step.model.initial_state(text.shape[1]))
    return {name: weight.detach() - before[name] for name, weight in step.model.named_parameters()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--repeats", default=5, type=int, help="rounds, of which the median is taken")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to this file")
    arguments = parser.parse_args()
    device = arguments.device
    rows = CUDA_ROWS if device.type == "cuda" else CPU_ROWS
    for row in rows:
        check(row, device)
    calls = {row.name: build_step(row, device) for row in rows}
    seconds = interleaved(calls, device, arguments.repeats)
    shown = []
    for row in rows:
        tokens = STEPS * row.config.training.batch / seconds[row.name]
        peak = peak_megabytes(build_step, row, device, device=device)
        shown.append((row.name, f"{seconds[row.name] * 1e3:.2f}", f"{tokens:,.0f}", f"{peak:,.0f}"))
    title = "A training step, all regularization and averaging on" + (
        " (CUDA graphs; nn.LSTM cannot be captured with weight drop)" if device.type == "cuda" else ""
    )
    results = (f"{title}, on {place(device)}", ("model", "ms", "tokens/s", "peak MB"), shown)
    print(table(*results))
    if arguments.json is not None:
        write_record(arguments.json, [results])


if __name__ == "__main__":
    main()
