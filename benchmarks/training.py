"""Speed and memory of a training step: a PRU language model beside the same model with ``nn.LSTM``.

    python benchmarks/training.py                 # on the CPU
    python benchmarks/training.py --device cuda   # on an NVIDIA GPU

Every regulariser is on, and averaging. The text is random words: a step costs the same whatever they say.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

import torch
from timing import interleaved, peak_megabytes, table

from torch_pru.lm.config import Config
from torch_pru.lm.dropout import Masks
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.step import TrainingStep
from torch_pru.lm.training.trainer import build_model

WORDS = {"ptb": 10_000, "wikitext-2": 33_278}
STEPS = 70

# PRU recipe, and what makes its rival of it: the widths of the recipe with nn.LSTM in the layers.
RIVAL = {"unit": "lstm", "levels": 2, "groups": 1}
CPU_ROWS = [("ptb-awd-pru-g4", {}), ("ptb-awd-pru-g4", RIVAL)]


def build_step(recipe: str, overrides: dict, device: torch.device, precision: str) -> Callable[[], None]:
    """One training step of a recipe, ready to be called again and again."""
    config = load_recipe(recipe, overrides | {"precision": precision})
    step, text, state = _prepare(config, device)

    def call() -> None:
        nonlocal state
        step.optimizer.prepare(config.training.learning_rate)
        state, _ = step(text[:-1], text[1:], state)

    return call


def _prepare(config: Config, device: torch.device):
    words, batch = WORDS[config.data.corpus], config.training.batch
    model = build_model(config, words, device).train()
    optimizer = AveragedSGD(
        model.parameters(), clip=config.training.clip, weight_decay=config.regularisation.weight_decay
    )
    optimizer.start_averaging()
    masks = Masks(torch.Generator(device).manual_seed(1))
    step = TrainingStep(model, optimizer, masks, World(device), precision=config.training.precision)
    text = torch.randint(words, (STEPS + 1, batch), device=device)
    return step, text, model.initial_state(batch)


def name_of(recipe: str, overrides: dict) -> str:
    config = load_recipe(recipe, overrides)
    unit = "nn.LSTM" if config.model.unit == "lstm" else f"PRU g={config.model.groups}"
    return f"{recipe}: {unit}, {config.model.hidden}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--repeats", default=5, type=int, help="rounds, of which the median is taken")
    arguments = parser.parse_args()
    device = arguments.device
    build = functools.partial(build_step, device=device, precision=arguments.precision)
    calls = {name_of(*row): build(*row) for row in CPU_ROWS}
    seconds = interleaved(calls, device, arguments.repeats)
    rows = []
    for recipe, overrides in CPU_ROWS:
        name = name_of(recipe, overrides)
        tokens = STEPS * load_recipe(recipe, {}).training.batch / seconds[name]
        peak = peak_megabytes(build_step, recipe, overrides, device, arguments.precision, device=device)
        rows.append((name, f"{seconds[name] * 1e3:.1f}", f"{tokens:,.0f}", f"{peak:,.0f}"))
    print(table(f"A training step, {arguments.precision}", ("model", "ms", "tokens/s", "peak MB"), rows))


if __name__ == "__main__":
    main()
