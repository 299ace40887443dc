"""A small sweep on Ray, and what is refused before Ray starts anything."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'torch-pru[ray]'")

import grpc
from sweeping import best_weights, write_grid, write_text

from torch_pru.errors import PRUError
from torch_pru.lm import ray_cluster, ray_trials
from torch_pru.lm.grid import read_grid
from torch_pru.lm.training import train


@pytest.mark.skipif(sys.platform == "win32", reason="Ray on Windows is in beta")
def test_a_sweep_on_ray(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text")
    path = write_grid(
        tmp_path, "[grid]\ngroups = [1, 2]", text, epochs=1, hidden=[8], embedding=8, batch=8, window=20
    )
    grid, states = read_grid(str(path)), {}
    runs = {tmp_path / "ray" / cell.label: cell.config for cell in grid.cells()}
    with ray_cluster.connected("local", tmp_path):
        ray_trials.train_trials(grid, tmp_path, runs, lambda run, state, report: states.update({run: state}))
    assert states == dict.fromkeys(runs, "finished")
    for path, config in runs.items():
        train(config, tmp_path / "here" / path.name)
    assert len(best_weights(tmp_path / "here")) == 2
    assert best_weights(tmp_path / "here") == best_weights(tmp_path / "ray")


def test_machines_must_be_alike(tmp_path: Path) -> None:
    here = ray_cluster.versions()
    ray_cluster.check_machines([("one", here, True)], tmp_path)
    with pytest.raises(PRUError, match="two has torch-pru 9, torch 9, and this machine has"):
        ray_cluster.check_machines([("one", here, True), ("two", "torch-pru 9, torch 9", True)], tmp_path)
    with pytest.raises(
        PRUError, match=r"two does not have .*; choose --out on a file system that all machines"
    ):
        ray_cluster.check_machines([("two", here, False)], tmp_path)


def refused(address: str) -> str:
    """Why an address is refused."""
    with pytest.raises(PRUError) as refusal, ray_cluster.cluster(address):
        pass
    return str(refusal.value)


def test_an_address_where_something_else_answers() -> None:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with_http2 = grpc.server(ThreadPoolExecutor(1))
    port = with_http2.add_insecure_port("127.0.0.1:0")
    with_http2.start()
    for number in (server.server_port, port):
        assert "is not a Ray cluster; use the port of ray start" in refused(f"127.0.0.1:{number}")
    with_http2.stop(None)
    server.shutdown()
    server.server_close()


def test_an_error_of_ray_is_one_line_with_all_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*arguments: object, **settings: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.40.0\n")

    monkeypatch.setattr(ray_cluster.ray, "init", init)
    assert refused("auto") == (
        "the Ray cluster at auto cannot be used: Version mismatch: The cluster was started with: Ray: 2.40.0"
    )


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "there is no Ray cluster at 127.0.0.1:1"),
        ("ray://a:1", "use HOST:PORT"),
        ("a", "use HOST"),
    ],
)
def test_a_cluster_that_cannot_be_reached(address: str, said: str) -> None:
    assert said in refused(address)
