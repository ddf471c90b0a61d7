"""The verbs that make something smaller or portable of a run: fuse, export."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from triplee.cli.choices import Device, Root, SkipBad, choose_device, load_finished_run, load_own_pool, parse_changes
from triplee.cli.printing import Stopped, print_table, warn
from triplee.progress import make_observer
from triplee.settings import InputError


class How(StrEnum):
    soup = "soup"
    distill = "distill"


class Format(StrEnum):
    onnx = "onnx"
    hub = "hub"


def export(
    run: Annotated[Path, typer.Argument(help="run folder, or one from `triplee export --format hub`")],
    format_: Annotated[Format, typer.Option("--format", help="an ONNX file, or a folder for the Hugging Face Hub")],
    out: Annotated[Path | None, typer.Option(help="file or folder (default: named after the run, here)")] = None,
    member: Annotated[int | None, typer.Option(help="only this member, from 0, uncalibrated")] = None,
) -> None:
    """A run to take elsewhere: the whole ensemble with its preprocessing, or one member of it.

    Example: triplee export runs/street --format onnx --out street.onnx
    """
    classifier = load_finished_run(run, "cpu")
    if member is not None:
        classifier = classifier.member(member)
    name = run.resolve().name + ("" if member is None else f"-member-{member}")
    if format_ == Format.hub:
        from triplee.export.hub import export_hub

        out = out or Path(f"{name}-hub")
        export_hub(classifier, out)
        print(f"{out}: load it with triplee.load, or push it with: hf upload YOU/{name} {out}")
        return
    from triplee.export.onnx_file import export_onnx

    out = out or Path(f"{name}.onnx")
    difference = export_onnx(classifier, out)
    if difference is None:
        warn("not compared with PyTorch, as onnxruntime is not installed: pip install 'triplee[onnx]'")
    checked = "" if difference is None else f", within {difference:.0e} of PyTorch"
    print(f"{out}: images uint8 (N,3,H,W) → probabilities (N,{len(classifier.classes)}){checked}")


def fuse(
    run: Annotated[Path, typer.Argument(help="run folder")],
    how: Annotated[How, typer.Option(help="soup: weights averaged; distill: one student trained on the ensemble")],
    out: Annotated[Path | None, typer.Option(help="run folder (default: <RUN>-soup or <RUN>-distill)")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a recipe key of the student")
    ] = None,
    root: Root = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the unfinished student in --out")] = False,
    skip_bad: SkipBad = False,
    device: Device = None,
) -> None:
    """One network instead of an ensemble, as a run folder of its own; accuracy, size and speed beside the ensemble's.

    Example: triplee fuse runs/street --how distill --out runs/street-distill
    """
    from triplee.data.split import split_pool
    from triplee.engine.fuse import check_data, distill, make_soup, student_recipe, weigh
    from triplee.engine.loading import is_hub_folder, load
    from triplee.engine.train import Interrupted

    where = choose_device(device)
    if is_hub_folder(run):
        raise InputError(f"{run} is an exported folder, which does not know its data: fuse the run it was made from")
    classifier = load_finished_run(run, where)
    if classifier.num_members == 1:
        raise InputError(f"{run} has one member: there is nothing to fuse")
    if how == How.soup and (set_ or resume):
        raise InputError("--set and --resume are for a student: a soup is made of the members as they are")
    recipe = student_recipe(classifier.recipe, parse_changes(set_ or []))
    pool = load_own_pool(run, classifier.config, classifier.recipe.image_size, root, skip_bad)
    check_data(classifier, run, pool)
    config = classifier.config
    split = split_pool(pool, config["target"], config["seed"], config.get("left_out"))
    out = out or run.resolve().with_name(f"{run.resolve().name}-{how}")
    if how == How.soup:
        make_soup(run, classifier, pool, split, out)
        if classifier.recipe.weights == "none":
            warn("the members share no pretrained start: an average of their weights is hardly better than chance")
    else:
        try:
            with make_observer(f"{config['recipe_name']} → one network") as observer:
                distill(run, classifier, pool, split, out, recipe, observer=observer, resume=resume, device=where)
        except Interrupted:
            raise Stopped(f"stopped and saved; go on with the same command and --out {out} --resume") from None
    rows = []
    names = (f"ensemble of {classifier.num_members}", how.value)
    for name, cost in zip(names, weigh([classifier, load(out, where)], pool, split), strict=True):
        size = f"{cost.num_weights * 4 / 1e6:.2f} MB"
        rows.append(
            [name, f"{cost.accuracy:.2f} %", f"{cost.val_accuracy:.2f} %", size, f"{cost.images_per_second:,.0f}"]
        )
    print_table(["network", f"target {config['target']}", "source val", "weights", "images/s"], rows)
    print(f"{out}: a run of one member")
