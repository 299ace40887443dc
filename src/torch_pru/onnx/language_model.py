"""A whole language model in ONNX, its states as inputs and outputs, so that it can run token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.onnx import ONNXProgram

from torch_pru.errors import PRUError
from torch_pru.lm.config import is_subwords
from torch_pru.lm.data.storage import make_folder
from torch_pru.lm.data.subwords import FILE as SUBWORDS
from torch_pru.lm.data.subwords import Subwords
from torch_pru.lm.data.tokenizer import Tokenizer
from torch_pru.lm.data.vocabulary import Vocabulary
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.run import RunFolder
from torch_pru.onnx.export import BATCH, STEPS, export
from torch_pru.onnx.int8 import store_in_int8

MODEL, VOCABULARY = "model.onnx", "vocabulary.txt"

State = list[np.ndarray]
"""h and c of every layer in a row, each (1, B, M)."""


class LanguageModelGraph(nn.Module):
    """A language model as a function of tensors.

    Args:
        model: the language model.

    Shape:
        * tokens: (T, B).
        * states: h and c of every layer in a row, each (1, B, M).
        * results: log-probabilities of the next word (T, B, V), then the states after the last step.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, states: list[Tensor]) -> tuple[Tensor, ...]:
        """Read tokens after states."""
        pairs = list(zip(states[::2], states[1::2], strict=True))
        hidden = self.model.hidden(tokens, pairs)
        after = [state for pair in hidden.state for state in pair]
        return self.model.log_probabilities(hidden.raw), *after


def export_language_model(model: LanguageModel, *, int8: bool = False) -> ONNXProgram:
    """Export a language model with any number of steps and any batch.

    Inputs are ``tokens`` (T, B) and, of every layer, ``h_i`` and ``c_i`` (1, B, M); outputs are
    ``log_probabilities`` (T, B, V) and ``next_h_i`` and ``next_c_i``.

    Args:
        model: the language model.
        int8: whether matrices are stored in 8 bits, for onnxruntime.

    Example:
        >>> export_language_model(run.model()).save("model.onnx")               # doctest: +SKIP
    """
    weight = model.embedding.weight
    tokens = torch.zeros(3, 2, dtype=torch.int64, device=weight.device)
    states = [state for pair in model.initial_state(2) for state in pair]
    names = [f"{name}_{layer}" for layer in range(1, len(model.layers) + 1) for name in ("h", "c")]
    program = export(
        LanguageModelGraph(model),
        (tokens, states),
        dynamic_shapes=({0: STEPS, 1: BATCH}, [{1: BATCH} for _ in states]),
        input_names=["tokens", *names],
        output_names=["log_probabilities", *(f"next_{name}" for name in names)],
    )
    if int8:
        store_in_int8(program.model)
    return program


def export_run(run: RunFolder, folder: str | Path, *, int8: bool = False) -> None:
    """Write the best weights of a run as ``model.onnx``, and its vocabulary.

    Args:
        run: the run folder.
        folder: where to write to.
        int8: whether matrices are stored in 8 bits, for onnxruntime.

    Example:
        >>> export_run(RunFolder.open("runs/quickstart-1"), "exported")         # doctest: +SKIP
    """
    folder = Path(folder)
    make_folder(folder)
    program = export_language_model(run.model(), int8=int8)
    tokenizer = run.tokenizer
    program.model.metadata_props["tokenizer"] = (
        SUBWORDS if isinstance(tokenizer, Subwords) else tokenizer.name
    )
    program.save(str(folder / MODEL), external_data=False)
    run.vocabulary.save(folder / VOCABULARY)
    if isinstance(tokenizer, Subwords):
        (folder / SUBWORDS).write_bytes(tokenizer.to_bytes())


class OnnxLanguageModel:
    """A language model that ``pru export --to onnx`` has written, run by onnxruntime.

    Args:
        folder: with ``model.onnx`` and ``vocabulary.txt``.
        options: further arguments of ``onnxruntime.InferenceSession``.

    Attributes:
        vocabulary: the words, numbered as the model has them.
        tokenizer: splits text into words.

    Example:
        >>> model = OnnxLanguageModel("exported")                               # doctest: +SKIP
        >>> tokens = model.vocabulary.encode(["<eos>", "in", "the"])            # doctest: +SKIP
        >>> found, state = model(tokens[:, None].numpy(), model.initial_state(1))   # doctest: +SKIP
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ImportError("OnnxLanguageModel needs onnxruntime; pip install 'torch-pru[onnx]'") from error
        folder = Path(folder)
        for name in (MODEL, VOCABULARY):
            if not (folder / name).is_file():
                raise PRUError(f"{folder} has no {name}; a model is a folder with {MODEL} and {VOCABULARY}")
        self.vocabulary = Vocabulary.load(folder / VOCABULARY)
        options = {"providers": ["CPUExecutionProvider"], **options}
        try:
            self.session = onnxruntime.InferenceSession(str(folder / MODEL), **options)
        except Exception as error:  # onnxruntime's own classes have no common one
            reason = " ".join(str(error).split())
            raise PRUError(f"{folder / MODEL} cannot be loaded: {reason:.300}") from error
        shapes = [each.shape for each in self.session.get_outputs()]
        words = shapes[0][-1] if shapes and len(shapes[0]) == 3 else None
        if words != len(self.vocabulary):
            raise PRUError(
                f"{folder / VOCABULARY} has {len(self.vocabulary):,} words, and {MODEL} beside it {words}: "
                f"it belongs to another model"
            )
        name = self.session.get_modelmeta().custom_metadata_map.get("tokenizer", "")
        self.tokenizer = Subwords.load(folder / SUBWORDS) if is_subwords(name) else Tokenizer(name)

    def initial_state(self, batch: int) -> State:
        """Zeros for h and c of every layer."""
        inputs = self.session.get_inputs()[1:]
        return [np.zeros((1, batch, each.shape[-1]), np.float32) for each in inputs]

    def __call__(self, tokens: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Log-probabilities (T, B, V) of the word after each of ``tokens`` (T, B), and the new state."""
        names = [each.name for each in self.session.get_inputs()]
        found, *after = self.session.run(None, dict(zip(names, [tokens, *state], strict=True)))
        return found, after
