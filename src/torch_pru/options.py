"""From the options of a constructor to the structure of a layer; invalid options raise here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from torch_pru.errors import (
    PRUError,
    PRUTypeError,
    as_integer,
    check_choice,
    check_positive,
    renaming_arguments,
    shown,
)
from torch_pru.ops.spec import LayerSpec, TransformSpec
from torch_pru.pooling import DEFAULT_WINDOW, POOLINGS, checked_window, level_windows

TRANSFORMS = ("linear", "grouped", "pyramidal")
LEVEL_SPLITS = ("halving", "equal")


class UnitSizes(NamedTuple):
    """The sizes of a unit.

    Attributes:
        input: N, the features of the input.
        hidden: M, the units.
        state: the features of the state h: M, or P if it is projected.
    """

    input: int
    hidden: int
    state: int


class UnitOptions(NamedTuple):
    """The options that determine the structure of a unit; see :class:`torch_pru.PRU`."""

    levels: int | str = "auto"
    groups: int | str = "auto"
    input_groups: int = 1
    pooling: str = "average"
    level_split: str = "halving"
    pool_window: int | Sequence[int] = DEFAULT_WINDOW
    residual: bool | str = "auto"
    input_transform: str = "pyramidal"
    context_transform: str = "grouped"

    def checked(self) -> UnitOptions:
        """The same with integers of Python; raises where an option is invalid whatever the sizes are."""
        numbers: dict[str, Any] = {"input_groups": check_positive("input_groups", self.input_groups)}
        for name in ("levels", "groups"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value == "auto"):
                numbers[name] = check_positive(name, value)
        check_choice("pooling", self.pooling, POOLINGS)
        check_choice("level_split", self.level_split, LEVEL_SPLITS)
        check_choice("input_transform", self.input_transform, TRANSFORMS)
        check_choice("context_transform", self.context_transform, TRANSFORMS)
        if self.input_transform == "linear" and self.input_groups != 1:
            raise PRUError(f"input_groups={self.input_groups} needs input_transform='grouped' or 'pyramidal'")
        numbers["pool_window"] = checked_window(self.pool_window)
        return self._replace(**numbers)

    def resolve(self, sizes: UnitSizes) -> UnitOptions:
        """The same options with integers in the place of ``"auto"``, for a unit of these sizes."""
        levels = self._auto_levels(sizes) if self.levels == "auto" else self.levels
        groups = self._auto_groups(sizes) if self.groups == "auto" else self.groups
        return self._replace(levels=levels, groups=groups)

    def _auto_levels(self, unit: UnitSizes) -> int:
        """Two where every pyramid has an even number of features, 16 or more; else one."""
        input_size, hidden_size, state_size = unit
        kinds = zip((self.input_transform, self.context_transform), (input_size, state_size), strict=True)
        features = [size for kind, size in kinds if kind == "pyramidal"]
        divisible = hidden_size % 2 == 0 or self.level_split != "equal"
        fits = hidden_size >= 4 * self.input_groups and divisible
        return 2 if features and fits and all(n >= 16 and n % 2 == 0 for n in features) else 1

    def _auto_groups(self, unit: UnitSizes) -> int:
        """Four, two or one: the most that divide the sizes and leave 32 units each."""
        input_size, hidden_size, state_size = unit
        sizes = {hidden_size} if "grouped" in (self.input_transform, self.context_transform) else set()
        if self.context_transform == "grouped":
            sizes.add(state_size)
        if self.input_transform == "grouped" and self.input_groups == 1:
            sizes.add(input_size)
        if not sizes:
            return 1
        fitting = [g for g in (4, 2, 1) if all(size % g == 0 for size in sizes) and hidden_size // g >= 32]
        return fitting[0] if fitting else 1

    def check_used(self, levels: Sequence[int]) -> None:
        """Raise where an option has no effect; ``levels`` are those of all layers."""
        kinds = (self.input_transform, self.context_transform)
        if "pyramidal" not in kinds and self.levels not in ("auto", 1):
            raise PRUError(f"levels={self.levels} has no effect without a pyramidal transform; leave it out")
        if "grouped" not in kinds and self.groups not in ("auto", 1):
            raise PRUError(f"groups={self.groups} has no effect without a grouped transform; leave it out")
        defaults = UnitOptions()
        for name in ("pooling", "level_split", "pool_window"):
            value = getattr(self, name)
            if value != getattr(defaults, name) and max(levels) == 1:
                raise PRUError(
                    f"{name}={shown(value)} has no effect with one level; leave it out, or set levels"
                )

    def spec(self, unit: UnitSizes) -> LayerSpec:
        """The structure of a unit; ``"auto"`` is resolved before."""
        input_size, hidden_size, state_size = unit
        if self.input_transform == "grouped" and self.input_groups == 1:
            input_groups, named = self.groups, "groups"
        else:
            input_groups, named = self.input_groups, "input_groups"
        with renaming_arguments(in_features="input_size", out_features="hidden_size", groups=named):
            input = self._transform(self.input_transform, input_size, hidden_size, input_groups)
        groups = 1 if self.context_transform == "pyramidal" else self.groups
        state = "hidden_size" if state_size == hidden_size else "proj_size"
        with renaming_arguments(in_features=state, out_features="hidden_size"):
            context = self._transform(self.context_transform, state_size, hidden_size, groups)
        return LayerSpec(input, context, self._has_residual(input_size, hidden_size))

    def _transform(self, kind: str, in_features: int, out_features: int, groups: int | str) -> TransformSpec:
        assert isinstance(self.levels, int)
        assert isinstance(groups, int)
        if kind == "linear":
            return TransformSpec(in_features, (out_features,))
        if kind == "grouped":
            return grouped_spec(in_features, out_features, groups)
        return pyramidal_spec(
            in_features,
            out_features,
            self.levels,
            groups=groups,
            pooling=self.pooling,
            level_split=self.level_split,
            pool_window=self.pool_window,
        )

    def _has_residual(self, input_size: int, hidden_size: int) -> bool:
        if isinstance(self.residual, str) and self.residual == "auto":
            return self.input_transform == "pyramidal" and input_size == hidden_size
        if not isinstance(self.residual, bool):
            raise PRUError(f"residual={shown(self.residual)} is not known; use 'auto', True or False")
        if self.residual and input_size != hidden_size:
            raise PRUError(
                f"residual=True needs input_size == hidden_size; got {input_size} and {hidden_size}; "
                f"residual='auto' uses it only in layers where they are equal"
            )
        return self.residual


def check_projection(proj_size: object, hidden_size: int) -> int:
    """``proj_size`` as an ``int``; raise unless it is 0 or smaller than ``hidden_size``."""
    number = as_integer(proj_size)
    if number is None:
        raise PRUTypeError(f"proj_size={shown(proj_size)} must be an integer")
    if number < 0:
        raise PRUError(f"proj_size={shown(number)} must be a positive integer, or 0 for no projection")
    if number >= hidden_size:
        raise PRUError(f"proj_size={shown(number)} must be smaller than hidden_size={hidden_size}")
    return number


def unit_specs(options: UnitOptions, sizes: Sequence[UnitSizes]) -> tuple[list[UnitOptions], list[LayerSpec]]:
    """The options, without ``"auto"``, and the structure of each layer.

    Raises:
        PRUError: if an option is invalid, does not fit, or has no effect in any layer.
    """
    options = options.checked()
    resolved, specs = [], []
    for layer, unit in enumerate(sizes):
        try:
            resolved.append(options.resolve(unit))
            specs.append(resolved[-1].spec(unit))
        except PRUError as error:
            if layer == 0:
                raise
            raise type(error)(f"layer {layer}, which reads layer {layer - 1}: {error}") from None
    options.check_used([spec.levels for one in specs for spec in (one.input, one.context)])
    return resolved, specs


def grouped_spec(in_features: int, out_features: int, groups: int) -> TransformSpec:
    """The structure of a grouped linear transform."""
    in_features = check_positive("in_features", in_features)
    out_features = check_positive("out_features", out_features)
    groups = check_positive("groups", groups)
    for name, size in (("in_features", in_features), ("out_features", out_features)):
        if size % groups:
            fits = (g for g in range(1, 129) if not (in_features % g or out_features % g))
            fitting = [str(g) for g in islice(fits, 8)]
            choices = " or ".join(filter(None, (", ".join(fitting[:-1]), fitting[-1])))
            raise PRUError(f"groups={groups} does not divide {name}={size}; use {choices}")
    return TransformSpec(in_features, (out_features,), groups)


def pyramidal_spec(
    in_features: int,
    out_features: int,
    levels: int,
    *,
    groups: int = 1,
    pooling: str = "average",
    level_split: str = "halving",
    pool_window: int | Sequence[int] = DEFAULT_WINDOW,
) -> TransformSpec:
    """The structure of a pyramidal transform."""
    in_features = check_positive("in_features", in_features)
    levels = check_positive("levels", levels)
    groups = check_positive("groups", groups)
    check_choice("pooling", pooling, POOLINGS)
    check_levels(in_features, levels)
    sizes = split_levels(out_features, levels, level_split)
    windows = level_windows(checked_window(pool_window), levels, pooling)
    spec = TransformSpec(in_features, sizes, groups, pooling, windows)
    for outputs, inputs in zip(sizes, spec.level_features, strict=True):
        if min(inputs, outputs) < groups:
            raise PRUError(
                f"groups={groups} is too many for a level with {inputs} inputs and {outputs} outputs; use at "
                f"most {min(inputs, outputs)}"
            )
    return spec


def check_levels(in_features: int, levels: int) -> None:
    """Raise unless ``in_features`` can be halved ``levels - 1`` times."""
    most = (in_features & -in_features).bit_length()  # one more than the number of factors of two
    if levels > most:
        factor = 2 ** (levels - 1) if levels <= 20 else f"2^{levels - 1}"
        raise PRUError(
            f"levels={levels} needs in_features divisible by {factor}; got in_features={in_features}, which "
            f"allows at most levels={most}"
        )


def split_levels(out_features: int, levels: int, level_split: str = "halving") -> tuple[int, ...]:
    """The number of outputs of each level.

    Example:
        >>> split_levels(1400, 2), split_levels(600, 4), split_levels(600, 4, "equal")
        ((1050, 350), (337, 150, 75, 38), (150, 150, 150, 150))
    """
    out_features = check_positive("out_features", out_features)
    levels = check_positive("levels", levels)
    check_choice("level_split", level_split, LEVEL_SPLITS)
    if level_split == "equal":
        if out_features % levels:
            raise PRUError(
                f"out_features={out_features} cannot be divided equally among levels={levels}; "
                f"use a multiple of {levels}, or level_split='halving'"
            )
        return (out_features // levels,) * levels
    most = max(1, out_features.bit_length() - 1)  # before any power of two: ``levels`` may be huge
    if levels > most:
        raise PRUError(
            f"out_features={out_features} is too small for levels={levels}; use at most levels={most}"
        )
    below = [-(-out_features // 2 ** (level + 1)) for level in range(1, levels)]
    return (out_features - sum(below), *below)
