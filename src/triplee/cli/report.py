"""The verbs that show what was measured: the report page, and single figures for print."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triplee.cli.choices import Device, Root, choose_device, load_own_pool
from triplee.cli.printing import warn
from triplee.settings import InputError, counted

if TYPE_CHECKING:
    from triplee.data.pool import Pool
    from triplee.results.records import Record

Runs = Annotated[list[Path], typer.Argument(help="run folders, or folders that hold such, as a sweep's")]


class Kind(StrEnum):
    tsne = "tsne"
    neighbours = "neighbours"
    views = "views"
    curves = "curves"


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="HTML file")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="of the page")] = "Report",
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="what needs the data and the networks: images, t-SNE")
    ] = True,
    root: Root = None,
    device: Device = None,
) -> None:
    """One self-contained page: tables, curves, confusion, mistakes, t-SNE, neighbours, views, cost.

    Example: triplee report runs --out report.html
    """
    from dataclasses import replace

    from triplee.results.page import make_page
    from triplee.results.paper_tables import read_tables
    from triplee.results.parts import make_parts
    from triplee.results.pieces import look_at
    from triplee.results.records import find_records
    from triplee.runfolder import check_writable, write_atomically

    check_writable(out)
    records, notes = find_records(runs)
    tables, table_notes = read_tables(runs)
    notes += table_notes
    parts = []
    for part in make_parts(records):
        pool, reason = _own_pool(part.methods[0].records[0], root) if pictures else (None, "")
        compared = [method for method in (part.baseline, part.best) if method is not None]
        looks = look_at(part.methods, part.targets, pool, compared, choose_device(device))
        looks.notes += [f"Pictures are left out: {reason}"] if reason else []
        parts.append(replace(part, looks=looks))
    command = ["triplee", *sys.argv[1:]]
    page = make_page(parts, tables, notes, command, title)
    write_atomically(out, page.encode(errors="xmlcharrefreplace"))
    for note in notes:
        warn(note)
    print(f"{out}: {counted(len(records), 'run')}, {len(page) / 1e6:.1f} MB")


def figure(
    kind: Annotated[Kind, typer.Argument(help="which")],
    runs: Runs,
    out: Annotated[Path, typer.Option(help="file ending in .svg, .png or .pdf")],
    root: Root = None,
    device: Device = None,
) -> None:
    """One figure in print quality: t-SNE maps of runs side by side, nearest training images, views, curves.

    Example: triplee figure tsne runs/baseline runs/triplee --out tsne.pdf
    """
    from dataclasses import replace

    from triplee.results import figures
    from triplee.results.embedding import NO_MAP, describe_features, describe_shortly
    from triplee.results.parts import make_parts
    from triplee.results.pieces import STRENGTHS, is_of_pool, look_at_features, make_views, map_features
    from triplee.results.plots import MOST_METHODS
    from triplee.results.records import find_records, group_by_method
    from triplee.runfolder import check_writable

    figures.check_format(out)
    check_writable(out)
    records, notes = find_records(runs)
    for note in notes:
        warn(note)
    with figures.house_style():
        if kind == Kind.curves:
            parts = make_parts(records)
            if len(parts) > 1:
                raise InputError(f"the runs are over {len(parts)} sets of data: name runs over one")
            if not any(record.rows for record in records):
                raise InputError(f"no curves in {', '.join(map(str, runs))}: a soup is not trained, name runs that are")
            shown, num_methods = parts[0].choose(MOST_METHODS), len(parts[0].methods)
            if len(shown) < num_methods:
                warn(f"{len(shown)} of {num_methods} methods are drawn: name the runs of those that you want to see")
            drawn = figures.draw_curves(shown, parts[0].targets)
        else:
            last = records[-1]
            pool, reason = _own_pool(last, root)
            if pool is None:
                raise InputError(reason)
            if kind == Kind.views:
                rows = [
                    (row.op, [replace(row.start, words=f"partner: {row.start.words}"), *row.views])
                    if row.is_mixed
                    else (row.op, [replace(shown, words="") for shown in (row.start, *row.views)])
                    for row in make_views(last, pool, choose_device(device))
                ]
                heads = ["image", *(f"strength {strength}" for strength in STRENGTHS)]
                drawn = figures.draw_pictures(rows, heads, inches=0.6)
            else:
                fitting = [record for record in records if record.target == last.target and is_of_pool(record, pool)]
                if kind == Kind.tsne and len(fitting) < len(records):
                    raise InputError("the runs differ in target or data: name runs of one target, over the same data")
                methods = sorted(group_by_method(fitting), key=lambda method: min(map(fitting.index, method.records)))
                chosen = {method.title: method.records[0] for method in methods}  # in the order they were named in
                look = look_at_features(chosen if kind == Kind.tsne else {"": last}, pool, choose_device(device))
                if kind == Kind.tsne:
                    (places,) = map_features([look])
                    if len(places) < len(chosen):
                        raise InputError(NO_MAP)
                    said = {title: describe_shortly(judged) for title, judged in look.judged.items()}
                    drawn = figures.draw_map(places, look.labels_N, last.config["classes"], said)
                else:
                    heads = ["held out", "nearest", "2nd", "3rd", "4th", "5th"]
                    rows = [("", [asked, *near]) for asked, near in look.neighbours]
                    drawn = figures.draw_pictures(rows, heads, inches=1.0)
                for name, judged in look.judged.items():
                    print(f"{name or last.config['recipe_name']}, {last.target}: {describe_features(judged)}")
        figures.save_figure(drawn, out)
    print(out)


def _own_pool(record: "Record", root: Path | None) -> "tuple[Pool | None, str]":
    """The data of a run, or why they cannot be had."""
    from triplee.results.pieces import is_of_pool

    try:
        pool = load_own_pool(record.path, record.config, record.recipe.image_size, root, skip_bad=True)
    except InputError as error:
        return None, str(error)
    if not is_of_pool(record, pool):
        return None, f"{record.config['data']} has changed since {record.path} was trained on it"
    return pool, ""
