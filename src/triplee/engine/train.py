"""Runs over one pool, trained together in one stack, epoch by epoch, with the best epoch of each kept (Algorithm 1).

Comes in: the pool, and of each run the split, the recipe and the seed; goes out: a folder and a result for each.
A run's numbers do not depend on the others in the stack. Reads top to bottom: `_train_stack` is the loop, and
`run_state.py` what it does for each run.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from triplee import __version__
from triplee.data.pool import Pool
from triplee.data.split import Split, split_pool
from triplee.engine.epoch import EpochProgress
from triplee.engine.interrupt import stop_on_interrupt
from triplee.engine.loading import load
from triplee.engine.run_state import Diverged, Folds, Run, RunState, tell_apart
from triplee.engine.stack import Stack, native_precision
from triplee.engine.style_fit import FitStopped, StyleFit
from triplee.engine.stylizers import find_stylizer
from triplee.engine.threads import quickest_threads
from triplee.nets.network import build_network
from triplee.nets.stylizer import Stylizer
from triplee.nets.stylizer_file import read_stylizer, stylizer_fingerprint
from triplee.nets.weights import weights_fingerprint
from triplee.runfolder import FORMAT, RunFolder
from triplee.settings import InputError, Recipe, make_recipe, user_path

SAVE_EVERY_SECONDS = 300  # within an epoch, so that a crash in a long one costs minutes
SAVING_SHARE = 50  # after an epoch: train so many times as long as the last save took before the next


class Observer(Protocol):
    """Whoever shows progress: a bar on a terminal, plain lines elsewhere. Steps are summed over members and runs."""

    def start(self, num_epochs: int, num_steps: int, steps_done: int, title: str) -> None: ...
    def note(self, text: str) -> None: ...
    def progress(self, steps_done: int, loss: float | None) -> None: ...
    def epoch(self, row: dict[str, Any], name: str) -> None: ...  # name: what tells the run from its neighbours


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
    run = Run(split, recipe, out, recipe_name, seed)
    return train_runs(pool, [run], observer=observer, resume=resume, device=device)[0]


def train_runs(
    pool: Pool,
    runs: Sequence[Run],
    *,
    observer: Observer,
    resume: bool = False,
    device: torch.device | None = None,
) -> list[dict[str, Any]]:
    """Train runs together, each in its own folder; gives their results.

    With `resume` each goes on from where it stands, if it was started at all. A run whose loss is no number any more
    stops by itself, and is reported when the others are done.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with stop_on_interrupt() as interrupted:
        outcomes = _train(pool, runs, observer, resume, device, interrupted)
    failures = {run.out: str(o) for run, o in zip(runs, outcomes, strict=True) if isinstance(o, Diverged)}
    if failures:
        out, first = next(iter(failures.items()))
        text = first if len(runs) == 1 else f"{len(failures)} of {len(runs)} runs failed; {out}: {first}"
        raise Diverged(text, failures)
    return [outcome for outcome in outcomes if not isinstance(outcome, Diverged)]


