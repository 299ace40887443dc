"""Words from a GPU: replayed graphs give what plain steps give, and what the CPU gives."""

from __future__ import annotations

import copy
from itertools import islice

import pytest
import torch
from small_models import UNITS, small_model

from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.data import Vocabulary
from torch_pru.lm.evaluation import generate
from torch_pru.lm.evaluation.stepper import CHUNK, Stepper
from torch_pru.lm.model import LanguageModel
from torch_pru.ops.cuda.token import TokenModel

pytestmark = pytest.mark.gpu
COUNT = 4 * CHUNK + 3
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def lively(unit: str) -> LanguageModel:
    """A model whose weights are large: what comes next depends on all that came before."""
    model = small_model(unit)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    return model


def words(model: LanguageModel, vocabulary: Vocabulary, **options: object) -> list[str]:
    return list(islice(generate(model, vocabulary, ["word5", "word7"], **options), COUNT))  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 1, "top_k": 5}])
def test_the_words_of_the_cpu(
    unit: str, options: dict[str, float], vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # an nn.LSTM rounds as on the CPU
    model = lively(unit)
    assert words(copy.deepcopy(model).cuda(), vocabulary, **options) == words(model, vocabulary, **options)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_graphs_give_the_words_of_plain_steps(unit: str, dtype: torch.dtype) -> None:
    model, start = lively(unit).cuda(), torch.tensor([0, 5])
    steppers = [Stepper(model, 1, dtype=dtype, graph=graph) for graph in (True, False)]
    graphed, plain = ([*islice(stepper.likeliest(start), COUNT)] for stepper in steppers)
    assert graphed == plain
    assert steppers[0]._find_words.graph is not None
    assert steppers[1]._find_words.graph is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_graphs_give_the_scores_of_plain_steps(dtype: torch.dtype) -> None:
    model, tokens = lively("pru").cuda(), torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    graphed, plain = (Stepper(model, dtype=dtype, graph=graph) for graph in (True, False))
    for token in tokens.split(1):
        assert torch.equal(graphed.read(token), plain.read(token))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_near_float32(dtype: torch.dtype) -> None:
    model, tokens = lively("pru").cuda(), torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    exact, rounded = Stepper(model).read(tokens), Stepper(model, dtype=dtype).read(tokens)
    torch.testing.assert_close(rounded, exact, atol=0.05 if dtype == torch.float16 else 0.3, rtol=0)


def test_a_seed_gives_the_same_words(vocabulary: Vocabulary) -> None:
    model = lively("pru").cuda()
    with torch.autocast("cuda", torch.float16):
        first = words(model, vocabulary, seed=1)
        torch.cuda.manual_seed(99)  # the global state has no part in it
        assert words(model, vocabulary, seed=1) == first
        assert words(model, vocabulary, seed=2) != first


def varied() -> LanguageModel:
    """Many words and layers, and weights that let errors fade."""
    config = ModelConfig(unit="pru", embedding=16, hidden=(64, 48, 16), levels=2, groups=2)
    torch.manual_seed(1)
    model = LanguageModel(config, RegularizationConfig(), 1000).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
        model.embedding.weight.normal_()
        model.decoder.bias.zero_()
    return model.cuda()


@pytest.mark.parametrize(
    ("dtype", "bound", "gap"), [(torch.float16, 5e-3, 0.02), (torch.bfloat16, 4e-2, 0.1)]
)
def test_a_kernel_a_layer_finds_the_words_of_many(
    dtype: torch.dtype, bound: float, gap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 words; where the two differ in rounding, the word found is still among the best of the other."""
    model, start = varied(), torch.tensor([0])
    fused, found = Stepper(model, 1, dtype=dtype), Stepper(model, 1, dtype=dtype)
    assert isinstance(fused.tokens, TokenModel)
    monkeypatch.setattr(Stepper, "_dense_layers", lambda self: None)
    plain = Stepper(model, 1, dtype=dtype)
    assert not isinstance(plain.tokens, TokenModel)
    words = [*islice(found.likeliest(start), 200)]
    assert len(set(words)) > 5
    token = start
    for word in words:
        ours, theirs = fused.read(token), plain.read(token)
        assert ours.argmax() == word  # what goes from word to word on the device is what the scores say
        finite = torch.isfinite(theirs)
        assert (ours - theirs)[finite].norm() <= bound * theirs[finite].norm()
        assert theirs[word] >= theirs.max() - gap
        token = torch.tensor([word])


def test_what_the_kernels_do_not_cover() -> None:
    assert not isinstance(Stepper(lively("pru").cuda()).tokens, TokenModel)  # float32
    assert not isinstance(Stepper(lively("lstm").cuda(), dtype=torch.float16).tokens, TokenModel)
    assert not isinstance(Stepper(lively("mixture").cuda(), dtype=torch.float16).tokens, TokenModel)
    assert not isinstance(Stepper(lively("pru"), dtype=torch.bfloat16).tokens, TokenModel)  # not on a GPU


def test_a_token_is_a_kernel_a_layer_and_one_for_the_decoder() -> None:
    stepper = Stepper(lively("pru").cuda(), 1, dtype=torch.float16, graph=False)
    stepper.read(torch.tensor([0]))
    stepper._launch()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        stepper._launch()
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.profiler.DeviceType.CUDA]
    # Two layers and the decoder; the likeliest word before the first, and the copies at the end of a chunk.
    assert len(kernels) <= 3 * CHUNK + 20, sorted({event.name for event in kernels})
