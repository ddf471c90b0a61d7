"""The verb `sweep`: an experiment in, tables out; what it trained stays for the next time."""

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triplee.cli.choices import Device, Root, SkipBad, choose_device, load_pool, parse_changes, split_words
from triplee.cli.printing import Stopped, print_table
from triplee.settings import InputError

if TYPE_CHECKING:
    from triplee.sweep.grid import Grid, Ingredient
    from triplee.sweep.run import Engine, SweepFolder


class EngineName(StrEnum):
    local = "local"
    ray = "ray"


class TableFormat(StrEnum):
    md = "md"
    tex = "tex"
    csv = "csv"


def sweep(
    experiment: Annotated[str | None, typer.Argument(help="name from --list, or a YAML file of the same form")] = None,
    data: Annotated[str | None, typer.Option(help="other data: digits, a benchmark's name or a folder")] = None,
    rows: Annotated[str | None, typer.Option(help="only these rows, comma-separated")] = None,
    targets: Annotated[str | None, typer.Option(help="only these targets, comma-separated")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="how many, from 0 (default: the experiment's)")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="the same as --set epochs=N")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a recipe key of every row")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="pretrained backbone; the same as --set weights=FILE")] = None,
    root: Root = None,
    skip_bad: SkipBad = False,
    out: Annotated[Path, typer.Option(help="folder for runs and tables; experiments may share it")] = Path("sweeps"),
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="try runs again that have failed")] = False,
    format_: Annotated[TableFormat, typer.Option("--format", help="to print; all are written")] = TableFormat.md,
    engine: Annotated[EngineName, typer.Option(help="this machine, or a Ray cluster")] = EngineName.local,
    address: Annotated[
        str | None, typer.Option(help="of a Ray cluster (default: one of its own on this machine)")
    ] = None,
    cpus: Annotated[int, typer.Option(min=1, help="cores for each run")] = 1,
    gpus: Annotated[float, typer.Option(min=0.01, help="GPUs for each group of runs, with ray")] = 1.0,
    device: Device = None,
    list_: Annotated[bool, typer.Option("--list", help="explain the experiments")] = False,
) -> None:
    """Train every run of an experiment and print its table; the same command again goes on, or prints.

    Example: triplee sweep components --data digits --epochs 2 --seeds 1
    """
    from triplee.sweep.experiment import experiment_names, load_experiment

    if list_:
        _list(experiment_names())
        return
    if experiment is None:
        raise InputError("which experiment? `triplee sweep --list` explains those that have a name")
    name, declared = load_experiment(experiment)
    changes = parse_changes(set_ or [], epochs=epochs, weights=weights)
    from triplee.results.tables import FORMATS
    from triplee.sweep.grid import plan_grid
    from triplee.sweep.report import make_report, write_report
    from triplee.sweep.run import SweepFolder

    grid = plan_grid(
        name,
        declared,
        data=data,
        rows=split_words(rows),
        targets=split_words(targets),
        num_seeds=seeds,
        changes=changes,
        root=root,
    )
    for row, first in grid.repeated.items():
        print(f"triplee: row {row!r} is left out: with these data it is {first!r} again", file=sys.stderr)
    folder = SweepFolder(out)
    known = {}
    if engine == EngineName.local and not all(map(folder.is_done, grid.runs)):
        known = _check_machine(grid, address, device, root, skip_bad)
    folder.check(grid.runs, known)
    with folder.claim():
        for run in grid.runs:
            if retry_failed:
                folder.forget_failure(run)
        is_whole = _train(grid, folder, lambda: _make_engine(engine, out, address, cpus, gpus, device), root, skip_bad)
        report, tables = make_report(grid, folder), out / grid.file_name
        write_report(report, tables)
        num_done = sum(map(folder.is_done, grid.runs))
        failures = {run.name: line for run in grid.runs if (line := folder.failure(run))}
    if not is_whole:
        raise Stopped(f"stopped and saved, {num_done} of {len(grid.runs)} runs done; go on with the same command")
    print(FORMATS[format_](report), end="")
    if len(grid.rows) > 1 and declared.baseline not in (*grid.rows, *grid.repeated):
        told = f"rows are compared with {grid.baseline!r}: {declared.baseline!r} is not among them"
        print(f"triplee: {told}", file=sys.stderr)
    print(f"triplee: tables are in {tables}.md, .tex and .csv", file=sys.stderr)
    for run_name, line in failures.items():
        print(f"triplee: {run_name} failed: {line}", file=sys.stderr)
    if failures:
        advice = "try them again with --retry-failed once the cause is gone"
        print(f"triplee: {len(failures)} of {len(grid.runs)} runs failed: {advice}", file=sys.stderr)
        raise typer.Exit(1)


