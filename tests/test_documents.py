"""Numbers and figures in the documents are those of the records."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torch_pru.analysis import learning_curve, sweep_point
from torch_pru.lm.records import RunRecord, read_compact, read_folder
from torch_pru.lm.run import RunFolder
from torch_pru.ops.cuda.plan import OLDEST
from torch_pru.startup import set_waiting

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
PAIR = re.compile(r"(\d\d\.\d\d) / (\d\d\.\d\d)")
DOCUMENTS = ["README.md", "docs/reproduction.md", "docs/experiments.md", "docs/analysis.md"]


def record_of(name: str) -> RunRecord:
    """A record by the name that the documents use: a folder, or a file of experiments and a name in it."""
    family, _, inside = name.partition(" ")
    if not inside:
        return read_folder(ROOT / "results" / name)
    return next(
        one
        for one in read_compact(ROOT / "results" / "experiments" / f"{family}.jsonl")
        if one.name == inside
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_pairs_of_perplexities_are_in_the_results(document: str) -> None:
    """Validation / test: ours, the paper's, or those of a single run; RESULTS.md has them all."""
    known = set(re.findall(r"\d\d\.\d\d", (ROOT / "RESULTS.md").read_text(encoding="utf-8")))
    pairs = PAIR.findall((ROOT / document).read_text(encoding="utf-8"))
    assert pairs
    assert [pair for pair in pairs if not set(pair) <= known] == []


def test_learning_curves_are_those_of_the_records() -> None:
    for file in ("widths.json", "curves.json"):
        content: dict[str, Any] = json.loads((FIGURES / file).read_text())
        assert len(content) >= 3
        for name, curve in content.items():
            epochs = record_of(name).epochs
            assert curve["epochs"] == [line["epoch"] for line in epochs]
            for split in ("train", "valid"):
                assert curve[split] == [math.exp(line[f"{split}_loss"]) for line in epochs]


def test_ratios_on_a_cpu_are_those_of_the_record() -> None:
    tables = json.loads((ROOT / "benchmarks" / "records" / "layer-cpu.json").read_text())
    rows = [row for table in tables.values() for row in table if "K=2" in row.get("layer", "")]
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8").partition("## On a CPU")[2]
    for units in (1400, 1024, 256, 128, 64, 32):
        ratios = [row["PRU / nn.LSTM"] for row in rows if row["layer"] == f"PRU {units}, g=4, K=2"]
        [line] = [line for line in page.splitlines() if line.startswith(f"| {units} |")]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert [cells[3], cells[6], cells[7]] == ratios, units


def test_ratios_of_the_suites_are_those_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    suites = importlib.import_module("suites").SUITES
    tables = json.loads((ROOT / "benchmarks" / "records" / "layer-cpu.json").read_text())
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8").partition("## On a CPU")[2]
    seen = set()
    for name, about, *ranges in re.findall(r"(?m)^\| `([-\w]+)` \| (.*?) \| (.*?) \| (.*?) \|$", page):
        [rows] = (rows for title, rows in tables.items() if title.startswith(f"{suites[name][0]}, on "))
        if name == "growth":  # two lines, for steps and for the batch
            rows = [row for row in rows if about.split()[0] in row["size"]]
        for what, shown in zip(("forward", "forward + backward"), ranges, strict=True):
            what = f"compiled, {what}" if name == "compiled" else what
            ours = [row for row in rows if row["what"] == what and "nn.Linear" not in row["size"]]
            ratios = [row[list(row)[-1]] for row in ours]
            assert shown == f"{min(ratios, key=float)} to {max(ratios, key=float)}", (name, what)
        seen.add(name)
    assert seen == suites.keys()


def test_figures_of_exported_models_are_those_of_the_record() -> None:
    tables = json.loads((ROOT / "benchmarks" / "records" / "export-cpu.json").read_text())
    page = (ROOT / "docs" / "onnx.md").read_text(encoding="utf-8")
    exact, _, tokens, *_ = tables.values()
    largest = max(float(row[key]) for row in exact for key in ("without states", "with states"))
    assert f"at most {largest:.1e}." in page
    columns = ("model", "PyTorch", "onnxruntime", "8 bits", "file / weights", "8-bit file / weights")
    for row in tokens:
        assert f"| {' | '.join(row[column] for column in columns)} |" in page
    for corpus in ("king-james", "ptb"):
        [scores] = tables[f"Perplexity on the test text, {corpus}"]
        assert scores["PyTorch"] == scores["onnxruntime"]
        assert f"| {corpus} | {' | '.join(scores[column] for column in columns[1:4])} |" in page


