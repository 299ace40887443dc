"""Check the files of a run folder against their checksums, and accept changes."""

from __future__ import annotations

import dataclasses
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_pru.errors import PRUError
from torch_pru.lm.checkpoint import LIMIT, is_whole, name_of, newest_values, opened, saved_numbers
from torch_pru.lm.data.subwords import FILE as SUBWORDS
from torch_pru.lm.data.subwords import Subwords
from torch_pru.lm.data.vocabulary import Vocabulary
from torch_pru.lm.evaluation.scores import FILE as SCORES
from torch_pru.lm.evaluation.scores import LOG_PROBABILITIES_LIMIT, load_scores, log_probabilities_file
from torch_pru.lm.files import METRICS_LIMIT, TEXT_LIMIT, Folder, MissingFileError, locked
from torch_pru.lm.metrics import (
    METRICS,
    UNFINISHED,
    KeptLines,
    has_finished,
    is_cut_short,
    read_metrics,
    stop_reason,
)
from torch_pru.lm.recipe import read_config
from torch_pru.lm.run import CHECKED, About, RunFolder, read_checked, sha256
from torch_pru.lm.schema import byte_limit
from torch_pru.lm.seal import SEAL, parse_object, seal, unseal
from torch_pru.lm.visible import count


class LostLinesError(PRUError):
    """Lines at the end of the log are missing."""


@dataclass(frozen=True)
class Finding:
    """What was found of one item of a run folder.

    Attributes:
        item: the file or folder.
        text: what was found.
        fine: whether the item is as the run wrote it.
        acceptable: whether `accept` can make it fine.
        missing: whether the item does not exist.
    """

    item: str
    text: str
    fine: bool = True
    acceptable: bool = False
    missing: bool = False


def verify(path: str | Path) -> list[Finding]:
    """Check every file of a run folder; nothing is changed."""
    files = Folder(Path(path).resolve())
    about = About.read(files)
    looks: dict[str, Callable[[str], str]] = {
        **{name: lambda name: look_at_checked(files, about, name) for name in CHECKED},
        "environment.json": lambda name: look_at_json(files, name),
        METRICS: lambda _: look_at_metrics(files),
        SCORES: lambda _: look_at_scores(files),
    }
    if SUBWORDS not in about.files and not files.has(SUBWORDS):
        del looks[SUBWORDS]
    stage = "finetuned" if about.stage == "finetune" else "trained (not finetuned)"
    checksums = "checksums present" if about.files else "no checksums: written by an earlier version"
    findings = [Finding("run.json", f"{stage}; {checksums}")]
    for item, look in looks.items():
        try:
            findings.append(Finding(item, look(item)))
        except MissingFileError:
            if item == SCORES:
                findings.append(Finding(item, "not scored yet"))
            else:
                findings.append(Finding(item, "the file does not exist", fine=False, missing=True))
        except LostLinesError as error:
            findings.append(Finding(item, str(error), fine=False, missing=True))
        except PRUError as error:
            found = str(error).partition("; ")[0]  # what to do is said once, for all files
            findings.append(Finding(item, found, fine=False, acceptable=True))
    return [*findings, *look_at_log_probabilities(files), look_at_checkpoints(files), *odd_items(files)]


def accept(path: str | Path) -> list[str]:
    """Accept the present content of a run folder, as far as it can be read.

    Edited settings, vocabularies and JSON files get new checksums; damaged lines of metrics.jsonl are
    removed.

    Returns:
        The items that were accepted.
    """
    files = Folder(Path(path).resolve())
    with locked(files.path):
        wrong = {finding.item for finding in verify(files.path) if finding.acceptable}
        about = About.read(files)
        checksums = dict(about.files)
        for name in wrong & set(CHECKED):
            content = files.read(name, CHECKED[name])
            parse(name, content, files.path / name)
            checksums[name] = sha256(content)
        for name in wrong & {"environment.json", SCORES}:
            values = parse_object(files.read(name, TEXT_LIMIT), files.path / name)
            values.pop(SEAL, None)
            files.write(name, seal(values))
        if METRICS in wrong:
            files.replace(METRICS, iter(KeptLines(files, METRICS_LIMIT, 1 << 62))).close()
        if checksums != about.files:
            About(about.stage, about.text_digest, checksums).write(files)
    return sorted(wrong)


