"""``--set key=value`` as typed."""

from __future__ import annotations

from collections.abc import Iterable

from torch_pru.errors import PRUError


def parse_settings(settings: Iterable[str] | None) -> dict[str, str]:
    """``["epochs=3"]`` to ``{"epochs": "3"}``.

    Example:
        >>> parse_settings(["epochs=3", "hidden=[200, 200]"])
        {'epochs': '3', 'hidden': '[200, 200]'}
    """
    parsed = {}
    for text in settings or ():
        key, equals, value = text.partition("=")
        if not (equals and key.strip()):
            raise PRUError(f"--set {text}: write it as key=value, as in --set epochs=3")
        parsed[key.strip()] = value.strip()
    return parsed
