"""One run: m members trained on the source domains, epoch by epoch, with the best epoch kept (Algorithm 1, "Protocol").

Comes in: a run's config, the pool and its split; goes out: a run folder and its result. Reads top to bottom:
`train_run` is the loop, what it calls is below it.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from triplee import __version__
from triplee.data.pool import Pool
from triplee.data.split import Split, split_pool
from triplee.engine.ensemble import accuracies
from triplee.engine.selection import best_epoch, make_result
from triplee.engine.stack import EpochProgress, LossNotFinite, MemberSpec, Stack, native_precision
from triplee.nets.network import build_network
from triplee.nets.weights import weights_fingerprint
from triplee.runfolder import FORMAT, RunFolder, read_tensors, unwritable, write_tensors
from triplee.settings import InputError, Recipe, make_recipe

SAVE_EVERY_SECONDS = 300  # within an epoch, so that a crash in a long one costs minutes


class Observer(Protocol):
    """Whoever shows progress: a bar on a terminal, plain lines elsewhere."""

    def start(self, first_epoch: int, num_epochs: int, steps_per_epoch: int, note: str = "") -> None: ...
    def step(self, loss: float | None) -> None: ...
    def epoch(self, row: dict[str, Any]) -> None: ...


class Interrupted(Exception):
    """Ctrl-C: the step was finished and the state saved."""


def train_run(
    pool: Pool,
    split: Split,
    recipe: Recipe,
    *,
    out: Path,
    observer: Observer,
    recipe_name: str = "custom",
    seed: int = 0,
    resume: bool = False,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """Train, select and test one run in the folder `out`; gives the content of its result.json."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if recipe.members > len(split.train_N):
        raise InputError(f"{len(split.train_N)} training images cannot feed {recipe.members} members: lower members")
    # What cannot be built or split is refused before there is a folder.
    build_network(recipe, len(pool.classes), seed, 0)
    folds = [
        split_pool(pool, domain, seed, split.target)
        for domain in split.source_domains
        if recipe.selection == "leave-one-out"
    ]
    folder = RunFolder(out)
    config = folder.claim(_config(pool, split, recipe, recipe_name, seed, device), resume)
    try:
        if folder.result_path.exists():
            folder.state_path.unlink(missing_ok=True)  # of a run that was killed when it had just finished
            return folder.read_result()
        folds_done = _train_folds(pool, folds, recipe, folder, observer, recipe_name, seed, device)
        specs = [MemberSpec(recipe, seed, k, split.train_N, len(pool.classes)) for k in range(recipe.members)]
        stack = Stack(specs, pool.images_NCHW, pool.labels_N, device, config["precision"])
        state = _State.load(folder, stack) if folder.state_path.exists() else _State(len(specs))
        rows = folder.read_metrics()[: state.epoch]
        if len(rows) < state.epoch:
            raise InputError(f"{folder.metrics_path} has lost lines: restore it, or train again")
        return _train(folder, stack, state, rows, pool, split, recipe, observer, config, folds_done)
    except LossNotFinite as error:
        kept = f"; the last good state is kept in {out}" if folder.state_path.exists() else ""
        raise InputError(f"{error}: lower lr and choose another --out{kept}") from None
    finally:
        folder.release()


def _train(
    folder: RunFolder,
    stack: Stack,
    state: "_State",
    rows: list[dict[str, Any]],
    pool: Pool,
    split: Split,
    recipe: Recipe,
    observer: Observer,
    config: dict[str, Any],
    folds: "_Folds",
) -> dict[str, Any]:
    started = time.monotonic() - state.seconds
    steps_per_epoch = sum(spec.plan(0).num_steps for spec in stack.specs)
    observer.start(state.epoch, recipe.epochs, steps_per_epoch, f"hold out {split.target}" if split.left_out else "")
    with _stop_on_interrupt() as interrupted:
        write_events = _open_events(folder, state.epoch)

        def save() -> None:
            state.seconds = time.monotonic() - started
            state.save(folder, stack)

        def after_step() -> bool:
            observer.step(state.progress.mean_loss(recipe.supcon_weight))
            return interrupted.is_set() or time.monotonic() - started - state.seconds > SAVE_EVERY_SECONDS

        while state.epoch < recipe.epochs:
            while sum(state.progress.steps) < steps_per_epoch:
                stack.train_epoch(state.epoch, state.progress, after_step)
                if interrupted.is_set():
                    save()
                    raise Interrupted
                if sum(state.progress.steps) < steps_per_epoch:
                    save()
            row = _epoch_row(state, stack, pool, split, recipe)
            if folds.accuracy_E:
                row["fold_accuracy"] = folds.accuracy_E[state.epoch]
            rows.append(row)
            state.next_epoch()
            if best_epoch(rows, recipe.selection) == row["epoch"]:
                for k in range(len(stack.specs)):
                    weights = stack.networks[k].state_dict()
                    write_tensors(folder.member_path(k), weights, {"epoch": row["epoch"], "member": k})
            folder.write_metrics(rows)
            save()
            write_events(row)
            observer.epoch(row)
    seconds = round(time.monotonic() - started + folds.seconds, 2)
    result = {**make_result(rows, recipe.selection, config), "seconds": seconds, "version": __version__}
    folder.write_result(result)
    folder.state_path.unlink(missing_ok=True)
    return result


