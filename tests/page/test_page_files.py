"""``pru page --out``, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="needs the extra torch-pru[onnx]")

from pages import make_run
from typer.testing import CliRunner

from torch_pru.cli import app
from torch_pru.cli.ending import next_steps
from torch_pru.lm.run import RunFolder
from torch_pru.page import site
from torch_pru.page.server import TYPES

BUILT = {"index.html": "<!doctype html>", "runtime/x.wasm": "wasm"}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that was built, without building it."""
    folder = tmp_path / "site"
    for name, content in BUILT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    monkeypatch.setattr(site, "SITE", folder)


def pru(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["page", *map(str, arguments)], prog_name="pru")
    return result.exit_code, result.output


@pytest.mark.usefixtures("built")
def test_the_files_of_two_runs(tiny_run: RunFolder, hostile_run: RunFolder, tmp_path: Path):
    out = tmp_path / "page"
    status, shown = pru(tiny_run.path, hostile_run.path, "--int8", "--out", out)
    assert (status, shown) == (0, f"written to {out}; serve it with: python -m http.server -d {out}\n")
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    models = {
        f"models/{number}/{name}"
        for number in (1, 2)
        for name in ("model.json", "step.onnx", "vocabulary.txt")
    }
    assert found == {*BUILT, *models, "models.json"}
    assert json.loads((out / "models.json").read_text()) == {"models": ["models/1", "models/2"]}
    about = json.loads((out / "models/1/model.json").read_text())
    assert about["name"] == "tiny-1"
    assert about["tokenizer"] == "words"
    assert about["cache"] == {"mixture": 0.1, "theta": 1.0, "window": 500}
    assert about["layers"] == [
        {"units": 24, "level_sizes": [18, 6], "group_sizes": [12, 12], "pooling": "average"},
        {"units": 16, "level_sizes": [12, 4], "group_sizes": [8, 8], "pooling": "average"},
    ]
    assert "8-bit weights" in about["description"]
    assert (out / "models/1/vocabulary.txt").read_bytes() == tiny_run.vocabulary.to_bytes()
    other = json.loads((out / "models/2/model.json").read_text())
    assert other["name"] == "<img src=x onerror=window.hit=1>"
    assert other["vocabulary"] != about["vocabulary"]


@pytest.mark.usefixtures("built")
def test_what_is_refused(tiny_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = tiny_run.path
    assert pru(run, run, run) == (2, "pru: error: got 3 runs; pru page shows at most 2 models\n")
    (tmp_path / "file").touch()
    assert "is not an empty folder" in pru(run, "--out", tmp_path / "file")[1]
    assert "is not an empty folder" in pru(run, "--out", tmp_path)[1]
    monkeypatch.setattr(site, "TOKENIZERS", ())
    assert (
        "splits text by 'words'; pru page takes runs on words or characters"
        in pru(run, "--out", tmp_path / "x")[1]
    )
    monkeypatch.setattr(site, "SITE", tmp_path / "nowhere")
    status, shown = pru(run, "--out", tmp_path / "x")
    assert status == 2
    assert "with Node.js; run: cd page && npm ci && npm run build" in " ".join(shown.split())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pru page needs onnx; pip install 'torch-pru[onnx]'" in pru(run)[1]
    assert not (tmp_path / "x").exists()


def test_a_vocabulary_without_eos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = make_run(tmp_path / "run")
    monkeypatch.setattr(site, "EOS", "<end>")
    with pytest.raises(site.PRUError, match="needs '<end>' in the vocabulary"):
        site.model_files(run)


def test_a_run_of_subwords(tmp_path: Path):
    """It is refused, and the end of its training does not name ``pru page``."""
    pytest.importorskip("tokenizers", reason="subwords need tokenizers")
    run = make_run(tmp_path / "run", tokenizer="bpe:300")
    status, shown = pru(run.path, "--out", tmp_path / "x")
    assert status == 2
    assert "splits text by 'bpe:300'; pru page takes runs on words or characters" in shown
    assert not any("pru page" in command for command, _ in next_steps(run))


def test_the_built_page_is_that_of_the_sources():
    if not (site.SITE / "index.html").is_file():
        pytest.skip("the page is not built: npm ci && npm run build in the folder page")
    source = Path(__file__).parents[2] / "page" / "src"
    sources = {path.relative_to(source).as_posix(): path for path in source.rglob("*") if path.is_file()}
    built = site.built_files()
    assert set(built) - set(sources) == {
        "runtime/ort-wasm-simd-threaded.wasm",
        "runtime/ort.wasm.bundle.min.mjs",
    }
    runtime = source.parent / "node_modules" / "onnxruntime-web" / "dist"
    if runtime.is_dir():
        sources |= {name: runtime / Path(name).name for name in built if name.startswith("runtime/")}
    for name, path in sources.items():
        assert built[name].read_bytes() == path.read_bytes(), f"{name} has changed: npm run build"
    assert {name.rpartition(".")[2] for name in built} <= set(TYPES)