def _list(names: list[str]) -> None:
    from triplee.sweep.experiment import load_experiment

    table = []
    for name in names:
        _, found = load_experiment(name)
        labels = ", ".join(dict.fromkeys(paper.label for paper in found.paper))
        table.append([name, found.about, ", ".join(found.data), ", ".join(found.rows), labels])
    print_table(["experiment", "what it compares", "data", "rows", "in the paper"], table)


def _check_machine(
    grid: "Grid", address: str | None, device: str | None, root: Path | None, skip_bad: bool
) -> "dict[Ingredient, str | None]":
    """Before there is a folder: refuse what this machine has not got, and decode images before many want them.

    Gives the fingerprints of images, weights and stylizers as they are now.
    """
    if address is not None:
        raise InputError("--address is for --engine ray")
    choose_device(device)
    from triplee.nets.network import make_backbone
    from triplee.nets.stylizer_file import load_stylizer, stylizer_fingerprint
    from triplee.nets.weights import load_weights, weights_fingerprint

    known: dict[Ingredient, str | None] = {}
    for run in grid.runs:  # once for all, not a failure of every run
        for ingredient in [one for one in run.ingredients if one not in known]:
            kind, recipe = ingredient[0], run.recipe
            if kind == "images":
                known[ingredient] = load_pool(run.data, recipe.image_size, root, skip_bad).fingerprint
            elif kind == "weights":
                if recipe.weights != "none":
                    load_weights(make_backbone(recipe), recipe)
                known[ingredient] = weights_fingerprint(recipe)
            elif recipe.stylizer != "fit":
                known[ingredient] = stylizer_fingerprint(load_stylizer(recipe.stylizer))
    return known


def _make_engine(
    name: EngineName, out: Path, address: str | None, cpus: int, gpus: float, device: str | None
) -> "Engine":
    if name == EngineName.ray:
        from triplee.sweep.on_ray import RayEngine

        if device not in (None, "cpu", "cuda"):
            raise InputError(f"unknown device {device!r}: cpu or cuda")
        if gpus > 1 and gpus != int(gpus):
            raise InputError(f"--gpus {gpus:g}: a share of one GPU, or whole GPUs")
        return RayEngine(address, cpus, gpus, device, out)
    from triplee.sweep.local import LocalEngine

    return LocalEngine(choose_device(device).type, cpus, out / "logs")


def _train(
    grid: "Grid", folder: "SweepFolder", make_engine: "Callable[[], Engine]", root: Path | None, skip_bad: bool
) -> bool:
    """Train what is left, with something to look at; gives whether it came to its end."""
    from triplee.engine.train import Interrupted
    from triplee.sweep.display import make_display
    from triplee.sweep.run import train_all

    waiting = [run for run in grid.runs if not folder.is_done(run) and not folder.failure(run)]
    if not waiting:
        return True
    engine = make_engine()
    print(f"triplee: {len(waiting)} of {len(grid.runs)} runs to train", file=sys.stderr, flush=True)
    try:
        with make_display(grid, folder) as display:
            train_all(grid.runs, engine, folder, display, root=root, skip_bad=skip_bad)
    except Interrupted:
        return False
    return True