def test_the_tables_of_the_scaling_page_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    scaling = importlib.import_module("scaling")
    on_gpu, on_cpu = (
        json.loads((scaling.ALL_REDUCE.parent / name).read_text())
        for name in ("allreduce-cuda.json", "scaling-cpu.json")
    )
    measured = scaling.measured_table(on_cpu)
    tables = measured + scaling.two_cores_table(on_cpu)
    tables += scaling.all_reduce_table(on_gpu) + scaling.model_table(on_gpu)
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    page = text.splitlines()
    rows = [line for line in tables.splitlines() if line.startswith("|")]
    assert len(rows) == 28
    errors = [int(number) for number in re.findall(r"\(([+-]\d+)%\)", measured)]
    assert f"from {-min(errors)}% too fast to {max(errors)}% too slow" in text
    assert [line for line in rows if line not in page] == []


def test_steps_of_the_quickstart_are_those_of_the_record() -> None:
    [rows] = json.loads((ROOT / "benchmarks" / "records" / "quickstart-cpu.json").read_text()).values()
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    for name, row in zip(("compiled kernels", "`TORCH_PRU_NATIVE=0`", "commit 497d6a1"), rows, strict=True):
        [line] = [line for line in page.splitlines() if line.startswith(f"| {name}")]
        step, decoder, layer, *rest = (float(value) for key, value in row.items() if key != "step")
        cells = [float(cell.split()[0]) for cell in line.split("|")[2:6]]
        assert cells == [step, decoder, layer, round(sum(rest), 1)], name


def test_training_steps_on_a_gpu_are_those_of_the_record() -> None:
    [rows] = json.loads((ROOT / "benchmarks" / "records" / "training-cuda.json").read_text()).values()
    times = {row["model"]: f"{row['ms']} ms" for row in rows}
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| `((?:ptb|wt2)[\w-]+)`.*, batch (\d+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert len(cells) == 3
    for recipe, batch, ours, theirs in cells:
        size = f", batch {batch}, bfloat16"
        [own] = [times[name] for name in times if recipe in name and size in name and "nn.LSTM" not in name]
        [other] = [times[name] for name in times if recipe[:3] in name and size in name and "nn.LSTM" in name]
        assert (ours, theirs) == (own, other)


def test_times_on_busy_machines_are_those_of_the_record() -> None:
    [rows] = json.loads((ROOT / "benchmarks" / "records" / "waiting-cpu.json").read_text()).values()
    of_settings = {row["setting"]: list(row.values())[2:] for row in rows}
    page = (ROOT / "docs" / "own-text.md").read_text(encoding="utf-8")
    in_table = re.findall(r"^\| .+ \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    variables = {}
    set_waiting(variables)
    as_set = f"and GOMP_SPINCOUNT={variables['GOMP_SPINCOUNT']}, as pru sets it"
    names = ("PyTorch's default", "OMP_WAIT_POLICY=passive", as_set)
    assert [list(times) for times in in_table] == [of_settings[name] for name in names]
    assert f"GOMP_SPINCOUNT={variables['GOMP_SPINCOUNT']}" in page


def test_sizes_and_times_of_the_page_are_those_of_the_record() -> None:
    record = json.loads((ROOT / "benchmarks" / "records" / "page.json").read_text())
    text = (ROOT / "docs" / "page.md").read_text(encoding="utf-8").partition("## Size and speed")[2]
    names = {"quickstart": "the quickstart's", "ptb-awd-pru-g4": "`ptb-awd-pru-g4`"}
    expected = [
        [
            f"{names[row['run']]}, {row['parameters'] / 1e6:.1f} million parameters",
            row["weights"],
            f"{row['model MB']:.1f} MB",
            f"{row['first suggestion ms'] / 1000:.1f} s",
            f"{row['key ms, median']:.0f} ms",
            f"{row['key ms, 95th percentile']:.0f} ms",
            f"{row['key ms, median, long text']:.0f} ms",
        ]
        for row in record["rows"]
    ]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]] == expected
    about = record["about"]
    others = {row["page and runtime MB"] for row in record["rows"]}
    assert f"Chromium {about['chromium'].partition('.')[0]} on {about['cores']} cores" in text
    assert f"{about['words before']} words" in text
    assert f"{about['words before, long text']:,} words" in text
    assert f"{about['keys']} keys" in text
    assert f"{max(others):.1f} MB more" in text
    plain = [row for row in record["rows"] if row["weights"] == "float32"]
    [quickstart] = [row for row in plain if row["run"] == "quickstart"]
    assert quickstart["keys answered"] == about["keys"]
    assert quickstart["key ms, 95th percentile"] < 30


def test_the_oldest_gpu_is_the_one_that_the_kernels_need() -> None:
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    assert re.findall(r"compute capability (\d)\.(\d)", page) == [tuple(map(str, OLDEST))]


