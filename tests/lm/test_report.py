"""Reports are made from run folders alone, with or without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torch_pru import PRUError
from torch_pru.lm import recipe
from torch_pru.lm.config import Config, second_stage
from torch_pru.lm.evaluation.scores import Scores, load_scores, save_scores
from torch_pru.lm.paper import ADAPTED, Setup
from torch_pru.lm.recipe import config_text, load_recipe
from torch_pru.lm.records import keep, read_folder
from torch_pru.lm.report import report, table_setups
from torch_pru.lm.report_cells import is_run_of, nearest_recipe, setup_settings


def write_run(
    folder: Path,
    config: Config,
    *,
    stage: str = "train",
    results: dict[str, dict[str, float]] | None = None,
    losses: tuple[float, ...] = (4.3, 4.1, 4.2),
    finished: bool = True,
) -> Path:
    """A run folder as it is kept: no weights, no vocabulary."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"format": 1, "stage": stage}))
    (folder / "config.toml").write_text(config_text(config))
    environment = {"device_name": "NVIDIA H200", "commit": "0123456789abcdef"}
    (folder / "environment.json").write_text(json.dumps(environment))
    with (folder / "metrics.jsonl").open("w") as file:
        file.write(json.dumps({"kind": "steps", "step": 50, "loss": 6.0, "clock": {"seconds": 1.0}}) + "\n")
        for epoch, loss in enumerate(losses, start=1):
            line: dict[str, Any] = {"kind": "epoch", "epoch": epoch, "train_loss": loss, "valid_loss": loss}
            line["best_valid_loss"] = min(losses[:epoch])
            line["decision"] = "stop" if finished and epoch == len(losses) else "continue"
            file.write(json.dumps(line | {"clock": {"seconds": 600.0 * epoch}}) + "\n")
    if results is not None:
        entries = {
            method: {
                split: {"perplexity": value} | ({} if method == "static" else {"settings": {"decay": 0.002}})
                for split, value in splits.items()
            }
            for method, splits in results.items()
        }
        weights = str(folder)  # every run has others
        save_scores(Scores(weights, {"total": 18_895_600, "recurrent": 14_885_600}, entries), folder)
    return folder


def cells(document: str, *words: str) -> list[str]:
    """The cells of the one table row that begins with the first word and has the others in it."""
    rows = [line for line in document.splitlines() if line.startswith(f"| {words[0]} |")]
    rows = [line for line in rows if all(word in line for word in words)]
    assert len(rows) == 1, rows
    return [cell.strip() for cell in rows[0].strip("|").split(" | ")]


def main_row(document: str, model: str, data_set: str = "Penn Treebank") -> dict[str, str]:
    """The row of a model in the main table of a data set, by column."""
    part = document.split(f"## {data_set}\n")[1].split("\n#")[0]
    heading = [cell.strip() for cell in part.strip().splitlines()[0].strip("|").split(" | ")]
    names = [*heading[:6], "gap", "seeds", "our settings", "our gap", "our seeds"]
    assert len(names) == len(heading)
    return dict(zip(names, cells(part, model), strict=True))


def cost_row(document: str, model: str, settings: str, data_set: str = "Penn Treebank") -> list[str]:
    """The row of a model in the table that says how the rows are made, from its command on."""
    part = document.split(f"### How these rows are made: {data_set}\n")[1].split("\n## ")[0]
    return cells(part, model, f"| {settings} |")[2:]


def test_rows_without_a_run_say_so() -> None:
    document = report([])
    row = main_row(document, "PRU g=4 M=1400")
    assert row["paper"] == "64.76 / 62.42"
    assert row["code"] == "64.40 / 62.62"
    assert row["as published"] == "not run"
    assert row["our settings"] == ""  # the published ones are all there are
    assert main_row(document, "AWD-PRU g=4 M=1400, finetuned")["our settings"] == "not run"
    assert "## Runs" not in document


def test_seeds_are_averaged(tmp_path: Path) -> None:
    runs = [
        write_run(
            tmp_path / f"a{seed}",
            load_recipe("ptb-pru-g4", {"seed": str(seed), "precision": "bfloat16", "device": "cuda"}),
            results={"static": {"valid": 64.0 + seed, "test": 62.0}},
        )
        for seed in (1, 2, 3)
    ]
    document = report(runs)
    row = main_row(document, "PRU g=4 M=1400")
    assert row["here"] == "18.90"
    assert row["as published"] == "**66.00 ± 1.00** / **62.00**"
    assert row["gap"] == "+1.24 / −0.42, missed"  # 66.00 is above 64.76 + 0.5
    assert row["seeds"] == "1, 2, 3"
    made = ["`pru train ptb-pru-g4`", "3", "30", "NVIDIA H200", "1, 2, 3"]
    assert cost_row(document, "PRU g=4 M=1400", "as published") == made


