"""The engine on a Ray cluster: a task for each group; Ray places, retries and moves them.

Comes in: groups; goes out: their endings. Runs are written where the sweep keeps them if a node sees that folder too,
so that a lost worker's runs go on elsewhere from their last state; else they are trained in a node's own temporary
folder and sent back whole when they are done.
"""

import json
import logging
import os
import secrets
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from triplee.engine.train import Interrupted
from triplee.runfolder import write_atomically
from triplee.settings import InputError
from triplee.sweep.work import Ending, Group, train_group

LOST_WORKERS = 5  # of one group, after which it counts as failed
STOP_SECONDS = 120  # to finish a step and save, after which a task is cut off
CONNECT_SECONDS = 10
TOKEN = "ray-session"  # a file of the sweep's folder, by which a node knows that it sees that folder


class RayEngine:
    """All groups are Ray's from the start; it knows what fits where."""

    def __init__(self, address: str | None, cpus: int, gpus: float, device: str | None, out: Path) -> None:
        ray = self._ray = _import_ray()
        if address:
            _knock(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            ray.init(address=address or "local", **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"no Ray cluster at {address or 'this machine'}: {reason}") from None
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.device = device or ("cuda" if any(node.get("GPU") for node in nodes) else "cpu")
        self.num_threads = cpus
        wanted = {"CPU": cpus} | ({"GPU": gpus} if self.device == "cuda" else {})
        # Node by node: a task is placed on one of them.
        self.num_workers = sum(min(int(node.get(n, 0) / share) for n, share in wanted.items()) for node in nodes)
        if not self.num_workers:
            ray.shutdown()
            asked = " and ".join(f"{share:g} {name}" for name, share in wanted.items())
            raise InputError(f"no node of the Ray cluster has {asked}: lower --cpus or --gpus")
        self._token, self._token_path = secrets.token_hex(8), out.absolute() / TOKEN
        write_atomically(self._token_path, self._token.encode())
        self._task = ray.remote(
            num_cpus=cpus, num_gpus=wanted.get("GPU", 0), max_retries=LOST_WORKERS, retry_exceptions=False
        )(train_anywhere)
        self._groups: dict[Any, Group] = {}

    def submit(self, group: Group) -> None:
        self._groups[self._task.remote(group.to_json(), self._token)] = group

    @property
    def at_work(self) -> list[Group]:
        return list(self._groups.values())

    def wait(self, seconds: float) -> list[tuple[Group, Ending]]:
        ready, _ = self._ray.wait(list(self._groups), timeout=seconds)
        return [self._take(self._groups.pop(task), task) for task in ready]

    def _take(self, group: Group, task: Any) -> tuple[Group, Ending]:
        try:
            answer, files = self._ray.get(task)
        except self._ray.exceptions.RayError as error:  # its worker was lost too often, or could not start
            return group, Ending(" ".join(str(error).split())[:500])
        for name in sorted(files, key=lambda name: name.endswith("result.json")):  # which says that it is whole
            write_atomically(Path(group.out) / name, files[name])
        return group, Ending(**json.loads(answer))

    def stop(self) -> None:
        """Cancel what is left: it saves as after Ctrl-C. A cluster of our own goes, another keeps nothing of ours."""
        try:
            for task in self._groups:
                self._ray.cancel(task, force=False)
            if self._groups:
                ready, _ = self._ray.wait(list(self._groups), num_returns=len(self._groups), timeout=STOP_SECONDS)
                for task in ready:
                    self._take(self._groups.pop(task), task)
        finally:
            self._ray.shutdown()
            self._token_path.unlink(missing_ok=True)


def _import_ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError("--engine ray needs Ray: pip install 'triplee[ray]'") from None
    return ray


def _knock(address: str) -> None:
    """Refuse an address at which nobody answers; Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # a word of Ray's own, as auto
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster at {address}: {error}") from None


def train_anywhere(line: str, token: str) -> tuple[str, dict[str, bytes]]:
    """What a node does: the ending, and the files of the runs that it could not put where they belong."""
    group = Group.from_json(line)
    shared = Path(group.out).parent / TOKEN
    if shared.is_file() and shared.read_text() == token:
        return train_group(group).to_json(), {}
    # A folder of its own: a worker that was lost may still run on this node, with the same runs.
    with tempfile.TemporaryDirectory(prefix="triplee-", ignore_cleanup_errors=True) as scratch:
        group = replace(group, out=scratch)
        try:
            ending = train_group(group)
        except Interrupted:  # what is finished is sent back all the same
            ending = Ending("stopped")
        done = set(group.runs) - set(group.unfinished().runs)
        files = {
            str(path.relative_to(scratch)): path.read_bytes()
            for run in done
            for path in group.folder(run).path.rglob("*")
            if path.is_file() and path.name != "lock"
        }
        return ending.to_json(), files
