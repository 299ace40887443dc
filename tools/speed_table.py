"""Writes the tables of speeds in docs/index.md and docs/speed.md from the records in benchmarks/records.

python tools/speed_table.py            # after a new record
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "records"
BEGIN, END = "<!-- speeds: tools/speed_table.py -->\n", "<!-- end of speeds -->"
LAYER = re.compile(r"PRU (\d+), g=4, K=2(?:, (bfloat16|float16))?")
COLUMNS = ("forward", "forward + backward", "one token, batch 1")
TITLE = re.compile(r"PRU beside nn\.LSTM on (.*?), PyTorch .*")


def ratios_of_devices(records: Path = RECORDS) -> str:
    """Time of a PRU divided by that of ``nn.LSTM``: a row for each device, width and dtype of the records."""
    lines = ["| device | units | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    for path in sorted(records.glob("layer-*.json")):
        for title, rows in json.loads(path.read_text(encoding="utf-8")).items():
            device = TITLE.fullmatch(title)
            if device is not None:
                lines += rows_of(device[1], rows)
    return "\n".join(lines) + "\n"


def rows_of(device: str, rows: list[dict[str, str]]) -> list[str]:
    """One line for each layer of a record."""
    ratios: dict[tuple[int, str], dict[str, str]] = {}
    for row in rows:
        layer = LAYER.fullmatch(row["layer"])
        if layer is not None:
            key = -int(layer[1]), layer[2] or dtype_of(row)
            ratio = row.get("PRU / nn.LSTM") or row["call: PRU / nn.LSTM"]
            ratios.setdefault(key, {})[row["what"]] = ratio
    return [
        f"| {device} | {-units}{', ' + dtype if dtype else ''} | "
        + " | ".join(ratios[units, dtype].get(what, "") for what in COLUMNS)
        + " |"
        for units, dtype in sorted(ratios, key=lambda key: (key[1], key[0]))
    ]


def dtype_of(row: dict[str, str]) -> str:
    """The dtype of a row; empty for float32."""
    dtype = row["size"].rpartition(", ")[2]
    return "" if dtype == "float32" else dtype


def calls_and_graphs(records: Path = RECORDS) -> str:
    """The record of a GPU: each layer as ordinary calls and as CUDA graphs."""
    heads = ("layer", "input", *(f"{what}: {how}" for what in COLUMNS[:2] for how in ("call", "graph")))
    lines = ["| " + " | ".join((*heads, f"{COLUMNS[2]}: call")) + " |", "|---" * 7 + "|"]
    tables = json.loads((records / "layer-cuda.json").read_text(encoding="utf-8"))
    [rows] = (rows for title, rows in tables.items() if TITLE.fullmatch(title))
    for of_layer in zip(*(rows[at::3] for at in range(3)), strict=True):
        assert tuple(row["what"] for row in of_layer) == COLUMNS
        cells = [of_layer[0]["layer"], of_layer[0]["size"]]
        cells += [
            f"{row[f'{how}: PRU / nn.LSTM']} ({row[f'{how}: PRU ms']} ms)"
            for row in of_layer
            for how in ("call", "graph")
        ]
        lines.append("| " + " | ".join(cells[:-1]) + " |")
    return "\n".join(lines) + "\n"


TABLES = {"index.md": ratios_of_devices, "speed.md": calls_and_graphs}


def with_table(name: str, page: str) -> str:
    """A page with its table made anew."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + TABLES[name]() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    for name in TABLES:
        path = ROOT / "docs" / name
        path.write_text(with_table(name, path.read_text(encoding="utf-8")), encoding="utf-8")
