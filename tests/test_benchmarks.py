"""The benchmarks follow the recipes: what they measure can be built, what they print is whole.

And they show no time of wrong numbers: faults are put into the recurrence, and each has to find them.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from torch_pru.lm.model import build_model
from torch_pru.ops import backends, cuda, native
from torch_pru.ops.cpu import loop, lstm
from torch_pru.ops.spec import RecurrenceCall

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CPU = torch.device("cpu")

Results = tuple[Tensor, ...]
right_forward, right_backward = loop.forward, loop.backward


# They would run every layer, and the faults are put into the other backends.
pytestmark = pytest.mark.usefixtures("without_compiled_kernels")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # where it finds the modules that benchmarks share
    name = f"benchmark_{request.param}"  # its own is taken: tests/layer is a package
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{request.param}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("benchmark", ["training"], indirect=True)
def test_every_row_of_the_training_benchmark_can_be_built(benchmark: ModuleType) -> None:
    rows = benchmark.CPU_ROWS + benchmark.CUDA_ROWS
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        words = benchmark.WORDS[row.config.data.corpus]
        assert build_model(row.config, words, torch.device("meta")).embedding.weight.shape[0] == words


@pytest.mark.parametrize("benchmark", ["training"], indirect=True)
def test_rows_that_are_compared_have_one_batch(benchmark: ModuleType) -> None:
    for text in ("ptb", "wikitext-2"):
        rows = [row for row in benchmark.CPU_ROWS + benchmark.CUDA_ROWS if row.config.data.corpus == text]
        assert len({row.config.training.batch for row in rows}) == 1


@pytest.mark.parametrize("benchmark", ["generation"], indirect=True)
def test_both_models_of_the_generation_benchmark_can_be_built(benchmark: ModuleType) -> None:
    sizes = {name: benchmark.build(name, torch.device("meta")).config.hidden for name in benchmark.MODELS}
    assert len(sizes) == 2
    assert len(set(sizes.values())) == 1


def zero_outputs(*arguments) -> Results:
    out, h, *rest = right_forward(*arguments)
    return out.zero_(), h.zero_(), *rest


def zero_outputs_of_inference(*arguments) -> Results:
    saves_for_a_backward = arguments[-1]
    return right_forward(*arguments) if saves_for_a_backward else zero_outputs(*arguments)


def exchanged_gates(call: RecurrenceCall, save: bool) -> Results:
    order = [1, 0, 2, 3]  # the forget gate in the place of the input gate
    gates, weight, bias = call.gates[:, :, order], call.weight[:, order], call.bias[order]
    return right_forward(call._replace(gates=gates, weight=weight, bias=bias), save)


def no_context(call: RecurrenceCall, save: bool) -> Results:
    return right_forward(call._replace(weight=torch.zeros_like(call.weight)), save)


def nan_in_the_last_cell(*arguments) -> Results:
    out, h, c, *rest = right_forward(*arguments)
    return out, h, torch.full_like(c, torch.nan), *rest


def no_weight_gradient(*arguments) -> Results:
    gates, weight, *rest = right_backward(*arguments)
    return gates, weight.zero_(), *rest


FORWARD_FAULTS = [zero_outputs, exchanged_gates, no_context]
REFUSED = "no times shown"


def break_recurrence(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[..., Results], backend: ModuleType = loop
) -> None:
    """Put ``fault`` in the place of what a backend does; ``ops/reference.py`` stays right."""
    monkeypatch.setattr(lstm, "is_faster", lambda *_: False)  # few units would not come to a backend
    monkeypatch.setattr(backend, "backward" if fault is no_weight_gradient else "forward", fault)


@pytest.fixture
def small_recipe(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is changed in a recipe, so that the training benchmark has it checked in a moment."""
    monkeypatch.setattr(benchmark, "STEPS", 12)
    monkeypatch.setitem(benchmark.WORDS, "ptb", 500)
    return {"embedding": "32", "hidden": "[64, 64, 32]", "batch": "3"}


@pytest.mark.parametrize("benchmark", ["training"], indirect=True)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_the_training_benchmark_takes_right_numbers(
    benchmark: ModuleType, small_recipe: dict[str, str], precision: str
) -> None:
    benchmark.check(benchmark.Row("ptb-awd-pru-g4", small_recipe, precision), CPU)
    if precision != "float16":  # which nn.LSTM does not know on a CPU
        benchmark.check(benchmark.Row("ptb-awd-pru-g4", benchmark.WIDE_LSTM | small_recipe, precision), CPU)


