"""``pru sweep``: train every combination of some settings, and compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torch_pru.cli.checks import RUNTIME, check_recipes, check_same, check_writable, is_finished
from torch_pru.cli.command import split_values
from torch_pru.cli.console import messages, output, processes, say
from torch_pru.cli.data import TOKENS_HELP
from torch_pru.cli.ending import own_scores
from torch_pru.cli.progress import bar
from torch_pru.cli.resume import resume_together
from torch_pru.cli.running import Task, carry_out
from torch_pru.cli.settings import parse_settings
from torch_pru.cli.tables import print_table
from torch_pru.cli.train import (
    Device,
    Out,
    config_for_text,
    headers_of,
    read_text_files,
    train_together,
    with_limit,
)
from torch_pru.errors import PRUError

if TYPE_CHECKING:
    from torch_pru.lm.config import Config
    from torch_pru.lm.grid import Grid
    from torch_pru.lm.run import RunFolder
    from torch_pru.lm.sweep import SweepRow

GRID = "grid.toml"
"""The file in the folder of a sweep that has its grid."""

SPARE = ("tokens/s", "minutes", "parameters")
"""Columns that a narrow terminal does not show; the first one is left out first."""

VALUES = "; several with commas, such as 1,2,4"


def sweep(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe, or a TOML file with a [grid].")
    ] = "quickstart",
    unit: Annotated[
        str | None, typer.Option(help="Recurrent units: pru, lstm, fused-lstm; several with commas.")
    ] = None,
    levels: Annotated[str | None, typer.Option(help=f"K, levels of the PRU{VALUES}.")] = None,
    groups: Annotated[str | None, typer.Option(help=f"g, groups of the PRU{VALUES}.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUES", help=f"Values of any setting{VALUES}; may be repeated."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Runs of each combination.", show_default="1")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training text.")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Stop each run after this many minutes.")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Your own text: a file or a folder; may be repeated."),
    ] = None,
    corpus: Annotated[str | None, typer.Option(metavar="NAME", help="A corpus from pru data.")] = None,
    tokenizer: Annotated[str, typer.Option("--tokens", metavar="KIND", help=TOKENS_HELP)] = "auto",
    name: Annotated[
        str | None, typer.Option(help="Folder of the runs.", show_default="RECIPE-sweep, or TEXT-sweep")
    ] = None,
    device: Device = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Train on a Ray cluster: HOST:PORT, auto, or local."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Continue the sweep in this folder.")
    ] = None,
    out: Out = Path("runs"),
) -> None:
    """Train a grid of settings.

    Each combination is trained once per seed. At the end, one table and one figure show all combinations:
    parameters, perplexities (mean and standard deviation over seeds), speed and time.

    The same command again continues where the sweep stopped, and does not train finished runs again; so does
    pru sweep --resume DIR. To add runs, repeat the command with more --seeds; for another grid, choose
    another --name.

    With --ray, the runs are trained in parallel on a Ray cluster. All its machines must share the folder of
    the sweep.

    Example: pru sweep quickstart --unit pru,lstm --groups 1,4 --seeds 3
    """
    from torch_pru.lm.data.prepare import title_of
    from torch_pru.lm.grid import read_grid

    if processes() > 1:
        raise PRUError("pru sweep does not run under torchrun; use pru train for runs over several GPUs")
    if resume is not None:
        if not (resume / GRID).is_file():
            raise PRUError(f"there is no sweep in {resume}: {GRID} is missing")
        axes = {"--unit": unit, "--levels": levels, "--groups": groups, "--seeds": seeds, "--set": settings}
        others = {"--epochs": epochs, "--text": text, "--corpus": corpus, "--name": name, "--device": device}
        if given := [option for option, value in (axes | others).items() if value]:
            raise PRUError(f"--resume continues the sweep as it was started; leave out {', '.join(given)}")
        train_grid(read_grid(str(resume / GRID)), resume, minutes, ray)
        return
    lists = parse_settings(settings)
    typed = {"unit": unit, "levels": levels, "groups": groups}
    lists |= {key: value for key, value in typed.items() if value}
    fixed = {} if epochs is None else {"epochs": str(epochs)}
    fixed |= {} if device is None else {"device": device}
    if text:
        corpus = read_text_files(text, tokenizer, 10_000)
    subject = title_of(corpus) if corpus is not None and recipe == "quickstart" else Path(recipe).stem
    folder = out / (name or f"{subject}-sweep")
    if corpus is not None:
        fixed = (
            settings_for_text(corpus, fixed, minutes, folder)
            if recipe == "quickstart"
            else fixed | {"corpus": corpus}
        )
    grid = grid_of(recipe, lists, fixed, seeds)
    check_same_grid(grid, folder)
    check_writable(folder)
    train_grid(grid, folder, minutes, ray)


def settings_for_text(
    corpus: str, fixed: Mapping[str, str], minutes: float | None, folder: Path
) -> dict[str, str]:
    """Settings that suit a text, as typed after ``--set``; those of a sweep that is continued are kept."""
    from torch_pru.lm.config import flat_settings
    from torch_pru.lm.grid import as_typed, read_grid

    if (kept := folder / GRID).is_file():
        settings = read_grid(str(kept)).fixed
        if settings.get("corpus") == corpus:
            return {**settings, **fixed}
    config = config_for_text({**fixed, "corpus": corpus}, minutes)
    return {key: as_typed(value) for key, value in flat_settings(config).items()}


def grid_of(recipe: str, lists: Mapping[str, str], fixed: Mapping[str, str], seeds: int | None) -> Grid:
    """The grid of a file or a recipe, with what was typed on top."""
    from torch_pru.lm.grid import check_setting, read_grid

    grid = read_grid(recipe)
    for key in lists:
        check_setting(key, "--set")
    typed = {key: split_values(value) for key, value in lists.items()}
    if empty := [key for key, values in typed.items() if not values]:
        raise PRUError(f"{empty[0]}={lists[empty[0]]!r} has no values; give at least one")
    single = {key: values[0] for key, values in typed.items() if len(values) == 1}
    several = {key: values for key, values in typed.items() if len(values) > 1}
    values = {key: value for key, value in grid.values.items() if key not in single} | several
    settings = {**grid.fixed, **fixed, **single}
    return dataclasses.replace(grid, values=values, seeds=seeds or grid.seeds, fixed=settings)


def check_same_grid(grid: Grid, folder: Path) -> None:
    """Refuse another grid in the folder of a sweep, whose runs would vanish from its table.

    More seeds and samples are allowed, and changes that are not about the results, such as the device.
    """
    from torch_pru.lm.grid import read_grid
    from torch_pru.lm.run import pru_command

    if not (folder / GRID).is_file():
        return
    kept, new = (
        dataclasses.replace(one, fixed={key: one.fixed[key] for key in one.fixed if key not in RUNTIME})
        for one in (read_grid(str(folder / GRID)), grid)
    )
    extended = dataclasses.replace(
        kept,
        seeds=max(new.seeds, kept.seeds),
        samples=max(new.samples, kept.samples),
        early_stopping=new.early_stopping,
        resources=new.resources,
    )
    if new != extended:
        raise PRUError(
            f"{folder} has a sweep of another grid or text; choose another --name, or continue that sweep "
            f"with: {pru_command('sweep', '--resume', folder)}"
        )


def train_grid(grid: Grid, folder: Path, minutes: float | None, ray: str | None = None) -> None:
    """Train what is not trained yet, score it, and show the table."""
    from torch_pru.lm.data.storage import write_aside
    from torch_pru.lm.files import locked
    from torch_pru.lm.grid import grid_text

    runs = {
        folder / f"{cell.label}-seed{config.training.seed}": config
        for cell in grid.cells()
        for number in range(grid.seeds)
        for config in [cell.with_seed(number)]
    }
    if minutes is not None:
        runs = {path: with_limit(config, minutes) for path, config in runs.items()}
    labeled = [
        dataclasses.replace(config, name=path.name.rpartition("-seed")[0]) for path, config in runs.items()
    ]
    check_recipes(labeled, texts=True)
    if ray is None:
        refuse_without_ray(grid)
    check_there(runs)
    with locked(folder):
        if (folder / GRID).is_file():
            messages().print(f"continuing with the settings in {folder / GRID}", soft_wrap=True)
        with write_aside(folder / GRID) as file:
            file.write(grid_text(grid).encode())
        if ray is not None:
            from torch_pru.cli.sweep_ray import train_on_ray

            runs = train_on_ray(ray, grid, folder, runs)
        else:
            train_in_this_process(runs, folder)
        rows = rows_of(runs)
        show_table(rows)
        write_results(rows, folder)


def refuse_without_ray(grid: Grid) -> None:
    """Refuse or mention what only Ray does."""
    if grid.sampler == "optuna":
        raise PRUError("sampler='optuna' needs Ray: add --ray local, or the address of a cluster")
    if grid.early_stopping:
        say(messages(), "note: [early_stopping] needs --ray; all runs are trained to their end")


def rows_of(runs: Mapping[Path, Config]) -> list[SweepRow]:
    """A row for each combination, from the scores of its runs."""
    from torch_pru.lm.sweep import row_of

    labels: dict[str, list[Path]] = {}
    for path in runs:
        labels.setdefault(path.name.rpartition("-seed")[0], []).append(path)
    return [row_of(label, [scored(path) for path in paths]) for label, paths in labels.items()]


def check_there(runs: Mapping[Path, Config]) -> None:
    """Refuse runs that have other settings, or that another process is training; say what there is to do."""
    from torch_pru.lm.files import locked
    from torch_pru.lm.run import RunFolder
    from torch_pru.lm.visible import count

    for path, config in runs.items():
        refuse_link(path)
        if (path / "run.json").exists():
            check_same(RunFolder.open(path), config, "choose another --name")
            with locked(path):
                pass
    if runs:
        labels = list(dict.fromkeys(path.name.rpartition("-seed")[0] for path in runs))
        text = f"{count(len(runs), 'run')} in {next(iter(runs)).parent}"
        if len(labels) > 1:
            text = f"{count(len(labels), 'combination')}, {text}: {', '.join(labels)}"
        messages().print(text, soft_wrap=True)


def refuse_link(path: Path) -> None:
    """Refuse a run of a sweep that is a link: it may lead to a run outside of the folder."""
    if path.is_symlink():
        raise PRUError(f"{path} is a symbolic link; links in the folder of a sweep are not followed")


def unfinished_runs(runs: Mapping[Path, Config]) -> list[Path]:
    """The runs that have started and not ended."""
    from torch_pru.lm.run import RunFolder
    from torch_pru.lm.visible import count

    there = [path for path in runs if (path / "run.json").exists()]
    unfinished = [path for path in there if not is_finished(RunFolder.open(path))]
    if done := len(there) - len(unfinished):
        verb = "is" if done == 1 else "are"
        messages().print(f"{done} of {count(len(runs), 'run')} {verb} finished already", soft_wrap=True)
    return unfinished


def train_in_this_process(runs: Mapping[Path, Config], folder: Path) -> None:
    """Train what is not trained yet; after Ctrl-C, say how to continue."""
    from torch_pru.lm.run import pru_command
    from torch_pru.lm.training import Interrupted

    try:
        train_all(runs)
    except Interrupted as stop:
        command = pru_command("sweep", "--resume", folder)
        messages().print(f"stopped by {stop.signal_name} and saved; continue with: {command}", soft_wrap=True)
        raise


def train_all(runs: Mapping[Path, Config]) -> None:
    """Train new runs, and resume those that were interrupted."""
    from torch_pru.lm import training

    there = [path for path in runs if (path / "run.json").exists()]
    unfinished = unfinished_runs(runs)
    if unfinished:
        tasks = [
            Task(path, runs[path], partial(training.resume, path), [f"resuming {path}"])
            for path in unfinished
        ]
        carry_out(tasks, resume_together, "resuming", sweep=True)
    if new := {path: config for path, config in runs.items() if path not in there}:
        headers = headers_of(list(new.values()), list(new), sweep=True)
        tasks = [
            Task(path, config, partial(training.train, config, path), header)
            for (path, config), header in zip(new.items(), headers, strict=True)
        ]
        carry_out(tasks, train_together, "training", sweep=True)


def scored(path: Path) -> RunFolder:
    """A run whose validation and test text are scored."""
    from torch_pru.lm.evaluation import Evaluation
    from torch_pru.lm.run import RunFolder

    run = RunFolder.open(path)
    own_scores(Evaluation(run, run.config.training.device, progress_bar=bar))
    return run


def show_table(rows: Sequence[SweepRow]) -> None:
    """Print the table, best validation first."""
    from torch_pru.lm.sweep import HEADINGS, cells_of

    console = output()
    best_first = sorted(rows, key=lambda row: sum(row.valid) / max(1, len(row.valid)))
    print_table(
        console, HEADINGS, list(map(cells_of, best_first)), left=("run",), wrapped=("run",), spare=SPARE
    )
    console.print("validation and test: perplexity, lower is better", soft_wrap=True)


def write_results(rows: Sequence[SweepRow], folder: Path) -> None:
    """Write the table as Markdown, and the figure where Matplotlib is installed."""
    from torch_pru.lm.data.storage import write_aside
    from torch_pru.lm.sweep import markdown

    with write_aside(folder / "sweep.md") as file:
        file.write(markdown(rows).encode())
    names = ["sweep.md"]
    try:
        from torch_pru.analysis.figures.grid import draw
        from torch_pru.analysis.figures.style import render
    except PRUError as error:
        messages().print(f"no figure: {error}", soft_wrap=True)
    else:
        figure = draw(rows)
        for kind in ("svg", "png"):
            with write_aside(folder / f"sweep.{kind}") as file:
                file.write(render(figure, kind))
            names.append(f"sweep.{kind}")
    output().print(f"written to {folder}: {', '.join(names)}", soft_wrap=True)
