"""A whole language model in onnxruntime, token by token and many at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

for package in ("onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs the extra torch-pru[onnx]")

import onnx
import onnxruntime

from torch_pru import PRUError
from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.model import LanguageModel
from torch_pru.onnx import OnnxLanguageModel
from torch_pru.onnx.int8 import quantize
from torch_pru.onnx.language_model import export_language_model

WORDS = 50
CONFIGS = {
    "pru": ModelConfig(unit="pru", embedding=16, hidden=(32, 32, 16), levels=2, groups=4),
    "lstm": ModelConfig(unit="lstm", embedding=16, hidden=(24, 16)),
    "mixture": ModelConfig(unit="pru", embedding=16, hidden=(24,), experts=3),
}


def language_model(name: str) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(CONFIGS[name], RegularizationConfig(), WORDS)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("name", list(CONFIGS))
@torch.no_grad()
def test_log_probabilities_and_states(name: str, tmp_path: Path):
    model = language_model(name)
    program = export_language_model(model)
    program.save(tmp_path / "model.onnx")
    onnx.checker.check_model(program.model_proto, full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = [each.name for each in session.get_inputs()]
    assert names[:3] == ["tokens", "h_1", "c_1"]
    wide = language_model(name).double().eval()
    for steps, batch in [(1, 1), (7, 5), (31, 1), (200, 2)]:
        tokens = torch.randint(WORDS, (steps, batch), generator=torch.Generator().manual_seed(steps))
        hidden = wide.hidden(tokens, wide.initial_state(batch))
        expected = wide.log_probabilities(hidden.raw).numpy()
        state = [each.float().numpy() for pair in wide.initial_state(batch) for each in pair]
        whole, *after = session.run(None, dict(zip(names, [tokens.numpy(), *state], strict=True)))
        assert np.abs(whole - expected).max() <= 1e-5
        for found, right in zip(after, [each for pair in hidden.state for each in pair], strict=True):
            assert np.abs(found - right.numpy()).max() <= 1e-5
        pieces = []
        for step in range(min(steps, 31)):
            given = [tokens[step : step + 1].numpy(), *state]
            one, *state = session.run(None, dict(zip(names, given, strict=True)))
            pieces.append(one)
        assert np.abs(np.concatenate(pieces) - expected[: len(pieces)]).max() <= 1e-5


def test_the_embedding_is_stored_once(tmp_path: Path):
    """It is also the decoder: a second, transposed copy would nearly double the file."""
    torch.manual_seed(0)
    config = ModelConfig(unit="pru", embedding=64, hidden=(64,))
    model = LanguageModel(config, RegularizationConfig(), 20_000)
    weights = sum(parameter.numel() for parameter in model.parameters()) * 4
    for int8, share in ((False, 1.05), (True, 0.32)):
        export_language_model(model, int8=int8).save(tmp_path / "model.onnx", external_data=False)
        assert (tmp_path / "model.onnx").stat().st_size < share * weights


@pytest.mark.parametrize(
    "config",
    [
        *CONFIGS.values(),
        ModelConfig(
            unit="pru", embedding=40, hidden=(80, 40), levels=3, pooling="max", input_groups=2, groups=4
        ),
        ModelConfig(unit="pru", embedding=40, hidden=(40,), context_transform="pyramidal", groups=1),
    ],
)
def test_weights_in_8_bits(config: ModelConfig, tmp_path: Path):
    """Close to the model, but not the same: every matrix is rounded, and what it is multiplied with."""
    torch.manual_seed(0)
    model = LanguageModel(config, RegularizationConfig(), WORDS).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    program = export_language_model(model, int8=True)
    onnx.checker.check_model(program.model_proto, full_check=True)
    assert not [node for node in program.model.graph.all_nodes() if node.op_type in ("MatMul", "Gemm")]
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    names = [each.name for each in session.get_inputs()]
    for steps, batch in [(1, 1), (31, 5)]:
        tokens = torch.randint(WORDS, (steps, batch), generator=torch.Generator().manual_seed(steps))
        state = [each for pair in model.initial_state(batch) for each in pair]
        with torch.no_grad():
            expected = model.log_probabilities(model.hidden(tokens, model.initial_state(batch)).raw).numpy()
        found, *_ = session.run(
            None, dict(zip(names, [tokens.numpy(), *(each.numpy() for each in state)], strict=True))
        )
        spread = expected.std()
        assert 0 < np.abs(found - expected).max() < 0.05 * spread


def test_rounding_to_8_bits():
    matrix = np.random.default_rng(0).standard_normal((5, 70)).astype(np.float32)
    matrix[2, 32:64] = 0
    stored, scales = quantize(matrix)
    assert (stored.dtype, stored.shape, scales.shape) == (np.uint8, (5, 3, 32), (5, 3))
    again = (scales[..., None] * (stored.astype(np.float32) - 128)).reshape(5, 96)
    assert (np.abs(again[:, :70] - matrix) <= np.repeat(scales, 32, 1)[:, :70] * 0.5001).all()
    assert not again[:, 70:].any()
    assert not again[2, 32:64].any()


def test_folders_that_are_not_whole(tmp_path: Path):
    model = language_model("pru")
    program = export_language_model(model)
    program.model.metadata_props["tokenizer"] = "spaces"
    program.save(tmp_path / "model.onnx")
    with pytest.raises(PRUError, match=r"has no vocabulary\.txt; a model is a folder with"):
        OnnxLanguageModel(tmp_path)
    (tmp_path / "vocabulary.txt").write_text("<eos>\n<unk>\n")
    with pytest.raises(PRUError, match=r"has 2 words, and model\.onnx beside it 50: it belongs to another"):
        OnnxLanguageModel(tmp_path)
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(PRUError, match=r"has no model\.onnx"):
        OnnxLanguageModel(tmp_path)
