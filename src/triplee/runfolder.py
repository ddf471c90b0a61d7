"""The run folder: what a run leaves on disk, written so that a crash or a full disk never loses the last good state.

Holds config.yaml, metrics.jsonl (a line per epoch), result.json, best/member-<k>.safetensors, state/ (resume) and
TensorBoard events. Every file is written whole beside its place and then renamed into it.
"""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock
import safetensors
import safetensors.torch
import torch
import yaml
from torch import Tensor

from triplee.settings import InputError

FORMAT = 1  # of the files in a run folder; raised when an older version could not read them


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; a failure is one line and leaves what was there before."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> InputError:
    reason = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error)).lower()
    return InputError(f"cannot write {path}: {reason}; what was saved before is untouched")


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """A safetensors file with JSON metadata and a digest that tells a damaged file from a whole one."""
    on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"triplee": json.dumps({"format": FORMAT, **metadata}), "digest": _digest(on_host)}
    write_atomically(path, safetensors.torch.save(on_host, header))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a file from `write_tensors`; damaged or of another version is one line."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"{path} is missing: the run has not got that far, or its folder was changed") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is damaged ({error}): restore it, or train again") from None
    metadata = json.loads(header.get("triplee", "{}"))
    if metadata.get("format") != FORMAT:
        raise InputError(f"{path} is of format {metadata.get('format')}, this version reads {FORMAT}: train again")
    if header.get("digest") != _digest(tensors):
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

    def member_path(self, member: int) -> Path:
        return self.path / "best" / f"member-{member}.safetensors"

    def claim(self, config: dict[str, Any], resume: bool) -> dict[str, Any]:
        """Take the folder for this run and hold it until `release`; gives the config in force.

        A new run writes its config; a resumed one must have the same, except what the first start decided by itself.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: choose another --out")
        holds_run = self.config_path.exists()
        # A start cut off before its config was written leaves state/ and unfinished (dot) files only.
        others = (
            [p for p in self.path.iterdir() if p.name != "state" and p.name[0] != "."] if self.path.exists() else []
        )
        if others and not holds_run:
            raise InputError(f"{self.path} is not empty and no run folder: choose another --out")
        if resume and not holds_run and not (self.path / "state").exists():
            raise InputError(f"{self.path} holds no run to resume: leave out --resume, or name the run's folder")
        self._take_lock()
        try:
            if not holds_run:
                write_atomically(self.config_path, yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode())
                return config
            stored = self.read_config()
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

    def _take_lock(self) -> None:
        try:
            (self.path / "state").mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.path / "state" / "lock")
            lock.acquire(timeout=0)
            self._lock = lock
            for folder in (self.path, self.path / "best", self.path / "state"):
                for unfinished in folder.glob(".*"):
                    unfinished.unlink()
        except filelock.Timeout:
            raise InputError(
                f"{self.path} is in use by another process: wait for it, or choose another --out"
            ) from None
        except OSError as error:
            raise unwritable(self.path, error) from None

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def read_config(self) -> dict[str, Any]:
        return read_config(self.path)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The epochs written so far; a last line cut short by a crash is left out."""
        if not self.metrics_path.exists():
            return []
        rows = []
        for line in self.metrics_path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        write_atomically(self.metrics_path, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def read_result(self) -> dict[str, Any]:
        try:
            return json.loads(self.result_path.read_text())
        except FileNotFoundError:
            raise InputError(f"{self.path} has no result yet: finish it with --resume") from None
        except ValueError:
            raise InputError(f"{self.result_path} is damaged: restore it, or train again") from None

    def write_result(self, result: dict[str, Any]) -> None:
        write_atomically(self.result_path, (json.dumps(result, indent=2, ensure_ascii=False) + "\n").encode())


def read_config(path: Path) -> dict[str, Any]:
    """The config of a run folder; anything else is one line."""
    file = path / "config.yaml"
    if not file.is_file():
        raise InputError(f"{path} is not a run folder: it has no config.yaml")
    try:
        config = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError):
        config = None
    if not isinstance(config, dict) or "format" not in config or "recipe" not in config:
        raise InputError(f"{file} is damaged: restore it, or train again")
    if config["format"] != FORMAT:
        raise InputError(
            f"{path} is of format {config['format']} (triplee {config.get('version')}), this version reads {FORMAT}"
        )
    return config


DECIDED_AT_START = ("precision", "version")


def changed_keys(stored: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """Lines `key: was → asked` for everything that differs, recipe keys by their own names."""
    changes = []
    for key in asked:
        if key in DECIDED_AT_START or stored.get(key) == asked[key]:
            continue
        if isinstance(asked[key], dict):
            was = stored.get(key) or {}
            changes += [f"{k}: {was.get(k)} → {v}" for k, v in asked[key].items() if was.get(k) != v]
        else:
            changes.append(f"{key}: {stored.get(key)} → {asked[key]}")
    return changes
