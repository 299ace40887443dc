"""Checks that every extra can be installed on Linux, macOS (arm64) and Windows.

    python tools/check_extras.py            # needs the network and a few minutes; installs nothing

pip resolves for another system with ``--platform``, but evaluates markers such as ``sys_platform`` for this
one. So its markers are told about the other system, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SYSTEMS: dict[str, dict[str, Any]] = {
    "Linux": {
        "tags": ["manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "linux_x86_64"],
        "markers": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    },
    "macOS": {
        "tags": [
            f"macosx_{major}_0_{kind}" for major in (14, 13, 12, 11) for kind in ("arm64", "universal2")
        ],
        "markers": {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
    },
    "Windows": {
        "tags": ["win_amd64"],
        "markers": {
            "sys_platform": "win32",
            "platform_system": "Windows",
            "platform_machine": "AMD64",
            "os_name": "nt",
        },
    },
}
NOT_FOR_USERS = {"dev", "docs", "test"}
PIP = """
import json, sys
from pip._vendor.packaging import markers
here = markers.default_environment
markers.default_environment = lambda: {**here(), **json.loads(sys.argv[1])}
from pip._internal.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def requirements(project: dict[str, Any], extra: str) -> list[str]:
    """What the package needs with an extra; extras that name other extras are followed."""
    found, waiting = [], [*project["dependencies"], *project["optional-dependencies"].get(extra, [])]
    while waiting:
        requirement = waiting.pop()
        if requirement.startswith(f"{project['name']}["):
            for other in requirement.partition("[")[2].rstrip("]").split(","):
                waiting += project["optional-dependencies"][other]
        else:
            found.append(requirement)
    return sorted(set(found))


def resolve(wanted: list[str], system: dict[str, Any]) -> str | None:
    """None if pip finds wheels for everything, else its last words."""
    tags = [argument for tag in system["tags"] for argument in ("--platform", tag)]
    with tempfile.TemporaryDirectory() as target:
        options = ["--dry-run", "--quiet", "--ignore-installed", "--only-binary=:all:", "--target", target]
        options += ["--python-version", "3.11", "--implementation", "cp", *tags]
        options += ["-c", str(ROOT / "constraints.txt")]
        command = [sys.executable, "-c", PIP, json.dumps(system["markers"]), "install", *options, *wanted]
        done = subprocess.run(command, capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
    return None if done.returncode == 0 else "\n".join(errors[-8:])


def main() -> None:
    """Resolve every extra for every system; the exit status is 1 if one fails."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    failures = 0
    for extra in ["", *sorted(set(project["optional-dependencies"]) - NOT_FOR_USERS)]:
        for name, system in SYSTEMS.items():
            problem = resolve(requirements(project, extra), system)
            failures += problem is not None
            print(f"{extra or 'no extra':10} {name:8} {'ok' if problem is None else problem}", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
