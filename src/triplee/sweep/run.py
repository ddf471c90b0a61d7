"""A sweep: groups of runs go to an engine, and whatever happens to them ends as files.

Comes in: the planned runs and an engine; goes out: a folder with runs/<name>/ (a result.json says that a run is done),
failed/<name>.txt (its first line says why) and logs/. Killed and started again, a sweep goes on from these.
"""

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import filelock

from triplee.engine.batched import MOST_VIEWS
from triplee.engine.interrupt import stop_on_interrupt
from triplee.engine.train import Interrupted
from triplee.runfolder import RunFolder, read_config, read_tensors, recipe_of, unwritable, write_atomically
from triplee.settings import InputError, data_root
from triplee.sweep.grid import Ingredient, PlannedRun
from triplee.sweep.work import Ending, Group

MOST_CRASHES = 2  # of its worker, after which a run counts as failed: a killed process is not always to blame
LOOK_EVERY_SECONDS = 1.0
# A GPU trains digit networks of one shape as one batch, as long as their steps are small; ResNets and the rest side by
# side on streams (docs/performance.md).
MEMBERS_IN_A_BATCH = 108
MEMBERS_ON_STREAMS = 36


class Engine(Protocol):
    """Whoever trains groups, side by side and each in its turn."""

    device: str  # cpu or cuda
    num_threads: int  # of each group
    num_workers: int

    @property
    def at_work(self) -> list[Group]: ...  # or waiting for their turn, where the engine cannot tell
    def submit(self, group: Group) -> None: ...
    def wait(self, seconds: float) -> list[tuple[Group, Ending]]: ...
    def stop(self) -> None: ...  # runs at work save; nothing is left running


@dataclass(frozen=True)
class Standing:
    """How far a sweep is. `news`: runs that have ended since the last time."""

    done: list[PlannedRun]
    failed: dict[PlannedRun, str]
    epochs: dict[PlannedRun, int]  # done so far, of the runs at work
    news: list[PlannedRun]
    num_runs: int
    seconds_left: float | None


class SweepObserver(Protocol):
    def update(self, standing: Standing) -> None: ...


class SweepFolder:
    """Where a sweep keeps its files. Several experiments may share one, and the runs that they have in common."""

    def __init__(self, path: Path) -> None:
        self.path = path

    runs_path = property(lambda self: self.path / "runs")
    logs_path = property(lambda self: self.path / "logs")

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Hold the folder against a second sweep."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: choose another --out")
        is_new = False
        try:
            with suppress(FileExistsError):
                self.path.mkdir(parents=True)
                is_new = True
            lock = filelock.FileLock(self.path / "lock")
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise InputError(f"{self.path} is in use by another sweep: wait for it, or choose another --out") from None
        except OSError as error:
            raise unwritable(self.path, error) from None
        try:
            yield
        finally:
            if is_new and [path.name for path in self.path.iterdir()] == ["lock"]:  # nothing came of it
                with suppress(OSError):  # not empty: another sweep has just come
                    (self.path / "lock").unlink()
                    self.path.rmdir()
            lock.release()

    def run_folder(self, run: PlannedRun) -> RunFolder:
        return RunFolder(self.runs_path / run.name)

    def is_done(self, run: PlannedRun) -> bool:
        return self.run_folder(run).result_path.exists()

    def check(self, runs: Sequence[PlannedRun], known: Mapping[Ingredient, str | None] | None = None) -> None:
        """Refuse what was trained before and is not what is asked for now: by another recipe, or from other files.

        `known`: fingerprints of what is there now.
        """
        first = {
            ingredient: (fingerprint, "those that are there now") for ingredient, fingerprint in (known or {}).items()
        }
        for run in filter(self.is_done, runs):
            path = self.run_folder(run).path
            config = read_config(path)
            if other := [
                key for key, value in recipe_of(config, path / "config.yaml") if value != getattr(run.recipe, key)
            ]:
                raise InputError(
                    f"{path} was trained with another {', '.join(other)}: remove it, or choose another --out"
                )
            for ingredient, key in run.ingredients.items():
                own = config.get(key)
                fingerprint, where = first.setdefault(ingredient, (own, str(path)))
                if own != fingerprint:
                    what = f"other {ingredient[0]} than {where}"
                    raise InputError(f"{path} was trained with {what}: remove it, or choose another --out")

    def _failure_path(self, run: PlannedRun) -> Path:
        return self.path / "failed" / f"{run.name}.txt"

    def failure(self, run: PlannedRun) -> str | None:
        """Why a run failed, in one line; none for any other."""
        if self.is_done(run) or not self._failure_path(run).exists():
            return None
        return self._failure_path(run).read_text(encoding="utf-8").partition("\n")[0]

    def keep_failure(self, run: PlannedRun, line: str, details: str = "") -> None:
        text = " ".join(line.split()) + "\n" + details
        write_atomically(self._failure_path(run), text.encode(errors="backslashreplace"))

    def forget_failure(self, run: PlannedRun) -> None:
        """Have a failed run tried again: from where it stopped or, where that cannot be read, from the start."""
        if self.failure(run) is None:
            return
        folder = self.run_folder(run)
        try:
            if folder.state_path.exists():
                read_tensors(folder.state_path)
        except InputError:
            shutil.rmtree(folder.path)
        self._failure_path(run).unlink(missing_ok=True)