def test_a_mean_over_some_of_the_seeds_says_so(tmp_path: Path) -> None:
    scored = ({"valid": 64.0, "test": 62.0}, {"valid": 65.0}, {"valid": 69.0, "test": 63.0})
    runs = [
        write_run(
            tmp_path / str(seed), load_recipe("ptb-pru-g4", {"seed": str(seed)}), results={"static": one}
        )
        for seed, one in enumerate(scored, start=1)
    ]
    row = main_row(report(runs), "PRU g=4 M=1400")
    assert row["as published"] == "**66.00 ± 2.65** / **62.50 ± 0.71** (2 of 3 runs)"
    assert row["seeds"] == "1, 2, 3"


@pytest.mark.parametrize(
    ("valid", "test", "expected"),
    [
        (65.26, 62.92, "+0.50 / +0.50, reproduced"),
        (65.27, 62.42, "+0.51 / +0.00, missed"),
        (64.76, 62.93, "+0.00 / +0.51, missed"),
        (60.00, 60.00, "−4.76 / −2.42, better"),
    ],
)
def test_reproduced_means_within_half_a_point(
    valid: float, test: float, expected: str, tmp_path: Path
) -> None:
    results = {"static": {"valid": valid, "test": test}}
    run = write_run(tmp_path / "run", load_recipe("ptb-pru-g4"), results=results)
    assert main_row(report([run]), "PRU g=4 M=1400")["gap"] == expected


def test_published_settings_and_ours_have_their_own_columns_and_words(tmp_path: Path) -> None:
    published = write_run(
        tmp_path / "a",
        load_recipe("ptb-awd-pru-g4-published"),
        results={"static": {"valid": 61.0, "test": 59.0}},
    )
    ours = write_run(
        tmp_path / "b", load_recipe("ptb-awd-pru-g4"), results={"static": {"valid": 59.0, "test": 57.0}}
    )
    document = report([published, ours])
    row = main_row(document, "AWD-PRU g=4 M=1400")
    assert (row["as published"], row["gap"]) == ("**61.00** / **59.00**", "+0.38 / +0.67, missed")
    assert (row["our settings"], row["our gap"]) == ("**59.00** / **57.00**", "−1.62 / −1.33, reached")
    commands = [cost_row(document, "AWD-PRU g=4 M=1400", kind)[0] for kind in ("as published", "ours")]
    assert commands == ["`pru train ptb-awd-pru-g4-published`", "`pru train ptb-awd-pru-g4`"]


def test_finetuned_runs_have_their_own_row(tmp_path: Path) -> None:
    config = load_recipe("ptb-awd-pru-g4")
    first = write_run(tmp_path / "a", config, results={"static": {"valid": 60.5, "test": 58.3}})
    second = write_run(
        tmp_path / "b",
        second_stage(config),
        stage="finetune",
        results={"static": {"valid": 58.4, "test": 56.5}},
    )
    document = report([second, first])
    assert main_row(document, "AWD-PRU g=4 M=1400")["our settings"] == "**60.50** / **58.30**"
    assert main_row(document, "AWD-PRU g=4 M=1400, finetuned")["our settings"] == "**58.40** / **56.50**"


def test_a_finetuned_run_has_what_the_recipe_says_of_finetuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "FOLDER", tmp_path)
    text = "[model]\nembedding = 8\nhidden = [8]\n[finetuning]\nhidden_dropout = 0.4\n"
    (tmp_path / "mine.toml").write_text(text)
    setup_settings.cache_clear()
    try:
        config = load_recipe("mine")
        trained = read_folder(write_run(tmp_path / "a", config))
        published = read_folder(write_run(tmp_path / "b", config, stage="finetune"))
        finetuned = read_folder(write_run(tmp_path / "c", second_stage(config), stage="finetune"))
        first, second = Setup("mine"), Setup("mine", (), True)
        assert is_run_of(trained, first)
        assert not is_run_of(trained, second)
        assert is_run_of(finetuned, second)
        assert not is_run_of(published, second)
        assert nearest_recipe(config, "finetune") == ("mine", {"hidden_dropout": 0.25})
    finally:
        setup_settings.cache_clear()


