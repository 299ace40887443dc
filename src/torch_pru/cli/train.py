"""``pru train``: recipes, and the user's own text."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torch_pru.cli.checks import check_recipes, check_same, named
from torch_pru.cli.console import messages, processes, rank, say
from torch_pru.cli.data import TOKENS_HELP, VOCABULARY, VOCABULARY_HELP, prepared, split_line, unknown_line
from torch_pru.cli.running import Task, carry_out, ends_with_scores, new_folders
from torch_pru.cli.settings import SET_HELP, parse_settings
from torch_pru.errors import PRUError
from torch_pru.startup import STARTED

if TYPE_CHECKING:
    from torch_pru.lm.config import Config
    from torch_pru.lm.run import RunFolder

MINUTES = 10.0  # the default for the user's own text
RESERVE = 5.0  # seconds at the end, for writing, scores and a sample

Text = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="Your own text: files, a folder, or - for standard input."),
]
Name = Annotated[str | None, typer.Option(help="Name of the run folder.")]
Minutes = Annotated[
    float | None,
    typer.Option(min=0.1, help="Stop after this many minutes.", show_default="10 for own text"),
]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the training text.")]
Unit = Annotated[
    str | None,
    typer.Option(help="Recurrent unit: pru, lstm (nn.LSTM), or fused-lstm (an LSTM on the PRU's kernels)."),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Parent of the run folders.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP)]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...", show_default="auto")]


def train(
    recipes: Annotated[
        list[str] | None, typer.Argument(metavar="RECIPE", help="Names (see pru recipes) or TOML files.")
    ] = None,
    text: Text = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A corpus from pru data, or a folder with train.txt, valid.txt and test.txt."
        ),
    ] = None,
    tokenizer: Annotated[str, typer.Option("--tokens", metavar="KIND", help=TOKENS_HELP)] = "auto",
    vocabulary: Annotated[
        int | None,
        typer.Option(min=3, metavar="N", help=VOCABULARY_HELP, show_default=str(VOCABULARY)),
    ] = None,
    minutes: Minutes = None,
    name: Name = None,
    unit: Unit = None,
    levels: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Levels of the PRU's pyramid.")
    ] = None,
    groups: Annotated[
        int | None, typer.Option(min=1, metavar="G", help="Groups of the PRU's context.")
    ] = None,
    epochs: Epochs = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Batch size: columns of the text that are read in parallel."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random number generators.")] = None,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Train N times: with seed, seed + 1, ...")
    ] = 1,
    device: Device = None,
    out: Out = Path("runs"),
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Train in exactly this folder, or resume its run, if that has the same RECIPE and settings. "
            "Only for a single run, and not with --name, --seeds or --text.",
        ),
    ] = None,
    settings: Set = None,
) -> None:
    """Train a model on a text.

    Without any option, a small PRU learns the King James Bible in a few minutes, without a download.

    With --text FILE, the text is split into a training, a validation and a test part, and the size of the
    model and the number of epochs are chosen to suit the text, the machine and --minutes. The same holds for
    a --corpus that pru data has made from your text.

    With a RECIPE, the model that it describes is trained; most built-in recipes are models of the paper
    (Mehta et al., 2018). On a GPU, up to 16 recipes are trained at the same time; on a CPU, one after the
    other.

    Ctrl-C saves the run and stops; pru resume continues it. If a run was started with --into RUN, repeating
    the command continues it, too.

    Several processes train one run together, for example on two GPUs, under torchrun: torchrun
    --nproc-per-node 2 -m torch_pru train RECIPE --into RUN. With --max-restarts 3, torchrun starts the
    processes again after a failure, up to three times, and the run continues.
    """
    given = {"unit": unit, "levels": levels, "groups": groups, "epochs": epochs, "batch": batch}
    given |= {"seed": seed, "device": device, "corpus": corpus}
    changes = parse_settings(settings)
    changes |= {key: str(value) for key, value in given.items() if value is not None}
    names, files = recipes_and_files(recipes or [], text or [])
    with nothing_saved():
        if files:
            if tokenizer == "auto":
                tokenizer = changes.pop("tokenizer", tokenizer)
            if corpus is not None:
                raise PRUError("--text and --corpus cannot be used together; give one of them")
            changes["corpus"] = read_text_files(files, tokenizer, vocabulary or VOCABULARY)
        elif tokenizer != "auto":
            raise PRUError(
                f"--tokens {tokenizer} is for --text; for a corpus, use --set tokenizer={tokenizer}"
            )
        elif vocabulary is not None:
            raise PRUError(f"--vocabulary {vocabulary} is for --text; a corpus has its own vocabulary")
        loaded = [named_config(config, name) for config in chosen_configs(names, changes, minutes)]
    if into is not None:
        typed = {"--name": name is not None, "--seeds": seeds > 1, "--text": bool(text)}
        refuse_with_into([option for option, given in typed.items() if given], len(loaded))
        train_into(into, loaded[0])
        return
    check_recipes(loaded, texts=True)
    configs = [with_seed(config, number) for config in loaded for number in range(seeds)]
    exact = name is not None and len(configs) == 1
    with new_folders(out, [config.name for config in configs], exact=exact) as folders:
        start_training(configs, folders)


def refuse_with_into(options: Sequence[str], recipes: int) -> None:
    """Refuse what does not go together with --into.

    Args:
        options: those of --name, --seeds and --text that were typed.
        recipes: how many were.
    """
    others = [*options, *([f"{recipes} recipes"] if recipes > 1 else [])]
    if others:
        raise PRUError(f"--into trains one run of one recipe; it cannot be used with {' and '.join(others)}")


def train_into(folder: Path, config: Config) -> None:
    """Train one configuration into a given folder, or resume the run that it has."""
    from torch_pru.cli.resume import resume
    from torch_pru.lm.run import RunFolder, pru_command

    check_recipes([config], texts=True)
    if (folder / "run.json").exists():
        advice = f"to resume it, use {pru_command('resume', folder)}; for a new run, choose another folder"
        check_same(RunFolder.open(folder), config, advice)
        resume([folder])
    else:
        start_training([config], [folder])


def recipes_and_files(arguments: Sequence[str], text: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell recipes from text files: ``--text *.txt`` passes all files but the first as arguments."""
    from torch_pru.lm.recipe import list_recipes

    if not text:
        return list(arguments), []
    known = list_recipes()
    files = [one for one in arguments if one not in known and not one.endswith(".toml")]
    return [one for one in arguments if one not in files], [*text, *files]


