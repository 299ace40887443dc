"""Writes the table of speeds in docs/index.md from the records in benchmarks/records.

python tools/speed_table.py            # after a new record
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "index.md"
RECORDS = ROOT / "benchmarks" / "records"
BEGIN, END = "<!-- speeds: tools/speed_table.py -->\n", "<!-- end of speeds -->"
LAYER = re.compile(r"PRU (\d+), g=4, K=2(?:, (bfloat16|float16))?")
COLUMNS = ("forward", "forward + backward", "one token, batch 1")
TITLE = re.compile(r"PRU beside nn\.LSTM on (.*?), PyTorch .*")


def table(records: Path = RECORDS) -> str:
    """Time of a PRU divided by that of ``nn.LSTM``: a row for each device, width and dtype of the records."""
    lines = ["| device | units | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    devices = []
    for path in sorted(records.glob("layer-*.json")):
        for title, rows in json.loads(path.read_text(encoding="utf-8")).items():
            device = TITLE.fullmatch(title)
            if device is not None:
                devices.append(device[1])
                lines += rows_of(device[1], rows)
    if not any("CPU" not in device for device in devices):
        lines += ["", "There is no record of a GPU yet; [Speed](speed.md) has numbers from the development."]
    return "\n".join(lines) + "\n"


def rows_of(device: str, rows: list[dict[str, str]]) -> list[str]:
    """One line for each layer of a record."""
    ratios: dict[tuple[int, str], dict[str, str]] = {}
    for row in rows:
        layer = LAYER.fullmatch(row["layer"])
        if layer is not None:
            key = -int(layer[1]), layer[2] or ""
            ratios.setdefault(key, {})[row["what"]] = row["PRU / nn.LSTM"]
    return [
        f"| {device} | {-units}{', ' + dtype if dtype else ''} | "
        + " | ".join(ratios[units, dtype].get(what, "") for what in COLUMNS)
        + " |"
        for units, dtype in sorted(ratios, key=lambda key: (key[1], key[0]))
    ]


def with_table(page: str) -> str:
    """The page with its table made anew."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