def test_changed_runs_count_in_no_table(tmp_path: Path) -> None:
    scores = {"static": {"valid": 50.0, "test": 50.0}}
    changes = {"epochs": "3", "hidden": "[1000, 400]"}
    changed = write_run(tmp_path / "changed", load_recipe("ptb-pru-g4", changes), results=scores)
    document = report([changed])
    assert "**50.00**" not in document
    assert "hidden=[1000, 400], epochs=3" in cells(document.split("### Experiments")[1], "`changed`")


def test_unfinished_runs_are_marked_and_give_way_to_finished_ones(tmp_path: Path) -> None:
    scores = {"static": {"valid": 50.0, "test": 50.0}}
    running = write_run(tmp_path / "running", load_recipe("ptb-pru-g2"), results=scores, finished=False)
    row = main_row(report([running]), "PRU g=2 M=1200")
    assert row["as published"] == "**50.00** / **50.00** (unfinished: 3 epochs)"
    assert row["gap"] == "−17.17 / −14.92"  # no verdict
    better = {"static": {"valid": 66.0, "test": 64.0}}
    done = write_run(tmp_path / "done", load_recipe("ptb-pru-g2", {"seed": "2"}), results=better)
    document = report([running, done])
    assert main_row(document, "PRU g=2 M=1200")["as published"] == "**66.00** / **64.00**"
    assert "trained, unfinished" in cells(document.split("### Experiments")[1], "`running`")


