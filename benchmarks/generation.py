"""Speed of greedy generation at batch 1: a PRU language model beside the same model with ``nn.LSTM``.

    python benchmarks/generation.py                 # on the CPU
    python benchmarks/generation.py --device cuda   # on an NVIDIA GPU

On a GPU both are run as CUDA graphs and step by step; where the two give different words, nothing is
printed but the error. Weights are random: a token costs the same whatever it says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import torch
from timing import interleaved, table

from torch_pru.lm.data import Vocabulary
from torch_pru.lm.evaluation import generate
from torch_pru.lm.evaluation.stepper import Stepper
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.training.precision import computing
from torch_pru.lm.training.trainer import build_model

RECIPE = "ptb-awd-pru-g4"
MODELS = {"PRU g=4": {}, "nn.LSTM": {"unit": "lstm", "groups": "1", "init": "authors"}}  # the same widths
WORDS = 10_000
TOKENS = {"cuda": 128, "cpu": 16}  # words that a measured call takes
CHECKED = 200  # words that must be the same


class Case(NamedTuple):
    """A model, the precision it computes in, and how its steps are run."""

    model: str
    precision: str
    way: str  # "CUDA graph" or "step by step"


def build(name: str, device: torch.device) -> LanguageModel:
    """A model whose words differ widely in their scores, so that rounding does not choose among them."""
    torch.manual_seed(0)
    config = load_recipe(RECIPE, MODELS[name] | {"precision": "float32"})
    model = build_model(config, WORDS, device).eval()
    torch.nn.init.normal_(model.embedding.weight)
    return model


def words_of(case: Case, model: LanguageModel, vocabulary: Vocabulary) -> Iterator[object]:
    """Words, or their ids, for ever."""
    if not model.embedding.weight.is_cuda:
        return generate(model, vocabulary, temperature=0)
    dtype, graph = getattr(torch, case.precision), case.way == "CUDA graph"
    return Stepper(model, vocabulary.unknown, dtype=dtype, graph=graph).likeliest(
        vocabulary.encode(["<eos>"])
    )


def check(case: Case, model: LanguageModel, vocabulary: Vocabulary) -> str | None:
    """Stop where graph and plain steps give different words; a reason where there can be no graph."""
    try:
        graphed = [*islice(words_of(case, model, vocabulary), CHECKED)]
    except RuntimeError as error:
        return str(error).strip().partition("\n")[0]
    plain = [*islice(words_of(case._replace(way="step by step"), model, vocabulary), CHECKED)]
    if graphed != plain:
        first = next(
            at for at, (ours, theirs) in enumerate(zip(graphed, plain, strict=True)) if ours != theirs
        )
        sys.exit(
            f"{case.model} {case.precision}: graph and plain steps differ at word {first}; no times shown"
        )
    return None


def taking(case: Case, model: LanguageModel, vocabulary: Vocabulary) -> Callable[[], None]:
    """A call that takes the next words of an endless text."""
    words, device = words_of(case, model, vocabulary), model.embedding.weight.device

    def call() -> None:
        with computing(case.precision, device):
            for _ in islice(words, TOKENS[device.type]):
                pass

    return call


def calls_of(precisions: list[str], device: torch.device) -> dict[Case, Callable[[], None]]:
    vocabulary = Vocabulary(["<eos>", "<unk>", *(f"word{number}" for number in range(2, WORDS))])
    calls = {}
    for name in MODELS:
        model = build(name, device)
        for precision in precisions:
            plain = Case(name, precision, "step by step")
            calls[plain] = taking(plain, model, vocabulary)
            if device.type == "cuda":
                graphed = plain._replace(way="CUDA graph")
                reason = check(graphed, model, vocabulary)
                if reason is None:
                    calls[graphed] = taking(graphed, model, vocabulary)
                else:
                    print(f"{name} {precision} cannot be captured as a CUDA graph: {reason}")
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--precision", nargs="+", default=["float32"], help="float32, float16, bfloat16")
    parser.add_argument("--repeats", default=5, type=int, help="rounds, of which the median is taken")
    arguments = parser.parse_args()
    device = arguments.device
    calls = calls_of(arguments.precision, device)
    names = {case: ", ".join(case) for case in calls}
    medians = interleaved({names[case]: call for case, call in calls.items()}, device, arguments.repeats)
    rates = {case: TOKENS[device.type] / medians[name] for case, name in names.items()}
    best = max(rate for case, rate in rates.items() if case.model == "nn.LSTM")
    rows = [
        (*case, f"{1e6 / rate:.0f}", f"{rate:,.0f}", f"{rate / best:.2f}") for case, rate in rates.items()
    ]
    header = ("model", "precision", "run", "µs a token", "tokens/s", "times the best nn.LSTM")
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    print(table(f"Greedy generation, {RECIPE} and its widths, batch 1, on {where}", header, rows))


if __name__ == "__main__":
    main()
