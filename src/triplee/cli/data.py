"""The verbs about data: list, download, verify, prepare."""

from pathlib import Path
from typing import Annotated

import typer

from triplee.cli.choices import Root, SkipBad
from triplee.cli.printing import DownloadBar, image_bar, print_table, warn
from triplee.settings import InputError, data_root

app = typer.Typer(help="Benchmarks and folders: see what there is, get it, check it, decode it.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="a benchmark's name")]
NameOrFolder = Annotated[str, typer.Argument(help="a benchmark's name, or a folder <domain>/<class>/<image>")]


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="all that is known of this one")] = None, root: Root = None
) -> None:
    """The benchmarks, and which of them are there.

    Example: triplee data list --root ~/data
    """
    from triplee.data.catalog import benchmark_names, find_benchmark
    from triplee.data.locate import find_set

    root = root or data_root()
    if name:
        _show(name, root)
        return
    rows = []
    for known in map(find_benchmark, benchmark_names()):
        sizes = " or ".join(f"{variant.total:,}" for variant in known.variants)
        place = find_set(known, root)
        where = str(place) if place else "–"
        rows.append([known.name, ", ".join(known.domains), str(len(known.classes)), sizes, where])
    print_table(["name", "domains", "classes", "images", f"under {root}"], rows)
    if not root.is_dir():
        warn(f"root {root} is no folder: name another with --root, or $TRIPLEE_DATA")


def _show(name: str, root: Path) -> None:
    from triplee.data.catalog import find_benchmark
    from triplee.data.locate import find_set

    known = find_benchmark(name)
    rows = []
    for variant in known.variants:
        per_domain = ", ".join(f"{domain} {variant.num_images(domain):,}" for domain in variant.counts)
        rows.append([f"variant {variant.name}", f"{per_domain}: {variant.note}"])
    split = "a tenth of each class of a source, drawn from the seed"
    if known.val_images:
        split = "the published validation images"
    elif known.split_lists:
        split = f"the published lists ({', '.join(known.split_lists.values())}) where they lie beside the images"
    elif known.split_folders:
        split = "folders of the set where it has them: " + " or ".join("/".join(o) for o in known.split_folders)
    print_table(
        [known.title, known.homepage],
        [
            ["found at", str(find_set(known, root) or f"– (not under {root})")],
            *rows,
            ["validation", split],
            ["recipe", known.recipe],
            ["classes", ", ".join(known.classes)],
            ["cite", known.citation],
            ["licence", known.licence],
            ["by hand", known.manual],
        ],
    )


@app.command()
def download(
    name: Name,
    root: Root = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="an archive you already have, or a folder of several")
    ] = None,
) -> None:
    """Get a benchmark: resumable, checked, unpacked safely, in place only when it is whole.

    Example: triplee data download pacs --root ~/data
    """
    from triplee.data.catalog import find_benchmark
    from triplee.data.download import download_set

    benchmark = find_benchmark(name)
    with DownloadBar() as bar:
        folder = download_set(benchmark, root or data_root(), from_, bar)
    print(f"{benchmark.title} is in {folder}; check it with: triplee data verify {name} --root {root or data_root()}")


@app.command()
def verify(data: NameOrFolder, root: Root = None) -> None:
    """Counts, unreadable images and duplicates; exit code 1 when something is wrong.

    Example: triplee data verify pacs --root ~/data
    """
    from triplee.data.catalog import benchmark_names, find_benchmark
    from triplee.data.load import list_data
    from triplee.data.verify import verify_images

    benchmark = find_benchmark(data) if data in benchmark_names() else None
    folder = list_data(data, root)
    with image_bar("reading images") as on_progress:
        verdict = verify_images(folder, benchmark, on_progress)
    rows = []
    for domain, counts in zip(folder.domains, verdict.counts_DK.tolist(), strict=True):
        by_class = ", ".join(f"{name} {count}" for name, count in zip(folder.classes, counts, strict=True) if count)
        rows.append([domain, f"{sum(counts):,}", by_class if len(folder.classes) <= 20 else f"{len(counts)} classes"])
    print_table(["domain", "images", "by class"], rows)
    train, val, unsplit = verdict.split_counts()
    if train or val:
        drawn = f", {unsplit:,} in neither" if unsplit else ""
        print(f"split: {train:,} to train, {val:,} to validate{drawn}")
    for note in verdict.notes:
        print(f"note: {note}")
    for fault in verdict.faults:
        print(f"fault: {fault}")
    what = f": {benchmark.title} ({verdict.variant.name})" if benchmark and verdict.variant else ""
    if verdict.faults:
        print(f"{folder.root}: {len(folder):,} images, NOT in order: {len(verdict.faults)} kinds of fault")
        raise typer.Exit(1)
    print(f"{folder.root}: {len(folder):,} images, in order{what}")


@app.command()
def prepare(
    data: NameOrFolder,
    root: Root = None,
    size: Annotated[
        int | None, typer.Option(min=8, max=1024, help="pixels (default: what the data's own recipe takes)")
    ] = None,
    skip_bad: SkipBad = False,
) -> None:
    """Decode every image once, so that training starts at once; goes on where an earlier call was cut off.

    Example: triplee data prepare pacs --root ~/data --size 160
    """
    from triplee.data.load import default_recipe, list_data
    from triplee.data.prepare import prepare as prepare_folder
    from triplee.recipes import find_recipe

    folder = list_data(data, root)
    size = size or find_recipe(default_recipe(data)).image_size
    with image_bar("decoding images") as on_progress:
        prepared = prepare_folder(folder, size, on_progress)
    for note in folder.notes:
        warn(note)
    for index, reason in prepared.bad.items():
        print(f"{folder.names[index]}\t{reason}")
    if prepared.bad and not skip_bad:
        raise InputError(
            f"{len(prepared.bad)} of {len(folder):,} images cannot be read: repair or remove them, or add --skip-bad"
        )
    print(f"{len(folder) - len(prepared.bad):,} images at {size} px in {prepared.entry}")
