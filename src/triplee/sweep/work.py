"""What a worker does, whoever started it: train a group of runs over one pool, and say how that ended.

Comes in: a Group; goes out: run folders, and an Ending. A group goes through JSON to other processes and machines.
"""

import json
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch

from triplee.data.load import load_data
from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine.run_state import Diverged, Run
from triplee.engine.train import Interrupted, train_runs
from triplee.runfolder import InUse, RunFolder, Unwritable
from triplee.settings import InputError
from triplee.sweep.grid import PlannedRun

PATIENCE = 60.0  # seconds for a worker that was lost, but still runs, to let go of its folders


@dataclass(frozen=True)
class Group:
    """Runs to train together: of one set of data at one image size. `out` is the folder of the runs' folders."""

    out: str
    runs: tuple[PlannedRun, ...]
    device: str  # cpu or cuda
    num_threads: int
    root: str | None = None
    skip_bad: bool = False

    def to_json(self) -> str:
        return json.dumps({**vars(self), "runs": [run.to_values() for run in self.runs]})

    @staticmethod
    def from_json(line: str) -> "Group":
        content = json.loads(line)
        return Group(**{**content, "runs": tuple(map(PlannedRun.from_values, content["runs"]))})

    def folder(self, run: PlannedRun) -> RunFolder:
        return RunFolder(Path(self.out) / run.name)

    def unfinished(self) -> "Group":
        return replace(self, runs=tuple(run for run in self.runs if not self.folder(run).result_path.exists()))


@dataclass(frozen=True)
class Ending:
    """How the training of a group ended; with an error, runs without a result may not be to blame."""

    error: str = ""
    details: str = ""  # the traceback of an error that was not meant for people
    failures: Mapping[str, str] = field(default_factory=dict)  # runs that are to blame, and what for
    # Crashed: the worker is gone. Unwritable: there is no use in going on.
    kind: Literal["worked", "crashed", "unwritable"] = "worked"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def train_group(group: Group) -> Ending:
    """Train what is unfinished, each run going on from where it stands; only Ctrl-C is raised."""
    group, deadline = group.unfinished(), time.monotonic() + PATIENCE
    while True:
        try:
            _train(group)
            return Ending()
        except Interrupted:
            raise
        except InUse as error:
            if time.monotonic() > deadline:
                return Ending(str(error))
            time.sleep(1)
        except Unwritable as error:
            return Ending(str(error), kind="unwritable")
        except Diverged as error:
            failures = {out.name: line for out, line in error.by_folder.items()}
            return Ending(str(error), failures=failures)
        except InputError as error:
            return Ending(str(error))
        except Exception as error:
            return Ending(f"{type(error).__name__}: {error}", traceback.format_exc())


def _train(group: Group) -> None:
    if not group.runs:
        return
    torch.set_num_threads(group.num_threads)
    first = group.runs[0]
    pool = _load(first.data, first.recipe.image_size, group.root, group.skip_bad)
    runs = [
        Run(
            split_pool(pool, planned.target, planned.seed),
            planned.recipe,
            group.folder(planned).path,
            planned.recipe_name,
            planned.seed,
        )
        for planned in group.runs
    ]
    resume = any(RunFolder(run.out).config_path.exists() for run in runs)
    train_runs(pool, runs, observer=_Silent(), resume=resume, device=torch.device(group.device))


@lru_cache(maxsize=1)
def _load(data: str, image_size: int, root: str | None, skip_bad: bool) -> Pool:
    return load_data(data, image_size, root=Path(root) if root else None, skip_bad=skip_bad)


class _Silent:
    """Progress is in the run folders, for whoever wants to see it."""

    def start(self, num_epochs: int, num_steps: int, steps_done: int, title: str) -> None: ...
    def note(self, text: str) -> None: ...
    def progress(self, steps_done: int, loss: float | None) -> None: ...
    def epoch(self, row: dict[str, Any], name: str) -> None: ...
