"""Exported to ONNX: how exact, what PyTorch's own exporter makes of ``nn.LSTM``, and the time of a token.

    python benchmarks/export.py

Needs ``pip install 'torch-pru[lm,onnx]'``. Weights are random: a token costs the same whatever it says.
"""

from __future__ import annotations

import argparse
import copy
import logging
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from timing import interleaved, table
from torch import Tensor, nn

from torch_pru import PRU
from torch_pru.lm.config import ModelConfig, RegularisationConfig
from torch_pru.lm.model import LanguageModel
from torch_pru.onnx import export
from torch_pru.onnx.language_model import export_language_model

SIZES = [(steps, batch) for steps in (1, 7, 31, 200) for batch in (1, 5)]
MODELS = {
    "PRU g=4, 1400": (ModelConfig(embedding=400, hidden=(1400, 1400, 400), groups=4), 10_000),
    "nn.LSTM, 1150": (ModelConfig(unit="lstm", embedding=400, hidden=(1150, 1150, 400)), 10_000),
    "quickstart": (ModelConfig(embedding=128, hidden=(128,)), 5_630),
}


def main() -> None:
    """Print all three."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds of measurements")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lstm = nn.LSTM(100, 200, bidirectional=True).eval()
    print("largest difference from float64, T = 1 to 200, batch 1 and 5, both directions")
    print(f"  PRU(100, 200), exported            {difference(PRU(100, 200, bidirectional=True).eval()):.1e}")
    print(f"  nn.LSTM(100, 200), exported by us  {difference(lstm):.1e}")
    print("nn.LSTM(100, 200), exported by torch.onnx.export")
    for name, dimension in (("Dim", torch.export.Dim), ("Dim.AUTO", lambda _: torch.export.Dim.AUTO)):
        print(f"  {name}: {exported_by_pytorch(lstm, dimension)}")
    rows = [(name, *token_times(*model, options.rounds)) for name, model in MODELS.items()]
    header = ("model", "PyTorch", "onnxruntime", "ratio", "file / weights")
    print(table("Milliseconds of a token, one thread", header, rows))


def difference(rnn: nn.Module) -> float:
    """Of onnxruntime's output from the module's own in float64."""
    program = export(rnn, (torch.randn(7, 3, rnn.input_size),))
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    return max(largest(session, rnn, torch.randn(steps, batch, rnn.input_size)) for steps, batch in SIZES)


def largest(session: onnxruntime.InferenceSession, rnn: nn.Module, x: Tensor) -> float:
    """The largest difference for one input."""
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        y, (h, c) = copy.deepcopy(rnn).double()(x.double())
    return max(np.abs(a - b.numpy()).max() for a, b in zip(found, (y, h, c), strict=True))


def exported_by_pytorch(lstm: nn.LSTM, dimension) -> str:
    """What becomes of an ``nn.LSTM`` with a dynamic number of steps, at another one than the example's."""
    shapes = ({0: dimension("steps")},)
    try:
        program = torch.onnx.export(
            lstm, (torch.randn(7, 3, 100),), dynamic_shapes=shapes, dynamo=True, verbose=False
        )
        session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
        largest(session, lstm, torch.randn(31, 3, 100))
    except Exception as error:  # of many kinds: this is what is shown
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
    return "runs at another number of steps"


def token_times(config: ModelConfig, words: int, rounds: int) -> list[str]:
    """Median milliseconds of a token in PyTorch and in onnxruntime, their ratio, and the size of the file."""
    torch.manual_seed(0)
    model = LanguageModel(config, RegularisationConfig(), words).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_language_model(model, path, external_data=False)
        size = path.stat().st_size / (4 * sum(parameter.numel() for parameter in model.parameters()))
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, settings)
    token, state = torch.tensor([[3]]), model.initial_state(1)
    names = [each.name for each in session.get_inputs()]
    values = dict(
        zip(names, [token.numpy(), *(each.numpy() for pair in state for each in pair)], strict=True)
    )

    @torch.inference_mode()
    def in_pytorch() -> None:
        model.log_probabilities(model.hidden(token, state).raw)

    calls = {"PyTorch": in_pytorch, "onnxruntime": lambda: session.run(None, values)}
    times = interleaved(calls, token.device, rounds)
    ours, theirs = times["PyTorch"] * 1e3, times["onnxruntime"] * 1e3
    return [f"{ours:.2f}", f"{theirs:.2f}", f"{theirs / ours:.2f}", f"{size:.3f}"]


if __name__ == "__main__":
    main()
