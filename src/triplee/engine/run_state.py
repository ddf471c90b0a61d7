"""One run of a stack: how far it is, what it measured, and how both get to disk and back ("Protocol").

Comes in: the stack that trains its members, and their progress; goes out: the files of the run folder.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triplee import __version__
from triplee.data.pool import Pool
from triplee.data.split import Split
from triplee.engine.calibration import calibrate, temper
from triplee.engine.ensemble import accuracies
from triplee.engine.epoch import EpochProgress, MemberSpec
from triplee.engine.events import open_events
from triplee.engine.selection import best_epoch, make_result
from triplee.engine.stack import Stack
from triplee.nets.stylizer import Stylizer
from triplee.runfolder import RunFolder, read_tensors, write_tensors
from triplee.settings import InputError, Recipe


@dataclass(frozen=True)
class Run:
    """What to train, and the folder to leave it in."""

    split: Split
    recipe: Recipe
    out: Path
    recipe_name: str = "custom"
    seed: int = 0
    teacher: Path | None = None  # the folder of a run whose outputs are learned instead of the labels

    def member_specs(
        self,
        pool: Pool,
        stylizer: Stylizer | None = None,
        teacher: Callable[[Tensor], Tensor] | None = None,
        threads: int | None = None,
    ) -> list[MemberSpec]:
        told = (self.split.train_N, len(pool.classes), pool.labels_N, stylizer, teacher, threads)
        return [MemberSpec(self.recipe, self.seed, k, *told) for k in range(self.recipe.members)]


def tell_apart(runs: Sequence[Run]) -> list[str]:
    """For each run of a stack what it alone has: recipe, target or seed; nothing for a run by itself."""
    recipes, targets, seeds = ({(r.recipe_name, r.split.target, r.seed)[i] for r in runs} for i in range(3))
    left_out = {run.split.left_out for run in runs}
    names = []
    for run in runs:
        words = [run.recipe_name] * (len(recipes) > 1)
        words += [f"without {run.split.left_out}"] * (len(left_out) > 1)
        words += [f"hold out {run.split.target}"] * (len(targets) > 1 or bool(run.split.left_out))
        words += [f"seed {run.seed}"] * (len(seeds) > 1)
        names.append(", ".join(words))
    return names


@dataclass(frozen=True)
class Folds:
    """What the folds of a cross-validated run found: accuracy by epoch (empty for any other run), and their time."""

    accuracy_E: Sequence[float] = ()
    seconds: float = 0.0


class Diverged(InputError):
    """A loss became NaN or infinite: the end of its run, not of the others in the stack."""

    def __init__(self, text: str, by_folder: Mapping[Path, str] | None = None) -> None:
        super().__init__(text)
        self.by_folder = by_folder or {}


class RunState:
    """Where a run stands: epochs done, their rows, and the best weights as long as they are not on disk."""

    def __init__(
        self, run: Run, folder: RunFolder, config: dict[str, Any], folds: Folds, stack: Stack, members: range
    ) -> None:
        self.run, self.folder, self.config, self.folds = run, folder, config, folds
        self.stack, self.members = stack, members  # the numbers of the run's members in the stack
        self.steps_per_epoch = [stack.specs[k].plan(0).num_steps for k in members]
        self.epoch, self.best_epoch, self.saved_epoch = 0, 0, 0
        self.rows: list[dict[str, Any]] = []
        self._best_weights: list[dict[str, Tensor]] = []
        self._began = time.monotonic()

    @property
    def is_finished(self) -> bool:
        return self.epoch == self.run.recipe.epochs

    def steps_done(self, progress: EpochProgress) -> int:
        return self.epoch * sum(self.steps_per_epoch) + sum(progress.steps[k] for k in self.members)

    def start(self, progress: EpochProgress) -> None:
        """Take up what an earlier start left, and open the events."""
        if self.folder.state_path.exists():
            self._load(progress)
        self._write_events = open_events(self.folder, self.epoch)

    def _load(self, progress: EpochProgress) -> None:
        tensors, metadata = read_tensors(self.folder.state_path)
        try:
            self.epoch, self.best_epoch = metadata["epoch"], metadata["best_epoch"]
            self.saved_epoch = self.epoch
            self._began = time.monotonic() - metadata["seconds"]
            for name, values in metadata["progress"].items():
                for k, value in zip(self.members, values, strict=True):
                    getattr(progress, name)[k] = value
            for index, k in enumerate(() if self.is_finished else self.members):
                own = {n.removeprefix(f"{index}."): t for n, t in tensors.items() if n.startswith(f"{index}.")}
                self.stack.load_member_tensors(k, own)
        except (KeyError, ValueError, RuntimeError):
            raise InputError(f"{self.folder.state_path} belongs to another run: restore it, or train again") from None
        self.folder.accept_best(self.best_epoch)
        self.rows = self.folder.read_metrics()[: self.epoch]
        if len(self.rows) < self.epoch:
            raise InputError(f"{self.folder.metrics_path} has lost lines: restore it, or train again")

    def save(self, progress: EpochProgress) -> None:
        """Best weights, metrics and state, so that they fit together whenever a kill comes.

        The state decides: new best weights wait beside it until it names their epoch, and metrics beyond it are cut
        off. A run that has trained to its end has no more use for the members' tensors.
        """
        for index, weights in enumerate(self._best_weights):
            path = self.folder.waiting_path(self.best_epoch, index)
            write_tensors(path, weights, {"epoch": self.best_epoch, "member": index})
        self.folder.write_metrics(self.rows)
        tensors = {
            f"{index}.{name}": tensor
            for index, k in enumerate(() if self.is_finished else self.members)
            for name, tensor in self.stack.member_tensors(k).items()
        }
        metadata = {
            "epoch": self.epoch,
            "best_epoch": self.best_epoch,
            "seconds": time.monotonic() - self._began,
            "progress": {
                name: [getattr(progress, name)[k] for k in self.members]
                for name in ("steps", "cross_entropy", "contrast")
            },
        }
        write_tensors(self.folder.state_path, tensors, metadata)
        self.folder.accept_best(self.best_epoch)
        self._best_weights, self.saved_epoch = [], self.epoch

    def epoch_is_done(self, progress: EpochProgress) -> bool:
        return [progress.steps[k] for k in self.members] == self.steps_per_epoch

    def predict(self) -> Tensor:
        """The members' outputs (M,N,C) on validation and target images."""
        return self.stack.probabilities(self.members, np.concatenate([self.run.split.val_N, self.run.split.target_N]))

    def finish_epoch(self, progress: EpochProgress, pool: Pool, outputs_MNC: Tensor) -> dict[str, Any]:
        """Measure the epoch, keep its weights if they are the best so far, and turn to the next; gives its row."""
        row = self._measure(progress, pool, outputs_MNC)
        self.rows.append(row)
        if best_epoch(self.rows, self.run.recipe.selection) == row["epoch"]:
            self.best_epoch = row["epoch"]
            weights_M = [self.stack.member_weights(k) for k in self.members]
            self._best_weights = [{name: t.detach().clone() for name, t in weights.items()} for weights in weights_M]
        self._write_events(row)
        self.epoch += 1
        for k in self.members:
            progress.steps[k], progress.cross_entropy[k], progress.contrast[k] = 0, 0.0, 0.0
        return row

    def _measure(self, progress: EpochProgress, pool: Pool, outputs_MNC: Tensor) -> dict[str, Any]:
        """A line of metrics.jsonl: nothing in it depends on the clock, so that a resumed run writes the same bytes."""
        val_N, target_N = self.run.split.val_N, self.run.split.target_N
        for k, is_finite in zip(self.members, outputs_MNC.isfinite().flatten(1).all(1).tolist(), strict=True):
            if not is_finite:  # the last step did it: no later loss would tell
                progress.failed[k] = progress.steps[k]
        self.check_losses(progress)
        val, val_members = accuracies(outputs_MNC[:, : len(val_N)], pool.labels_N[val_N])
        target, target_members = accuracies(outputs_MNC[:, len(val_N) :], pool.labels_N[target_N])
        row = {
            "epoch": self.epoch + 1,
            "lr": self.run.recipe.learning_rate(self.epoch),
            "cross_entropy": [progress.cross_entropy[k] / progress.steps[k] for k in self.members],
            "contrast": [progress.contrast[k] / progress.steps[k] for k in self.members],
            "val_accuracy": val,
            "val_members": val_members,
            "target_accuracy": target,
            "target_members": target_members,
        }
        return {**row, "fold_accuracy": self.folds.accuracy_E[self.epoch]} if self.folds.accuracy_E else row

    def check_losses(self, progress: EpochProgress) -> None:
        """Refuse to go on with a member whose loss is no number; the last good state stays on disk."""
        for index, k in enumerate(self.members):
            if (step := progress.failed.get(k)) is not None:
                if self.rows:
                    self.folder.write_metrics(self.rows)
                kept = (
                    f"; the state after epoch {self.saved_epoch} is kept in {self.run.out}" if self.saved_epoch else ""
                )
                place = f"epoch {self.epoch + 1}, step {step}, member {index + 1}"
                raise Diverged(f"the loss became NaN or infinite at {place}: train anew with a lower lr{kept}")

    def finish(self, progress: EpochProgress, pool: Pool) -> dict[str, Any]:
        """Write the result; the state, of no more use, goes."""
        self.save(progress)
        result = make_result(self.rows, self.run.recipe.selection, self.config)
        result["calibration"] = self._judge_best(pool)
        result["train_images"] = len(self.run.split.train_N)
        result["memory_mb"] = self.stack.peak_megabytes
        seconds = round(time.monotonic() - self._began + self.folds.seconds, 2)
        result = {**result, "seconds": seconds, "version": __version__}
        self.folder.write_result(result)
        self.folder.state_path.unlink(missing_ok=True)
        return result

    def _judge_best(self, pool: Pool) -> dict[str, float]:
        """Calibrate the ensemble of the best epoch, and keep what it says of the target's images.

        Its members take over their weights from disk: their training is done.
        """
        for index, k in enumerate(self.members):
            weights, _ = read_tensors(self.folder.member_path(index))
            self.stack.load_member_tensors(k, {f"network.{name}": tensor for name, tensor in weights.items()})
        val_N, target_N = self.run.split.val_N, self.run.split.target_N
        outputs_MNC = self.predict().cpu()
        val_NC, target_NC = outputs_MNC.mean(0).split([len(val_N), len(target_N)])
        labels_N = torch.from_numpy(pool.labels_N)
        found = calibrate(val_NC, labels_N[val_N], target_NC, labels_N[target_N])
        confidence_N, chosen_N = temper(target_NC, found["temperature"]).max(1)
        said_MN = outputs_MNC[:, len(val_N) :].argmax(2)
        predictions = {
            "label": labels_N[target_N].int(),
            "chosen": chosen_N.int(),
            "confidence": confidence_N.float(),
            "disagreement": (said_MN != chosen_N).float().mean(0),
        }
        write_tensors(self.folder.predictions_path, predictions, {"epoch": self.best_epoch})
        return found