def parse(name: str, content: bytes, path: Path) -> str:
    """What is in a file whose checksum run.json has; raises if it cannot be read."""
    if name == "config.toml":
        config = read_config(content, path)
        return f"{config.name}, corpus {config.data.corpus}"
    if name == SUBWORDS:
        return f"{len(Subwords.from_bytes(content, path).tokens):,} subwords"
    return f"{len(Vocabulary.from_bytes(content, path)):,} words"


def look_at_checked(files: Folder, about: About, name: str) -> str:
    """A file that never changes once a run has begun."""
    return parse(name, read_checked(files, name, about.files), files.path / name)


def look_at_json(files: Folder, name: str) -> str:
    """A JSON file."""
    unseal(files.read(name, TEXT_LIMIT), files.path / name)
    return "matches its checksum"


def look_at_metrics(files: Folder) -> str:
    """The log."""
    if not files.has(METRICS):
        raise MissingFileError(METRICS)
    state = newest_values(files.path / "checkpoints")  # before the log, to which training may add lines
    lines = epochs = 0
    last: dict[str, Any] = {}
    for last in read_metrics(files):
        lines += 1
        epochs += last.get("kind") == "epoch"
    if is_cut_short(last, state, log_steps(files)):
        raise LostLinesError(
            f"lines at its end: the last one is of step {last.get('step', 0):,}, and the newest checkpoint "
            f"of step {state['global_step']:,}"
        )
    reason = stop_reason([last])
    ended = f"{reason}: still running, or killed" if reason == UNFINISHED else f"ended: {reason}"
    return f"{count(lines, 'line')}, {count(epochs, 'epoch')}, {ended}"


def look_at_scores(files: Folder) -> str:
    """The scores."""
    scores = load_scores(files.path)
    if scores is None:
        raise MissingFileError(SCORES)
    return f"scored: {', '.join(scores.results) or 'nothing'}"


def log_steps(files: Folder) -> int:
    """Steps between lines of the log; many where the settings are damaged."""
    try:
        return RunFolder.open(files.path).config.training.log_steps
    except PRUError:
        return 1 << 62


def look_at_log_probabilities(files: Folder) -> Iterator[Finding]:
    """The log-probabilities that belong to scores; none where scores.json is damaged."""
    try:
        scores = load_scores(files.path)
    except PRUError:
        return
    for (split, method), score in scores.kept_scores().items() if scores else ():
        if "log_probabilities" not in score:
            continue
        name = log_probabilities_file(split, method)
        try:
            digest = sha256(files.read(name, LOG_PROBABILITIES_LIMIT))
            fine = digest == score["log_probabilities"].get("sha256")
            found = "matches its checksum" if fine else "does not match its checksum in scores.json"
            yield Finding(name, found if fine else f"{found}; score the text again", fine=fine)
        except MissingFileError:
            yield Finding(name, "the file does not exist", fine=False, missing=True)
        except PRUError as error:
            yield Finding(name, str(error).partition("; ")[0], fine=False)


def look_at_checkpoints(files: Folder) -> Finding:
    """All checkpoints."""
    folder = files.path / "checkpoints"
    try:
        numbers = saved_numbers(folder)
        limit = checkpoint_limit(files)
        whole = [number for number in numbers if is_whole(opened(folder) / name_of(number), limit)]
    except PRUError as error:
        return Finding("checkpoints", str(error), fine=False)
    if not numbers:
        return Finding(
            "checkpoints",
            "none: this is a copy without weights, or training has not started",
            fine=False,
            missing=True,
        )
    states = [f"{name_of(number)} {'ok' if number in whole else 'damaged'}" for number in numbers]
    found = Finding("checkpoints", ", ".join(states), fine=len(whole) == len(numbers))
    if found.fine and newest_values(folder).get("finished") is False and has_finished(files):
        text = f"{found.text}; the one with which the run finished does not exist"
        return dataclasses.replace(found, text=text, fine=False, missing=True)
    return found


def checkpoint_limit(files: Folder) -> int:
    """The most bytes that a file of a checkpoint can have."""
    try:
        run = RunFolder.open(files.path)
        return byte_limit(run.config, run.word_count())
    except PRUError:  # the settings or words are damaged
        return LIMIT


def odd_items(files: Folder) -> Iterator[Finding]:
    """Links, devices and FIFOs, which a run never has and no command opens."""
    for path in sorted(files.path.rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
            yield Finding(str(path.relative_to(files.path)), f"{kind}; it is never opened", fine=False)