@pytest.mark.parametrize("benchmark", ["training"], indirect=True)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("fault", [*FORWARD_FAULTS, no_weight_gradient])
def test_the_training_benchmark_refuses_wrong_numbers(
    benchmark: ModuleType,
    small_recipe: dict[str, str],
    precision: str,
    fault: Callable[..., Results],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_recurrence(monkeypatch, fault)
    with pytest.raises(SystemExit, match=REFUSED):
        benchmark.check(benchmark.Row("ptb-awd-pru-g4", small_recipe, precision), CPU)


@pytest.fixture
def small_generation(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that say several words, as the large ones do, and are quick to say them."""
    sizes = {"embedding": "400", "hidden": "[200, 200, 400]"}
    models = {name: options | sizes for name, options in benchmark.MODELS.items()}
    for name, value in (("WORDS", 2000), ("CHECKED", 48), ("MODELS", models)):
        monkeypatch.setattr(benchmark, name, value)


@pytest.mark.usefixtures("small_generation")
@pytest.mark.parametrize("benchmark", ["generation"], indirect=True)
def test_the_generation_benchmark_takes_right_words(benchmark: ModuleType) -> None:
    assert len(benchmark.calls_of(["float32", "bfloat16"], CPU)) == 4


@pytest.mark.usefixtures("small_generation")
@pytest.mark.parametrize("benchmark", ["generation"], indirect=True)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FORWARD_FAULTS)
def test_the_generation_benchmark_refuses_wrong_words(
    benchmark: ModuleType, precision: str, fault: Callable[..., Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_recurrence(monkeypatch, fault)
    with pytest.raises(SystemExit, match=REFUSED):
        benchmark.calls_of([precision], CPU)


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", ["generation"], indirect=True)
@pytest.mark.parametrize("fault", FORWARD_FAULTS)
def test_the_generation_benchmark_refuses_wrong_words_at_its_own_widths(
    benchmark: ModuleType, fault: Callable[..., Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_recurrence(monkeypatch, fault)
    with pytest.raises(SystemExit, match=REFUSED):
        benchmark.calls_of(["bfloat16"], CPU)


@pytest.mark.parametrize("benchmark", ["layer"], indirect=True)
def test_the_layer_benchmark_takes_right_numbers(benchmark: ModuleType) -> None:
    benchmark.check(benchmark.Case("small", 64, 4, 2, batch=3, steps=9), CPU)


@pytest.mark.parametrize("benchmark", ["layer"], indirect=True)
@pytest.mark.parametrize("fault", [*FORWARD_FAULTS, zero_outputs_of_inference, no_weight_gradient])
def test_the_layer_benchmark_refuses_wrong_numbers(
    benchmark: ModuleType, fault: Callable[..., Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_recurrence(monkeypatch, fault)
    with pytest.raises(SystemExit, match=REFUSED):
        benchmark.check(benchmark.Case("small", 64, 4, 2, batch=3, steps=9), CPU)


@pytest.mark.parametrize("benchmark", ["layer"], indirect=True)
def test_the_layer_benchmark_refuses_a_wrong_lstm(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = lstm.run

    def no_context(x: Tensor, h: Tensor, c: Tensor, weights: lstm.Weights, *rest) -> Results:
        return right(x, h, c, weights._replace(context=0 * weights.context), *rest)

    monkeypatch.setattr(lstm, "run", no_context)
    with pytest.raises(SystemExit, match=REFUSED):
        benchmark.check(benchmark.Case("small", 64, 4, 2, batch=3, steps=9), CPU)


@pytest.mark.parametrize("benchmark", ["layer"], indirect=True)
def test_the_layer_benchmark_refuses_wrong_kernels(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "missing_reason", native.library.missing_reason)
    backends.forget()
    if native.missing_reason() is not None:
        pytest.skip("no compiled kernels")
    right = native.operators.run_forward

    def no_context(arguments: native.Arguments, save: bool) -> tuple:
        return right(arguments._replace(context=0 * arguments.context), save)

    monkeypatch.setattr(native.operators, "run_forward", no_context)
    with pytest.raises(SystemExit, match=REFUSED):
        benchmark.check(benchmark.Case("small", 64, 4, 2, batch=3, steps=9), CPU)


@pytest.fixture
def kernels_on_a_cpu(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop in the place of the kernels, as it has their arguments and results, and no clock."""
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent / "tests" / "cuda"))
    literal = importlib.import_module("literal")
    monkeypatch.setattr(literal, "make_problem", functools.partial(literal.make_problem, device="cpu"))
    monkeypatch.setattr(cuda, "forward", right_forward)
    monkeypatch.setattr(cuda, "backward", right_backward)
    monkeypatch.setattr(benchmark, "median_microseconds", lambda work: 1.0)
    monkeypatch.setattr(
        sys, "argv", ["kernels.py", "--here", "--shapes", "2x8x3", "--steps", "5", "--dtype", "float32"]
    )


