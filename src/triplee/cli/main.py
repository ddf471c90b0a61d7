"""The command line: verbs only – parse, call, print. Bad input ends with exit code 2 and one line.

Heavy imports wait inside the verbs, so that `triplee --help` answers at once.
"""

import csv
import io
import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from triplee import __version__
from triplee.progress import make_observer
from triplee.settings import InputError, Recipe, make_recipe

app = typer.Typer(
    help="Image classifiers that keep working on domains they never saw.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Typer's base for wrong options and arguments; which module it lives in differs between Typer's versions.
UsageError: type[typer.BadParameter] = typer.BadParameter.__bases__[0]  # pyright: ignore[reportAssignmentType]

DataArgument = Annotated[str, typer.Argument(help="digits (embedded), or a folder <domain>/<class>/<image>")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="leave unreadable images out instead of refusing")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; the GPU where there is one")]


class Format(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"


def main() -> None:
    """Entry point: run the verb, and turn errors meant for people into one line and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may hold what the encoding cannot say
    try:
        code = app(prog_name="triplee", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        code = _fail(str(error))
    except UsageError as error:
        message = error.format_message()  # none for a bare `triplee`, which has shown its help
        code = _fail(f"{message} (see {error.ctx.command_path if error.ctx else 'triplee'} --help)") if message else 2
    except (KeyboardInterrupt, typer.Abort):
        print("triplee: interrupted", file=sys.stderr)
        code = 130
    except (BrokenPipeError, SystemExit):  # the reader went away (`| head`); Typer makes an exit of it
        code = _drop_output(141)  # as a shell calls the end of any program by SIGPIPE
    except OSError as error:
        code = _drop_output(_fail(str(error)))
    sys.exit(code)


def _fail(line: str) -> int:
    print("triplee: " + line.replace("\n", " "), file=sys.stderr)
    return 2


def _drop_output(code: int) -> int:
    """Output that could not be written is forgotten: else Python tries again at its end, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _version(asked: bool) -> None:
    if asked:
        print(f"triplee {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for the runs and the picture")] = Path("demo"),
    target: Annotated[str, typer.Option(help="domain to hold out")] = "street",
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Vanilla against TripleE on the embedded digits with one domain held out.

    Example: triplee demo
    """
    from triplee.demo import run_demo
    from triplee.engine.train import Interrupted

    print(f"Embedded digits: train on three domains, test on the unseen “{target}”. {epochs} epochs each.", flush=True)
    try:
        results, picture = run_demo(out, target, epochs, seed, make_observer)
    except Interrupted:
        print("triplee: stopped and saved; go on with the same command", file=sys.stderr)
        raise typer.Exit(130) from None
    columns = ["method", "unseen domain", "source val", "epoch", "members alone", "last epoch", "seconds"]
    rows = [
        [
            title,
            f"{r['accuracy']:.1f} %",
            f"{r['val_accuracy']:.1f} %",
            str(r["epoch"]),
            _percentages(r["members"]),
            f"{r['last_accuracy']:.1f} %",
            f"{r['seconds']:.0f}",
        ]
        for title, r in results.items()
    ]
    _print_table(columns, rows)
    vanilla, triplee = (r["accuracy"] for r in results.values())
    print(f"TripleE against Vanilla on “{target}”: {triplee - vanilla:+.1f} points. Picture: {picture}")


@app.command()
def train(
    data: DataArgument,
    target: Annotated[str, typer.Option(help="domain to hold out and only test on")],
    recipe: Annotated[
        str, typer.Option(help="name from `triplee recipes`, a YAML file, or a run's config.yaml (its recipe only)")
    ] = "digits-triplee-fourier",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="run folder [default: runs/<data>-<target>-<recipe>-<seed>]")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a recipe key")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the unfinished run in --out")] = False,
    skip_bad: SkipBad = False,
    device: Device = None,
) -> None:
    """Train a recipe on all domains but the target, select an epoch, and test on the target.

    Example: triplee train digits --target street --set epochs=10 --out runs/street
    """
    chosen, name = _recipe(recipe, set_ or [])
    from triplee.data.split import split_pool
    from triplee.engine.train import Interrupted, train_run

    where = _device(device)
    pool = _load(data, chosen.image_size, skip_bad)
    split = split_pool(pool, target, seed)
    for warning in split.warnings:
        print(f"triplee: warning: {warning}", file=sys.stderr)
    out = out or Path("runs") / f"{Path(data).resolve().name}-{target}-{name}-{seed}"
    try:
        with make_observer(f"{name} → {target}") as observer:
            result = train_run(
                pool,
                split,
                chosen,
                out=out,
                observer=observer,
                recipe_name=name,
                seed=seed,
                resume=resume,
                device=where,
            )
    except Interrupted:
        print(f"triplee: stopped and saved; go on with the same command and --out {out} --resume", file=sys.stderr)
        raise typer.Exit(130) from None
    print(f"{out}: epoch {result['epoch']} selected by {result['selection']} ({result['val_accuracy']:.2f} %)")
    print(f"target {target}: {result['accuracy']:.2f} %  members alone {_percentages(result['members'])}")
    print(f"last epoch {result['last_accuracy']:.2f} %  oracle {result['oracle_accuracy']:.2f} %")
    print(f"images: {len(split.train_N)} to train, {len(split.val_N)} to validate, {len(split.target_N)} to test")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="run folder")],
    data: Annotated[str | None, typer.Option(help="other data [default: the run's own]")] = None,
    domain: Annotated[str | None, typer.Option(help="one domain [default: the target, or all of other data]")] = None,
    skip_bad: SkipBad = False,
    device: Device = None,
) -> None:
    """Accuracy of a trained run on its target, another domain, or other data of the same classes.

    Example: triplee evaluate runs/street --domain printed
    """
    from triplee.engine.evaluate import evaluate_run
    from triplee.engine.loading import load_run

    loaded = load_run(run, _device(device))
    pool = _load(data or loaded.config["data"], loaded.recipe.image_size, skip_bad)
    rows = []
    for score in evaluate_run(loaded, pool, own_data=data is None, domain=domain):
        rows.append(
            [score.domain, score.role, str(score.num_images), f"{score.accuracy:.2f} %", _percentages(score.members)]
        )
    _print_table(["domain", "seen in training", "images", "ensemble", "members alone"], rows)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="run folder")],
    images: Annotated[list[Path], typer.Argument(help="images or folders of images")],
    format_: Annotated[Format, typer.Option("--format")] = Format.table,
    skip_bad: SkipBad = False,
    device: Device = None,
) -> None:
    """Class, confidence and the members' disagreement for each image.

    Example: triplee predict runs/street photos/ --format csv
    """
    from triplee.engine.evaluate import predict_files
    from triplee.engine.loading import load_run

    predictions, skipped = predict_files(load_run(run, _device(device)), images, skip_bad)
    for line in skipped:
        print(f"triplee: skipped {line}", file=sys.stderr)
    records = [p.as_record() for p in predictions]
    if format_ == Format.json:
        print(json.dumps(records, indent=2, ensure_ascii=False))
    elif format_ == Format.csv:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, ["image", "class", "confidence", "disagreement"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        print(buffer.getvalue(), end="")
    else:
        rows = [[r["image"], r["class"], f"{r['confidence']:.1%}", f"{r['disagreement']:.0%}"] for r in records]
        _print_table(["image", "class", "confidence", "disagreement"], rows)


@app.command()
def recipes(name: Annotated[str | None, typer.Argument(help="show all values of this one, as YAML")] = None) -> None:
    """List the recipes, or show one.

    Example: triplee recipes digits-triplee-fourier
    """
    from triplee.recipes import DESCRIPTIONS, find_recipe

    if name:
        for key, value in find_recipe(name).model_dump().items():
            line, meaning = yaml.safe_dump({key: value}).strip(), Recipe.model_fields[key].description
            print(f"{line:<32} # {meaning}" if meaning else line)
    else:
        _print_table(["recipe", "what it is"], [[n, text] for n, text in DESCRIPTIONS.items()])


def _recipe(name: str, changes: list[str]) -> tuple[Any, str]:
    """The recipe named or read from a YAML file, with the `--set` changes; and what to call it."""
    from triplee.recipes import find_recipe

    values: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise InputError(f"--set takes KEY=VALUE, not {change!r}")
        values[key.strip()] = _parse_value(text, change)
    if not name.endswith((".yaml", ".yml")):
        return make_recipe(values, find_recipe(name)), name
    try:
        content = yaml.safe_load(Path(name).read_text())
    except FileNotFoundError:
        raise InputError(f"recipe file {name} does not exist") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        raise InputError(f"recipe file {name} cannot be read as YAML") from None
    if not isinstance(content, dict):
        raise InputError(f"recipe file {name} holds no `key: value` lines")
    called = Path(name).stem
    if isinstance(content.get("recipe"), dict):  # a run's config.yaml: run it again
        content, called = content["recipe"], str(content.get("recipe_name", called))
    return make_recipe({**{str(key): value for key, value in content.items()}, **values}), called


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


def _device(name: str | None) -> Any:
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise InputError(f"unknown device {name!r}: cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device is available: leave out --device, or say --device cpu")
    return torch.device(name)


def _load(data: str, image_size: int, skip_bad: bool) -> Any:
    """The pool, with a bar while images are decoded for the first time."""
    from rich.console import Console
    from rich.progress import Progress

    from triplee.data.load import load_data

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("decoding images", total=None)
        pool = load_data(data, image_size, skip_bad, lambda done, total: bar.update(task, completed=done, total=total))
    if pool.skipped:
        print(f"triplee: warning: {pool.skipped} unreadable images left out", file=sys.stderr)
    return pool


def _percentages(values: list[float]) -> str:
    return " ".join(f"{value:.1f}" for value in values)


def _print_table(columns: list[str], rows: list[list[str]]) -> None:
    """A table on a terminal, tab-separated lines elsewhere, so that `cut` and `grep` work."""
    if not sys.stdout.isatty():
        for row in [columns, *rows]:
            print("\t".join(row))
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


if __name__ == "__main__":
    main()
