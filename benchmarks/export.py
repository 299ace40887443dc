"""Exported to ONNX: how exact, what PyTorch's own exporter makes of ``nn.LSTM``, and the time of a token.

    python benchmarks/export.py               # random weights: a token costs the same whatever it says
    python benchmarks/export.py --run RUN     # a trained model, and its perplexity in onnxruntime
    python benchmarks/export.py --json FILE   # and keep the tables as a record

Needs ``pip install 'torch-pru[lm,onnx]'``. Times are CPU time of one thread, medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import copy
import logging
import re
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from timing import interleaved, table, write_record
from torch import Tensor, nn

from torch_pru import PRU
from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.evaluation.static import perplexity, score
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.run import RunFolder
from torch_pru.onnx import export
from torch_pru.onnx.language_model import export_language_model

SIZES = [(steps, batch) for steps in (1, 7, 31, 200) for batch in (1, 5)]
LAYERS = {
    "average pooling": {},
    "max pooling": {"pooling": "max"},
    "skip pooling": {"pooling": "skip"},
    "convolution": {"pooling": "convolution"},
    "grouped input": {"input_transform": "grouped"},
    "linear input": {"input_transform": "linear"},
    "linear context": {"context_transform": "linear", "groups": 1},
    "pyramidal context": {"context_transform": "pyramidal", "groups": 1},
}
MODELS = {
    "PRU 1400-1400-400, g=4": (ModelConfig(embedding=400, hidden=(1400, 1400, 400), groups=4), 10_000),
    "nn.LSTM 1150-1150-400": (ModelConfig(unit="lstm", embedding=400, hidden=(1150, 1150, 400)), 10_000),
    "PRU 128, the quickstart's": (ModelConfig(embedding=128, hidden=(128,)), 5_630),
}
WINDOW = 200
"""Words of a text that onnxruntime reads at once."""

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds of measurements")
    parser.add_argument("--run", type=Path, help="a trained run instead of the models of random weights")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables to this file")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tables = run_tables(options.run, options.rounds) if options.run else random_tables(options.rounds)
    for shown in tables:
        print(table(*shown))
    if options.json is not None:
        write_record(options.json, tables)


def random_tables(rounds: int) -> list[Table]:
    """What needs no trained model."""
    layers: dict[str, nn.Module] = {
        name: PRU(100, 200, bidirectional=True, **{"groups": 4, **options})
        for name, options in LAYERS.items()
    }
    layers["nn.LSTM"] = nn.LSTM(100, 200, bidirectional=True)
    rows = [
        (name, f"{difference(rnn, False):.1e}", f"{difference(rnn, True):.1e}")
        for name, rnn in layers.items()
    ]
    exact = (
        "Largest difference from float64, (100, 200), T = 1, 7, 31 and 200, batch 1 and 5, both directions"
    )
    dimensions = {
        "Dim('T')": torch.export.Dim("T"),
        "Dim.AUTO": torch.export.Dim.AUTO,
        "Dim.DYNAMIC": torch.export.Dim.DYNAMIC,
    }
    by_pytorch = [(name, exported_by_pytorch(each)) for name, each in dimensions.items()]
    times = []
    for name, (config, words) in MODELS.items():
        model = LanguageModel(config, RegularizationConfig(), words).eval()
        with tempfile.TemporaryDirectory() as folder:
            times.append((name, *token_row(model, Path(folder), rounds)))
    return [
        (exact, ("layer", "without states", "with states"), rows),
        (
            "nn.LSTM exported by torch.onnx.export, run at another number of steps",
            ("steps as", "result"),
            by_pytorch,
        ),
        (TOKENS, TOKENS_HEADER, times),
    ]


def difference(rnn: nn.Module, states: bool) -> float:
    """Of onnxruntime's outputs from the module's own in float64."""
    program = export(rnn.eval(), inputs_of(rnn, 7, 3, states))
    onnx.checker.check_model(program.model_proto, full_check=True)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    return max(largest(session, rnn, inputs_of(rnn, *size, states)) for size in SIZES)


def inputs_of(rnn: nn.Module, steps: int, batch: int, states: bool) -> tuple:
    """x (T, B, N), and h and c where states are given."""
    x = torch.randn(steps, batch, rnn.input_size)
    return (x, tuple(torch.randn(2, batch, rnn.hidden_size) for _ in "hc")) if states else (x,)


def largest(session: onnxruntime.InferenceSession, rnn: nn.Module, inputs: tuple) -> float:
    """The largest difference for one input."""
    x, *states = inputs
    flat = [x, *(states[0] if states else ())]
    names = [each.name for each in session.get_inputs()]
    found = session.run(None, {name: each.numpy() for name, each in zip(names, flat, strict=True)})
    wide = [tuple(each.double() for each in pair) for pair in states]
    with torch.no_grad():
        y, (h, c) = copy.deepcopy(rnn).double()(x.double(), *wide)
    return max(np.abs(a - b.numpy()).max() for a, b in zip(found, (y, h, c), strict=True))


def exported_by_pytorch(steps: object) -> str:
    """What becomes of an ``nn.LSTM`` with a dynamic number of steps, at another one than the example's."""
    lstm = nn.LSTM(100, 200, bidirectional=True).eval()
    try:
        x, shapes = torch.randn(7, 3, 100), ({0: steps},)
        program = torch.onnx.export(lstm, (x,), dynamic_shapes=shapes, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
        largest(session, lstm, inputs_of(lstm, 31, 3, states=False))
    except Exception as error:  # of many kinds: this is what is shown
        return in_one_line(error)
    return "correct"


def in_one_line(error: BaseException) -> str:
    """The first line of the error behind it all, without colors."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()[0]
    return f"{type(error).__name__}: {first[:100]}"


TOKENS = (
    "Milliseconds of a token on one CPU thread, and size of the file, "
    f"PyTorch {torch.__version__}, onnxruntime {onnxruntime.__version__}"
)
TOKENS_HEADER = (
    "model",
    "PyTorch",
    "onnxruntime",
    "onnxruntime / PyTorch",
    "8 bits",
    "8 bits / onnxruntime",
    "file / weights",
    "8-bit file / weights",
)


def token_row(model: LanguageModel, folder: Path, rounds: int) -> tuple[str, ...]:
    """Median milliseconds of a token in PyTorch and onnxruntime, with weights in 32 and 8 bits, and sizes."""
    paths = [exported(model, folder, int8=int8) for int8 in (False, True)]
    sessions = [one_thread(path) for path in paths]
    token, state = torch.tensor([[3]]), model.initial_state(1)
    values = inputs_for(sessions[0], token.numpy(), [each.numpy() for pair in state for each in pair])

    @torch.inference_mode()
    def in_pytorch() -> None:
        model.log_probabilities(model.hidden(token, state).raw)

    calls = {
        "PyTorch": in_pytorch,
        "onnxruntime": lambda: sessions[0].run(None, values),
        "8 bits": lambda: sessions[1].run(None, values),
    }
    times = interleaved(calls, token.device, rounds, time.thread_time)
    ours, theirs, small = (times[name] * 1e3 for name in calls)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    sizes = (f"{path.stat().st_size / weights:.3f}" for path in paths)
    ratios = (f"{theirs:.3f}", f"{theirs / ours:.2f}", f"{small:.3f}", f"{small / theirs:.2f}")
    return (f"{ours:.3f}", *ratios, *sizes)


def exported(model: LanguageModel, folder: Path, *, int8: bool) -> Path:
    """A file with the model."""
    path = folder / ("int8.onnx" if int8 else "float32.onnx")
    export_language_model(model, int8=int8).save(str(path), external_data=False)
    return path


def one_thread(path: Path) -> onnxruntime.InferenceSession:
    """onnxruntime on one thread."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, settings)


def inputs_for(session: onnxruntime.InferenceSession, tokens: np.ndarray, state: list[np.ndarray]) -> dict:
    """Tokens and states by the names of the inputs."""
    return dict(zip((each.name for each in session.get_inputs()), [tokens, *state], strict=True))


def run_tables(path: Path, rounds: int) -> list[Table]:
    """A trained model: its perplexity on the test text in PyTorch and onnxruntime, its token and its file."""
    run = RunFolder.open(path)
    model, test, name = run.model(), run.corpus().test, path.resolve().name
    with tempfile.TemporaryDirectory() as folder:
        times = (name, *token_row(model, Path(folder), rounds))
        found = [
            onnx_perplexity(one_thread(exported(model, Path(folder), int8=int8)), model, test)
            for int8 in (False, True)
        ]
    perplexities = (name, *(f"{each:.3f}" for each in (score(model, test).perplexity, *found)))
    header = ("model", "PyTorch", "onnxruntime", "8 bits")
    title = f"Perplexity on the test text, {run.config.data.corpus}"
    return [(title, header, [perplexities]), (f"{name}: {TOKENS}", TOKENS_HEADER, [times])]


def onnx_perplexity(session: onnxruntime.InferenceSession, model: LanguageModel, text: Tensor) -> float:
    """Perplexity of a text (N,), the state carried along; the first word is not scored."""
    state = [each.numpy() for pair in model.initial_state(1) for each in pair]
    ids, total = text.long().numpy(), 0.0
    for start in range(0, len(ids) - 1, WINDOW):
        window = ids[start : start + WINDOW + 1]
        found, *state = session.run(None, inputs_for(session, window[:-1, None], state))
        total -= found[np.arange(len(window) - 1), 0, window[1:]].sum(dtype=np.float64)
    return perplexity(total / (len(ids) - 1))


if __name__ == "__main__":
    main()