def read_text_files(files: Sequence[str], tokenizer: str, vocabulary: int) -> str:
    """Prepare a user's text and say what was made of it; the name of the corpus."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(file) for file in files]
        if "-" in files:
            if len(files) > 1:
                raise PRUError("--text -: standard input cannot be combined with files")
            paths = [Path(folder) / "stdin.txt"]
            with open(paths[0], "wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        try:
            text = prepared(paths, None, tokenizer, vocabulary)
        except PRUError as error:
            if "-" in files:  # the user has not seen the copy
                message = str(error).replace(f" {paths[0]} > NEW_FILE", "")  # iconv reads a pipe, too
                raise PRUError(message.replace(str(paths[0]), "standard input")) from error
            raise
    for line in (split_line(text), unknown_line(text)):  # the header of the run has the numbers
        if line:
            say(messages(), line)
    return text.name


def chosen_configs(names: list[str], changes: Mapping[str, str], minutes: float | None) -> list[Config]:
    """The settings of the recipes named; without one, those that suit the text, or the quickstart's."""
    from torch_pru.lm.recipe import load_recipe

    if not names and changes.get("corpus", "king-james") != "king-james":
        if processes() > 1:
            raise PRUError(
                "torchrun needs a RECIPE: settings can be chosen automatically in one process only"
            )
        return [config_for_text(changes, minutes)]
    configs = []
    for recipe in names or ["quickstart"]:
        with named(recipe) if len(names) > 1 else nullcontext():
            configs.append(load_recipe(recipe, changes))
    if "unit" in changes:
        say_what_is_dropped(names or ["quickstart"], changes)
    return configs if minutes is None else [with_limit(config, minutes) for config in configs]


def with_limit(config: Config, minutes: float) -> Config:
    """The configuration with a limit of time: from the start of the command to its end."""
    from torch_pru.lm.data import load_corpus
    from torch_pru.lm.device import choose_device
    from torch_pru.lm.plan import time_for_training, training_speed

    check_recipes([config], texts=True)
    corpus = load_corpus(config.data.corpus, config.data.tokenizer)
    if choose_device(config.training.device).type == "cpu" and processes() == 1:
        speed = training_speed(config, len(corpus.vocabulary))
        seconds = time_for_training(
            seconds_to_train(minutes), len(corpus.valid), speed, scored=ends_with_scores(config)
        )
    else:
        seconds = seconds_to_train(minutes)
    training = dataclasses.replace(config.training, minutes=round(seconds / 60, 2))
    return dataclasses.replace(config, training=training)