def _train(
    pool: Pool,
    runs: Sequence[Run],
    observer: Observer,
    resume: bool,
    device: torch.device,
    interrupted: threading.Event,
) -> list[dict[str, Any] | Diverged]:
    """A result for each run, or what ended it."""
    folds_R = _check(pool, runs)
    folders = [RunFolder(run.out) for run in runs]
    is_started = [folder.config_path.exists() for folder in folders]
    outcomes: dict[int, dict[str, Any] | Diverged] = {}
    with ExitStack() as claims:
        configs: list[dict[str, Any]] = []
        known_threads: dict[tuple[object, ...], int] = {}
        for run, folder, started in zip(runs, folders, is_started, strict=True):
            # Where others were started, an earlier call was cut off before it came to this one.
            config = _config(pool, run, device)
            if device.type == "cpu" and not started:
                config["threads_each"] = _quickest_threads(pool, run, config["precision"], known_threads, interrupted)
            configs.append(folder.claim(config, resume and (started or not any(is_started))))
            claims.callback(folder.release)
        for r, folder in enumerate(folders):
            if folder.result_path.exists():
                folder.state_path.unlink(missing_ok=True)  # of a run that was killed when it had just finished
                outcomes[r] = folder.read_result()
        unfinished = [r for r in range(len(runs)) if r not in outcomes]
        stylizers_R = _find_stylizers(pool, {folders[r]: runs[r] for r in unfinished}, observer, device, interrupted)
        found_R = _train_folds(pool, {r: folds_R[r] for r in unfinished}, observer, device, interrupted)
        outcomes |= {r: found for r, found in found_R.items() if isinstance(found, Diverged)}
        ready = {r: found for r, found in found_R.items() if isinstance(found, Folds)}
        ways = {r: (configs[r]["precision"], configs[r].get("threads") or torch.get_num_threads()) for r in ready}
        for precision, num_threads in sorted(set(ways.values())):
            together = [r for r in ready if ways[r] == (precision, num_threads)]
            starts = [(runs[r], folders[r], configs[r], ready[r], stylizers_R.get(folders[r])) for r in together]
            with _threads(num_threads):
                ends = _train_together(pool, starts, device, precision, observer, interrupted)
            outcomes |= zip(together, ends, strict=True)
    return [outcomes[r] for r in range(len(runs))]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """As many threads as a run began with: on a CPU they decide in which order numbers are added up."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train_together(
    pool: Pool,
    starts: list[tuple[Run, RunFolder, dict[str, Any], Folds, Stylizer | None]],
    device: torch.device,
    precision: str,
    observer: Observer,
    interrupted: threading.Event,
) -> list[dict[str, Any] | Diverged]:
    """One stack: it is gone, with its memory, when the next is built."""
    teachers = {run.teacher: load(run.teacher, device).teach for run, *_ in starts if run.teacher}
    specs = [
        spec
        for run, _, config, _, stylizer in starts
        for spec in run.member_specs(
            pool, stylizer, teachers[run.teacher] if run.teacher else None, config.get("threads_each")
        )
    ]
    stack = Stack(specs, pool.images_NCHW, pool.labels_N, device, precision)
    states, first = [], 0
    for run, folder, config, folds, _ in starts:
        members = range(first, first + run.recipe.members)
        states.append(RunState(run, folder, config, folds, stack, members))
        first = members.stop
    try:
        return _train_stack(stack, states, pool, observer, interrupted)
    finally:
        stack.close()


def _check(pool: Pool, runs: Sequence[Run]) -> list[list[Run]]:
    """Refuse what cannot be split, built or told apart before there is a folder; gives the folds of each run."""
    if len({run.out.absolute() for run in runs}) < len(runs):
        raise InputError("two runs have the same folder: give each its own")
    for run in runs:
        if run.recipe.members > len(run.split.train_N):
            few = f"{len(run.split.train_N)} training images cannot feed {run.recipe.members} members"
            raise InputError(f"{few}: lower members")
    for recipe in {run.recipe.model_dump_json(): run.recipe for run in runs}.values():
        build_network(recipe, len(pool.classes), 0, 0)
    folds_R = [
        [
            Run(
                split_pool(pool, domain, run.seed, run.split.target),
                make_recipe({"selection": "source-val"}, run.recipe),
                run.out / "folds" / domain,
                run.recipe_name,
                run.seed,
            )
            for domain in run.split.source_domains
            if run.recipe.selection == "leave-one-out"
        ]
        for run in runs
    ]
    for fold in (fold for folds in folds_R for fold in folds):
        _given_stylizer(fold)
    return folds_R


def _find_stylizers(
    pool: Pool,
    runs: dict[RunFolder, Run],
    observer: Observer,
    device: torch.device,
    interrupted: threading.Event,
) -> dict[RunFolder, Stylizer]:
    """For each run that restyles views its stylizer, fitted now where need be; equal ones are one object."""
    known: dict[str, Stylizer] = {}
    found = {}
    for folder, run in runs.items():
        if not run.recipe.restyles:
            continue

        def on_progress(done: int, total: int, run: Run = run) -> bool:
            if done == 1:
                domains = ", ".join(run.split.source_domains)
                observer.note(f"fitting a stylizer on {domains} ({StyleFit.for_recipe(run.recipe).encoder} encoder)")
                observer.start(0, total, 0, "")
            if done:
                observer.progress(done, None)
            return interrupted.is_set()

        domains, own_file = run.split.source_domains, folder.stylizer_path
        try:
            stylizer = find_stylizer(run.recipe, pool, domains, own_file, device, on_progress)
        except FitStopped:
            raise Interrupted from None
        found[folder] = known.setdefault(stylizer_fingerprint(stylizer), stylizer)
    return found


def _train_folds(
    pool: Pool,
    folds_R: dict[int, list[Run]],
    observer: Observer,
    device: torch.device,
    interrupted: threading.Event,
) -> dict[int, Folds | Diverged]:
    """Leave-one-domain-out cross-validation: accuracy by epoch on a source that was held out, mean over sources.

    A run's target is in none of its folds. A fold is a run of its own under folds/, so that it resumes like one.
    """
    folds = [fold for folds in folds_R.values() for fold in folds]
    if not folds:
        return {r: Folds() for r in folds_R}
    resume = any(RunFolder(fold.out).config_path.exists() for fold in folds)
    ends = _train(pool, folds, observer, resume, device, interrupted)
    outcomes = dict(zip((fold.out for fold in folds), ends, strict=True))
    found_R: dict[int, Folds | Diverged] = {}
    for r, folds in folds_R.items():
        curves, seconds, failures = [], 0.0, []
        for fold in folds:
            outcome = outcomes[fold.out]
            if isinstance(outcome, Diverged):
                failures.append(outcome)
            else:
                curves.append([row["target_accuracy"] for row in RunFolder(fold.out).read_metrics()])
                seconds += outcome["seconds"]
        found_R[r] = (
            failures[0] if failures else Folds(np.mean(curves, axis=0).tolist(), seconds) if curves else Folds()
        )
    return found_R


def _train_stack(
    stack: Stack, states: list[RunState], pool: Pool, observer: Observer, interrupted: threading.Event
) -> list[dict[str, Any] | Diverged]:
    """Train the runs of a stack to their ends; gives a result for each, or what ended it."""
    progress = EpochProgress.start(len(stack.specs))
    outcomes: dict[RunState, dict[str, Any] | Diverged] = {}
    rows: dict[RunState, dict[str, Any]] = {}  # of the epochs that have just ended
    names = dict(zip(states, tell_apart([state.run for state in states]), strict=True))
    saved_at, saving_took = time.monotonic(), 0.0

    def steps_done() -> int:
        return sum(state.steps_done(progress) for state in states)

    def after_steps() -> bool:
        observer.progress(steps_done(), _mean_loss(stack, progress))
        return interrupted.is_set() or time.monotonic() - saved_at > SAVE_EVERY_SECONDS

    def take_stock(state: RunState, outputs: Tensor | None) -> None:
        try:
            state.check_losses(progress)
            if outputs is not None:
                rows[state] = state.finish_epoch(progress, pool, outputs)
            if state.is_finished:
                outcomes[state] = state.finish(progress, pool)
        except Diverged as failure:
            outcomes[state] = failure

    for state in states:
        state.start(progress)
    num_steps = sum(state.run.recipe.epochs * sum(state.steps_per_epoch) for state in states)
    title = f"{len(states)} runs in one stack" if len(states) > 1 else names[states[0]]
    observer.start(max(state.run.recipe.epochs for state in states), num_steps, steps_done(), title)
    told = ""
    for state in states:  # one may have been killed between its last epoch and its result
        take_stock(state, None)
    while unfinished := [state for state in states if state not in outcomes]:
        if interrupted.is_set():  # here and nowhere else: whenever it came, nothing that was trained is lost
            for state in unfinished:
                state.save(progress)
            raise Interrupted
        epoch_M: list[int | None] = [None] * len(stack.specs)
        for state in unfinished:
            for k in state.members:
                epoch_M[k] = state.epoch
        stack.train_epoch(epoch_M, progress, after_steps)
        observer.progress(steps_done(), _mean_loss(stack, progress))
        if stack.note != told:
            told = stack.note
            observer.note(told)
        rows.clear()
        outputs = {state: state.predict() for state in unfinished if state.epoch_is_done(progress)}
        stack.wait()
        for state in unfinished:
            take_stock(state, outputs.pop(state, None))
        began = time.monotonic()
        if began - saved_at > min(SAVE_EVERY_SECONDS, SAVING_SHARE * saving_took):
            for state in unfinished:
                if state not in outcomes:
                    state.save(progress)
            saved_at = time.monotonic()
            saving_took = saved_at - began
        for state, row in rows.items():
            observer.epoch(row, names[state])
    return [outcomes[state] for state in states]


def _mean_loss(stack: Stack, progress: EpochProgress) -> float | None:
    """The mean loss of the epoch so far (Eq. 2), or none before the first losses are in."""
    good = [k for k in range(len(stack.specs)) if k not in progress.failed]
    num_steps = sum(progress.steps[k] for k in good)
    losses = (progress.cross_entropy[k] + stack.specs[k].recipe.supcon_weight * progress.contrast[k] for k in good)
    return sum(losses) / num_steps if num_steps else None


def _config(pool: Pool, run: Run, device: torch.device) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": __version__,
        "data": pool.name,
        "data_fingerprint": pool.fingerprint,
        "skipped_images": pool.skipped,
        "domains": list(pool.domains),
        "classes": list(pool.classes),
        "root": pool.root,
        "target": run.split.target,
        "left_out": run.split.left_out,
        "seed": run.seed,
        "recipe_name": run.recipe_name,
        "recipe": run.recipe.model_dump(),
        "teacher": str(run.teacher.absolute()) if run.teacher else None,
        "how": "distill" if run.teacher else None,
        "weights_fingerprint": weights_fingerprint(run.recipe),
        "stylizer_fingerprint": _given_stylizer(run),
        "precision": native_precision(run.recipe, device),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "threads_each": None,  # of a member's step; none: an equal share
    }


def _quickest_threads(
    pool: Pool, run: Run, precision: str, known: dict[tuple[object, ...], int], interrupted: threading.Event
) -> int:
    """Measured once for all runs whose steps are of the same size."""
    recipe = run.recipe
    size = precision, recipe.backbone, recipe.image_size, recipe.batch_size, recipe.replay, recipe.members
    if size not in known:
        known[size] = quickest_threads(run.member_specs(pool)[0], pool.images_NCHW, precision, interrupted.is_set)
    return known[size]


def _given_stylizer(run: Run) -> str | None:
    """What tells the user's stylizer from another; none where one is fitted, or none needed.

    One that has seen what is held out is refused, by the name of the domain: a copy of the data has another path.
    """
    recipe = run.recipe
    if not recipe.restyles or recipe.stylizer == "fit":
        return None
    stylizer, facts = read_stylizer(user_path(recipe.stylizer))
    for domain in (run.split.target, run.split.left_out):
        if domain in facts.get("domains", ()):
            is_fold = run.split.left_out is not None
            advice = "set stylizer=fit, for one of each fold" if is_fold else f"fit one with --target {domain}"
            raise InputError(f"the stylizer {recipe.stylizer} was fitted on {domain}, which is held out here: {advice}")
    return stylizer_fingerprint(stylizer)
