"""What is drawn is what was found: the artists of every figure against their data."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from torch_pru.analysis.confidence import Confidence
from torch_pru.analysis.coverage import Coverage
from torch_pru.analysis.curves import LearningCurve
from torch_pru.analysis.embeddings import EmbeddingVariance, Level, Variance
from torch_pru.analysis.figures import confidence, coverage, curves, embeddings, saliency, sweep
from torch_pru.analysis.figures.style import HEAT, corpus_names
from torch_pru.analysis.saliency import Guess, Saliency
from torch_pru.analysis.sweep import SweepPoint

LONG = "/texts/" + "a-folder-with-a-very-long-name-" * 4
WORDS = ["<eos>", "two", "or", "three", "weeks", "ago"]


def legend(figure: Figure) -> dict[str, Any]:
    """The color of each label's mark."""
    (found,) = figure.legends
    texts = [text.get_text() for text in found.get_texts()]
    return {
        text: (handle.get_color() if isinstance(handle, Line2D) else handle.get_edgecolor())
        for text, handle in zip(texts, found.legend_handles, strict=True)
    }


def points(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def assert_whole(figure: Figure) -> None:
    """Titles and labels lie inside the figure and below its legend."""
    figure.draw_without_rendering()
    (found,) = figure.legends
    top = found.get_window_extent().y0
    for axes in figure.axes:
        texts = (axes._left_title, axes.xaxis.label, axes.yaxis.label)
        for box in (text.get_window_extent() for text in texts if text.get_text()):
            assert min(box.x0, box.y0) >= 0
            assert box.x1 <= figure.bbox.x1
            assert box.y1 <= top
    assert found.get_window_extent().x1 <= figure.bbox.x1


def test_confidence_has_the_counts_of_each_run() -> None:
    data = {
        "pru": Confidence(4, 0.6, 0.7, [0.0, 0.5, 1.0], [1, 3]),
        "lstm": Confidence(4, 0.4, 0.5, [0.0, 0.5, 1.0], [3, 1]),
    }
    figure = confidence.draw(data)
    (axes,) = figure.axes
    colors = list(legend(figure).values())
    assert list(legend(figure)) == ["pru: mean 0.60", "lstm: mean 0.40"]
    for found, outline, mean, color in zip(data.values(), axes.patches, axes.lines, colors, strict=True):
        values, edges, _ = outline.get_data()
        assert (values.tolist(), edges.tolist()) == (found.counts, found.edges)
        assert to_rgba(outline.get_edgecolor()) == to_rgba(color) == to_rgba(mean.get_color())
        assert points(mean) == [(found.mean, 0)]


def test_embeddings_have_the_model_filled_and_the_control_hollow() -> None:
    variances = {"NOUN": Variance(8.0, 1.0, 4.0, 0.5), "VERB": Variance(6.0, 0.75, 7.0, 0.875)}
    data = {"lstm": EmbeddingVariance({"NOUN": 9, "VERB": 5}, False, [Level(1, 8, variances)])}
    expected = {"total": ([8.0, 6.0], [4.0, 7.0]), "per_dimension": ([1.0, 0.75], [0.5, 0.875])}
    for measure, (own, control) in expected.items():
        (axes,) = embeddings.draw(data, measure).axes
        marks = {
            line.get_markerfacecolor(): line.get_xdata() for line in axes.lines if line.get_marker() != "None"
        }
        assert list(marks.pop("white")) == control
        assert [list(values) for values in marks.values()] == [own]


def test_saliency_colors_each_word_of_the_context_by_its_relevance() -> None:
    relevance = [0.5, 2.0, 0.0, 1.0, 0.0, 0.0]
    found = Saliency(WORDS, 4, "weeks", 0.5, relevance, [Guess("weeks", 0.5)])
    axes = saliency.draw({"pru": found}).axes[0]
    assert [box.get_facecolor() for box in axes.patches[:4]] == [HEAT(value / 2) for value in relevance[:4]]
    assert [box.get_facecolor()[3] for box in axes.patches[4:]] == [0, 0]
    framed = [position for position, box in enumerate(axes.patches) if box.get_linewidth() > 1]
    assert framed == [4]
    lightness = [sum(HEAT(share)[:3]) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert all(one > next_one for one, next_one in pairwise(lightness))


def test_coverage_maps_show_every_entry_relative_to_the_largest() -> None:
    data = {
        "pru": Coverage([[4.0, -2.0], [0.4, 0.0]], 4.0, 0.5, [0.01, 0.1], [0.75, 0.5]),
        "lstm": Coverage([[0.1, -1.0], [0.5, 0.2]], 1.0, 0.75, [0.01, 0.1], [1.0, 0.75]),
    }
    figure = coverage.draw_maps(data)
    maps = {axes.get_title("left"): axes.images[0].get_array() for axes in figure.axes[:2]}
    np.testing.assert_allclose(maps["pru: 50% of the entries above 0.1"], [[1, 0.5], [0.1, 0.01]])
    np.testing.assert_allclose(maps["lstm: 75% of the entries above 0.1"], [[0.1, 1], [0.5, 0.2]])
    shares = coverage.draw_shares(data)
    lines = {line.get_label(): line for line in shares.axes[0].lines}
    assert points(lines["pru: 50.0% at 0.1"]) == [(0.01, 0.75), (0.1, 0.5)]
    assert points(lines["lstm: 75.0% at 0.1"]) == [(0.01, 1.0), (0.1, 0.75)]


def falling(model: str, start: float, epochs: int = 40) -> LearningCurve:
    """Perplexities that fall by one an epoch, in training 30 below validation."""
    valid = [start - epoch for epoch in range(epochs)]
    return LearningCurve("ptb", model, list(range(1, epochs + 1)), [value - 30 for value in valid], valid)


def test_curves_have_validation_above_training_in_the_color_of_their_run() -> None:
    data = {"a": falling("LSTM M=1000", 140), "b": falling("PRU g=4 M=1400", 130)}
    figure = curves.draw(data)
    colors = legend(figure)
    assert list(colors) == ["a, LSTM M=1000: best 101.00", "b, PRU g=4 M=1400: best 91.00"]
    assert [axes.get_title("left") for axes in figure.axes] == [
        "ptb, validation",
        "ptb, training, with dropout",
    ]
    drawn = [{line.get_color(): points(line) for line in axes.lines} for axes in figure.axes]
    for curve, color in zip(data.values(), colors.values(), strict=True):
        assert drawn[0][color] == list(zip(curve.epochs, curve.valid, strict=True))
        assert drawn[1][color] == list(zip(curve.epochs, curve.train, strict=True))


def test_the_first_epochs_do_not_flatten_the_curves() -> None:
    """Of 40 epochs four may lie above a panel; the fifth of the highest run is just inside."""
    panels = curves.draw({"a": falling("", 140), "b": falling("", 130)}).axes
    for axes, lowest, highest in zip(panels, (91, 61), (136, 106), strict=True):
        low, high = axes.get_ylim()
        assert 0.95 * lowest < low < lowest
        assert highest < high < 1.05 * highest


def test_corpora_have_panels_of_their_own() -> None:
    data = {"a": falling("", 140), "b": replace(falling("", 900), corpus="/texts/tales")}
    panels = curves.draw(data).axes
    titles = ["ptb, validation", "ptb, training, with dropout"]
    titles += ["tales, validation", "tales, training, with dropout"]
    assert [axes.get_title("left") for axes in panels] == titles
    assert [points(line)[0][1] for axes in panels for line in axes.lines] == [140, 110, 900, 870]


@pytest.mark.parametrize(
    "valid",
    [
        *([400.0], [110.0, 105.0, 101.0], [86.0, 70.0, 64.0], [700.0, 240.0], [9e3, 900.0, 30.0]),
        *([math.inf], [math.inf, 900.0, 300.0], [1e200, 1e150]),  # as of a run that overflowed
    ],
)
def test_every_panel_has_numbers_on_its_axis(valid: list[float]) -> None:
    curve = LearningCurve("ptb", "LSTM M=12", list(range(1, len(valid) + 1)), valid, valid)
    figure = curves.draw({"a": curve})
    figure.draw_without_rendering()
    for axes in figure.axes:
        low, high = axes.get_ylim()
        numbers = [float(tick.get_text()) for tick in axes.get_yticklabels() if tick.get_text()]
        assert sum(low <= number <= high for number in numbers) >= 2


def test_six_runs_in_one_figure_differ_in_color_and_mark() -> None:
    data = {f"run-{number}": falling(f"LSTM M={number}00", 140 + number) for number in range(10, 16)}
    figure = curves.draw(data)
    for axes in figure.axes:
        assert len({line.get_color() for line in axes.lines}) == 6
        assert len({line.get_marker() for line in axes.lines}) == 6
    assert_whole(figure)
    below = figure.legends[0].get_window_extent().y0
    assert figure.axes[0].get_window_extent().y1 < below  # the legend hides no curve


def point(levels: int, perplexity: float, corpus: str = "ptb") -> SweepPoint:
    return SweepPoint(corpus, "600", "pru", levels, 4, "", 100 - 20 * levels, 100, perplexity, True)


def test_the_sweep_has_the_mean_over_seeds_and_their_range() -> None:
    (axes,) = sweep.draw({"a": point(2, 80.0), "b": point(2, 83.0), "c": point(1, 90.0)}).axes
    (line,) = axes.lines
    assert points(line) == [pytest.approx((0.2, 90.0)), pytest.approx((0.4, 81.5))]
    (seeds,) = axes.collections
    np.testing.assert_allclose(seeds.get_paths()[0].vertices, [(0.4, 80.0), (0.4, 83.0)])
    assert [text.get_text() for text in axes.texts] == ["1", "2"]


def test_the_sweep_averages_no_runs_of_different_regimes() -> None:
    standard, advanced = point(2, 80.0), replace(point(2, 60.0), regime="advanced dropouts")
    figure = sweep.draw({"a": standard, "b": advanced, "c": replace(advanced, perplexity=62.0)})
    assert list(legend(figure)) == ["g = 4, advanced dropouts", "g = 4, standard dropout"]
    assert [points(line) for line in figure.axes[0].lines] == [
        [pytest.approx((0.4, 61.0))],
        [pytest.approx((0.4, 80.0))],
    ]


def test_the_sentence_of_the_sweep() -> None:
    one, two = point(2, 80.0, "ptb"), point(2, 83.0, "ptb")
    fewer = "with 40% fewer recurrent parameters than an LSTM."
    assert sweep.sentence({"a": one}) == f"On ptb, a has validation perplexity 80.00, {fewer}"
    both = sweep.sentence({"b": two, "a": one})
    assert both == f"On ptb, a has the lowest validation perplexity, 80.00, {fewer}"
    larger = replace(one, recurrent=one.lstm * 11 // 10)
    assert sweep.sentence({"a": larger}).endswith("with 10% more recurrent parameters than an LSTM.")


def test_a_long_path_of_a_corpus_stays_inside_the_figures() -> None:
    curve = LearningCurve(LONG, "PRU g=2 M=12", [1, 2], [5.0, 4.0], [6.0, 5.0])
    assert_whole(curves.draw({"a": curve}))
    assert_whole(sweep.draw({"a": point(2, 80.0, LONG), "b": point(2, 83.0)}))
    assert "/texts" not in curves.describe({"a": curve}) + sweep.sentence({"a": point(2, 80.0, LONG)})


def test_corpora_are_called_by_what_tells_them_apart() -> None:
    assert corpus_names(["/a/tales", "/b/tales"]) == {"/a/tales": "a/tales", "/b/tales": "b/tales"}
    two = {"a": point(2, 80.0, "/a/tales"), "b": point(2, 83.0, "/b/tales")}
    assert [axes.get_title("left") for axes in sweep.draw(two).axes] == ["a/tales", "b/tales"]


@pytest.mark.parametrize("categories", [1, 3])
def test_few_categories_leave_room_for_their_label(categories: int) -> None:
    tags = ["NOUN", "VERB", "PRON"][:categories]
    level = Level(1, 8, dict.fromkeys(tags, Variance(8.0, 1.0, 4.0, 0.5)))
    assert_whole(
        embeddings.draw({"lstm": EmbeddingVariance(dict.fromkeys(tags, 9), False, [level])}, "total")
    )
