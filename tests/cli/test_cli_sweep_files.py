"""Grid files: what they can say, and what is refused before any training."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from command import invoke, refusal, write_recipe

from torch_pru.lm import training
from torch_pru.lm.files import locked
from torch_pru.lm.grid import Range, grid_text, read_grid
from torch_pru.lm.training import Interrupted


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_pru.lm.device.commit", lambda: None)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path, epochs=1, log_steps=5)


def grid_file(folder: Path, text: str) -> Path:
    path = folder / "grid.toml"
    path.write_text(f'recipe = "{folder / "tiny.toml"}"\n{text}')
    return path


def test_a_random_search_is_the_same_every_time(recipe: Path, tmp_path: Path) -> None:
    path = grid_file(
        tmp_path,
        "samples = 5\n[search]\nlearning_rate = { min = 0.1, max = 10.0, log = true }\n"
        "groups = [1, 2]\nlevels = { min = 1, max = 3 }\n[early_stopping]\ngrace = 2\n"
        "[resources]\ngpus = 0.25\n",
    )
    grid = read_grid(str(path))
    cells = grid.cells()
    assert len(cells) == 5
    assert [cell.label for cell in read_grid(str(path)).cells()] == [cell.label for cell in cells]
    for cell in cells:
        assert 0.1 <= cell.config.training.learning_rate <= 10
        assert cell.config.model.levels in (1, 2, 3)
    assert grid.resources == {"gpus": 0.25}
    path.write_text(grid_text(grid))
    assert read_grid(str(path)) == grid


def test_a_range_on_a_logarithmic_scale() -> None:
    numbers = random.Random(1)
    drawn = [float(Range(0.001, 10.0, log=True).draw(numbers)) for _ in range(2000)]
    assert min(drawn) >= 0.001
    assert max(drawn) <= 10
    assert 0.45 < sum(value < 0.1 for value in drawn) / 2000 < 0.55  # the middle of the logarithms


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[grid]\ngroup = [1]\n", "'group' is not a setting; did you mean 'groups'?"),
        ("[grid]\ngroups = []\n", "[grid] groups needs a list of values"),
        ("seeds = 0\n[grid]\ngroups = [1]\n", "seeds=0 makes no run"),
        ("samples = 0\n[search]\ngroups = [1]\n", "samples=0 makes no run"),
        ("[search]\ngroups = [1]\n", "samples=0 makes no run"),
        (
            "samples = 2\n[search]\ngroups = { min = 2, max = 1 }\n",
            "[search] groups must be a list of values, or",
        ),
        (
            "[grid]\ngroups = [1]\n[resources]\ngpu = 1\n",
            "[resources] 'gpu' is not known; did you mean 'gpus'?",
        ),
        ("[grid]\ngroups = [1]\n[resources]\ngpus = -1\n", "[resources] gpus=-1 must be a positive number"),
        ("[grid]\ngroups = [1]\n[early_stopping]\nfactor = 1\n", "factor=1 must be at least 2"),
        ("sampler = 'tpe'\n[grid]\ngroups = [1]\n", "sampler='tpe' is not known"),
        ("sampler = 'optuna'\n[grid]\ngroups = [1]\n", "sampler='optuna' needs [search]"),
        (
            "sampler = 'optuna'\nsamples = 2\n[search]\ngroups = [1]\n",
            "sampler='optuna' needs Ray: add --ray",
        ),
        ("grid = 1\n", "grid must be a table, [grid]"),
    ],
)
def test_mistakes_in_a_grid(text: str, said: str, recipe: Path, tmp_path: Path) -> None:
    errors = refusal("sweep", grid_file(tmp_path, text), "--out", tmp_path / "runs")
    assert said in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_says_how_the_sweep_continues(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(config: object, run: Path, **options: object) -> None:
        raise Interrupted(signal.SIGINT, str(run))

    monkeypatch.setattr(training, "train", interrupted)
    path = grid_file(tmp_path, "[grid]\ngroups = [1, 2]\n")
    status, _, errors = invoke("sweep", path, "--out", tmp_path / "my runs")
    assert status == 130
    folder = tmp_path / "my runs" / "grid-sweep"
    assert errors.splitlines()[-1] == (
        f"stopped by Ctrl-C and saved; continue with: pru sweep --resume '{folder}'"
    )
    assert errors.count("Ctrl-C") == errors.count("continue with") == 1
    assert "pru resume" not in errors


def test_a_sweep_continues_from_its_folder(recipe: Path, tmp_path: Path) -> None:
    path = grid_file(tmp_path, "[grid]\ngroups = [1, 2]\n[early_stopping]\ngrace = 1\n")
    folder = tmp_path / "runs" / "grid-sweep"
    status, shown, errors = invoke("sweep", path, "--out", tmp_path / "runs")
    assert status == 0, errors
    assert "[early_stopping] needs --ray" in errors
    path.unlink()
    status, again, errors = invoke("sweep", "--resume", folder)
    assert status == 0, errors
    assert "2 of 2 runs are finished already" in errors
    assert again == shown
    with locked(folder / "g1-seed1"):
        assert "another process is using the run in" in refusal("sweep", "--resume", folder)
    with locked(folder):
        assert "another process is using the run" in refusal("sweep", "--resume", folder)
    assert "there is no sweep in" in refusal("sweep", "--resume", tmp_path)
    assert "--groups , has no values; give at least one" in refusal("sweep", recipe, "--groups", ",")
