"""The run folder: everything there is to know about a run, in files that outlive it.

``run.json`` what the folder is; ``config.toml`` every setting; ``vocabulary.txt``, with subwords also
``tokenizer.json``; ``environment.json`` where it ran; ``metrics.jsonl`` and TensorBoard events;
``checkpoints/``; ``scores.json`` what `pru evaluate` found; ``lock`` held by the process at work.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_pru.errors import PRUError
from torch_pru.lm.checkpoint import Checkpoint, load_newest, newest_values, saved_numbers
from torch_pru.lm.config import Config, is_subwords
from torch_pru.lm.data.corpus import Corpus, load_corpus, tokenizer_of
from torch_pru.lm.data.subwords import FILE as SUBWORDS
from torch_pru.lm.data.subwords import LIMIT as SUBWORDS_LIMIT
from torch_pru.lm.data.subwords import Subwords
from torch_pru.lm.data.tokenizer import Tokenizer
from torch_pru.lm.data.vocabulary import Vocabulary
from torch_pru.lm.device import environment
from torch_pru.lm.files import TEXT_LIMIT, VOCABULARY_LIMIT, Folder, MissingFileError
from torch_pru.lm.metrics import METRICS, best_epoch, has_finished, is_cut_short, read_metrics, stop_reason
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.recipe import TOML_LIMIT, config_text, read_config
from torch_pru.lm.schema import STAGES, byte_limit, check_state, check_weights
from torch_pru.lm.seal import digest_of, seal, unseal

FORMAT = 1  # of the folder; raise it when a reader of the old one could not read the new one
CHECKED = {"config.toml": TOML_LIMIT, "vocabulary.txt": VOCABULARY_LIMIT, SUBWORDS: SUBWORDS_LIMIT}
"""Files whose checksums run.json has, and the bytes they may have; the last only if there are subwords."""


@dataclass(frozen=True)
class RunFolder:
    """A run on disk.

    Attributes:
        path: the folder.
        stage: ``"train"`` or ``"finetune"``.
        config: all settings.
        text_digest: `Corpus.digest` of the text; empty in folders of earlier versions.
        checksums: SHA-256 of config.toml and vocabulary.txt; empty in folders of earlier versions.
    """

    path: Path
    stage: str
    config: Config
    text_digest: str = ""
    checksums: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def create(cls, path: str | Path, config: Config, corpus: Corpus, stage: str = "train") -> RunFolder:
        """Make a new run folder; one that holds a run already is refused."""
        path = Path(path)
        refuse_existing_run(path)
        files = Folder(path)
        files.make()
        words = corpus.vocabulary.to_bytes()
        contents = {"config.toml": config_text(config).encode(), "vocabulary.txt": words}
        if corpus.subwords is not None:
            contents[SUBWORDS] = corpus.subwords.to_bytes()
        for name, content in contents.items():
            files.write(name, content)
        about = About(stage, corpus.digest(), {name: sha256(content) for name, content in contents.items()})
        about.write(files)  # last, so that a folder with a run.json is complete
        return cls(path, stage, config, about.text_digest, about.files)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open the run in a folder; one of another format is refused."""
        path = Path(path)
        # Copies and the second stage are named after the folder; and a user may name a run by a link to it.
        if path.name in ("", "..") or path.is_symlink():
            path = path.resolve()
        if not path.is_dir():
            raise PRUError(f"there is no run in {path}: {why_no_run(path)}")
        about = About.read(Folder(path))
        content = read_checked(Folder(path), "config.toml", about.files)
        config = read_config(content, path / "config.toml")
        return cls(path, about.stage, config, about.text_digest, about.files)

    @property
    def files(self) -> Folder:
        """What opens the files of the folder."""
        return Folder(self.path)

    @property
    def vocabulary(self) -> Vocabulary:
        """The words of the run, numbered as its weights are."""
        content = read_checked(self.files, "vocabulary.txt", self.checksums)
        return Vocabulary.from_bytes(content, self.path / "vocabulary.txt")

    def word_count(self) -> int:
        """How many words the vocabulary has; they are not read into memory one by one."""
        content = read_checked(self.files, "vocabulary.txt", self.checksums)
        return content.count(b"\n") + (not content.endswith(b"\n"))

    @property
    def tokenizer(self) -> Tokenizer:
        """What splits text into the tokens of the run."""
        found = self.corpus_tokenizer
        return found if isinstance(found, Subwords) else tokenizer_of(self.config.data)

    @property
    def corpus_tokenizer(self) -> str | Subwords:
        """What `load_corpus` needs beside the name of the corpus."""
        if not is_subwords(self.config.data.tokenizer):
            return self.config.data.tokenizer
        path = self.path / SUBWORDS
        content = read_checked(self.files, SUBWORDS, self.checksums)
        subwords = Subwords.from_bytes(content, path, self.config.data.tokenizer)
        if subwords.tokens != self.vocabulary.words:
            raise PRUError(f"{path} and vocabulary.txt beside it have different tokens")
        return subwords

    def inputs_digest(self) -> str:
        """SHA-256 of what scores depend on beside the weights: the model's settings, words and text."""
        model = dataclasses.asdict(self.config.model)
        words = sha256(read_checked(self.files, "vocabulary.txt", self.checksums))
        return digest_of({"model": model, "vocabulary": words, "text": self.text_digest})

    def corpus(self) -> Corpus:
        """The text that the run learns from."""
        self.refuse_moved_text()
        corpus = load_corpus(self.config.data.corpus, self.corpus_tokenizer)
        self.refuse_other_text(corpus)
        return corpus

    def refuse_moved_text(self) -> None:
        """A folder of text, of which a run knows the full path, must be where it was."""
        folder = Path(self.config.data.corpus)
        if folder.is_absolute() and not folder.is_dir():
            raise PRUError(
                f"the text of the run in {self.path} is no longer at {folder}; put it back, or change corpus "
                f"in {self.path / 'config.toml'} to where it is and accept the change: "
                f"{pru_command('verify', self.path)} --accept"
            )

    def refuse_other_text(self, corpus: Corpus) -> None:
        """The text must still be the one that the run began with."""
        other_words = corpus.vocabulary != self.vocabulary
        if other_words or self.text_digest not in ("", corpus.digest()):
            difference = (
                "its vocabulary is another" if other_words else "its words are in another order or number"
            )
            raise PRUError(
                f"the text of corpus={self.config.data.corpus!r} has changed since the run in {self.path} "
                f"began: {difference}"
            )

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None before the first; raises if they were deleted."""
        newest = self._newest()
        if newest is not None:
            check_state(newest, self.config)
        return newest

    def _newest(self) -> Checkpoint | None:
        """The newest checkpoint, of which the weights are checked."""
        if not saved_numbers(self.checkpoints):
            if self.files.size(METRICS):  # a run saves before its first line
                raise PRUError(
                    f"the run in {self.path} has a log but no checkpoints; use the folder that it was copied "
                    f"from, or put its checkpoints back"
                )
            return None
        words = self.word_count()
        newest = load_newest(self.checkpoints, byte_limit(self.config, words))
        if newest is not None:
            check_weights(newest, self.config, words)
        return newest

    def model(self, which: str = "best", device: torch.device | str = "cpu") -> LanguageModel:
        """The model with the weights of the lowest validation loss, in ``eval()``, ready for use.

        Args:
            which: ``"best"``, or ``"last"`` for the raw weights that training would go on from.
        """
        if which not in ("best", "last"):
            raise PRUError(f"which={which!r} is not known; use 'best' or 'last'")
        checkpoint = self._newest()
        weights = {} if checkpoint is None else checkpoint.best if which == "best" else checkpoint.weights
        if not weights:
            raise PRUError(
                f"the run in {self.path} has no {which} weights yet: no checkpoint with them was saved; "
                f"if it was interrupted, continue it: {pru_command('resume', self.path)}"
            )
        if checkpoint is not None and checkpoint.state.get("finished") is False and has_finished(self.files):
            warnings.warn(
                f"the newest checkpoint of the run in {self.path} is missing: its log says that it finished, "
                f"and {checkpoint.path} is older; pru resume trains the rest again",
                stacklevel=2,
            )
        embedding = weights["embedding.weight"]
        model = LanguageModel(self.config.model, self.config.regularization, len(embedding))
        model.to(embedding.dtype).load_state_dict(weights)
        return model.to(device).eval()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``; a last one that a crash cut short is left out."""
        return list(read_metrics(self.files))

    def epochs(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl`` that end an epoch; warns if lines at its end are missing."""
        return self.read_log()[0]

    def stop_reason(self) -> str:
        """Why training stopped, or "not finished"; see `torch_pru.lm.metrics.stop_reason`."""
        return stop_reason(read_metrics(self.files))

    def read_log(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What `epochs` returns, and the last line of ``metrics.jsonl``."""
        state = newest_values(self.checkpoints)  # before the log, to which training may add lines
        epochs, last = [], {}
        for last in read_metrics(self.files):
            if last.get("kind") == "epoch":
                epochs.append(last)
        if is_cut_short(last, state, self.config.training.log_steps):
            warnings.warn(
                f"{self.path / METRICS} has lost lines at its end: the newest checkpoint is of a later step",
                stacklevel=2,
            )
        return epochs, last

    def best_epoch(self) -> int:
        """The epoch of the lowest validation loss; 0 where none has bettered what the run began with."""
        return best_epoch(self.epochs())

    def forget_scores(self) -> None:
        """Remove the scores of weights that training is about to change. Their history stays."""
        try:
            content = unseal(self.files.read("scores.json", TEXT_LIMIT), self.path / "scores.json")
            history = content.get("history")
        except PRUError:  # missing or damaged
            history = None
        if history:
            empty = {"weights": "", "parameters": {}, "results": {}, "tuning": {}, "history": history}
            self.files.write("scores.json", seal(empty))
        else:
            self.files.remove("scores.json")

    def write_environment(self, device: torch.device, processes: int) -> None:
        """Note where the run works: versions, commit, device, seed."""
        content = environment(device, processes) | {"seed": self.config.training.seed}
        self.files.write("environment.json", seal(content))


@dataclass(frozen=True)
class About:
    """The content of run.json.

    Attributes:
        stage: ``"train"`` or ``"finetune"``.
        text_digest: see `RunFolder`.
        files: SHA-256 of the files in ``CHECKED``.
    """

    stage: str
    text_digest: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, files: Folder) -> None:
        """Write run.json."""
        content = {"format": FORMAT, "stage": self.stage, "text_digest": self.text_digest}
        files.write("run.json", seal({**content, "files": dict(self.files)}))

    @classmethod
    def read(cls, files: Folder) -> About:
        """Read run.json; one of another format is refused."""
        path = files.path / "run.json"
        try:
            content = unseal(files.read("run.json", TEXT_LIMIT), path)
        except MissingFileError:
            raise PRUError(f"there is no run in {files.path}: {why_no_run(files.path)}") from None
        if (found := content.get("format")) != FORMAT:
            raise PRUError(
                f"the run in {files.path} has format {found!r:.20}, made by another version of torch-pru; "
                f"this version reads format {FORMAT}: use the version named in its environment.json"
            )
        about = cls(content.get("stage", ""), content.get("text_digest", ""), content.get("files", {}))
        if about.stage not in STAGES:
            raise PRUError(f"{path} has stage={about.stage!r:.100}; a run has one of {', '.join(STAGES)}")
        if not isinstance(about.text_digest, str):
            raise PRUError(f"{path} has text_digest={about.text_digest!r:.100}; it must be a string")
        required = set(CHECKED) - {SUBWORDS}
        if not isinstance(about.files, dict) or (about.files and set(about.files) - {SUBWORDS} != required):
            raise PRUError(f"{path} must have the checksums of {', '.join(sorted(required))} under 'files'")
        return about


