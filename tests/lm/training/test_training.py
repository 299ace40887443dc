"""The loop: what it writes, what it reports, and how it ends when something is wrong."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from small import small_config, small_masks, small_model, step_along
from torch import Tensor

from torch_pru import PRUError
from torch_pru.lm import checkpoint as checkpoint_module
from torch_pru.lm.data.corpus import load_corpus
from torch_pru.lm.device import check_precision
from torch_pru.lm.evaluation.static import score
from torch_pru.lm.files import Folder, locked
from torch_pru.lm.model import build_model
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training import TrainingProgress, finetune, resume, train
from torch_pru.lm.training.optimizer import AveragedSGD, LossScale, NonFiniteCheck
from torch_pru.lm.training.step import TrainingStep
from torch_pru.lm.training.windows import epoch_windows, training_columns
from torch_pru.lm.verify import accept

CPU = torch.device("cpu")
Finished = tuple[RunFolder, list[TrainingProgress]]


@pytest.fixture(scope="module")
def finished(text_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    heard: list[TrainingProgress] = []
    config = small_config(unit="lstm", corpus=str(text_folder), epochs=6, checkpoint_steps=20)
    return train(config, tmp_path_factory.mktemp("runs") / "run", progress=heard.append), heard


# ------------------------------------------------------------------------------------ what a run leaves


def test_the_run_folder_holds_all_there_is_to_know(
    finished: Finished,
) -> None:
    run, _ = finished
    opened = RunFolder.open(run.path)
    assert opened == run
    assert opened.stage == "train"
    assert "<unk>" in opened.vocabulary
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert (environment["seed"], environment["device"], environment["processes"]) == (1, "cpu", 1)
    assert {"commit", "python", "torch_pru"} <= environment.keys()
    assert list(run.path.glob("events.out.tfevents.*"))
    assert len(list(run.checkpoints.iterdir())) == 2
    assert not list(run.path.rglob("*.pkl"))


def test_the_metrics_follow_the_epochs(finished: Finished) -> None:
    run, _ = finished
    epochs = [line for line in run.metrics() if line["kind"] == "epoch"]
    assert [line["epoch"] for line in epochs] == [1, 2, 3, 4, 5, 6]
    assert epochs[-1]["decision"] == "stop"
    assert epochs[-1]["best_valid_loss"] == min(line["valid_loss"] for line in epochs)
    for line in epochs:
        assert line["valid_perplexity"] == pytest.approx(math.exp(line["valid_loss"]))
    steps = [line["step"] for line in run.metrics() if line["kind"] == "steps"]
    assert steps == [*range(7, epochs[-1]["step"] + 1, 7)]


def test_the_best_weights_are_those_that_were_validated(
    finished: Finished,
) -> None:
    run, _ = finished
    best = min(line["valid_loss"] for line in run.metrics() if line["kind"] == "epoch")
    valid = load_corpus(run.config.data.corpus).valid
    assert score(run.model("best"), valid, batch=2).nll == pytest.approx(best, abs=1e-6)
    assert score(run.model("last"), valid, batch=2).nll != pytest.approx(best, abs=1e-6)
    with pytest.raises(PRUError, match="which='worst' is not known"):
        run.model("worst")


def test_tensorboard_has_the_same_numbers(finished: Finished) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, _ = finished
    events = EventAccumulator(str(run.path)).Reload()
    found = [event.value for event in events.Scalars("epoch/valid_loss")]
    expected = [line["valid_loss"] for line in run.metrics() if line["kind"] == "epoch"]
    assert found == pytest.approx(expected, rel=1e-6)


def test_progress_tells_where_the_run_stands(finished: Finished) -> None:
    _, heard = finished
    assert all(item.step <= item.steps and item.epoch <= item.epochs == 6 for item in heard)
    assert heard[0].valid_loss is None
    assert heard[0].seconds_left > 0
    assert heard[0].perplexity == pytest.approx(math.exp(heard[0].loss))
    assert (heard[-1].epoch, heard[-1].step, heard[-1].seconds_left) == (6, heard[-1].steps, 0)
    assert heard[-1].best_valid_loss is not None
    assert heard[-1].averaging


def test_training_learns(finished: Finished) -> None:
    run, _ = finished
    losses = [line["train_loss"] for line in run.metrics() if line["kind"] == "epoch"]
    assert losses[-1] < losses[0] < 1.1 * math.log(len(run.vocabulary))


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float64"])
def test_every_precision_trains(precision: str, text_folder: Path, tmp_path: Path) -> None:
    settings = {"unit": "pru", "corpus": str(text_folder), "epochs": 1, "learning_rate": 1.0}
    exact = train(small_config(**settings), tmp_path / "float32").metrics()[-1]
    found = train(small_config(precision=precision, **settings), tmp_path / precision).metrics()[-1]
    assert found["train_loss"] == pytest.approx(exact["train_loss"], rel=0.01)
    dtype = torch.float64 if precision == "float64" else torch.float32
    assert RunFolder.open(tmp_path / precision).model().embedding.weight.dtype == dtype


def test_first_weights_follow_the_seed_and_leave_the_callers_random_numbers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(seed: int) -> None:
        raise AssertionError("the generators of the GPUs are the caller's")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    before = torch.get_rng_state()
    weights = [build_model(small_config(seed=seed), 40, CPU).embedding.weight for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_float16_has_no_lstm_on_a_cpu() -> None:
    with pytest.raises(PRUError, match=r"float16.*bfloat16"):
        check_precision("float16", CPU, small_model(unit="lstm"))


# ------------------------------------------------------------------------------------ the host does not wait


@contextlib.contextmanager
def no_looking() -> Iterator[None]:
    """Whatever makes the host wait for the device raises."""

    def refuse(self: Tensor, *arguments: Any) -> Any:
        raise AssertionError("the host waits for the device")

    names = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "nonzero")
    before = {name: getattr(Tensor, name) for name in names}
    try:
        for name in names:
            setattr(Tensor, name, refuse)
        yield
    finally:
        for name, method in before.items():
            setattr(Tensor, name, method)


@pytest.mark.parametrize(("unit", "precision"), [("lstm", "float32"), ("pru", "float32"), ("pru", "float16")])
def test_a_step_never_asks_the_device_for_a_number(unit: str, precision: str) -> None:
    model = small_model(unit=unit).train()
    optimizer = AveragedSGD(model.parameters(), clip=0.25, weight_decay=1e-6)
    optimizer.start_averaging()
    step = TrainingStep(model, optimizer, small_masks(), precision=precision)
    tokens = torch.randint(0, 40, (9, 4))
    state = model.initial_state(4)
    before = model.embedding.weight.detach().clone()
    with no_looking():
        for _ in range(3):
            optimizer.prepare_step(1.0)
            state, loss = step(tokens, tokens, state)
    assert loss.shape == ()
    assert int(step.step_count) == 3
    assert int(step.first_bad_step) == -1
    assert not torch.equal(before, model.embedding.weight)


def test_the_loss_scale_skips_an_overflow_and_recovers() -> None:
    scale, weight = LossScale(CPU), torch.ones(3)
    optimizer = AveragedSGD([weight], clip=1e9, weight_decay=0.5)
    optimizer.prepare_step(1.0)
    check = NonFiniteCheck(torch.tensor(1.0), torch.tensor(0), torch.tensor(-1))

    def step(*gradient: float) -> list[float]:
        scale.update(step_along(optimizer, [torch.tensor(gradient)], grad_scale=scale.scale, check=check))
        return weight.tolist()

    assert step(8192.0, 0.0, -4096.0) == [-1.5, 0.5, 1.5]  # half of 1, less 2, 0 and -1
    assert step(1.0, math.inf, 2.0) == [-0.75, 0.25, 0.75]  # decay alone
    assert scale.scale.item() == 2048.0
    assert (check.step_count.item(), check.first_bad_step.item()) == (2, -1)  # no reason to stop the run
    for _ in range(2000):
        scale.update(torch.ones(()))
    assert scale.scale.item() == 4096.0
    for _ in range(30):
        scale.update(torch.tensor(math.nan))
    assert scale.scale.item() == 1.0  # smaller ones would lose what they are to keep
    scale.scale.fill_(scale.MAXIMUM)
    for _ in range(2000):
        scale.update(torch.ones(()))
    assert scale.scale.item() == 2.0**20


# ------------------------------------------------------------------------------------ when something is wrong


def test_a_full_disk_leaves_the_checkpoints_as_they_were(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0
    original = checkpoint_module.write_synced

    def filling(files: Folder, name: str, content: bytes) -> None:
        nonlocal written
        written += 1
        if written == 17:  # the second file of the fourth checkpoint
            (files.path / name).write_bytes(content[:100])
            raise PRUError(f"cannot write {name}: {os.strerror(errno.ENOSPC)}")
        original(files, name, content)

    config = small_config(unit="lstm", corpus=str(text_folder), checkpoint_steps=5)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "write_synced", filling)
        with pytest.raises(PRUError, match=r"cannot write a checkpoint .*: No space left on device"):
            train(config, tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["000002", "000003"]
    kept = RunFolder.open(tmp_path / "run").checkpoint()
    assert kept is not None
    assert kept.state["global_step"] == 10
    assert resume(tmp_path / "run").metrics()[-1]["decision"] == "stop"


def test_a_full_disk_under_the_metrics(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full on this system")
    replace = Folder.replace

    def full(files: Folder, name: str, pieces: Iterator[bytes]) -> BinaryIO:
        file = replace(files, name, pieces)
        return open("/dev/full", "ab") if name == "metrics.jsonl" else file

    monkeypatch.setattr(Folder, "replace", full)
    with pytest.raises(PRUError, match=r"cannot write .*metrics.jsonl"):
        train(small_config(unit="lstm", corpus=str(text_folder)), tmp_path / "run")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(text_folder: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PRUError, match=r"cannot .*: Permission denied"):
        train(small_config(corpus=str(text_folder)), tmp_path / "run")


def test_a_run_folder_below_a_file_is_refused(text_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(PRUError, match=r"cannot .*: Not a directory"):
        train(small_config(corpus=str(text_folder)), tmp_path / "file" / "run")


def test_a_second_process_is_refused(finished: Finished) -> None:
    run, _ = finished
    with locked(run.path), pytest.raises(PRUError, match="another process is using the run"):
        resume(run.path)
    resume(run.path)


def test_a_folder_with_a_run_is_not_trained_into(finished: Finished) -> None:
    run, _ = finished
    with pytest.raises(PRUError, match=r"there is already a run in"):
        train(run.config, run.path)


def copy_of(run: RunFolder, path: Path) -> Path:
    import shutil

    shutil.copytree(run.path, path)
    return path


def test_a_run_of_another_version_is_refused(finished: Finished, tmp_path: Path) -> None:
    path = copy_of(finished[0], tmp_path / "run")
    (path / "run.json").write_text('{"format": 99, "stage": "train"}')
    for reads in (RunFolder.open, resume, finetune):
        with pytest.raises(PRUError, match="has format 99, made by another version"):
            reads(path)
    (path / "run.json").write_text("{")
    with pytest.raises(PRUError, match=r"run.json is not JSON"):
        RunFolder.open(path)
    with pytest.raises(PRUError, match=r"no run in .*: run.json is missing"):
        RunFolder.open(tmp_path)


def test_a_changed_text_is_noticed(finished: Finished, tmp_path: Path) -> None:
    path = copy_of(finished[0], tmp_path / "run")
    (path / "vocabulary.txt").write_text("one\ntwo\n")
    with pytest.raises(PRUError, match=r"vocabulary.txt has changed since the run began: it is damaged"):
        resume(path)
    accept(path)
    with pytest.raises(PRUError, match=r"has changed since the run in .* its vocabulary is another"):
        resume(path)


def test_a_text_with_the_same_words_in_another_order_is_noticed(finished: Finished, tmp_path: Path) -> None:
    path = copy_of(finished[0], tmp_path / "run")
    about = json.loads((path / "run.json").read_text())
    del about["sha256"]
    (path / "run.json").write_text(json.dumps(about | {"text_digest": "0" * 64}))
    with pytest.raises(PRUError, match="its words are in another order or number"):
        resume(path)
    del about["text_digest"]  # as a folder from before it was kept
    (path / "run.json").write_text(json.dumps(about))
    resume(path)


def test_a_bad_start_leaves_no_folder(text_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PRUError, match="batch=5000 is too large"):
        train(small_config(corpus=str(text_folder), batch=5000), tmp_path / "run")
    with pytest.raises(PRUError, match="valid_batch=5000 is too large"):
        train(small_config(corpus=str(text_folder), valid_batch=5000), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_text_without_a_single_step_is_refused() -> None:
    with pytest.raises(PRUError, match="batch=4 makes 2 rows of a training text of 11 tokens"):
        training_columns(torch.arange(11), 4)
    rows = len(training_columns(torch.arange(12), 4))
    assert epoch_windows(rows, 10, seed=1, epoch=0) == ((0, 2),)


def test_a_relative_corpus_is_found_from_elsewhere(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text_folder.parent)
    config = small_config(unit="lstm", corpus=text_folder.name, epochs=1)
    run = train(config, tmp_path / "run")
    assert run.config.data.corpus == str(text_folder)
