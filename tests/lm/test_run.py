"""Run folders: what they say of where they ran, and the commands they name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from torch_pru import PRUError
from torch_pru.lm.data import Corpus, Vocabulary
from torch_pru.lm.device import choose_device, commit
from torch_pru.lm.files import locked
from torch_pru.lm.recipe import load_recipe, parse_overrides
from torch_pru.lm.run import RunFolder, refuse_existing_run
from torch_pru.lm.training import Interrupted, finetune


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_of_this_package_or_none(tmp_path: Path) -> None:
    site = tmp_path / "venv" / "site-packages"
    site.mkdir(parents=True)
    ours, theirs = site / "run.py", tmp_path / "theirs.py"
    ours.touch()
    assert commit(str(ours)) is None  # no checkout at all
    theirs.touch()
    git(tmp_path, "init")
    git(tmp_path, "add", "theirs.py")
    git(tmp_path, "commit", "-m", "theirs")
    assert commit(str(ours)) is None  # the checkout around the environment knows nothing of it
    git(tmp_path, "add", str(ours))
    git(tmp_path, "commit", "-m", "ours")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit(str(ours)) == head
    ours.write_text("changed")
    assert commit(str(ours)) == f"{head}+"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run without weights, in a folder that a shell would take for two."""
    corpus = Corpus(*[torch.zeros(4, dtype=torch.int64)] * 3, Vocabulary(["<eos>", "a"]))
    return RunFolder.create(tmp_path / "my runs" / "a-1", load_recipe("quickstart"), corpus)


def test_commands_are_as_a_shell_takes_them(folder: RunFolder) -> None:
    command = f"pru resume '{folder.path}'"
    assert str(Interrupted(2, str(folder.path))).endswith(command)
    with pytest.raises(PRUError) as no_weights:
        folder.model()
    assert str(no_weights.value).endswith(command)
    with pytest.raises(PRUError) as not_finished:
        finetune(folder.path)
    assert str(not_finished.value).endswith(command)
    with pytest.raises(PRUError) as there_already:
        refuse_existing_run(folder.path)
    assert str(there_already.value).endswith(f"continue it ({command}) or move it away")


def test_a_folder_of_runs_is_no_run(folder: RunFolder) -> None:
    runs = folder.path.parent
    with pytest.raises(PRUError, match=rf"no run in {runs}: .* name a run inside it: {folder.path}$"):
        RunFolder.open(runs)
    with pytest.raises(PRUError, match="it is a file, and a run is a folder"):
        RunFolder.open(folder.path / "config.toml")


def test_a_lock_is_waited_for_as_long_as_said(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(PRUError, match="another process is using the run"),
        locked(tmp_path, 0.1),
    ):
        pass


@pytest.mark.parametrize("name", ["meta", "mps", "xpu", "nothing", "cuda"])
def test_a_device_that_cannot_be_used_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "99")  # no machine has so many
    with pytest.raises(PRUError, match=f"device='{name}' (cannot be used: |is not known; use )"):
        choose_device(name)


@pytest.mark.parametrize("text", ["2024-01-01", "2024", "true", "[1]", "ptb"])
def test_a_text_is_taken_as_typed(text: str) -> None:
    assert parse_overrides({"corpus": text}) == {"corpus": text}
    assert parse_overrides({"corpus": f'"{text}"'}) == {"corpus": text}


def test_a_mistake_names_the_recipe_where_it_is_the_recipes(tmp_path: Path) -> None:
    with pytest.raises(PRUError, match=r"^epochs=0 must be"):
        load_recipe("quickstart", {"epochs": "0"})
    path = tmp_path / "mine.toml"
    path.write_text("[training]\nepochs = 0\n")
    with pytest.raises(PRUError, match=rf"^{path}: epochs=0 must be"):
        load_recipe(path, {"seed": "2"})