def read_checked(files: Folder, name: str, checksums: Mapping[str, str]) -> bytes:
    """A file that never changes once a run has begun; one that has changed is refused."""
    content = files.read(name, CHECKED[name])
    if checksums and sha256(content) != checksums.get(name):
        raise PRUError(
            f"{files.path / name} has changed since the run began: it is damaged, or it was edited; put the "
            f"original back, or accept the change: {pru_command('verify', files.path)} --accept"
        )
    return content


def sha256(content: bytes) -> str:
    """The digest in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def refuse_existing_run(path: Path) -> None:
    """A run is never written over."""
    if path.is_dir() and Folder(path).has("run.json"):
        raise PRUError(
            f"there is already a run in {path}; continue it ({pru_command('resume', path)}) or move it away"
        )


def why_no_run(path: Path) -> str:
    """What is in the place of a run: often the folder that runs are in."""
    if path.is_file():
        return "it is a file, and a run is a folder"
    if not path.exists():
        return "the folder does not exist"
    inside = sorted(found.parent for found in path.glob("*/run.json"))
    names = ", ".join(map(str, inside[:3])) + (", ..." if len(inside) > 3 else "")
    return f"run.json is missing; name a run inside it: {names}" if inside else "run.json is missing"


def pru_command(*words: str | Path) -> str:
    """What to type to do something with a run, as a shell takes it.

    Example:
        >>> pru_command("resume", "my runs/quickstart-1")
        "pru resume 'my runs/quickstart-1'"
    """
    return shlex.join(["pru", *map(str, words)])
