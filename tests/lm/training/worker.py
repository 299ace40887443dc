"""A process that imports once and then forks a child for each job, so that tests can kill many runs cheaply.

Each line of its input is a job in JSON; it answers with the child's number, and with its status when it ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # an optimizer loads it, which takes longer than a training here

import torch_pru
from torch_pru import PRUError
from torch_pru.lm import run as run_module
from torch_pru.lm.config import build_config
from torch_pru.lm.training import finetune, resume, train
from torch_pru.lm.training.distributed import joined_world
from torch_pru.lm.training.driver import load_shared_corpus
from torch_pru.lm.training.trainer import Trainer

run_module.commit = lambda: None  # asking git takes longer than training here


def die_at_call(number: int) -> None:
    """Kill this process inside the given call of those by which a checkpoint reaches the disk."""
    calls = 0

    def counting(original: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        return wrapped

    for name in ("fsync", "rename", "replace", "mkdir"):
        setattr(os, name, counting(getattr(os, name)))


def die_at_checkpoint(number: int) -> None:
    """Kill this process when the checkpoint of this number is written and about to get its name."""
    replace = os.replace

    def dying(old: Any, new: Any, **options: Any) -> None:
        if new == f"{number:06d}":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(old, new, **options)

    os.replace = dying


def take_steps(job: dict[str, Any]) -> None:
    """Some steps of a trainer, whose weights the first process writes."""
    with joined_world("cpu") as world:
        corpus = load_shared_corpus(job["settings"]["corpus"], "auto", world)
        trainer = Trainer(build_config("small", job["settings"]), corpus, world)
        if job.get("averaging"):
            trainer.optimizer.start_averaging()
        while trainer.global_step < job["steps"]:
            trainer.text.rotate(trainer.schedule.epoch)
            for first, length in trainer._windows()[: job["steps"] - trainer.global_step]:
                trainer._take_step(first, length)
            trainer.step_in_epoch = 0
            trainer.schedule.epoch += 1
        state = world.gather_state(trainer.recurrent_state)
        if world.main:
            weights = dict(trainer.model.named_parameters())
            torch.save({"weights": weights, "state": state, "loss": trainer.log_loss.mean()}, job["out"])


def join_worlds(job: dict[str, Any]) -> None:
    """Join the other processes and leave them again, as a command with several runs does."""
    for number in range(job["times"]):
        with joined_world("cpu") as world:
            assert world.largest([float(number * world.rank)]) == [number * (world.size - 1)]


def do(job: dict[str, Any]) -> None:
    os.environ.update(job.get("environment", {}))
    torch_pru.__version__ = job.get("version", torch_pru.__version__)
    if "die_at_call" in job:
        die_at_call(job["die_at_call"])
    if "die_at_checkpoint" in job:
        die_at_checkpoint(job["die_at_checkpoint"])
    if job["do"] == "train":
        train(build_config("small", job["settings"]), job["run"])
    elif job["do"] == "resume":
        resume(job["run"])
    elif job["do"] == "finetune":
        finetune(job["run"])
    elif job["do"] == "worlds":
        join_worlds(job)
    else:
        take_steps(job)


def child(job: dict[str, Any]) -> int:
    signal.alarm(60)  # processes that wait for each other for ever are killed
    try:
        do(job)
    except SystemExit as stop:
        Path(job["said"]).write_text(str(stop))
        return int(stop.code or 0)
    except PRUError as error:
        Path(job["said"]).write_text(str(error))
        return 2
    except BaseException:
        Path(job["said"]).write_text(traceback.format_exc())
        return 1
    return 0


def main() -> None:
    torch.set_num_threads(1)
    children = {}
    for line in sys.stdin:
        job = json.loads(line)
        if job["do"] == "wait":
            _, status = os.waitpid(job["child"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        number = os.fork()
        if number == 0:
            os._exit(child(job))
        children[number] = job
        print(number, flush=True)


if __name__ == "__main__":
    main()
