"""``pru sweep``: a grid of runs, its table, and what happens when it is repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command import invoke, pru, refusal, write_recipe

from torch_pru.cli.sweep import split_values
from torch_pru.lm.grid import Grid, read_grid
from torch_pru.lm.run import RunFolder
from torch_pru.lm.sweep import SweepRow, cells_of


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_pru.lm.device.commit", lambda: None)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path, epochs=1, log_steps=5)


def test_a_grid_is_trained_scored_and_shown(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    command = ("sweep", recipe, "--unit", "pru,lstm", "--groups", "1,2", "--seeds", 2, "--out", out)
    status, shown, errors = invoke(*command, COLUMNS="100")
    assert status == 0, errors
    assert "Ctrl-C" not in errors
    folder = out / "tiny-sweep"
    assert f"3 combinations, 6 runs in {folder}: pru-g1, pru-g2, lstm" in errors
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert names == [f"{label}-seed{seed}" for label in ("lstm", "pru-g1", "pru-g2") for seed in (1, 2)]
    lines = {line.split()[0]: line for line in shown.splitlines()}
    assert set(lines) >= {"run", "lstm", "pru-g1", "pru-g2"}
    for label in ("lstm", "pru-g1", "pru-g2"):
        kept = [
            json.loads((folder / f"{label}-seed{seed}" / "scores.json").read_text())["results"]["static"]
            for seed in (1, 2)
        ]
        mean = sum(scores["test"]["perplexity"] for scores in kept) / 2
        assert f"{mean:.2f} ± " in lines[label]
    assert RunFolder.open(folder / "lstm-seed2").config.training.seed == 2
    assert (folder / "sweep.md").read_text().count("\n") == 5
    assert (folder / "sweep.svg").stat().st_size > 1000
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    _, again, errors = invoke(*command, COLUMNS="100")
    assert "6 of 6 runs are finished already" in errors
    assert again == shown
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    assert "continuing with the settings in " in errors
    grid = (folder / "grid.toml").read_text()
    for other in (("--epochs", 2), ("--groups", "1,4"), ("--seeds", 1), ("--set", "batch=4")):
        said = refusal(*command, *other)
        assert said.count("\n") == 1
        assert f"{folder} has a sweep of another grid or text; choose another --name, or " in said
        assert f"pru sweep --resume {folder}" in said
    assert (folder / "grid.toml").read_text() == grid
    said = refusal("sweep", "--resume", folder, "--seeds", 3, "--unit", "pru")
    assert "--resume continues the sweep as it was started; leave out --unit, --seeds" in said


def test_more_seeds_are_added(recipe: Path, tmp_path: Path) -> None:
    command = ("sweep", recipe, "--groups", "1,2", "--out", tmp_path / "runs", "--device")
    pru(*command, "cpu")
    status, shown, errors = invoke(*command, "auto", "--seeds", 2)
    assert status == 0, errors
    assert "2 of 4 runs are finished already" in errors
    assert shown.count(" ± ") == 4


def test_a_sweep_of_one_run_says_so(recipe: Path, tmp_path: Path) -> None:
    _, _, errors = invoke("sweep", recipe, "--out", tmp_path / "runs")
    assert errors.splitlines()[0] == f"1 run in {tmp_path / 'runs' / 'tiny-sweep'}"


def test_a_narrow_terminal_has_a_narrow_table(recipe: Path, tmp_path: Path) -> None:
    _, shown, _ = invoke("sweep", recipe, "--groups", "1,2", "--out", tmp_path / "runs", COLUMNS="45")
    table = shown.partition("validation and test")[0]
    assert max(map(len, table.splitlines())) <= 45
    assert "…" not in table


def test_a_grid_in_a_file(recipe: Path, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(
        f'recipe = "{recipe}"\nseeds = 2\n[grid]\nlevels = [1, 2]\nhidden = [[8], [16, 8]]\n'
        "[settings]\nepochs = 3\n"
    )
    grid = read_grid(str(path))
    assert grid.seeds == 2
    assert [cell.label for cell in grid.cells()] == [
        "K1-hidden8",
        "K1-hidden16x8",
        "K2-hidden8",
        "K2-hidden16x8",
    ]
    assert {cell.config.training.epochs for cell in grid.cells()} == {3}
    path.write_text("[grid]\nlevel = [1]\n")
    assert "'level' is not a setting; did you mean 'levels'?" in refusal("sweep", path)
    path.write_text("[grid]\nlevels = 1\n")
    assert "[grid] levels needs a list of values" in refusal("sweep", path)


@pytest.mark.parametrize("name", ["ptb-sweep", "wt2-sweep"])
def test_the_papers_sweep_is_one_grid(name: str) -> None:
    cells = read_grid(name).cells()
    assert [cell.label for cell in cells] == [f"K{k}-g{g}" for k in (1, 2, 3, 4) for g in (1, 2, 4)]
    assert {(cell.config.model.levels, cell.config.model.groups) for cell in cells} == {
        (k, g) for k in (1, 2, 3, 4) for g in (1, 2, 4)
    }


def test_an_lstm_is_one_cell() -> None:
    grid = Grid("quickstart", {"unit": ["pru", "lstm"], "levels": ["1", "2"], "groups": ["1", "2", "4"]})
    assert [cell.label for cell in grid.cells()][-2:] == ["pru-K2-g4", "lstm"]
    assert len(grid.cells()) == 7


def test_short_runs_in_the_table() -> None:
    row = SweepRow("g1", 1000, [9.0], [10.0], None, 0.0123)
    assert cells_of(row)[-2:] == ["–", "0.012"]
    assert cells_of(replace(row, tokens_per_second=4321.0, minutes=12.34))[-2:] == ["4,321", "12.3"]


def test_values_between_commas() -> None:
    assert split_values("1, 2,4") == ["1", "2", "4"]
    assert split_values("[8,8],[16]") == ["[8,8]", "[16]"]


def test_mistakes_are_found_before_the_first_run(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    assert "--groups 3 does not divide" in refusal("sweep", recipe, "--groups", "1,3", "--out", out)
    assert "there is no recipe or grid 'quickstrat'; did you mean" in refusal("sweep", "quickstrat")
    assert "'epoch' is not a setting; did you" in refusal("sweep", recipe, "--set", "epoch=1,2", "--out", out)
    assert "'lr' is not a setting; pru settings lists all" in refusal("sweep", recipe, "--set", "lr=1,2")
    assert not out.exists()


def test_a_text_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRU_DATA", str(tmp_path / "data"))
    (tmp_path / "a.txt").write_text("The cat sat on a mat, and saw the dog.\n" * 100)
    shown = pru(
        "sweep", "--text", tmp_path / "a.txt", "--unit", "pru,lstm", "--epochs", 1, "--out", tmp_path / "runs"
    )
    assert "lstm" in shown
    run = RunFolder.open(tmp_path / "runs" / "a-sweep" / "pru-seed1")
    assert run.config.model.hidden == (64,)  # chosen to suit the text
    (tmp_path / "b.txt").write_text("A dog ran to the door, and heard a cat.\n" * 100)
    options = ("--unit", "pru,lstm", "--epochs", 1, "--out", tmp_path / "runs")
    said = refusal("sweep", "--text", tmp_path / "b.txt", "--name", "a-sweep", *options)
    assert "has a sweep of another grid or text" in said
    assert "choose another --name" in said


def test_a_sweep_on_a_text_continues_on_a_machine_that_is_faster_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRU_DATA", str(tmp_path / "data"))
    (tmp_path / "a.txt").write_text("The cat sat on a mat, and saw the dog.\n" * 100)
    command = ("sweep", "--text", tmp_path / "a.txt", "--seeds", 2, "--minutes", 3, "--device", "cpu")
    command += ("--out", tmp_path / "runs")
    monkeypatch.setattr("torch_pru.lm.plan.training_speed", lambda *_: 20.0)
    pru(*command)
    run = RunFolder.open(tmp_path / "runs" / "a-sweep" / "run-seed1")
    assert run.config.training.epochs < 10
    monkeypatch.setattr("torch_pru.lm.plan.training_speed", lambda *_: 1e6)
    status, _, errors = invoke(*command)
    assert status == 0, errors
    assert "2 of 2 runs are finished already" in errors
    assert "continuing with the settings in " in errors