def test_a_run_without_scores_is_not_scored(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", load_recipe("ptb-pru-g4"))
    row = main_row(report([run]), "PRU g=4 M=1400")
    assert (row["as published"], row["gap"]) == ("not scored", "")


def test_dynamic_evaluation(tmp_path: Path) -> None:
    results = {"static": {"test": 62.5}, "dynamic": {"test": 55.3}, "cache": {"test": 57.0}}
    run = write_run(tmp_path / "a", load_recipe("ptb-pru-g4"), results=results)
    document = report([run])
    row = cells(document, "ptb-pru-g4", "dynamic")
    assert row[2:8] == ["paper", "– / 55.23", "– / **55.30**", "– / **62.50**", "1", "decay 0.002"]
    assert cells(document, "ptb-pru-g4", "cache")[2:5] == ["–", "–", "– / **57.00**"]
    assert row[8] == "`pru evaluate RUN --split test --dynamic`"  # it was not tuned
    assert "--dynamic --tune`" in cells(document, "ptb-lstm-1000", "dynamic")[8]
    assert cells(document, "ptb-lstm-1000", "dynamic")[4] == "not run"
    assert "not independent of the tuning" in document


def test_the_command_of_an_adapted_row_has_the_options_on_record(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", load_recipe("ptb-pru-g4"), results={"dynamic": {"test": 55.3}})
    scores = load_scores(run)
    assert scores is not None
    scores.tuning["dynamic"] = {"best": {"decay": 0.002}, "tokens": 12000}
    scores.results["dynamic"]["test"]["precision"] = "bfloat16"
    save_scores(scores, run)
    row = cells(report([run]), "ptb-pru-g4", "dynamic")
    command = "pru evaluate RUN --split test --dynamic --tune --tune-tokens 12000 --precision bfloat16"
    assert row[8] == f"`{command}`"


def test_a_row_says_which_seeds_its_method_has_scored(tmp_path: Path) -> None:
    static, both = {"static": {"test": 62.0}}, {"static": {"test": 63.0}, "dynamic": {"test": 55.0}}
    runs = [
        write_run(tmp_path / str(seed), load_recipe("ptb-pru-g4", {"seed": str(seed)}), results=results)
        for seed, results in ((1, both), (2, static), (3, None))
    ]
    document = report(runs)
    dynamic = cells(document, "ptb-pru-g4", "dynamic")
    assert (dynamic[4], dynamic[5], dynamic[6]) == ("– / **55.00**", "– / **63.00**", "1 (1 of 3 seeds)")
    trained = main_row(document, "PRU g=4 M=1400")
    assert trained["as published"] == "– / **62.50 ± 0.71** (2 of 3 runs)"
    assert trained["seeds"] == "1, 2, 3"


def test_one_configuration_in_several_tables_counts_in_each(tmp_path: Path) -> None:
    config = load_recipe("ptb-pooling-average")  # a cell of the sweep, too
    run = write_run(tmp_path / "a", config, results={"static": {"valid": 74.0}})
    document = report([run])
    assert cells(document, "average")[2:4] == ["73.86", "**74.00**"]
    assert cells(document, "K=4 g=1")[3] == "**74.00**"


def test_a_cell_of_the_sweep_is_a_changed_recipe(tmp_path: Path) -> None:
    changes = {"levels": "2", "groups": "4", "input_groups": "4"}
    run = write_run(tmp_path / "a", load_recipe("ptb-sweep", changes), results={"static": {"valid": 80.0}})
    plain, grouped = report([run]).split("### Level matrices grouped too")
    assert cells(grouped, "K=2 g=4")[2:4] == ["76%", "**80.00**"]
    assert cells(plain, "K=2 g=4")[2:4] == ["44%", "not run"]


def test_every_recipe_that_the_tables_name_exists() -> None:
    setups = {*table_setups(), *(one.setup for one in ADAPTED)}
    assert len(setups) > 80
    for setup in setups:
        assert setup_settings(setup)["corpus"] in ("ptb", "wikitext-2")


def test_recipes_of_one_family_share_their_settings() -> None:
    """AWD-PRUs differ in width and groups; AWD-LSTM in its unit, its weight drop and what only a PRU has."""
    for data_set in ("ptb", "wt2"):
        for kind in ("", "-published"):
            first = setup_settings(Setup(f"{data_set}-awd-pru-g4{kind}"))
            for groups in (1, 2):
                other = setup_settings(Setup(f"{data_set}-awd-pru-g{groups}{kind}"))
                assert {key for key in first if first[key] != other[key]} == {"hidden", "groups"}
            lstm = setup_settings(Setup(f"{data_set}-awd-lstm{kind}"))
            allowed = {"unit", "hidden", "groups", "init", "weight_drop"}
            allowed |= {"epochs"} if (data_set, kind) == ("wt2", "-published") else set()
            assert {key for key in first if first[key] != lstm[key]} <= allowed


def test_the_best_epoch(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", load_recipe("ptb-pru-g4"), losses=(4.3, 4.1, 4.2))
    result = read_folder(run)
    assert (len(result.epochs), result.best_epoch, result.minutes) == (3, 2, 30.0)


@pytest.mark.parametrize("file", ["run.json", "config.toml", "environment.json", "scores.json"])
def test_a_damaged_folder_is_named(tmp_path: Path, file: str) -> None:
    run = write_run(tmp_path / "a", load_recipe("ptb-pru-g4"), results={"static": {"valid": 1.0}})
    (run / file).write_text("{")
    with pytest.raises(PRUError, match=file):
        report([run])


def test_a_stage_that_is_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", load_recipe("ptb-pru-g4"), stage="foo")
    with pytest.raises(PRUError, match=r"run\.json has stage='foo'; a run has one of train, finetune"):
        report([run])


def test_perplexities_beyond_all_bounds_are_short(tmp_path: Path) -> None:
    lost = {"static": {"valid": 1e290, "test": 1e290}}
    run = write_run(tmp_path / "a", load_recipe("ptb-pru-g4"), results=lost)
    row = cells(report([run]), "`a`")
    assert row[6] == "1e+290 / 1e+290"


def test_metrics_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", load_recipe("ptb-pru-g4"))
    with (run / "metrics.jsonl").open("a") as file:
        file.write("half a li")  # what a crash leaves is passed over
    assert len(read_folder(run).epochs) == 3
    with (run / "metrics.jsonl").open("a") as file:
        file.write("ne\n")
    with pytest.raises(PRUError, match=r"metrics\.jsonl, line 5, is damaged: "):
        report([run])


@pytest.mark.parametrize(
    "line", ["[1]", "3", '{"kind": "epoch", "epoch": 3}', '{"kind": "epoch", "clock": [], "decision": ""}']
)
def test_metrics_that_training_has_not_written_are_named(line: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", load_recipe("ptb-pru-g4"))
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(PRUError, match=r"metrics\.jsonl, line 5, is damaged: "):
        report([run])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"weights": []}, "weights is not a string"),
        ({"parameters": {"total": "many"}}, "parameters.total is not a number"),
        ({"results": []}, "results is not an object"),
        ({"results": {"static": []}}, "results.static is not an object"),
        ({"results": {"static": {"valid": []}}}, "results.static.valid is not an object"),
        ({"results": {"static": {"valid": {}}}}, "results.static.valid.perplexity is not a number"),
        (
            {"results": {"cache": {"test": {"perplexity": 9.0}}}},
            "results.cache.test.settings is not an object",
        ),
        ({"tuning": {"cache": {}}}, "tuning.cache.best is not an object"),
        ({"tuning": {"cache": {"best": {"thetta": 1.0}}}}, "thetta"),
        ({"tuning": {"cache": {"best": {"window": -1}}}}, "window=-1"),
    ],
)
def test_scores_that_no_evaluation_has_written_are_named(
    content: dict[str, Any], said: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", load_recipe("ptb-pru-g4"))
    (run / "scores.json").write_text(json.dumps({"weights": "ab", "parameters": {}} | content))
    with pytest.raises(PRUError, match=rf"scores\.json is not a file of scores: .*{said}"):
        report([run])


def test_scores_are_read_back(tmp_path: Path) -> None:
    scores = Scores("ab", {"total": 3}, {"static": {"test": {"perplexity": 56.56}}})
    save_scores(scores, tmp_path)
    assert load_scores(tmp_path) == scores
    assert load_scores(tmp_path / "elsewhere") is None


def test_a_kept_run_gives_the_same_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", load_recipe("ptb-pru-g4"), results={"static": {"test": 62.5}})
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "weights.safetensors").write_bytes(b"x" * 100)
    copy = keep(run, tmp_path / "results")
    assert copy == tmp_path / "results" / "run"
    assert sorted(path.name for path in copy.iterdir()) == sorted(
        ["run.json", "config.toml", "environment.json", "scores.json", "metrics.jsonl"]
    )
    assert all(json.loads(line)["kind"] == "epoch" for line in (copy / "metrics.jsonl").open())
    assert report([copy]).replace(str(copy), "") == report([run]).replace(str(run), "")


