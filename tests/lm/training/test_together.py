"""Runs that take turns: each ends as it would have ended alone, and none takes another with it."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from small import small_config
from test_resume import assert_same_end

from torch_pru import PRUError
from torch_pru.lm.config import Config
from torch_pru.lm.files import locked
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training import (
    DivergenceError,
    Interrupted,
    RunsFailedError,
    TrainingProgress,
    driver,
    finetune,
    resume,
    train,
)
from torch_pru.lm.training.api import NewRun
from torch_pru.lm.training.trainer import Trainer
from torch_pru.ops.cuda import launch

DROPOUT = {"input_dropout": 0.3, "weight_drop": 0.4, "embedding_dropout": 0.1}


@pytest.fixture(autouse=True)
def _no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_pru.lm.device.commit", lambda: None)


@pytest.fixture(scope="module")
def configs(text_folder: Path) -> list[Config]:
    """Different in all that could leak from one run into another: seed, sizes, unit, precision, length."""
    common: dict[str, Any] = {"corpus": str(text_folder)} | DROPOUT
    return [
        small_config(seed=1, **common),
        small_config(seed=2, groups=2, **common),
        small_config(seed=3, unit="lstm", epochs=2, log_steps=3, **common),
        small_config(seed=1, precision="float64", learning_rate=1.0, checkpoint_steps=9, **common),
    ]


@pytest.fixture(scope="module")
def alone(configs: list[Config], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("alone")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the tests, whose own setting comes after this
    runs = [train(config, folder / str(number)) for number, config in enumerate(configs)]
    torch.set_num_threads(threads)
    return [run.path for run in runs]


def stop_at(epoch: int, folder: Path, number: int) -> Callable[[TrainingProgress], None]:
    """A listener that sends a signal once; a second one would act at once."""
    sent: list[TrainingProgress] = []

    def listen(report: TrainingProgress) -> None:
        if not sent and report.epoch == epoch and report.run_folder == folder:
            sent.append(report)
            signal.raise_signal(number)

    return listen


def folders_in(folder: Path, count: int) -> list[Path]:
    return [folder / f"run-{number}" for number in range(count)]


def test_each_run_ends_as_it_would_have_alone(
    configs: list[Config], alone: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    original = driver.load_corpus
    monkeypatch.setattr(driver, "load_corpus", lambda name, *_: loaded.append(name) or original(name))
    before = torch.get_rng_state()
    folders = folders_in(tmp_path, len(configs))
    reports: list[Path] = []
    runs = train(configs, folders, progress=lambda report: reports.append(report.run_folder))
    assert [run.path for run in runs] == folders
    for run, expected in zip(runs, alone, strict=True):
        assert_same_end(run.path, expected)
        assert (run.path / "environment.json").exists()
        assert len(run.metrics()) == reports.count(run.path)
    assert len(loaded) == 1, "a corpus is read once"
    assert torch.equal(before, torch.get_rng_state())


def test_several_are_resumed_and_finetuned_as_they_would_be_alone(
    configs: list[Config], alone: list[Path], tmp_path: Path
) -> None:
    folders = folders_in(tmp_path, 2)
    with pytest.raises(Interrupted):
        train(configs[:2], folders, progress=stop_at(1, folders[1], signal.SIGINT))
    finished = shutil.copytree(alone[2], tmp_path / "finished")
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    runs = resume([*folders, finished])
    assert {path: path.read_bytes() for path in before} == before, "a finished run is left as it is"
    assert [run.path for run in runs] == [*folders, finished]
    for folder, expected in zip(folders, alone, strict=False):
        assert_same_end(folder, expected)
    second = finetune(folders)
    assert [run.path for run in second] == [tmp_path / f"run-{number}-finetuned" for number in range(2)]
    for run, source in zip(second, alone, strict=False):
        assert run.stage == "finetune"
        assert_same_end(run.path, finetune(source, tmp_path / f"alone-{source.name}").path)
    with pytest.raises(PRUError, match="already"):
        finetune(folders)


def test_runs_take_turns(configs: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    original = Trainer._take_step

    def noting(self: Trainer, first: int, length: int) -> None:
        steps.append(self.config.training.seed)
        original(self, first, length)

    monkeypatch.setattr(Trainer, "_take_step", noting)
    train(configs[:2], folders_in(tmp_path, 2))
    apart = [abs(steps[:end].count(1) - steps[:end].count(2)) for end in range(len(steps))]
    assert max(apart[: len(steps) // 2]) <= 3  # the end of an epoch is a turn, too


def test_one_that_diverges_takes_no_other_with_it(
    configs: list[Config], alone: list[Path], text_folder: Path, tmp_path: Path
) -> None:
    lost = small_config(corpus=str(text_folder), learning_rate=1e6, clip=1e6)
    folders = folders_in(tmp_path, 3)
    with (
        pytest.warns(UserWarning, match=r"failed: .*run-1: the loss .*; the others continue"),
        pytest.raises(RunsFailedError, match=r"1 of 3 runs failed: .*run-1: the loss") as caught,
    ):
        train([configs[0], lost, configs[2]], folders)
    assert isinstance(caught.value.errors[folders[1]], DivergenceError)
    assert list(caught.value.errors) == [folders[1]]
    assert [run.path for run in caught.value.finished] == [folders[0], folders[2]]
    assert isinstance(caught.value.__cause__, ExceptionGroup)  # with the places in the code, for --debug
    assert_same_end(folders[0], alone[0])
    assert_same_end(folders[2], alone[2])


def test_a_run_that_failed_leaves_no_model_in_memory(
    configs: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[weakref.ref[torch.nn.Module]] = []
    original = Trainer._take_step

    def failing(self: Trainer, first: int, length: int) -> None:
        if self.config.training.seed == 2:
            models.append(weakref.ref(self.model))
            raise torch.OutOfMemoryError("CUDA out of memory")
        if models and self.global_step == 20:
            gc.collect()
            assert models[0]() is None
        original(self, first, length)

    monkeypatch.setattr(Trainer, "_take_step", failing)
    with (
        pytest.warns(UserWarning, match="run-1: OutOfMemoryError"),
        pytest.raises(RunsFailedError, match="run-1: OutOfMemoryError: CUDA out of memory") as caught,
    ):
        train(configs[:2], folders_in(tmp_path, 2))
    assert len(caught.value.finished) == 1
    assert len(models) == 1


def test_a_failure_is_told_while_the_others_work(
    configs: list[Config], text_folder: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    lost = small_config(corpus=str(text_folder), learning_rate=1e6, clip=1e6, log_steps=1)
    folders = folders_in(tmp_path, 2)
    told: list[int] = []  # how many failures are known at the end of each epoch of the other run

    def note(progress: TrainingProgress) -> None:
        if progress.run_folder == folders[0] and progress.ended:
            told.append(sum("the others continue" in str(warning.message) for warning in recwarn))

    with pytest.raises(RunsFailedError):
        train([configs[0], lost], folders, progress=note)
    assert set(told) == {1}

    recwarn.clear()
    with pytest.raises(DivergenceError):  # nobody is left to go on
        train([lost], [tmp_path / "single"])
    assert not recwarn.list


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_all_and_each_goes_on(
    number: int, status: int, configs: list[Config], alone: list[Path], tmp_path: Path
) -> None:
    folders = folders_in(tmp_path, 3)
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught:
        train(configs[:3], folders, progress=stop_at(1, folders[1], number))
    assert caught.value.code == status
    assert signal.getsignal(number) is before
    lines = str(caught.value).splitlines()
    assert sorted(line.rsplit(" ", 1)[1] for line in lines) == sorted(map(str, folders))
    assert all("and saved; continue with: pru resume " in line for line in lines)
    for folder, expected in zip(folders, alone, strict=False):
        checkpoint = RunFolder.open(folder).checkpoint()
        assert checkpoint is not None
        assert 0 < checkpoint.state["global_step"] < 10
        resume(folder)  # the lock is free again
        assert_same_end(folder, expected)


def test_a_signal_says_what_failed_before_it(
    configs: list[Config], text_folder: Path, tmp_path: Path
) -> None:
    lost = small_config(corpus=str(text_folder), learning_rate=1e6, clip=1e6, log_steps=1)
    folders = folders_in(tmp_path, 2)
    with pytest.warns(UserWarning, match="the others continue"), pytest.raises(Interrupted) as caught:
        train([configs[0], lost], folders, progress=stop_at(2, folders[0], signal.SIGINT))
    stopped, failed = str(caught.value).splitlines()
    assert stopped.endswith(f"pru resume {folders[0]}")
    assert failed.startswith(f"{folders[1]}: the loss")


# ------------------------------------------------------------------------------------------- mistakes


def test_a_mistake_leaves_no_folder(
    configs: list[Config], text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PRUError, match="folder of its own"):
        train(configs[:2], [tmp_path / "a", tmp_path / "b" / ".." / "a"])
    with pytest.raises(PRUError, match="folder of its own"):
        train(configs[:2], [tmp_path / "a"])
    with pytest.raises(PRUError, match="1 to 16"):
        train([configs[0]] * 17, folders_in(tmp_path, 17))
    with pytest.raises(PRUError, match="1 to 16"):
        train([], [])
    wide = small_config(corpus=str(text_folder), batch=4000)  # found when the trainer is built
    with pytest.raises(PRUError):
        train([configs[0], wide], folders_in(tmp_path, 2))
    monkeypatch.setattr(driver, "choose_device", torch.device)  # as where there is a GPU
    elsewhere = small_config(device="cuda", precision="float32")
    with pytest.raises(PRUError, match="one device; these have cpu, cuda"):
        train([configs[0], elsewhere], folders_in(tmp_path, 2))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_there_or_at_work_is_left_alone(
    configs: list[Config], alone: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(PRUError, match="already"):
        train(configs[:2], [tmp_path / "a", alone[1]])
    with locked(tmp_path / "b"), pytest.raises(PRUError, match="another process is using the run"):
        train(configs[:2], [tmp_path / "c", tmp_path / "b"])
    assert not (tmp_path / "c" / "run.json").exists()


def test_not_with_several_processes(
    configs: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def of_two(device: str) -> Iterator[driver.World]:
        yield driver.World(torch.device(device), 0, 2)

    monkeypatch.setattr(driver, "joined_world", of_two)
    with pytest.raises(PRUError, match="2 processes train one run at a time"):
        train(configs[:2], folders_in(tmp_path, 2))


# ------------------------------------------------------------------------------- turns with a device


@pytest.mark.parametrize("number", [0, 2])
def test_it_is_known_in_which_turns_the_host_waits(
    number: int, configs: list[Config], tmp_path: Path
) -> None:
    world = driver.World(torch.device("cpu"))
    (run,) = driver.build_runs([NewRun(configs[number], tmp_path / "run")], world)
    run.start(driver.StopRequest())
    for _ in range(60):
        run.stream = cast(Any, "as on a GPU")
        waits = run._will_wait()
        run.stream = None
        report = next(run.steps)
        assert waits == (report is not None)
        if run.trainer.finished:
            break
    assert run.trainer.schedule.epoch >= 2


# ---------------------------------------------------------------------------------------------- on a GPU


def test_the_kernels_know_how_many_share_the_gpu() -> None:
    def fail() -> None:
        with driver.gpu_shared_by(3, torch.device("cuda")):
            assert launch._runs == 3
            raise PRUError("in the middle")

    with pytest.raises(PRUError, match="in the middle"):
        fail()
    assert launch._runs == 1


@pytest.fixture(scope="module")
def gpu_configs(text_folder: Path) -> list[Config]:
    """Graphs and eager steps, fused kernels and others, side by side; windows of few lengths are captured."""
    common: dict[str, Any] = {"corpus": str(text_folder), "device": "cuda", "learning_rate": 1.0} | DROPOUT
    return [
        small_config(seed=1, precision="bfloat16", hidden=[64, 8], **common),
        small_config(seed=2, precision="bfloat16", hidden=[64, 8], groups=2, **common),
        small_config(seed=3, precision="bfloat16", graphs=False, **common),
        small_config(seed=4, unit="lstm", epochs=2, **common),
    ]


@pytest.mark.gpu
def test_on_a_gpu_each_run_learns_what_it_would_have_alone(gpu_configs: list[Config], tmp_path: Path) -> None:
    runs = train(gpu_configs, folders_in(tmp_path, 4))
    assert launch._runs == 1
    for run, config in zip(runs, gpu_configs, strict=True):
        expected = train(config, tmp_path / f"alone-{config.training.seed}").metrics()
        found = run.metrics()
        assert [line["step"] for line in found] == [line["step"] for line in expected]
        for ours, theirs in zip(found, expected, strict=True):
            name = "loss" if ours["kind"] == "steps" else "valid_loss"
            assert ours[name] == pytest.approx(theirs[name], rel=5e-3)


@pytest.mark.gpu
def test_streams_of_all_runs_differ(gpu_configs: list[Config], tmp_path: Path) -> None:
    """Two streams a run; on one that two runs share, captured steps would write to one workspace."""
    folders = folders_in(tmp_path, driver.MAX_RUNS)
    world = driver.World(torch.device("cuda", 0))
    runs = driver.build_runs([NewRun(gpu_configs[0], folder) for folder in folders], world)
    streams = {run.stream.cuda_stream for run in runs if run.stream is not None}
    graphed = [run.trainer.graphed_step for run in runs]
    streams |= {step.graphs.stream.cuda_stream for step in graphed if step is not None}
    assert len(streams) == 2 * driver.MAX_RUNS


@pytest.mark.gpu
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_on_a_gpu_a_signal_saves_all(gpu_configs: list[Config], tmp_path: Path) -> None:
    folders = folders_in(tmp_path, 4)
    with pytest.raises(Interrupted) as caught:
        train(gpu_configs, folders, progress=stop_at(1, folders[0], signal.SIGTERM))
    assert caught.value.code == 143
    for folder in folders:
        assert resume(folder).metrics()[-1]["decision"] == "stop"
