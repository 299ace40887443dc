"""Intervals agree with tables, numeric integration and simulation."""

from __future__ import annotations

import math
import random
import statistics

import numpy
import pytest

from torch_pru.lm.statistics import (
    Blocks,
    Interval,
    blocks_of,
    crossed_bootstrap,
    student_t_quantile,
    welch,
)


# From printed tables of the t distribution.
@pytest.mark.parametrize(
    ("degrees", "probability", "expected"),
    [
        (1, 0.975, 12.7062),
        (2, 0.975, 4.30265),
        (3, 0.95, 2.35336),
        (5, 0.975, 2.57058),
        (10, 0.995, 3.16927),
        (30, 0.975, 2.04227),
        (120, 0.975, 1.97993),
        (math.inf, 0.975, 1.95996),
        (4, 0.5, 0.0),
        (4, 0.025, -2.77645),
    ],
)
def test_quantiles_are_those_of_the_tables(degrees: float, probability: float, expected: float) -> None:
    assert student_t_quantile(probability, degrees) == pytest.approx(expected, abs=6e-5 * max(1, expected))


@pytest.mark.parametrize("degrees", [1.3, 2.5, 4.7, 17.2, 400.0])
def test_quantiles_of_fractional_degrees(degrees: float) -> None:
    """The density, integrated up to the quantile, gives the probability."""
    end = student_t_quantile(0.975, degrees)
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(degrees * math.pi) / 2
    points = numpy.linspace(0.0, end, 200_001)
    density = numpy.exp(log_scale - (degrees + 1) / 2 * numpy.log1p(points**2 / degrees))
    assert 0.5 + numpy.trapezoid(density, points) == pytest.approx(0.975, abs=1e-8)


def test_welch_by_hand() -> None:
    first, second = [27.5, 21.0, 19.0, 23.6, 17.0], [27.1, 22.0, 20.8, 23.4]
    found = welch(first, second)
    mean_1, mean_2 = sum(first) / 5, sum(second) / 4
    variance_1 = sum((x - mean_1) ** 2 for x in first) / 4 / 5
    variance_2 = sum((x - mean_2) ** 2 for x in second) / 3 / 4
    degrees = (variance_1 + variance_2) ** 2 / (variance_1**2 / 4 + variance_2**2 / 3)
    assert found.difference == pytest.approx(mean_1 - mean_2)
    assert found.degrees == pytest.approx(degrees)
    half = student_t_quantile(0.975, degrees) * math.sqrt(variance_1 + variance_2)
    assert found.interval == pytest.approx((mean_1 - mean_2 - half, mean_1 - mean_2 + half))


def test_welch_of_equal_values() -> None:
    assert welch([2.0, 2.0], [1.0, 1.0, 1.0]).interval == (1.0, 1.0)


def test_welch_covers_the_truth_in_95_of_100() -> None:
    generator = random.Random(5)
    hits = 0
    for _ in range(2000):
        first = [generator.gauss(1.0, 0.3) for _ in range(6)]
        second = [generator.gauss(0.0, 1.0) for _ in range(3)]
        low, high = welch(first, second).interval
        hits += low < 1.0 < high
    assert 0.935 < hits / 2000 < 0.97


def test_blocks_cover_every_token_once() -> None:
    losses = numpy.arange(14.0).reshape(2, 7)
    blocks = blocks_of(losses, 3)
    assert blocks.tokens.tolist() == [3, 3, 1]
    assert blocks.sums.tolist() == [[3, 12, 6], [24, 33, 13]]


def test_a_bootstrap_without_anything_to_draw_is_the_difference() -> None:
    first, second = (blocks_of(numpy.full((1, 50), loss), 50) for loss in (4.0, 3.0))
    difference = math.exp(4) - math.exp(3)
    assert crossed_bootstrap(first, second, samples=10) == pytest.approx((difference, difference))
    assert crossed_bootstrap(first, second, samples=10, perplexity=False) == pytest.approx((1.0, 1.0))


def literal_bootstrap(first: Blocks, second: Blocks, samples: int) -> Interval:
    """The same, one sample at a time, with Python's own random numbers."""
    generator, found = random.Random(3), []
    for _ in range(samples):
        drawn = generator.choices(range(len(first.tokens)), k=len(first.tokens))
        means = []
        for side in (first, second):
            runs = generator.choices(range(len(side.sums)), k=len(side.sums))
            tokens = sum(side.tokens[block] for block in drawn)
            losses = [sum(side.sums[run][block] for block in drawn) / tokens for run in runs]
            means.append(statistics.mean(map(math.exp, losses)))
        found.append(means[0] - means[1])
    found.sort()
    return Interval(found[int(0.025 * samples)], found[int(0.975 * samples)])


def test_the_bootstrap_against_a_literal_one() -> None:
    generator = numpy.random.default_rng(1)
    text = generator.gamma(2.0, 2.0, 900)  # what is hard for one is hard for all
    runs = [text + generator.normal(0, 0.1, 900) + shift for shift in (0.02, -0.03, 0.04, 0.2, 0.15)]
    first, second = blocks_of(numpy.stack(runs[:3]), 20), blocks_of(numpy.stack(runs[3:]), 20)
    found, literal = crossed_bootstrap(first, second), literal_bootstrap(first, second, 4000)
    width = literal.high - literal.low
    assert found.low == pytest.approx(literal.low, abs=0.05 * width)
    assert found.high == pytest.approx(literal.high, abs=0.05 * width)
    unpaired = math.exp(text.mean()) * text.reshape(-1, 20).mean(1).std() / math.sqrt(45) * 2 * 1.96
    assert width < unpaired  # both sides read the same blocks
