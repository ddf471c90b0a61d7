"""The run folder: what a run leaves on disk, written so that a crash or a full disk never loses the last good state.

Holds config.yaml, metrics.jsonl (a line per epoch), result.json, best/member-<k>.safetensors, predictions.safetensors
(for the target's images), state/ (resume) and TensorBoard events. Every file is written whole beside its place and then
renamed into it.
"""

import errno
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import filelock
import safetensors
import safetensors.torch
import torch
import yaml
from torch import Tensor

from triplee.settings import InputError, Recipe, Selection, make_recipe

FORMAT = 1  # of the files in a run folder; raised when an older version could not read them
UNFINISHED = ".unfinished"  # ends the name of a file that is still being written
Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Finite: NaN compares as false, and a whole number may be too large for a float."""
    return (_is_whole(value) or isinstance(value, float)) and abs(value) <= sys.float_info.max


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _some(check: Check) -> Check:
    return lambda value: isinstance(value, list) and len(value) > 0 and all(map(check, value))


# What the keys of each file hold. Other keys may be there; those of `_maybe` need not.
METRIC_CHECKS: dict[str, Check] = {
    "epoch": _is_whole,
    **dict.fromkeys(("lr", "val_accuracy", "target_accuracy"), _is_number),
    **dict.fromkeys(("cross_entropy", "contrast", "val_members", "target_members"), _some(_is_number)),
    "fold_accuracy": _maybe(_is_number),
}
CALIBRATION_CHECKS: dict[str, Check] = {
    "temperature": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(("val_error_before", "val_error", "target_error_before", "target_error"), _is_number),
}
RESULT_CHECKS: dict[str, Check] = {
    **dict.fromkeys(("recipe", "data", "target", "version"), _is_text),
    "selection": lambda value: value in get_args(Selection),
    **dict.fromkeys(("seed", "epoch"), _is_whole),
    **dict.fromkeys(("accuracy", "val_accuracy", "last_accuracy", "oracle_accuracy", "seconds"), _is_number),
    "members": _some(_is_number),
    **dict.fromkeys(("train_images", "memory_mb", "fold_accuracy"), _maybe(_is_number)),
    "came_apart": _maybe(_is_text),
    "calibration": _maybe(lambda value: _fits(value, CALIBRATION_CHECKS)),  # none of an earlier version
}
CONFIG_CHECKS: dict[str, Check] = {
    **dict.fromkeys(("version", "data", "data_fingerprint", "target", "recipe_name", "precision"), _is_text),
    **dict.fromkeys(("format", "skipped_images", "seed"), _is_whole),
    **dict.fromkeys(("domains", "classes"), _some(_is_text)),
    "recipe": lambda value: isinstance(value, dict) and all(map(_is_text, value)),
    **dict.fromkeys(("root", "left_out", "teacher", "how"), _maybe(_is_text)),
    **dict.fromkeys(("threads", "threads_each"), _maybe(lambda value: _is_whole(value) and value > 0)),
}


def _fits(value: Any, checks: Mapping[str, Check]) -> bool:
    return isinstance(value, dict) and all(check(value.get(key)) for key, check in checks.items())


class Unwritable(InputError):
    """The disk is full or refuses: no fault of what was to be written."""


class InUse(InputError):
    """Another process has the run folder."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; a failure is one line and leaves what was there before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def check_writable(path: Path) -> None:
    """Refuse before the work what `write_atomically` would refuse after it; leaves nothing behind."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        trial = folder / f".{path.name}.{os.getpid()}{UNFINISHED}"
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise unwritable(path, error) from None


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, and come before any later one."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, error: OSError) -> Unwritable:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    reason = "the disk is full, make room" if full else (error.strerror or str(error)).lower()
    return Unwritable(f"cannot write {path}: {reason}; what was saved before is untouched")


def damaged(path: Path) -> InputError:
    return InputError(f"{path} is damaged: restore it, or train again")


def digest_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    """A hash of names, kinds, shapes and values, and of what is said of them."""
    digest = hashlib.blake2b(json.dumps(metadata, sort_keys=True).encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """A safetensors file with JSON metadata and a digest that tells a damaged file from a whole one."""
    on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # One key only: safetensors writes several in random order, and equal runs shall give equal bytes.
    header = {"triplee": json.dumps({"format": FORMAT, "digest": digest_tensors(on_host, metadata), **metadata})}
    write_atomically(path, safetensors.torch.save(on_host, header))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a file from `write_tensors`; damaged or of another version is one line."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get("triplee", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(
            f"{path} is missing: the run has not got that far (go on with --resume), or its folder was changed"
        ) from None
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is damaged ({error}): restore it, or train again") from None
    if metadata.get("format") != FORMAT:
        raise InputError(f"{path} is of format {metadata.get('format')}, this version reads {FORMAT}: train again")
    del metadata["format"]
    if metadata.pop("digest", None) != digest_tensors(tensors, metadata):
        raise InputError(f"{path} is damaged (its digest does not match): restore it, or train again")
    return tensors, metadata


class RunFolder:
    """One run's folder. `claim` makes or reopens it for writing; reading needs no claim."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: filelock.BaseFileLock | None = None

    config_path = property(lambda self: self.path / "config.yaml")
    metrics_path = property(lambda self: self.path / "metrics.jsonl")
    result_path = property(lambda self: self.path / "result.json")
    state_path = property(lambda self: self.path / "state" / "last.safetensors")
    events_path = property(lambda self: self.path / "events")
    predictions_path = property(lambda self: self.path / "predictions.safetensors")
    stylizer_path = property(lambda self: self.path / "stylizer.safetensors")

    def member_path(self, member: int) -> Path:
        return self.path / "best" / f"member-{member}.safetensors"

    def waiting_path(self, epoch: int, member: int) -> Path:
        """Where a member's weights of a new best epoch wait until the state that knows of them is on disk."""
        return self.path / "state" / f"best-{epoch}-{member}.safetensors"

    def accept_best(self, epoch: int) -> None:
        """Put the waiting weights of the epoch in their place; those of another, which no state knows of, go."""
        waiting = list((self.path / "state").glob("best-*.safetensors"))
        try:
            for path in waiting:
                _, its_epoch, member = path.stem.split("-")
                if int(its_epoch) == epoch:
                    self.member_path(int(member)).parent.mkdir(exist_ok=True)
                    path.replace(self.member_path(int(member)))
                else:
                    path.unlink()
            if waiting and epoch:
                _sync_folder(self.path / "best")
        except OSError as error:
            raise unwritable(self.path / "best", error) from None

    def claim(self, config: dict[str, Any], resume: bool) -> dict[str, Any]:
        """Take the folder for this run and hold it until `release`; gives the config in force.

        A new run writes its config; a resumed one must have the same, except what the first start decided by itself.
        """
        try:
            str(self.path.absolute()).encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{self.path} cannot be written as text, which weight files need: choose another --out"
            ) from None
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: choose another --out")
        if not self.config_path.exists():
            if self._holds_something_else():
                raise InputError(f"{self.path} is not empty and no run folder: choose another --out")
            if resume and not (self.path / "state").exists():
                raise InputError(f"{self.path} holds no run to resume: leave out --resume, or name the run's folder")
        self._take_lock()
        try:
            if not self.config_path.exists():
                write_atomically(self.config_path, yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode())
                return config
            stored = read_config(self.path)
            if not resume:
                kind = "a finished" if self.result_path.exists() else "an unfinished"
                way_out = (
                    "choose another --out" if self.result_path.exists() else "add --resume, or choose another --out"
                )
                raise InputError(f"{self.path} holds {kind} run ({stored['recipe_name']}): {way_out}")
            changed = changed_keys(stored, config)
            if changed:
                raise InputError(
                    f"{self.path} was started differently ({'; '.join(changed)}): undo that, or choose another --out"
                )
            return stored
        except BaseException:
            self.release()
            raise

    def _holds_something_else(self) -> bool:
        """Whether there is more than what a start leaves that was cut off before its config was written."""
        own = (self.path / "state", self.path / "state" / "lock")
        return any(path not in own and path.suffix != UNFINISHED for path in self.path.rglob("*"))

    def _take_lock(self) -> None:
        try:
            (self.path / "state").mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.path / "state" / "lock")
            lock.acquire(timeout=0)
            self._lock = lock
            for folder in (self.path, self.path / "best", self.path / "state"):
                for unfinished in folder.glob(f".*{UNFINISHED}"):
                    unfinished.unlink()
        except filelock.Timeout:
            raise InUse(f"{self.path} is in use by another process: wait for it, or choose another --out") from None
        except OSError as error:
            self.release()
            raise unwritable(self.path, error) from None

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def read_metrics(self) -> list[dict[str, Any]]:
        """The epochs written so far, up to the first line that is cut short or damaged."""
        try:
            lines = self.metrics_path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError:
            raise damaged(self.metrics_path) from None
        rows: list[dict[str, Any]] = []
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not _fits(row, METRIC_CHECKS) or row["epoch"] != len(rows) + 1:
                break
            rows.append(row)
        return rows

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        write_atomically(self.metrics_path, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def read_result(self) -> dict[str, Any]:
        try:
            result: Any = json.loads(self.result_path.read_bytes())
        except FileNotFoundError:
            raise InputError(f"{self.path} has no result yet: finish it with --resume") from None
        except (OSError, ValueError):
            result = None
        if not is_result(result):
            raise damaged(self.result_path)
        return result

    def write_result(self, result: dict[str, Any]) -> None:
        text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self.result_path, text.encode(errors="backslashreplace"))  # file names need not be Unicode


