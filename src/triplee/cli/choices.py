"""From words on the command line to values: a recipe, a device, the data, a trained run."""

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from triplee.cli.printing import image_bar, warn
from triplee.settings import InputError, Recipe, files_in_full, make_recipe, read_yaml, user_path

DataArgument = Annotated[
    str, typer.Argument(help="digits (embedded), a benchmark's name, or a folder <domain>/<class>/<image>")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="leave unreadable images out instead of refusing")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; the GPU where there is one")]
Root = Annotated[
    Path | None, typer.Option(help="folder that holds the benchmarks (default: $TRIPLEE_DATA, else ./data)")
]


def choose_recipe(name: str, changes: list[str], weights: Path | None = None) -> tuple[Recipe, str]:
    """The recipe named or read from a YAML file, with the `--set` changes; and what to call it."""
    from triplee.recipes import find_recipe

    values = parse_changes(changes, weights=weights)
    if not name.endswith((".yaml", ".yml")):
        return files_in_full(make_recipe(values, find_recipe(name))), name
    content = read_yaml("recipe", name, user_path(name))
    called = Path(name).stem
    if isinstance(content.get("recipe"), dict):  # a run's config.yaml: run it again
        content, called = content["recipe"], str(content.get("recipe_name", called))
    return files_in_full(make_recipe({**{str(key): value for key, value in content.items()}, **values})), called


def split_words(text: str | None) -> list[str]:
    """The words of an option that takes several, comma-separated."""
    return [word.strip() for word in text.split(",")] if text else []


def parse_changes(changes: list[str], **options: Path | int | None) -> dict[str, Any]:
    """The values of `--set KEY=VALUE`, by key, and of `options` that stand for a key where they were given."""
    values: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise InputError(f"--set takes KEY=VALUE, not {change!r}")
        values[key.strip()] = _parse_value(text, change)
    for key, value in options.items():
        if value is not None and key in values:
            raise InputError(f"--{key} and --set {key}=… are the same: give one of them")
        if value is not None:
            values[key] = str(value) if isinstance(value, Path) else value
    return values


def _parse_value(text: str, change: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"--set {change!r} has a value that cannot be read") from None
    # YAML 1.1 reads 1e-3 as a word; people mean the number. "none" is the name of an augmentation.
    try:
        return float(text) if isinstance(value, str) else value
    except ValueError:
        return value


def choose_device(name: str | None) -> Any:
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise InputError(f"unknown device {name!r}: cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device is available: leave out --device, or say --device cpu")
    return torch.device(name)


def load_run(run: Path, device: Any) -> Any:
    """A trained run; of one that is not finished, that it is not."""
    from triplee.engine.loading import describe_stand_in, describe_unfinished, load_quietly

    classifier = load_quietly(run, device)
    if line := describe_unfinished(run):
        warn(f"{line}; {describe_stand_in(classifier)}")
    return classifier


def load_finished_run(run: Path, device: Any) -> Any:
    """A trained run to make something of that lasts, which would hide that it is not finished."""
    from triplee.engine.loading import describe_unfinished, load

    if line := describe_unfinished(run):
        raise InputError(line)
    return load(run, device)


def load_pool(
    data: str,
    image_size: int,
    root: Path | None,
    skip_bad: bool,
    target: str | None = None,
    needed_domain: str | None = None,
) -> Any:
    """The pool, with a bar while images are decoded for the first time, and what is to be known of it."""
    from triplee.data.load import load_data

    with image_bar("decoding images") as on_progress:
        pool = load_data(
            data,
            image_size,
            root=root,
            skip_bad=skip_bad,
            target=target,
            needed_domain=needed_domain,
            on_progress=on_progress,
        )
    for note in pool.notes:
        warn(note)
    return pool


def load_own_pool(
    run: Path,
    config: dict[str, Any],
    image_size: int,
    root: Path | None,
    skip_bad: bool,
    needed_domain: str | None = None,
) -> Any:
    """The data a run was trained on, from where they were then unless `root` says otherwise."""
    from triplee.data.load import known_names

    data, own_root = config["data"], config.get("root")
    if Path(data).is_absolute() and not Path(data).exists():
        raise InputError(f"the data of {run} are no longer in {data}: put them back (evaluate takes others, --data)")
    if not Path(data).is_absolute() and data not in known_names():
        raise InputError(f"{run} is an exported folder, which does not know where {data!r} lies: give it with --data")
    root = root or (Path(own_root) if own_root else None)
    return load_pool(data, image_size, root, skip_bad, needed_domain=needed_domain)
