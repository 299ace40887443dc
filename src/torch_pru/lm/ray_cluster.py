"""Ray clusters: how one is reached, or started on this machine, and what its machines must have."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from torch_pru.errors import PRUError
from torch_pru.lm.training.distributed import versions

# Ray and Tune read these when they start.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")

LOCAL_MEMORY = 200 << 20
"""Bytes of the object store of a cluster on this machine alone; trials exchange next to nothing."""

SESSIONS = os.environ.get("RAY_TMPDIR") or ("/tmp" if os.name == "posix" else None)
"""Where such a cluster has its files. The paths of its sockets must be short, and TMPDIR may be long."""


@contextmanager
def connected(address: str, folder: Path) -> Iterator[None]:
    """Connect to a Ray cluster, whose machines must have our versions and the folder of the sweep.

    Args:
        address: ``HOST:PORT``, ``"auto"`` for the cluster of this machine, ``"local"`` for one that is
            started here and ends with the sweep.
        folder: of the sweep.
    """
    with cluster(address):
        nodes = [node for node in ray.nodes() if node["Alive"]]
        look = ray.remote(num_cpus=0)(look_around)
        answers = [
            look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(str(folder))
            for node in nodes
        ]
        check_machines(ray.get(answers), folder)
        yield


@contextmanager
def cluster(address: str) -> Iterator[None]:
    """Connect to a cluster, or start one on this machine, of which nothing stays."""
    settings: dict[str, Any] = {"logging_level": "error", "log_to_driver": False, "configure_logging": True}
    with ExitStack() as at_end:
        if address == "local":
            session = TemporaryDirectory(prefix="pru-", dir=SESSIONS, ignore_cleanup_errors=True)
            settings |= {"_temp_dir": at_end.enter_context(session), "include_dashboard": False}
            settings |= {"object_store_memory": LOCAL_MEMORY}
        elif address != "auto":
            check_address(address)
        at_end.callback(ray.shutdown)
        start(address, settings)
        yield


def start(address: str, settings: Mapping[str, Any]) -> None:
    """Call ``ray.init`` without its warnings; its errors become one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ray.init(address, **settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            said = " ".join(str(error).replace("`--address` flag", "--ray HOST:PORT").split())
            raise PRUError(f"the Ray cluster at {address} cannot be used: {said}") from error


PING = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""A remote procedure that a Ray cluster answers, whatever its version."""


def check_address(address: str) -> None:
    """Refuse an address where no Ray cluster answers; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise PRUError(f"--ray {address}: use HOST:PORT, such as 10.0.0.1:6379, or auto, or local")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise PRUError(
            f"there is no Ray cluster at {address}: {error}; start one with: ray start --head"
        ) from error
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(PING)(b"", timeout=10)
        except grpc.RpcError as error:
            raise PRUError(
                f"the service at {address} is not a Ray cluster; use the port of ray start --head, usually "
                f"6379"
            ) from error


def look_around(folder: str) -> tuple[str, str, bool]:
    """Name and versions of a machine, and whether it has the folder."""
    return socket.gethostname(), versions(), Path(folder).is_dir()


def check_machines(answers: Sequence[tuple[str, str, bool]], folder: Path) -> None:
    """Refuse machines that have other versions, or do not share the folder of the sweep."""
    here = versions()
    for host, theirs, shared in answers:
        if theirs != here:
            raise PRUError(f"{host} has {theirs}, and this machine has {here}; install the same everywhere")
        if not shared:
            raise PRUError(
                f"{host} does not have {folder}; choose --out on a file system that all machines share"
            )