def config_for_text(changes: Mapping[str, str], minutes: float | None) -> Config:
    """Settings that suit a text, the machine and the time given, with what the user asked for on top."""
    from torch_pru.lm.plan import plan_config
    from torch_pru.lm.recipe import parse_overrides

    wanted = parse_overrides(changes)
    corpus = wanted.pop("corpus")
    if "epochs" in wanted and minutes is None:
        wanted["minutes"] = 0.0  # all epochs, however long they take
    seconds = seconds_to_train(MINUTES if minutes is None else minutes)
    return plan_config(corpus, minutes=seconds / 60, changes=wanted)


def seconds_to_train(minutes: float) -> float:
    """How much of the time given, which counts from the start of the command, is left for training."""
    return max(1.0, 60 * minutes - (time.monotonic() - STARTED) - RESERVE)


def say_what_is_dropped(names: Sequence[str], changes: Mapping[str, str]) -> None:
    """Say which settings of a PRU recipe an LSTM leaves out."""
    from torch_pru.lm.config import pru_settings
    from torch_pru.lm.recipe import load_recipe

    if changes["unit"] == "pru":
        return
    for name in names:
        model = load_recipe(name).model
        if model.unit == "pru":
            dropped = {"levels": model.levels, "groups": model.groups} | pru_settings(model)
            *first, last = [f"{key}={value}" for key, value in dropped.items()]
            text = f"{', '.join(first)} and {last}"
            say(messages(), f"note: {text} are settings of a PRU and are ignored")


def named_config(config: Config, name: str | None) -> Config:
    """The configuration under another name."""
    return config if name is None else dataclasses.replace(config, name=name)


def start_training(configs: list[Config], folders: list[Path]) -> list[RunFolder]:
    """Train each configuration into its folder; the runs that finished."""
    from torch_pru.lm import training

    with nothing_saved(folders):
        tasks = [
            Task(folder, config, partial(training.train, config, folder), header)
            for config, folder, header in zip(configs, folders, headers_of(configs, folders), strict=True)
        ]
        return carry_out(tasks, train_together, "training")


@contextmanager
def nothing_saved(folders: Sequence[Path] = ()) -> Iterator[None]:
    """After Ctrl-C before the first of these folders has a run, say that nothing was saved."""
    try:
        yield
    except KeyboardInterrupt:
        if any((folder / "run.json").exists() for folder in folders):
            raise
        say(messages(), "stopped by Ctrl-C before training started; nothing was saved")
        raise typer.Exit(130) from None


def train_together(tasks: list[Task], **options: Any) -> list[RunFolder]:
    """Train several new runs at the same time."""
    from torch_pru.lm import training

    return training.train([task.config for task in tasks], [task.folder for task in tasks], **options)


def headers_of(configs: Sequence[Config], folders: Sequence[Path], *, sweep: bool = False) -> list[list[str]]:
    """The header of each run, with the expected time where it can be measured, and a warning where needed.

    Args:
        configs: of the runs.
        folders: where they go.
        sweep: whether they belong to a sweep, which is continued as a whole.
    """
    if rank() != 0:
        return [[] for _ in configs]
    from torch_pru.cli.header import expected_seconds, header, long_run_warning
    from torch_pru.lm.data import load_corpus
    from torch_pru.lm.device import choose_device
    from torch_pru.lm.plan import training_speed

    read = cache(load_corpus)
    speeds: dict[object, float | None] = {}
    headers = []
    for config, folder in zip(configs, folders, strict=True):
        corpus = read(config.data.corpus, config.data.tokenizer)
        key = (config.model, config.training.batch, config.training.window, config.data)
        if key not in speeds:
            on_cpu = choose_device(config.training.device).type == "cpu"
            speeds[key] = training_speed(config, len(corpus.vocabulary)) if on_cpu else None
        lines = header(config, corpus, folder, speeds[key], sweep=sweep)
        warning = long_run_warning(config, expected_seconds(config, corpus, speeds[key]))
        headers.append(lines if warning is None else [*lines, f"warning: {warning}"])
    return headers


def with_seed(config: Config, number: int) -> Config:
    """The configuration of a recipe's run with this number, from 0."""
    training = dataclasses.replace(config.training, seed=config.training.seed + number)
    return dataclasses.replace(config, training=training)