def _train_folds(
    pool: Pool,
    folds: list[Split],
    recipe: Recipe,
    folder: RunFolder,
    observer: Observer,
    recipe_name: str,
    seed: int,
    device: torch.device,
) -> "_Folds":
    """Leave-one-domain-out cross-validation: accuracy by epoch on a source that was held out, mean over sources.

    The run's target is in no fold. A fold is a run of its own under folds/, so that it resumes like one.
    """
    curves, seconds = [], 0.0
    for split in folds:
        fold = RunFolder(folder.path / "folds" / split.target)
        result = train_run(
            pool,
            split,
            make_recipe({"selection": "source-val"}, recipe),
            out=fold.path,
            observer=observer,
            recipe_name=recipe_name,
            seed=seed,
            resume=fold.config_path.exists(),
            device=device,
        )
        curves.append([row["target_accuracy"] for row in fold.read_metrics()])
        seconds += result["seconds"]
    return _Folds(np.mean(curves, axis=0).tolist() if curves else [], seconds)


class _Folds(NamedTuple):
    accuracy_E: list[float]  # by epoch; empty where the run does not cross-validate
    seconds: float


class _State:
    """Where a run stands: epochs done, how far into the next one, and the time spent."""

    def __init__(self, num_members: int) -> None:
        self.epoch = 0
        self.progress = EpochProgress.start(num_members)
        self.seconds = 0.0

    def next_epoch(self) -> None:
        self.epoch += 1
        self.progress = EpochProgress.start(len(self.progress.steps))

    def save(self, folder: RunFolder, stack: Stack) -> None:
        tensors = {
            f"{k}.{name}": tensor for k in range(len(stack.specs)) for name, tensor in stack.member_tensors(k).items()
        }
        metadata = {"epoch": self.epoch, "progress": asdict(self.progress), "seconds": self.seconds}
        write_tensors(folder.state_path, tensors, metadata)

    @classmethod
    def load(cls, folder: RunFolder, stack: Stack) -> "_State":
        tensors, metadata = read_tensors(folder.state_path)
        state = cls(len(stack.specs))
        try:
            state.epoch, state.seconds = metadata["epoch"], metadata["seconds"]
            state.progress = EpochProgress(**metadata["progress"])
            for k in range(len(stack.specs)):
                own = {n.removeprefix(f"{k}."): t for n, t in tensors.items() if n.startswith(f"{k}.")}
                stack.load_member_tensors(k, own)
        except (KeyError, RuntimeError):
            raise InputError(f"{folder.state_path} belongs to another run: restore it, or train again") from None
        return state


def _epoch_row(state: _State, stack: Stack, pool: Pool, split: Split, recipe: Recipe) -> dict[str, Any]:
    """A line of metrics.jsonl: nothing in it depends on the clock, so that a resumed run writes the same bytes."""
    steps, members = state.progress.steps, range(len(stack.specs))
    val_outputs = stack.probabilities(members, split.val_N)
    for k in members:
        if not val_outputs[k].isfinite().all():  # the last step did it: no later loss would tell
            raise LossNotFinite(state.epoch + 1, steps[k], k + 1)
    val, val_members = accuracies(val_outputs, pool.labels_N[split.val_N])
    target_outputs = stack.probabilities(members, split.target_N)
    target, target_members = accuracies(target_outputs, pool.labels_N[split.target_N])
    return {
        "epoch": state.epoch + 1,
        "lr": recipe.learning_rate(state.epoch),
        "cross_entropy": [s / n for s, n in zip(state.progress.cross_entropy, steps, strict=True)],
        "contrast": [s / n for s, n in zip(state.progress.contrast, steps, strict=True)],
        "val_accuracy": val,
        "val_members": val_members,
        "target_accuracy": target,
        "target_members": target_members,
    }


def _config(
    pool: Pool, split: Split, recipe: Recipe, recipe_name: str, seed: int, device: torch.device
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": __version__,
        "data": pool.name,
        "data_fingerprint": pool.fingerprint,
        "skipped_images": pool.skipped,
        "domains": list(pool.domains),
        "classes": list(pool.classes),
        "root": pool.root,
        "target": split.target,
        "left_out": split.left_out,
        "seed": seed,
        "recipe_name": recipe_name,
        "recipe": recipe.model_dump(),
        "weights_fingerprint": weights_fingerprint(recipe),
        "precision": native_precision(recipe, device),
    }


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """Ctrl-C, a polite kill and a closed terminal set the event instead of breaking off in the middle of a step."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    signals = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open_events(folder: RunFolder, first_epoch: int) -> Callable[[dict[str, Any]], None]:
    """A function that appends an epoch's row to a new file of TensorBoard events.

    Not torch's SummaryWriter: it writes from a thread of its own, which meets a full disk with a traceback.
    """
    # Slow to import, and only training needs it.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.summary.writer.record_writer import RecordWriter

    path = folder.events_path / f"events.out.tfevents.{time.time_ns()}"

    def append(event: Event) -> None:
        event.wall_time = time.time()
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as file:
                RecordWriter(file).write(event.SerializeToString())
        except OSError as error:
            raise unwritable(path, error) from None

    def append_row(row: dict[str, Any]) -> None:
        means = {name: float(np.mean(value)) for name, value in row.items() if name != "epoch"}
        values = [Summary.Value(tag=name, simple_value=mean) for name, mean in means.items()]
        append(Event(step=row["epoch"], summary=Summary(value=values)))

    append(Event(file_version="brain.Event:2"))
    if first_epoch:  # hides later epochs that an earlier start wrote
        append(Event(step=first_epoch + 1, session_log=SessionLog(status=SessionLog.START)))
    return append_row