def test_the_times_of_the_kernels_are_those_of_the_record() -> None:
    tables = json.loads((ROOT / "benchmarks" / "records" / "kernels-cuda.json").read_text())
    whole, without = sorted(tables, key=lambda title: "without clusters" in title)
    page = (ROOT / "docs" / "kernels.md").read_text()
    for mine, other in zip(tables[whole], tables[without], strict=True):
        shape = mine["groups x units x batch"]
        assert other["groups x units x batch"] == shape
        figures = [
            round(float(row[kind])) for row in (mine, other) for kind in ("forward", "saving", "backward")
        ]
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {shape.replace('x', ' × ')} |")]
        assert [int(cell) for cell in line.strip("|").split("|")[2:]] == figures


def test_the_sweep_is_that_of_the_records() -> None:
    content = json.loads((FIGURES / "sweep.json").read_text())
    assert len(content) == 12
    for name, point in content.items():
        found = sweep_point(RunFolder.open(ROOT / "results" / name))
        for key, value in point.items():
            assert getattr(found, key) == value, (name, key)


def test_figures_from_records_are_up_to_date() -> None:
    pytest.importorskip("matplotlib")
    from torch_pru.analysis.figures import curves, sweep
    from torch_pru.analysis.figures.style import render

    names = json.loads((FIGURES / "widths.json").read_text())
    found = {name: learning_curve(RunFolder.open(ROOT / "results" / name)) for name in names}
    assert_same_picture(render(curves.draw(found), "svg"), FIGURES / "widths.svg")
    names = json.loads((FIGURES / "sweep.json").read_text())
    points = {name: sweep_point(RunFolder.open(ROOT / "results" / name)) for name in names}
    assert_same_picture(render(sweep.draw(points), "svg"), FIGURES / "sweep.svg")


def assert_same_picture(drawn: bytes, path: Path) -> None:
    """The same texts and markers; another Matplotlib may place them differently."""
    texts = [re.findall(r"<!-- (.*?) -->", content) for content in (drawn.decode(), path.read_text())]
    assert len(texts[1]) > 10
    assert texts[0] == texts[1]


def test_the_picture_of_the_unit_is_what_its_script_draws() -> None:
    spec = importlib.util.spec_from_file_location("make_unit", FIGURES / "make_unit.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.draw() == (FIGURES / "unit.svg").read_text(encoding="utf-8")


def test_the_code_of_the_layers_page_runs() -> None:
    text = (ROOT / "docs" / "layer.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert len(blocks) >= 2
    names: dict[str, Any] = {}
    exec("\n".join(blocks), names)
    assert names["y"].shape == names["lstm"](names["x"])[0].shape
    rows = re.findall(r"\| `(PRU\(.*?\))` \|", text)
    assert len(rows) >= 7
    for row in rows:
        eval(row, {"PRU": names["PRU"], "N": 64, "M": 64, "K": 2, "g": 4})


@pytest.mark.parametrize(
    "document",
    [
        *("README.md", "CONTRIBUTING.md", "RESULTS.md", "results/README.md", "results/PLAN.md"),
        *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_between_documents_lead_somewhere(document: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / document).parent / path if path else ROOT / document
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.M)
            assert anchor in {slug(heading) for heading in headings}, target


@pytest.mark.parametrize(
    "document",
    ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))],
)
def test_files_that_the_documents_name_exist(document: str) -> None:
    """A path is relative to the repository or to the package; the page of the kernels is about one folder."""
    folders = [ROOT, ROOT / "src", ROOT / "src" / "torch_pru"]
    if document == "docs/kernels.md":
        folders = [ROOT, ROOT / "src" / "torch_pru" / "ops" / "cuda", ROOT / "src/torch_pru/ops/cuda/kernels"]
    names = {path.name for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.*")}
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.S)
    for name in re.findall(r"`([\w./-]+\.(?:py|cu|cpp|h))`", text):
        if name.startswith("ops/mine/"):  # the reader's
            continue
        # A bare name is that of a file whose folder the text has named before.
        beside = "/" not in name and document != "docs/kernels.md" and name in names
        assert beside or any((folder / name).exists() for folder in folders), name


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"[^\w\- ]", "", heading.lower())
    return plain.replace(" ", "-")


@pytest.mark.parametrize(
    ("name", "most", "count"), [("README.md", 700, str.split), ("CHANGELOG.md", 30, str.splitlines)]
)
def test_what_is_read_first_is_short(name: str, most: int, count: Callable[[str], list[str]]) -> None:
    assert len(count((ROOT / name).read_text(encoding="utf-8"))) < most
