"""The training loop, for training and finetuning."""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.lm.checkpoint import Checkpoint, save_checkpoint
from torch_pru.lm.config import Config
from torch_pru.lm.data.corpus import Corpus
from torch_pru.lm.device import check_precision
from torch_pru.lm.evaluation.static import perplexity, score
from torch_pru.lm.graphs import can_capture
from torch_pru.lm.model import LanguageModel, Masks, build_model
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.journal import Journal
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.progress import Interrupted, StopRequest, TrainingProgress
from torch_pru.lm.training.schedule import Decision, Schedule
from torch_pru.lm.training.step import GraphedStep, LossSum, TrainingStep
from torch_pru.lm.training.windows import TrainingText, check_length

DIVERGED = 10.0
"""A run is stopped when its loss exceeds that of a uniform guess by this many nats. With a small vocabulary,
the first steps may well exceed it by 4."""


class DivergenceError(PRUError):
    """The loss or a gradient became NaN or infinite, or the loss exploded."""


class Trainer:
    """Trains a model, from its initial weights or from a checkpoint.

    ``state_dict`` and ``load_state_dict`` cover everything that the rest of the run depends on.

    Args:
        config: all settings.
        corpus: the text.
        world: the processes that share the batch.

    Attributes:
        global_step: steps taken since the start of the run.
        step_in_epoch: steps taken in the current epoch; each step reads one window of the text.
        recurrent_state: hidden and cell states after the last step, carried to the next one.
        log_loss: training loss since the last report.
        epoch_loss: training loss since the start of the epoch.
        best: weights of the lowest validation loss, as they were validated; empty in the first epoch.
    """

    def __init__(self, config: Config, corpus: Corpus, world: World) -> None:
        settings, device = config.training, world.device
        own = world.batch_slice(settings.batch)
        check_length(corpus, settings)
        self.config = config
        self.world = world
        self.valid = corpus.valid
        self.text = TrainingText(corpus.train, settings, own, device)
        self.model = build_model(config, len(corpus.vocabulary), device)
        check_precision(settings.precision, device, self.model)
        self.optimizer = AveragedSGD(
            self.model.named_parameters(),
            clip=settings.clip,
            weight_decay=config.regularization.weight_decay,
        )
        generator = torch.Generator(device)
        generator.manual_seed(random.Random(f"masks {settings.seed}").getrandbits(63))
        self.masks = Masks(generator, settings.batch, own.start)
        average = world.average if world.size > 1 else None
        self.training_step = TrainingStep(
            self.model, self.optimizer, self.masks, average=average, precision=settings.precision
        )
        captures = settings.graphs and can_capture(self.model)
        self.graphed_step = GraphedStep(self.training_step, self.text.columns) if captures else None
        self.schedule = Schedule(settings, "train")
        self.recurrent_state = self.model.initial_state(self.text.columns.shape[1])
        self.best: dict[str, Tensor] = {}
        self.step_in_epoch = 0
        self.global_step = 0
        self.finished = False
        self.log_loss = LossSum(device)
        self.epoch_loss = LossSum(device)
        self.valid_loss: float | None = None
        self.journal: Journal | None = None
        self.metrics_bytes = 0  # size of metrics.jsonl at the checkpoint that training resumes from
        self.earlier_seconds = 0.0  # training time before this process
        self.time_used = 0.0  # share of the time limit that is used; 1 or more when the time is up
        self.started: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on. All processes must call it together."""
        loss_scale = self.training_step.loss_scale
        return {
            "model": self.model.state_dict(),
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "masks": self.masks.state_dict(),
            "loss_scale": {} if loss_scale is None else loss_scale.state_dict(),
            "recurrent_state": self.world.gather_state(self.recurrent_state),
            "log_loss": self.log_loss.state_dict(),
            "epoch_loss": self.epoch_loss.state_dict(),
            "global_step": self.global_step,
            "step_in_epoch": self.step_in_epoch,
            "finished": self.finished,
            "metrics_bytes": self.metrics_bytes if self.journal is None else self.journal.offset(),
            "seconds": self._seconds(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned, possibly with another number of processes."""
        device = self.world.device
        self.model.load_state_dict(state_dict["model"])
        self.best = {name: value.to(device) for name, value in state_dict["best"].items()}
        self.optimizer.load_state_dict(state_dict["optimizer"])
        self.schedule.load_state_dict(state_dict["schedule"])
        self.masks.load_state_dict(state_dict["masks"])
        if self.training_step.loss_scale is not None:
            self.training_step.loss_scale.load_state_dict(state_dict["loss_scale"])
        own = self.world.batch_slice(self.config.training.batch)
        self.recurrent_state = [
            (h[:, own].contiguous().to(device), c[:, own].contiguous().to(device))
            for h, c in state_dict["recurrent_state"]
        ]
        self.log_loss.load_state_dict(state_dict["log_loss"])
        self.epoch_loss.load_state_dict(state_dict["epoch_loss"])
        self.global_step = state_dict["global_step"]
        self.training_step.step_count.fill_(self.global_step)
        self.step_in_epoch = state_dict["step_in_epoch"]
        self.finished = state_dict["finished"]
        self.metrics_bytes = state_dict["metrics_bytes"]
        self.earlier_seconds = state_dict["seconds"]
        self.time_used = self._share_of_time(self.earlier_seconds)

    def checkpoint(self) -> Checkpoint:
        """The state as a checkpoint, which keeps the weights apart."""
        state = self.state_dict()
        return Checkpoint(state.pop("model"), state.pop("best"), state)

    def load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Load the state from a checkpoint."""
        self.load_state_dict({"model": checkpoint.weights, "best": checkpoint.best, **checkpoint.state})

    def fit(self, run: RunFolder, stop: StopRequest) -> Iterator[TrainingProgress | None]:
        """Train until the schedule ends the run, yielding after every step so that runs can take turns.

        Yields:
            The progress every ``log_steps`` steps and after each epoch, None after the other steps.
        """
        if self.finished:
            return
        self._start(run, stop)
        try:
            if self.global_step == 0:  # reports a full disk now, and there always is a checkpoint
                self._save()
            while not self.finished:
                self.text.rotate(self.schedule.epoch)
                for first, length in self._windows()[self.step_in_epoch :]:
                    self._take_step(first, length)
                    yield self._after_step()
                    if self.time_used >= 1:
                        break
                yield self._end_epoch()
            self._save()
        except DivergenceError as error:
            self._save_best()
            self._log("stop", {"stop_reason": "diverged", "error": str(error)})
            raise
        finally:
            if self.journal is not None:
                self.journal.close()

    def _start(self, run: RunFolder, stop: StopRequest) -> None:
        self.run, self.stop = run, stop
        if self.world.main:
            run.forget_scores()
            self.journal = Journal(run.path, offset=self.metrics_bytes, step=self.global_step)
        self.started = self.saved_at = self.reported_at = time.monotonic()
        self.first_step, self.tokens_per_second = self.global_step, 0.0
        self.model.train()

    def next_step_synchronizes(self) -> bool:
        """Whether the host waits for the device in the next step: for a report, or at the end of an epoch."""
        report_due = (self.global_step + 1) % self.config.training.log_steps == 0
        return report_due or self.step_in_epoch == len(self._windows())

    def _windows(self) -> tuple[tuple[int, int], ...]:
        return self.text.windows(self.schedule.epoch)

    def _take_step(self, first: int, length: int) -> None:
        """Train on the window of ``length`` rows that starts at row ``first``."""
        settings = self.config.training
        if self.step_in_epoch == 0:
            self.recurrent_state = self.model.initial_state(self.text.columns.shape[1])
        self.optimizer.prepare_step(self._learning_rate() * length / settings.window)
        if self.graphed_step is not None:
            self.recurrent_state, loss = self.graphed_step(first, length, self.recurrent_state)
        else:
            window = self.text.columns[first : first + length + 1].long()
            self.recurrent_state, loss = self.training_step(window[:-1], window[1:], self.recurrent_state)
        self.log_loss.add(loss, length * settings.batch)
        self.epoch_loss.add(loss, length * settings.batch)
        self.step_in_epoch += 1
        self.global_step += 1

    def _learning_rate(self) -> float:
        """The learning rate of a window of the usual length, with the cooldown at the end of training."""
        settings = self.config.training
        if not settings.cooldown:
            return settings.learning_rate
        epochs_used = (self.schedule.epoch + self.step_in_epoch / len(self._windows())) / settings.epochs
        left = max(0.0, 1 - max(epochs_used, self.time_used))
        return settings.learning_rate * min(1.0, left / settings.cooldown)

    def _after_step(self) -> TrainingProgress | None:
        """Report, save and stop where one of these is due."""
        settings = self.config.training
        report_due = self.global_step % settings.log_steps == 0
        progress = self._report() if report_due else None
        minutes = settings.checkpoint_minutes
        stop, save_due = self.stop.number, 0 < minutes <= (time.monotonic() - self.saved_at) / 60
        time_used = self._share_of_time(self._seconds())
        if self.world.size == 1:
            self.time_used = time_used
        elif report_due:  # processes agree at reports, where they synchronize anyway
            values = self.world.largest([stop, save_due, time_used])
            stop, save_due, self.time_used = int(values[0]), values[1] > 0, values[2]
        else:
            stop, save_due = 0, False
        if settings.checkpoint_steps and self.global_step % settings.checkpoint_steps == 0:
            save_due = True
        if stop or save_due:
            self._save()
        if stop:
            # After the checkpoint, so that resuming drops this line.
            self._log("stop", {"stop_reason": f"interrupted by {signal.Signals(stop).name}"})
            raise Interrupted(stop, str(self.run.path))
        return progress

    def _share_of_time(self, seconds: float) -> float:
        """The share of the time limit that has been used after this training time."""
        minutes = self.config.training.minutes
        return seconds / (60 * minutes) if minutes else 0.0

    def _end_epoch(self) -> TrainingProgress:
        """Validate, with the averaged weights if averaging has started, and decide how to continue."""
        self._check_divergence()
        train_loss, steps = self.epoch_loss.mean(), len(self._windows())
        was_averaging, round_ = self.optimizer.averages is not None, self.schedule.round
        with self.optimizer.averaged_weights():
            loss = self._validate()
            if not math.isfinite(loss):
                raise self._diverged(f"the validation loss after epoch {self.schedule.epoch + 1} is {loss}")
            decision = self.schedule.end_epoch(loss, time_is_up=self.time_used >= 1)
            if self.schedule.best_epoch == self.schedule.epoch:
                self.best = copy_weights(self.model)
        if decision is Decision.RESTART:
            self.model.load_state_dict(self.best)
        if decision in (Decision.AVERAGE, Decision.RESTART):
            self.optimizer.start_averaging()
        self.finished = decision is Decision.STOP
        self.valid_loss, done = loss, self.step_in_epoch
        self.step_in_epoch = 0
        self.epoch_loss.reset()
        values = {
            "epoch": self.schedule.epoch,
            "stage": self.schedule.stage,
            "train_loss": train_loss,
            "valid_loss": loss,
            "valid_perplexity": perplexity(loss),
            "best_valid_loss": self.schedule.best,
            "decision": decision.value,
            "averaged": was_averaging,
            "round": round_,
        }
        self._log("epoch", values | ({"stop_reason": self.schedule.stop_reason} if self.finished else {}))
        progress = self._progress(self.schedule.epoch, done, steps, train_loss)
        return replace(progress, round=round_, ended=True, stop_reason=self.schedule.stop_reason)

    def _validate(self) -> float:
        """Mean loss of the validation text at ``valid_batch`` columns, which is used for decisions only."""
        loss = 0.0
        if self.world.main:
            with self.training_step.autocast:
                loss = score(self.model, self.valid, batch=self.config.training.valid_batch).nll
        return self.world.from_main(loss)

    def start_finetuning(self, source: Checkpoint) -> None:
        """Start the second stage: averaged SGD from the best weights of a finished run."""
        self.model.load_state_dict(source.best)
        self.best = copy_weights(self.model)
        # Not the loss on record: the source may have been validated in another precision or batch size.
        loss = self._validate()
        if not math.isfinite(loss):
            raise PRUError(
                f"the validation loss before finetuning is {loss} with "
                f"precision={self.config.training.precision!r}; use the precision of the run's training"
            )
        self.schedule = Schedule.finetuning(self.config.training, loss)
        self.optimizer.start_averaging()

    def _report(self) -> TrainingProgress:
        """Log the loss since the last report. This synchronizes with the device."""
        self._check_divergence()
        tokens, loss = self.log_loss.tokens, self.log_loss.mean()
        self.log_loss.reset()
        now = time.monotonic()
        self.tokens_per_second = tokens / max(now - self.reported_at, 1e-9)
        self.reported_at = now
        values = {
            "epoch": self.schedule.epoch + 1,
            "stage": self.schedule.stage,
            "loss": loss,
            "perplexity": perplexity(loss),
        }
        self._log("steps", values, tokens_per_second=self.tokens_per_second)
        return self._progress(self.schedule.epoch + 1, self.step_in_epoch, len(self._windows()), loss)

    def _log(self, kind: str, values: dict[str, Any], **clock: float) -> None:
        """Add a line to metrics.jsonl, in the process that writes files."""
        if self.journal is not None:
            clock = {"time": time.time(), "seconds": self._seconds()} | clock
            self.journal.write({"kind": kind, "step": self.global_step} | values, clock)

    def _seconds(self) -> float:
        """Training time of the run, over all processes that have worked on it."""
        return self.earlier_seconds + (0.0 if self.started is None else time.monotonic() - self.started)

    def _progress(self, epoch: int, step: int, steps: int, loss: float) -> TrainingProgress:
        assert self.started is not None
        done = max(1, self.global_step - self.first_step)
        steps_left = max(0, steps - step) + steps * max(0, self.schedule.epochs - epoch)
        seconds_left = steps_left * (time.monotonic() - self.started) / done
        if minutes := self.config.training.minutes:
            seconds_left = max(0.0, min(seconds_left, 60 * minutes - self._seconds()))
        best = self.schedule.best
        return TrainingProgress(
            run_folder=self.run.path,
            stage=self.schedule.stage,
            round=self.schedule.round,
            epoch=epoch,
            epochs=self.config.training.epochs,
            step=step,
            steps=steps,
            loss=loss,
            tokens_per_second=self.tokens_per_second,
            seconds_left=0.0 if self.finished else seconds_left,
            valid_loss=self.valid_loss,
            best_valid_loss=best if math.isfinite(best) else None,
            averaging=self.optimizer.averages is not None,
        )

    def _check_divergence(self) -> None:
        """Raise if the run has diverged. The flag is on the device, so this synchronizes."""
        bad_step = int(self.training_step.first_bad_step)
        if bad_step >= 0:
            raise self._diverged(f"the loss or its gradient is not finite at step {bad_step}")
        uniform = math.log(self.model.vocabulary_size)
        if self.log_loss.tokens and self.log_loss.mean() > uniform + DIVERGED:
            raise self._diverged(
                f"the loss has exploded to {self.log_loss.mean():.1f} by step {self.global_step} (a uniform "
                f"guess has {uniform:.1f})"
            )

    def _diverged(self, problem: str) -> DivergenceError:
        return DivergenceError(
            f"{problem}; the checkpoints in {self.run.checkpoints} hold the last good weights; try a smaller "
            f"learning_rate"
        )

    def _save(self) -> None:
        self._check_divergence()  # diverged weights must not replace good ones
        checkpoint = self.checkpoint()
        if self.world.main:
            save_checkpoint(self.run.checkpoints, checkpoint)
        self.saved_at = time.monotonic()

    def _save_best(self) -> None:
        """Add the best weights so far to the last checkpoint."""
        newest = self.run.checkpoint() if self.world.main and self.best else None
        if newest is not None:
            save_checkpoint(self.run.checkpoints, Checkpoint(newest.weights, self.best, newest.state))


def copy_weights(model: LanguageModel) -> dict[str, Tensor]:
    """A copy of all weights by name."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