def group_runs(runs: Sequence[PlannedRun], device: str, num_workers: int) -> list[tuple[PlannedRun, ...]]:
    """Runs that share a pool, together as far as that pays: many on a GPU, one by one on a CPU.

    One by one a kill costs little and results come early; on a CPU more together would be no faster.
    """
    if device == "cpu":
        return [(run,) for run in runs]
    pools: dict[tuple[str, int, int], list[PlannedRun]] = {}
    for run in runs:  # of equal views per step first, which are batched
        pools.setdefault((run.data, run.recipe.image_size, run.recipe.batch_size * run.recipe.replay), []).append(run)
    share = -(-sum(run.recipe.members for run in runs) // num_workers)
    groups: list[list[PlannedRun]] = []
    for alike in pools.values():
        room = 0
        for run in alike:
            if room < run.recipe.members:
                groups.append([])
                is_small = run.recipe.batch_size * run.recipe.replay <= MOST_VIEWS
                is_batched = run.recipe.backbone == "digit-cnn" and is_small
                room = min(share, MEMBERS_IN_A_BATCH if is_batched else MEMBERS_ON_STREAMS)
            groups[-1].append(run)
            room -= run.recipe.members
    return [tuple(group) for group in groups]


def train_all(
    runs: Sequence[PlannedRun],
    engine: Engine,
    folder: SweepFolder,
    observer: SweepObserver,
    *,
    root: Path | None = None,
    skip_bad: bool = False,
) -> None:
    """Train what has neither ended nor failed; a run that fails is kept as such and stops nobody else."""
    watch = _Watch(runs, folder)
    waiting = [run for run in runs if run not in watch.ended]
    out, where = str(folder.runs_path.absolute()), str((root or data_root()).absolute())
    groups = [
        Group(out, together, engine.device, engine.num_threads, where, skip_bad)
        for together in group_runs(waiting, engine.device, engine.num_workers)
    ]
    crashes: Counter[PlannedRun] = Counter()
    num_open, looked_at = len(groups), 0.0
    with stop_on_interrupt() as interrupted:
        try:
            for group in groups:
                engine.submit(group)
            while num_open:
                if interrupted.is_set():
                    raise Interrupted
                ended = engine.wait(LOOK_EVERY_SECONDS / 2)
                for group, ending in ended:
                    again = _settle(group, ending, folder, crashes)
                    for part in again:
                        engine.submit(part)
                    num_open += len(again) - 1
                if ended or time.monotonic() - looked_at > LOOK_EVERY_SECONDS:
                    observer.update(watch.look(engine.at_work))
                    looked_at = time.monotonic()
        finally:
            engine.stop()


def _settle(group: Group, ending: Ending, folder: SweepFolder, crashes: Counter[PlannedRun]) -> list[Group]:
    """Keep the failures of a group that has ended; gives what is to be tried again.

    Whose fault it is that many could not be trained together, or that memory did not do, is found by halving.
    """
    if ending.kind == "unwritable":
        raise InputError(ending.error)
    rest = []
    for run in group.unfinished().runs:
        if run.name in ending.failures:
            folder.keep_failure(run, ending.failures[run.name])
        else:
            rest.append(run)
    if len(rest) > 1:
        halves = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        return [replace(group, runs=tuple(half)) for half in halves]
    for run in rest:
        crashes[run] += ending.kind == "crashed"
        if ending.kind == "crashed" and crashes[run] <= MOST_CRASHES:
            return [replace(group, runs=(run,))]
        folder.keep_failure(run, ending.error or "it left no result", ending.details)
    return []


class _Watch:
    """Reads off the files how far the runs are, and how long the rest will take."""

    def __init__(self, runs: Sequence[PlannedRun], folder: SweepFolder) -> None:
        self.runs, self.folder = runs, folder
        self.ended = {run for run in runs if folder.is_done(run) or folder.failure(run)}
        self.started_at, self.earlier = time.monotonic(), self._epochs(runs)
        self.work_at_start = self._work_done(self.earlier)

    def look(self, at_work: Sequence[Group]) -> Standing:
        done = [run for run in self.runs if self.folder.is_done(run)]
        failed = {run: line for run in self.runs if (line := self.folder.failure(run))}
        news = [run for run in (*done, *failed) if run not in self.ended]
        self.ended |= set(news)
        epochs = self._epochs([run for group in at_work for run in group.runs])
        work_done = self._work_done({**self.earlier, **epochs})
        work, left = work_done - self.work_at_start, sum(map(_work, self.runs)) - work_done
        seconds = time.monotonic() - self.started_at
        return Standing(done, failed, epochs, news, len(self.runs), left * seconds / work if work > 0 else None)

    def _epochs(self, runs: Sequence[PlannedRun]) -> dict[PlannedRun, int]:
        """Of runs that were started and have not ended."""
        folders = {run: self.folder.run_folder(run) for run in runs if run not in self.ended}
        return {run: len(folder.read_metrics()) for run, folder in folders.items() if folder.config_path.exists()}

    def _work_done(self, epochs: dict[PlannedRun, int]) -> float:
        shares = {run: n / run.recipe.epochs for run, n in epochs.items()} | dict.fromkeys(self.ended, 1.0)
        return sum(_work(run) * share for run, share in shares.items())


def _work(run: PlannedRun) -> float:
    """What a run costs, about: how often its networks see the training set."""
    recipe = run.recipe
    return recipe.epochs * recipe.replay * (recipe.members if recipe.ensemble == "whole" else 1)