@pytest.mark.usefixtures("kernels_on_a_cpu")
@pytest.mark.parametrize("benchmark", ["kernels"], indirect=True)
def test_the_kernels_benchmark_takes_right_numbers(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main()
    assert json.loads(capsys.readouterr().out)[:4] == ["2x8x3", "1.0", "1.0", "1.0"]


@pytest.mark.usefixtures("kernels_on_a_cpu")
@pytest.mark.parametrize("benchmark", ["kernels"], indirect=True)
@pytest.mark.parametrize(
    "fault", [*FORWARD_FAULTS, zero_outputs_of_inference, nan_in_the_last_cell, no_weight_gradient]
)
def test_the_kernels_benchmark_refuses_wrong_numbers(
    benchmark: ModuleType,
    fault: Callable[..., Results],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    break_recurrence(monkeypatch, fault, backend=cuda)
    with pytest.raises(SystemExit, match="the numbers are off"):
        benchmark.main()
    assert capsys.readouterr().out == ""


STAND_IN = """
import json, sys, time
for shape in sys.argv[sys.argv.index("--shapes") + 1 :]:
    if shape == "hangs":
        time.sleep(60)
    if shape == "fails":
        sys.exit("the numbers are off")
    print(json.dumps([shape, 1, 2, 3, 4, 5]), flush=True)
"""


@pytest.mark.parametrize("benchmark", ["kernels"], indirect=True)
def test_the_kernels_benchmark_goes_on_after_a_shape_that_hangs_or_fails(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels.py").write_text(STAND_IN)
    monkeypatch.setattr(benchmark, "__file__", str(tmp_path / "kernels.py"))
    monkeypatch.setattr(benchmark, "LIMIT_SECONDS", 1)
    shapes = ["a", "hangs", "b", "c", "fails", "fails", "d"]
    arguments = Namespace(shapes=shapes, steps=5, dtype="float32", without_clusters=True)
    rows = [*benchmark.rows_of(arguments)]
    assert [row[0] for row in rows] == shapes
    assert [row[1] for row in rows] == [
        1,
        "stopped after 1 s",
        1,
        1,
        *["failed: the numbers are off\n"] * 2,
        1,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer", "training", "generation"])
def test_a_benchmark_shows_its_table(name: str) -> None:
    command = [sys.executable, BENCHMARKS / f"{name}.py", "--repeats", "1"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert shown.returncode == 0, shown.stderr
    rows = [line for line in shown.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) >= 3
    assert "nn.LSTM" in shown.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_allreduce_benchmark_needs_a_gpu(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    command = [sys.executable, BENCHMARKS / "allreduce.py", "--json", record]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "benchmarks/allreduce.py needs an NVIDIA GPU and a PyTorch with NCCL; there is none here"
    ]
    assert not record.exists()


@pytest.mark.parametrize("benchmark", ["allreduce"], indirect=True)
def test_the_allreduce_benchmark_exchanges_with_one_process(benchmark: ModuleType) -> None:
    sent = []

    def double(flat: Tensor) -> None:
        sent.append(flat.clone())
        flat *= 2

    tensors = [torch.tensor([[1.0, 2.0]]), torch.tensor(3.0)]
    benchmark.average(tensors, exchange=double)
    assert [one.tolist() for one in sent] == [[1.0, 2.0, 3.0]]
    assert [one.tolist() for one in tensors] == [[[2.0, 4.0]], 6.0]


@pytest.mark.parametrize("benchmark", ["scaling"], indirect=True)
def test_the_model_of_several_processes(benchmark: ModuleType) -> None:
    work = benchmark.line_through({10: 3.0, 20: 5.0, 40: 9.0})
    assert work(5) == pytest.approx(2.0)
    assert benchmark.predicted(work, 20, 1, 0.0, cores=2) == pytest.approx(5.0)
    assert benchmark.predicted(work, 40, 4, 0.5, cores=4) == pytest.approx(3.5)
    assert benchmark.predicted(work, 40, 4, 0.5, cores=2) == pytest.approx(6.5)
    # Of 8 parts, each process sends 7 to reduce them and 7 to distribute them.
    assert benchmark.ring(800.0, 8, bandwidth=100.0, latency=0.25) == pytest.approx(14 + 14 * 0.25)


@pytest.mark.slow
def test_the_scaling_benchmark_measures_every_kind_of_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    scaling = importlib.import_module("scaling")  # by its own name, by which other processes import it
    rows = {row["kind"]: row["ms"] for row in scaling.run(2, 1, 4, seconds=1.0)}
    assert list(rows) == ["train", "alone", "exchange", "after", "overlapped"]
    assert min(rows.values()) > 0
