"""Intervals for a difference of means: Welch's over independent samples, and a crossed bootstrap."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Two ends."""

    low: float
    high: float

    def within(self, margin: float) -> bool:
        """Whether it lies inside of ±margin."""
        return -margin < self.low and self.high < margin

    @property
    def excludes_zero(self) -> bool:
        """Whether both ends have the same sign."""
        return self.low > 0 or self.high < 0


class Welch(NamedTuple):
    """A difference of two means, its standard error, and the degrees of freedom of its t distribution."""

    difference: float
    error: float
    degrees: float

    @property
    def interval(self) -> Interval:
        """The 95% interval."""
        half = student_t_quantile((1 + CONFIDENCE) / 2, self.degrees) * self.error if self.error else 0.0
        return Interval(self.difference - half, self.difference + half)


def welch(first: Sequence[float], second: Sequence[float]) -> Welch:
    """The difference of the means of two independent samples of two or more values, without equal variances.

    Example:
        >>> found = welch([1.0, 2.0, 3.0], [2.0, 4.0])
        >>> found.difference, round(found.error, 4), round(found.degrees, 4)
        (-1.0, 1.1547, 1.6842)
    """
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    spread = sum(parts)
    terms = [part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)]
    degrees = spread**2 / sum(terms) if spread else math.inf
    return Welch(statistics.mean(first) - statistics.mean(second), math.sqrt(spread), degrees)


gauss_points = cache(numpy.polynomial.legendre.leggauss)


def student_t_quantile(probability: float, degrees: float) -> float:
    """The value that a t-distributed variable stays below with this probability, by bisection.

    With t = sqrt(degrees) tan(angle), the density of the angle is cos(angle)^(degrees - 1) times a constant,
    which Gaussian quadrature integrates.

    Example:
        >>> round(student_t_quantile(0.975, 5), 4)
        2.5706
    """
    if math.isinf(degrees):
        return statistics.NormalDist().inv_cdf(probability)
    nodes, weights = gauss_points(100)
    constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        density = constant * numpy.cos(angle * (nodes + 1) / 2) ** (degrees - 1)
        below = angle / 2 * float(weights @ density)  # from 0 to the angle
        low, high = (angle, high) if below < abs(probability - 0.5) else (low, angle)
    return math.copysign(math.sqrt(degrees) * math.tan(low), probability - 0.5)


class Blocks(NamedTuple):
    """The losses of runs on one text, summed over blocks of tokens."""

    sums: NDArray[numpy.float64]  # (runs, blocks)
    tokens: NDArray[numpy.float64]  # (blocks,)


def blocks_of(losses: NDArray[numpy.float64], size: int) -> Blocks:
    """Cut losses (runs, tokens) into blocks of ``size`` consecutive tokens; the last one may be shorter."""
    starts = numpy.arange(0, losses.shape[1], size)
    return Blocks(
        numpy.add.reduceat(losses, starts, axis=1),
        numpy.diff(numpy.append(starts, losses.shape[1])).astype(numpy.float64),
    )


def crossed_bootstrap(
    first: Blocks, second: Blocks, *, samples: int = 10_000, seed: int = 0, perplexity: bool = True
) -> Interval:
    """95% percentile interval of a difference of means over runs, resampling both runs and blocks.

    In every sample the runs of each side are drawn with replacement, and so are the blocks of the text, which
    both sides share. With one run on a side only the blocks vary there.

    Args:
        first, second: the losses of the two sides on the same text, in the same blocks.
        samples: how many samples are drawn.
        seed: of the draws.
        perplexity: compare mean perplexities; False for mean losses.
    """
    generator = numpy.random.default_rng(seed)
    count = len(first.tokens)
    drawn = generator.multinomial(count, numpy.full(count, 1 / count), size=samples)
    means = []
    for side in (first, second):
        tokens = drawn @ side.tokens
        losses = (drawn @ side.sums.T) / numpy.maximum(tokens, 1.0)[:, None]  # (samples, runs)
        runs = len(side.sums)
        weights = generator.multinomial(runs, numpy.full(runs, 1 / runs), size=samples) / runs
        values = numpy.exp(losses) if perplexity else losses
        means.append((values * weights).sum(1))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = numpy.percentile(means[0] - means[1], [tail, 100 - tail])
    return Interval(float(low), float(high))
