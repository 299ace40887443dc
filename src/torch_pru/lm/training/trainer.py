"""The training loop, for training and finetuning alike."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from torch_pru.errors import PRUError, in_words_of
from torch_pru.lm.checkpoint import Checkpoint, save_checkpoint
from torch_pru.lm.config import Config, TrainingConfig
from torch_pru.lm.data.columns import columns
from torch_pru.lm.data.corpus import Corpus
from torch_pru.lm.dropout import Masks
from torch_pru.lm.evaluation.replay import can_replay
from torch_pru.lm.evaluation.static import perplexity, score
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.graphs import GraphedStep
from torch_pru.lm.training.journal import Journal
from torch_pru.lm.training.loss_sum import LossSum
from torch_pru.lm.training.optimizer import AveragedSGD, averaged_weights
from torch_pru.lm.training.precision import check_precision, computing, weight_dtype
from torch_pru.lm.training.progress import Progress
from torch_pru.lm.training.schedule import Decision, Schedule
from torch_pru.lm.training.signals import Interrupted, StopRequest
from torch_pru.lm.training.snapshot import snapshot
from torch_pru.lm.training.step import TrainingStep
from torch_pru.lm.training.windows import FEWEST_ROWS, column_starts, epoch_windows, rotated

RUN_AWAY = 10.0
"""Nats above a uniform guess at which a run is lost. Of few words, the first steps may well be 4 above."""


class Diverged(PRUError):  # noqa: N818 (it says what happened)
    """The loss or a gradient stopped being a number, or the loss ran away."""


class Trainer:
    """A model in training, from its first step or from a checkpoint.

    Args:
        config: all settings.
        corpus: the text.
        world: the processes that share the batch.

    Example:
        >>> trainer = Trainer(config, corpus, world)                        # doctest: +SKIP
        >>> for progress in trainer.steps(run, StopRequest()):              # doctest: +SKIP
        ...     print(progress)
    """

    def __init__(self, config: Config, corpus: Corpus, world: World) -> None:
        settings, device = config.training, world.device
        own = world.columns(settings.batch)
        check_length(corpus, settings)
        self.config = config
        self.world = world
        self.valid = corpus.valid
        self.columns = training_columns(corpus.train, settings.batch)[:, own].contiguous().to(device)
        # As an epoch reads it; always in the same place, where graphs look for it.
        self.text = self.columns.clone()
        self.text_epoch = -1  # the epoch that ``text`` is laid out for
        self.model = build_model(config, len(corpus.vocabulary), device)
        check_precision(settings.precision, device, self.model)
        self.optimizer = AveragedSGD(
            self.model.parameters(), clip=settings.clip, weight_decay=config.regularisation.weight_decay
        )
        generator = torch.Generator(device)
        generator.manual_seed(random.Random(f"masks {settings.seed}").getrandbits(63))
        masks = Masks(generator, settings.batch, own.start)
        self.step = TrainingStep(self.model, self.optimizer, masks, world, precision=settings.precision)
        self.graphed = GraphedStep(self.step, self.text) if self._captures() else None
        self.schedule = Schedule(settings, "train")
        self.state = self.model.initial_state(self.text.shape[1])
        self.best: dict[str, Tensor] = {}  # weights of the lowest validation loss, as they were validated
        self.window = 0  # windows done in this epoch
        self.steps_done = 0
        self.finished = False
        self.interval = LossSum(device)  # since the last report
        self.epoch = LossSum(device)
        self.seconds = 0.0  # at work, before this process
        self.metrics_bytes = 0  # of metrics.jsonl, which belong to the checkpoint training goes on from

    def _captures(self) -> bool:
        """Whether steps are captured as CUDA graphs: in one process, where nothing forbids it."""
        return self.config.training.graphs and self.world.size == 1 and can_replay(self.model)

    # ------------------------------------------------------------------------------------------ the loop

    def steps(self, run: RunFolder, stop: StopRequest) -> Iterator[Progress | None]:
        """Train to the end, giving way after every step, so that several runs can take turns.

        Yields:
            Progress every ``log_steps`` steps and after each epoch, None after the other steps.
        """
        if self.finished:  # what is there is left as it is
            return
        self._begin(run, stop)
        try:
            if self.steps_done == 0:  # a disk that is full is found now, and there are always weights to keep
                self._save()
            while not self.finished:
                for first, length in self._windows()[self.window :]:
                    self._take_step(first, length)
                    yield self._after_step()
                yield self._end_epoch()
            self._save()
        except Diverged:
            self._keep_best()
            raise
        finally:
            if self.journal is not None:
                self.journal.close()

    def _begin(self, run: RunFolder, stop: StopRequest) -> None:
        self.run, self.stop = run, stop
        self.journal: Journal | None = None
        if self.world.main:
            run.forget_scores()
            self.journal = Journal(run.path, offset=self.metrics_bytes, step=self.steps_done)
        self.started = self.saved_at = self.reported_at = time.monotonic()
        self.steps_before, self.speed = self.steps_done, 0.0
        self.valid_loss: float | None = None
        self.model.train()

    def _windows(self) -> list[tuple[int, int]]:
        settings = self.config.training
        return epoch_windows(len(self.text), settings.window, settings.seed, self.schedule.epoch)

    def _rotate_columns(self) -> None:
        """Lay the text out anew, so that other words meet in a step than in the epochs before."""
        settings, epoch = self.config.training, self.schedule.epoch
        starts = column_starts(len(self.columns), settings.batch, settings.seed, epoch)
        own = self.world.columns(settings.batch)
        self.text.copy_(rotated(self.columns, starts[own].to(self.columns.device)))
        self.text_epoch = epoch

    def _take_step(self, first: int, length: int) -> None:
        settings = self.config.training
        if settings.rotate_columns and self.text_epoch != self.schedule.epoch:
            self._rotate_columns()
        if self.window == 0:  # the state is zero at the start of an epoch, else carried
            self.state = self.model.initial_state(self.text.shape[1])
        # The scale of this window, for this step only, in both phases; torch's ASGD is one behind.
        self.optimizer.prepare(settings.learning_rate * length / settings.window)
        if self.graphed is not None:
            self.state, loss = self.graphed(first, length, self.state)
        else:
            tokens, targets = self.text[first : first + length], self.text[first + 1 : first + length + 1]
            self.state, loss = self.step(tokens, targets, self.state)
        self.interval.add(loss, length * settings.batch)
        self.epoch.add(loss, length * settings.batch)
        self.window += 1
        self.steps_done += 1

    def _after_step(self) -> Progress | None:
        settings = self.config.training
        looking = self.steps_done % settings.log_steps == 0
        progress = self._report() if looking else None
        stop, due = self.stop.number, self._minutes_are_over()
        if self.world.size > 1:  # processes agree where they wait for each other anyway
            stop, due = self._agree(stop, due) if looking else (0, False)
        if settings.checkpoint_steps and self.steps_done % settings.checkpoint_steps == 0:
            due = True
        if stop or due:
            self._save()
        if stop:
            raise Interrupted(stop, str(self.run.path))
        return progress

    def _agree(self, stop: int, due: bool) -> tuple[int, bool]:
        stop_any, due_any = self.world.largest([stop, due])
        return int(stop_any), due_any > 0

    def _minutes_are_over(self) -> bool:
        minutes = self.config.training.checkpoint_minutes
        return minutes > 0 and time.monotonic() - self.saved_at >= 60 * minutes

    def _end_epoch(self) -> Progress:
        """Validate, with the averaged weights once there are some, and decide what comes next."""
        self._check_health()
        train_loss = self.epoch.mean()
        was_averaging, round_ = self.optimizer.averages is not None, self.schedule.round
        with averaged_weights(self.optimizer):
            loss = self._validate()
            if not math.isfinite(loss):
                raise Diverged(
                    f"the validation loss after epoch {self.schedule.epoch + 1} is {loss}; "
                    f"{self._what_is_kept()}"
                )
            decision = self.schedule.end_epoch(loss)
            if self.schedule.best_epoch == self.schedule.epoch:
                self.best = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        if decision is Decision.RESTART:
            self.set_weights(self.best)
        if decision in (Decision.AVERAGE, Decision.RESTART):
            self.optimizer.start_averaging()
        self.finished = decision is Decision.STOP
        self.valid_loss, steps = loss, self.window
        self.window = 0
        self.epoch.clear()
        self._note_epoch(train_loss, loss, decision, averaged=was_averaging, round=round_)
        progress = self._progress(self.schedule.epoch, steps, steps, train_loss)
        return replace(progress, round=round_, ended=True)

    def _note_epoch(self, train_loss: float, loss: float, decision: Decision, **more: bool | int) -> None:
        if self.journal is None:
            return
        values = {
            "kind": "epoch",
            "step": self.steps_done,
            "epoch": self.schedule.epoch,
            "stage": self.schedule.stage,
            "train_loss": train_loss,
            "valid_loss": loss,
            "valid_perplexity": perplexity(loss),
            "best_valid_loss": self.schedule.best,
            "decision": decision.value,
        }
        self.journal.write(values | more, self._clock())

    def _validate(self) -> float:
        """Mean loss of the validation text at ``valid_batch`` columns; it only steers."""
        loss = 0.0
        if self.world.main:
            with computing(self.config.training.precision, self.world.device):
                loss = score(self.model, self.valid, batch=self.config.training.valid_batch).nll
        return self.world.from_main(loss)

    # ------------------------------------------------------------------------------------------ reports

    def _report(self) -> Progress:
        """Look at the loss since the last report: here the host waits for the device."""
        self._check_health()
        tokens, loss = self.interval.tokens, self.interval.mean()
        self.interval.clear()
        now = time.monotonic()
        self.speed = tokens / max(now - self.reported_at, 1e-9)
        self.reported_at = now
        if self.journal is not None:
            values = {
                "kind": "steps",
                "step": self.steps_done,
                "epoch": self.schedule.epoch + 1,
                "stage": self.schedule.stage,
                "loss": loss,
                "perplexity": perplexity(loss),
            }
            self.journal.write(values, self._clock() | {"tokens_per_second": self.speed})
        return self._progress(self.schedule.epoch + 1, self.window, len(self._windows()), loss)

    def _clock(self) -> dict[str, float]:
        return {"time": time.time(), "seconds": self.seconds + time.monotonic() - self.started}

    def _progress(self, epoch: int, step: int, steps: int, loss: float) -> Progress:
        done = max(1, self.steps_done - self.steps_before)
        left = max(0, steps - step) + steps * (0 if self.finished else max(0, self.schedule.epochs - epoch))
        best = self.schedule.best
        return Progress(
            stage=self.schedule.stage,
            round=self.schedule.round,
            epoch=epoch,
            epochs=self.schedule.epochs,
            step=step,
            steps=steps,
            loss=loss,
            tokens_per_second=self.speed,
            seconds_left=left * (time.monotonic() - self.started) / done,
            valid_loss=self.valid_loss,
            best_valid_loss=best if math.isfinite(best) else None,
            averaging=self.optimizer.averages is not None,
        )

    def _check_health(self) -> None:
        """Stop a run that is lost. The flag is on the device and is looked at where the host waits anyway."""
        bad = int(self.step.first_bad)
        if bad >= 0:
            raise Diverged(f"the loss or its gradient is not finite at step {bad}; {self._what_is_kept()}")
        uniform = math.log(self.model.vocabulary_size)
        if self.interval.tokens and self.interval.mean() > uniform + RUN_AWAY:
            raise Diverged(
                f"the loss has run away to {self.interval.mean():.1f} by step {self.steps_done} (a uniform "
                f"guess has {uniform:.1f}); {self._what_is_kept()}"
            )

    def _what_is_kept(self) -> str:
        folder = self.run.checkpoints
        return f"the checkpoints in {folder} hold the last good weights; try a smaller learning_rate"

    # ------------------------------------------------------------------------------------------ weights

    def _save(self) -> None:
        self._check_health()  # weights that are lost never replace good ones
        bytes_written = 0 if self.journal is None else self.journal.offset()
        checkpoint = snapshot(self, bytes_written, self._clock()["seconds"])
        if self.world.main:
            save_checkpoint(self.run.checkpoints, checkpoint)
        self.saved_at = time.monotonic()

    def _keep_best(self) -> None:
        """Put the best weights so far beside those of the last checkpoint."""
        newest = self.run.checkpoint() if self.world.main and self.best else None
        if newest is not None:
            save_checkpoint(self.run.checkpoints, Checkpoint(newest.weights, self.best, newest.state))

    def start_finetuning(self, source: Checkpoint) -> None:
        """Begin the second stage: averaged SGD from the best weights of a finished run."""
        self.set_weights(source.best)
        self.best = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        # Measured anew: the source may have been validated in another precision, or at another batch.
        loss = self._validate()
        if not math.isfinite(loss):
            raise PRUError(
                f"precision={self.config.training.precision!r} gives the weights to finetune a validation "
                f"loss of {loss}; use the precision that they were trained in"
            )
        self.schedule = Schedule.finetuning(self.config.training, loss)
        self.optimizer.start_averaging()

    @torch.no_grad()
    def set_weights(self, weights: dict[str, Tensor]) -> None:
        """Give the model the values of ``weights``, by name."""
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])


def check_length(corpus: Corpus, settings: TrainingConfig) -> None:
    """Refuse a text that is too short for ``batch`` or ``valid_batch`` columns."""
    training_columns(corpus.train, settings.batch)
    with in_words_of(batch="valid_batch"):
        columns(corpus.valid, settings.valid_batch)


def training_columns(ids: Tensor, batch: int) -> Tensor:
    """``columns`` of a training text (N,), of which an epoch can make a step."""
    text = columns(ids, batch)
    if len(text) < FEWEST_ROWS:
        raise PRUError(
            f"batch={batch} makes {len(text)} rows of a training text of {len(ids)} tokens, and a step takes "
            f"{FEWEST_ROWS} at least; use a smaller batch, or more text"
        )
    return text


def build_model(config: Config, vocabulary_size: int, device: torch.device) -> LanguageModel:
    """The model with the initial weights of the seed, the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.training.seed)  # torch.manual_seed would seed GPUs, too
        model = LanguageModel(config.model, config.regularisation, vocabulary_size)
    return model.to(device=device, dtype=weight_dtype(config.training.precision))
