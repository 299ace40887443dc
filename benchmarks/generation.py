"""Speed of greedy generation at batch 1: a PRU language model beside the same model with ``nn.LSTM``.

    python benchmarks/generation.py                 # on the CPU
    python benchmarks/generation.py --device cuda   # on an NVIDIA GPU
    python benchmarks/generation.py --json FILE     # and keep the table as a record

On a GPU both are run as CUDA graphs and step by step. First the words of each are checked against float64;
where they are wrong, nothing is printed but the error. Weights are random: a token costs the same whatever it
says.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

import torch
from checking import in_plain_code
from timing import interleaved, place, table, write_record
from torch import Tensor, nn

from torch_pru.lm.data import Vocabulary
from torch_pru.lm.device import autocast
from torch_pru.lm.evaluation import generate
from torch_pru.lm.evaluation.stepper import Stepper
from torch_pru.lm.model import LanguageModel, build_model
from torch_pru.lm.recipe import load_recipe

RECIPE = "ptb-awd-pru-g4"
MODELS = {"PRU g=4": {}, "nn.LSTM": {"unit": "lstm", "groups": "1", "init": "authors"}}  # the same widths
WORDS = 10_000
TOKENS = {"cuda": 128, "cpu": 16}  # words that a measured call takes
CHECKED = 200  # words that must be right
# How much less log p than the likeliest word a word may have, in float64: rounding chooses between two that
# are nearly as likely. On a CPU right words have up to 0.07 less in bfloat16 and 0.005 in float16, which has
# as many bits as a GPU gives float32; with the input and the forget gate exchanged, some have 2 less.
NEARLY_AS_LIKELY = {"float32": 0.05, "float16": 0.05, "bfloat16": 0.3}


class Case(NamedTuple):
    """A model, the precision it computes in, and how its steps are run."""

    model: str
    precision: str
    way: str


WAYS = {"cpu": ["step by step"], "cuda": ["step by step", "CUDA graph"]}


def build(name: str, device: torch.device) -> LanguageModel:
    """A model that says many words; one with first weights says a few, and the same with wrong gates."""
    torch.manual_seed(0)
    config = load_recipe(RECIPE, MODELS[name] | {"precision": "float32"})
    model = build_model(config, WORDS, device).eval()
    nn.init.normal_(model.embedding.weight)
    with torch.no_grad():
        for weight in model.layers.parameters():
            weight.mul_(2)
    return model


def words_of(case: Case, model: LanguageModel, vocabulary: Vocabulary) -> Iterator[object]:
    """Words, or their ids, for ever."""
    if not model.embedding.weight.is_cuda:
        return generate(model, vocabulary, temperature=0)
    dtype, graph = getattr(torch, case.precision), case.way == "CUDA graph"
    return Stepper(model, vocabulary.unknown, dtype=dtype, graph=graph).likeliest(
        vocabulary.encode(["<eos>"])
    )


def first_words(case: Case, model: LanguageModel, vocabulary: Vocabulary) -> Tensor:
    """The ids of the words to check, (n,)."""
    with autocast(case.precision, model.embedding.weight.device):
        words = [*islice(words_of(case, model, vocabulary), CHECKED)]
    return vocabulary.encode(words) if isinstance(words[0], str) else torch.tensor(words)


@torch.no_grad()
def check(case: Case, words: Tensor, exact: LanguageModel, vocabulary: Vocabulary) -> None:
    """Stop unless each of ``words`` (n,) is the likeliest after those before it, or nearly so."""
    device = exact.embedding.weight.device
    read = torch.cat([vocabulary.encode(["<eos>"]), words[:-1]]).to(device)
    hidden = exact.hidden(read[:, None], exact.initial_state(1)).raw[:, 0]
    log_p = exact.log_probabilities(hidden).cpu()  # (n, V)
    log_p[:, vocabulary.unknown] = -torch.inf  # is never said
    less = log_p.amax(1) - log_p.gather(1, words[:, None])[:, 0]
    if not less.max() <= NEARLY_AS_LIKELY[case.precision]:
        what = f"word {int(less.argmax())} has {less.max():.2f} less log p than the likeliest"
        sys.exit(f"{', '.join(case)}: {what}; no times shown")


def taking(case: Case, model: LanguageModel, vocabulary: Vocabulary) -> Callable[[], None]:
    """A call that takes the next words of an endless text."""
    words, device = words_of(case, model, vocabulary), model.embedding.weight.device

    def call() -> None:
        with autocast(case.precision, device):
            for _ in islice(words, TOKENS[device.type]):
                pass

    return call


def calls_of(precisions: list[str], device: torch.device) -> dict[Case, Callable[[], None]]:
    vocabulary = Vocabulary(["<eos>", "<unk>", *(f"word{number}" for number in range(2, WORDS))])
    calls = {}
    for name in MODELS:
        model = build(name, device)
        exact = in_plain_code(copy.deepcopy(model).double())
        for case in (Case(name, *how) for how in product(precisions, WAYS[device.type])):
            try:
                words = first_words(case, model, vocabulary)
            except RuntimeError as error:
                if case.way != "CUDA graph":
                    raise
                reason = str(error).strip().partition("\n")[0]
                print(f"{name} {case.precision} cannot be captured as a CUDA graph: {reason}")
                continue
            check(case, words, exact, vocabulary)
            calls[case] = taking(case, model, vocabulary)
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--precision", nargs="+", default=["float32"], help="float32, float16, bfloat16")
    parser.add_argument("--repeats", default=5, type=int, help="rounds, of which the median is taken")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to this file")
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
    results = (f"Greedy generation, {RECIPE} and its widths, batch 1, on {place(device)}", header, rows)
    print(table(*results))
    if arguments.json is not None:
        write_record(arguments.json, [results])


if __name__ == "__main__":
    main()
