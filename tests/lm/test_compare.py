"""Groups of runs are compared by what they have recorded."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from test_report import write_run

from torch_pru import PRUError
from torch_pru.lm.compare import Part, RunComparison, block_size, compare_runs
from torch_pru.lm.data.corpus import load_corpus
from torch_pru.lm.evaluation.scores import Scores, save_log_probabilities, save_scores
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.statistics import Interval, student_t_quantile

RESULTS = Path(__file__).parents[2] / "results"


def run_with_losses(folder: Path, losses: torch.Tensor, seed: int = 1, corpus: str = "king-james") -> Path:
    """A run folder with a score and log-probabilities of these losses, which are exact in float16."""
    run = write_run(folder, load_recipe("quickstart", {"seed": str(seed), "corpus": corpus}))
    nll = float(losses.double().mean())
    entry = {"perplexity": math.exp(nll), "nll": nll, "tokens": len(losses), "precision": "float32"}
    scores = Scores(folder.name, {"total": 100}, {"static": {"test": entry}})
    saved = save_log_probabilities(losses, folder, "test", "static")
    scores.log("static", "test", entry, kept=True, log_probabilities=saved)
    save_scores(scores, folder)
    return run


def groups(tmp_path: Path) -> tuple[list[Path], list[Path], list[torch.Tensor]]:
    """Three runs and two, with random losses of the built-in text."""
    tokens = len(load_corpus("king-james").test) - 1
    generator = torch.Generator().manual_seed(2)
    losses = [(torch.rand(tokens, generator=generator) * 512).round() / 64 for _ in range(5)]
    paths = [run_with_losses(tmp_path / f"run-{n}", one, seed=n) for n, one in enumerate(losses)]
    return paths[:3], paths[3:], losses


def test_recorded_runs_by_hand() -> None:
    """Four seeds on each side; the perplexities are those of RESULTS.md."""
    names = [[f"{recipe}-{seed}" for seed in (1, 2, 3, 4)] for recipe in ("ptb-pru-g4", "ptb-lstm-1000")]
    found = compare_runs(*([RESULTS / name for name in side] for side in names))
    values = [
        [
            json.loads((RESULTS / name / "scores.json").read_text())["results"]["static"]["test"][
                "perplexity"
            ]
            for name in side
        ]
        for side in names
    ]
    means = [sum(side) / 4 for side in values]
    parts = [
        sum((value - mean) ** 2 for value in side) / 3 / 4 for side, mean in zip(values, means, strict=True)
    ]
    degrees = sum(parts) ** 2 / sum(part**2 / 3 for part in parts)
    half = student_t_quantile(0.975, degrees) * math.sqrt(sum(parts))
    assert found.difference == pytest.approx(means[0] - means[1])
    assert found.interval == pytest.approx((found.difference - half, found.difference + half))
    assert found.verdict == "lower (the interval excludes 0)"
    assert found.bootstrap is None
    assert "no log-probabilities of tokens" in found.notes[0]


def test_one_run_on_a_side_has_no_interval() -> None:
    found = compare_runs([RESULTS / "ptb-pru-g4-1"], [RESULTS / "ptb-lstm-1000-1"])
    assert (found.interval, found.degrees) == (None, None)
    assert "needs two or more runs on each side" in found.verdict


@pytest.mark.parametrize(
    ("difference", "interval", "expected"),
    [
        (0.1, Interval(-0.2, 0.4), "equivalent within ±0.5"),
        (-0.2, Interval(-0.3, -0.1), "equivalent within ±0.5, though lower"),
        (-2.0, Interval(-3.0, -1.0), "lower (the interval excludes 0)"),
        (0.6, Interval(0.1, 1.1), "higher (the interval excludes 0)"),
        (0.1, Interval(-0.5, 0.4), "undecided (the interval includes 0 and is not within ±0.5)"),
    ],
)
def test_verdicts(difference: float, interval: Interval, expected: str) -> None:
    found = RunComparison("test", "static", 0.5, [], [], difference, 4.0, interval)
    assert found.verdict == expected


def test_parts_by_frequency_and_position(tmp_path: Path) -> None:
    first, second, losses = groups(tmp_path)
    found = compare_runs(first, second)
    corpus = load_corpus("king-james")
    train, test = corpus.train.tolist(), corpus.test.tolist()
    end = int(corpus.vocabulary.encode(["<eos>"])[0])
    counts: dict[int, int] = {}
    for word in train:
        counts[word] = counts.get(word, 0) + 1
    sums: dict[str, list[float]] = {}
    position = 1
    for index, word in enumerate(test):
        if index:
            values = [float(one[index - 1]) for one in losses]
            difference = sum(values[:3]) / 3 - sum(values[3:]) / 2
            times = counts.get(word, 0)
            sums.setdefault("10 to 99" if 10 <= times < 100 else "other words", []).append(difference)
            sums.setdefault("4 to 7" if 4 <= position < 8 else "other positions", []).append(difference)
        position = 1 if word == end else position + 1
    parts = {part.label: part for part in (*found.by_frequency, *found.by_position)}
    for label in ("10 to 99", "4 to 7"):
        assert parts[label].tokens == len(sums[label])
        assert parts[label].difference == pytest.approx(sum(sums[label]) / len(sums[label]))
        assert parts[label].contribution == pytest.approx(sum(sums[label]) / (len(test) - 1))
        assert parts[label].interval.low < parts[label].contribution < parts[label].interval.high
    total = sum(sums["4 to 7"] + sums["other positions"]) / (len(test) - 1)
    assert found.loss_difference == pytest.approx(total)
    for group in (found.by_frequency, found.by_position):
        assert sum(part.contribution for part in group) == pytest.approx(total)
        assert sum(part.tokens for part in group) == len(test) - 1


def test_the_bootstrap_sees_seeds_and_tokens(tmp_path: Path) -> None:
    """Equal losses everywhere but in one block: without that block the difference is none."""
    tokens = len(load_corpus("king-james").test) - 1
    even = torch.full((tokens,), 4.0)
    odd = even.clone()
    odd[: block_size(tokens)] = 5.0
    first = [run_with_losses(tmp_path / f"a{n}", odd, n) for n in range(2)]
    second = [run_with_losses(tmp_path / f"b{n}", even, n) for n in range(2)]
    found = compare_runs(first, second)
    assert found.interval == pytest.approx((found.difference, found.difference))  # the seeds are equal
    assert found.bootstrap is not None
    assert found.bootstrap.low == pytest.approx(0.0, abs=1e-9)
    assert found.bootstrap.high > 1.5 * found.difference


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    losses = torch.full((100,), 4.0)
    one, two = (run_with_losses(tmp_path / name, losses) for name in ("one", "two"))
    short = run_with_losses(tmp_path / "short", losses[:50])
    unscored = write_run(tmp_path / "unscored", load_recipe("quickstart"))
    other = write_run(tmp_path / "other", load_recipe("ptb-pru-g4"))
    with pytest.raises(PRUError, match="is given twice"):
        compare_runs([one], [two, one])
    with pytest.raises(PRUError, match="both sides of a comparison need at least one run"):
        compare_runs([one], [])
    with pytest.raises(PRUError, match=r"no static score of the test text; run pru evaluate .*--split test$"):
        compare_runs([one], [unscored])
    with pytest.raises(PRUError, match="different texts: king-james, ptb"):
        compare_runs([one], [other])
    with pytest.raises(PRUError, match="scored on different texts; tokens: one 100, short 50"):
        compare_runs([one], [short])
    with pytest.raises(PRUError, match="margin=0"):
        compare_runs([one], [two], margin=0)
    with pytest.raises(PRUError, match="method='fast' is not known"):
        compare_runs([one], [two], method="fast")
    assert "the text has changed since the runs were scored" in compare_runs([one], [two]).notes[0]


@pytest.mark.parametrize("corpus", ["mybook-1f0c9a2e", "texts/mybook"])
def test_a_corpus_that_is_elsewhere_is_asked_for(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRU_DATA", str(tmp_path))
    name = corpus if "/" not in corpus else str(tmp_path / corpus)
    one, two = (run_with_losses(tmp_path / run, torch.full((100,), 4.0), corpus=name) for run in ("a", "b"))
    (note,) = compare_runs([one], [two]).notes
    assert note == (
        f"no parts by word frequency and position: the runs' corpus is not on this machine; copy its folder "
        f"from the machine where they were trained to {tmp_path / corpus}, and compare again"
    )


def test_a_published_corpus_that_is_missing_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRU_DATA", str(tmp_path))
    one, two = (run_with_losses(tmp_path / run, torch.full((100,), 4.0), corpus="ptb") for run in ("a", "b"))
    assert "; get it with `pru data ptb`, or " in compare_runs([one], [two]).notes[0]


def test_runs_that_should_not_be_averaged_are_named(tmp_path: Path) -> None:
    config = {"seed": "1"}, {"seed": "2", "epochs": "3", "device": "cpu"}, {"seed": "2"}, {"seed": "3"}
    scores = {"static": {"test": 50.0}}
    runs = [
        write_run(tmp_path / f"r{number}", load_recipe("quickstart", one), results=scores)
        for number, one in enumerate(config)
    ]
    assert [note for note in compare_runs(runs[1:2], runs[2:]).notes if note.startswith("r")] == []
    mixed = compare_runs(runs[:3], runs[3:]).notes
    assert mixed[:2] == [
        "r0, r1, r2 were trained with different settings (epochs)",
        "r1, r2 have the same seed (2)",
    ]
    assert "no log-probabilities" in mixed[2]
    finetuned = write_run(tmp_path / "f", load_recipe("quickstart"), stage="finetune", results=scores)
    assert compare_runs(runs[3:], [runs[2], finetuned]).notes[0] == (
        "r2, f were trained with different settings (stage)"
    )


def test_the_figure_shows_every_part(tmp_path: Path) -> None:
    from torch_pru.analysis.figures.comparison import describe, draw

    parts = [
        Part("below 10", 10, 0.2, 0.02, Interval(0.01, 0.03)),
        Part("10 to 99", 90, 0.1, 0.09, Interval(0, 1)),
    ]
    found = RunComparison("test", "static", 0.5, [], [], 0.1, by_frequency=parts, by_position=parts[:1])
    figure = draw(found)
    labels = [[text.get_text() for text in axes.get_yticklabels()] for axes in figure.axes]
    assert labels == [["below 10 (10%)", "10 to 99 (90%)"], ["below 10 (100%)"]]
    widths = [[bar.get_width() for bar in axes.patches] for axes in figure.axes]
    assert widths == [pytest.approx([0.02, 0.09]), pytest.approx([0.02])]
    assert "10 to 99: +0.0900" in describe(found)