def is_result(value: Any) -> bool:
    """Whether this is what a finished run knows of itself."""
    return _fits(value, RESULT_CHECKS)


def read_config(path: Path) -> dict[str, Any]:
    """The config of a run folder; anything else is one line."""
    file = path / "config.yaml"
    if not file.is_file():
        raise InputError(f"{path} is not a run folder: it has no config.yaml")
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):  # ValueError: no UTF-8, or no such date
        config = None
    return check_config(config, path, file)


def check_config(config: Any, path: Path, file: Path) -> dict[str, Any]:
    """The config read from `file` in the folder `path`, if it is whole and of this version."""
    if isinstance(config, dict) and isinstance(config.get("format"), int) and config["format"] != FORMAT:
        raise InputError(
            f"{path} is of format {config['format']} (triplee {config.get('version')}), this version reads {FORMAT}:"
            " use that version, or train again"
        )
    if not _fits(config, CONFIG_CHECKS) or config["target"] not in config["domains"]:
        raise damaged(file)
    return config


# Where the data, the pretrained weights and the stylizer lie may change as well: fingerprints tell what they are.
# So may what was skipped: the data's fingerprint is of the images that were not.
DECIDED_AT_START = ("precision", "threads", "threads_each", "version", "data", "root", "skipped_images")


def recipe_of(config: Mapping[str, Any], file: Path) -> Recipe:
    """The recipe in a config that was read from `file`."""
    try:
        return make_recipe(config["recipe"])
    except InputError as error:
        raise InputError(f"{file} is damaged ({error}): restore it, or train again") from None


def changed_keys(stored: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """Lines `key: was → asked` for everything that differs, recipe keys by their own names."""
    changes = []
    for key in asked:
        if key in DECIDED_AT_START or stored.get(key) == asked[key]:
            continue
        if isinstance(asked[key], dict):
            was = {**Recipe().model_dump(), **(stored.get(key) or {})}  # of before a key was there: its default
            told = {"weights": "weights_fingerprint", "stylizer": "stylizer_fingerprint"}
            moved = {k for k, fingerprint in told.items() if stored.get(fingerprint) == asked.get(fingerprint)}
            changes += [f"{k}: {was.get(k)} → {v}" for k, v in asked[key].items() if was.get(k) != v and k not in moved]
        else:
            changes.append(f"{key}: {stored.get(key)} → {asked[key]}")
    return changes