def test_a_copy_keeps_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", load_recipe("ptb-pru-g4"), results={"static": {"test": 62.5}})
    copy = keep(run, tmp_path / "results")
    (run / "scores.json").unlink()  # as training does that goes on
    keep(run, tmp_path / "results")
    assert read_folder(copy).scores is None


def test_a_run_and_its_copy_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", load_recipe("ptb-pru-g4"), results={"static": {"test": 62.5}})
    copy = keep(run, tmp_path / "results")
    for twice in ([run, copy], [run, tmp_path / "results" / ".." / "run"]):
        with pytest.raises(PRUError, match="are the same run"):
            report(twice)
    unscored = write_run(tmp_path / "unscored", load_recipe("ptb-pru-g4"))
    with pytest.raises(PRUError, match="are the same run"):
        report([unscored, unscored])


def test_finetuning_that_betters_nothing_is_no_copy(tmp_path: Path) -> None:
    config, results = load_recipe("ptb-awd-pru-g4"), {"static": {"valid": 60.5, "test": 58.3}}
    trained = write_run(tmp_path / "a", config, results=results)
    finetuned = write_run(tmp_path / "b", second_stage(config), stage="finetune", losses=(4.3,) * 4)
    otherwise = write_run(tmp_path / "c", second_stage(config), stage="finetune", losses=(4.3,) * 5)
    for run in (finetuned, otherwise):
        (run / "scores.json").write_bytes((trained / "scores.json").read_bytes())
    document = report([trained, finetuned, otherwise])
    for model in ("AWD-PRU g=4 M=1400", "AWD-PRU g=4 M=1400, finetuned"):
        assert main_row(document, model)["our settings"] == "**60.50** / **58.30**"


@pytest.mark.parametrize(("precision", "option"), [("float64", ""), ("float16", " --precision float16")])
def test_only_a_precision_that_can_be_asked_for_is_an_option(
    precision: str, option: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "a", load_recipe("ptb-pru-g4"), results={"cache": {"test": 55.3}})
    scores = load_scores(run)
    assert scores is not None
    scores.results["cache"]["test"]["precision"] = precision
    save_scores(scores, run)
    assert read_folder(run).evaluation_options("cache") == option


@pytest.mark.parametrize("unit", ["lstm", "fused-lstm"])
def test_both_ways_to_run_an_lstm_are_one(unit: str, tmp_path: Path) -> None:
    config = load_recipe("ptb-awd-lstm", {"unit": unit, "graphs": "false"})
    assert is_run_of(read_folder(write_run(tmp_path / "run", config)), Setup("ptb-awd-lstm"))
