"""The engine on one machine: a worker process for each GPU, or for each few cores, which train groups one by one.

Comes in: groups; goes out: their endings, as they come.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from triplee.data.threads import num_cores
from triplee.runfolder import unwritable
from triplee.sweep.work import Ending, Group

STOP = "\n"  # no group: the end
STOP_SECONDS = 120  # to finish a step and save, after which a worker is killed


@dataclass
class _Worker:
    """A place for a process: its environment, the process if it runs, and the group that it has."""

    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[str] | None = None
    group: Group | None = None


_Process = subprocess.Popen[str]
_Answers = queue.SimpleQueue[tuple[_Worker, _Process, str | None]]  # no line: the process has ended


class LocalEngine:
    """Groups wait in a queue for a worker that has nothing to do."""

    def __init__(self, device: str, cpus: int, logs: Path) -> None:
        self.device = device
        if device == "cuda":
            environments = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in _gpus()]
            self.num_threads = max(1, num_cores() // len(environments))
        else:
            # A thread for each run by default: small steps gain nothing from more (bench/step.py).
            self.num_threads = min(cpus, num_cores())
            environments = [{"OMP_NUM_THREADS": str(self.num_threads)}] * (num_cores() // self.num_threads)
        self.num_workers = len(environments)
        self._answers: _Answers = queue.SimpleQueue()
        self._workers = [
            _Worker({**os.environ, **environment}, logs / f"worker-{k}.log")
            for k, environment in enumerate(environments)
        ]
        self._waiting: deque[Group] = deque()

    def submit(self, group: Group) -> None:
        self._waiting.append(group)
        self._hand_out()

    @property
    def at_work(self) -> list[Group]:
        return [worker.group for worker in self._workers if worker.group]

    def wait(self, seconds: float) -> list[tuple[Group, Ending]]:
        """The groups that have ended, after so many seconds at most."""
        try:
            worker, process, answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            return []
        if process is not worker.process:  # replaced meanwhile
            return []
        group, worker.group = worker.group, None
        if answer is None:
            ending = Ending(f"its worker process ended with {_bury(worker)}, see {worker.log}", kind="crashed")
        else:
            ending = Ending(**json.loads(answer))
            if ending.details:  # after an error that nobody foresaw a process, or its GPU, may be good for nothing
                _tell(process, STOP)
                _bury(worker)
        self._hand_out()
        return [(group, ending)] if group else []

    def _hand_out(self) -> None:
        for worker in self._workers:
            if worker.group is None and self._waiting:
                worker.group = self._waiting.popleft()
                self._give(worker, worker.group)

    def _give(self, worker: _Worker, group: Group) -> None:
        worker.process = worker.process or self._start(worker)
        _tell(worker.process, group.to_json() + "\n")

    def _start(self, worker: _Worker) -> _Process:
        try:
            worker.log.parent.mkdir(parents=True, exist_ok=True)
            log = worker.log.open("ab")
        except OSError as error:
            raise unwritable(worker.log, error) from None
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", "triplee.sweep.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=worker.environment,
                start_new_session=True,  # Ctrl-C is for the sweep, which tells its workers
            )
        threading.Thread(target=_read, args=(self._answers, worker, process), daemon=True).start()
        return process

    def stop(self) -> None:
        """Let every run at work finish its step and save; nothing is left running."""
        self._waiting.clear()
        for worker in self._workers:
            if worker.process:
                _tell(worker.process, STOP)
                worker.process.send_signal(signal.SIGTERM)
        for worker in self._workers:
            if worker.process:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(STOP_SECONDS)
                worker.process.kill()
                _bury(worker)


def _gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES has for them."""
    import torch

    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (given or [str(k) for k in range(torch.cuda.device_count())])[: torch.cuda.device_count()]


def _bury(worker: _Worker) -> str:
    """Wait for a process that has ended; gives its signal or exit code in words."""
    process, worker.process = worker.process, None
    assert process and process.stdin
    with suppress(BrokenPipeError):
        process.stdin.close()
    code = process.wait()
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _tell(process: _Process, line: str) -> None:
    assert process.stdin
    with suppress(BrokenPipeError):  # it has just died: its reader says so
        process.stdin.write(line)
        process.stdin.flush()


def _read(answers: _Answers, worker: _Worker, process: _Process) -> None:
    assert process.stdout
    with process.stdout as pipe:
        for line in pipe:
            answers.put((worker, process, line))
    answers.put((worker, process, None))
