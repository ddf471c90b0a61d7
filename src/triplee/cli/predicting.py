"""The verb predict, and how its results are written: line by line, as they come."""

import csv
import json
import sys
from contextlib import closing, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triplee.cli.choices import Device, SkipBad, choose_device, load_run
from triplee.cli.printing import Stopped, image_bar
from triplee.settings import InputError

if TYPE_CHECKING:
    from triplee.data.decode import BadImage
    from triplee.engine.classifier import Prediction
    from triplee.engine.predict import Batch

COLUMNS = ["image", "class", "confidence", "disagreement"]
# Of file names, where tabs and line ends have a meaning.
ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


class Format(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"


def predict(
    run: Annotated[Path, typer.Argument(help="run folder, or one from `triplee export --format hub`")],
    images: Annotated[list[Path] | None, typer.Argument(help="images or folders of images")] = None,
    watch: Annotated[
        Path | None, typer.Option(help="a folder that fills: each image as it comes, until Ctrl-C")
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="json with --watch: an object a line")] = Format.table,
    skip_bad: SkipBad = False,
    device: Device = None,
) -> None:
    """Class, confidence and the members' disagreement for each image.

    Example: triplee predict runs/street photos/ --format csv
    """
    if bool(images) == bool(watch):
        raise InputError("name images or folders to predict, or one folder with --watch")
    from triplee.engine.interrupt import stop_on_interrupt
    from triplee.engine.predict import find_images, predict_arriving, predict_files

    def on_bad(bad: "BadImage") -> None:
        if not skip_bad and not watch:
            raise InputError(f"{bad}; --skip-bad leaves such images out")
        print(f"triplee: skipped: {bad}", file=sys.stderr, flush=True)

    classifier = load_run(run, choose_device(device))
    files = find_images(images or [])
    num_done = 0
    # On a terminal the results themselves show how far it is.
    has_bar = not watch and not sys.stdout.isatty()
    with stop_on_interrupt() as stop, image_bar("predicting") if has_bar else nullcontext() as on_progress:
        batches = (
            predict_arriving(classifier, watch, on_bad, stop) if watch else predict_files(classifier, files, on_bad)
        )
        with closing(batches), RESULTS[format_](is_endless=bool(watch)) as results:
            for batch in batches:
                results.write(batch)
                num_done += len(batch)
                if on_progress:
                    on_progress(num_done, len(files))
                if stop.is_set():
                    break
    if stop.is_set():
        raise Stopped(f"stopped after {num_done:,} images")


def as_record(image: Path, prediction: "Prediction") -> dict[str, Any]:
    return {
        "image": str(image),
        "class": prediction.label,
        "confidence": round(prediction.confidence, 4),
        "disagreement": round(prediction.disagreement, 4),
    }


class Results:
    """Writes batches to standard output as they come, in whole lines; a header waits for the first batch."""

    def __init__(self, is_endless: bool) -> None:
        self.is_endless, self.num_written = is_endless, 0

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None and not self.num_written:
            self.write_records([])

    def write(self, batch: "Batch") -> None:
        records = [as_record(image, prediction) for image, prediction in batch]
        self.write_records(records)
        self.num_written += len(records)
        sys.stdout.flush()

    def write_records(self, records: list[dict[str, Any]]) -> None:
        raise NotImplementedError


class CsvResults(Results):
    def write_records(self, records: list[dict[str, Any]]) -> None:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        if not self.num_written:
            writer.writeheader()
        writer.writerows(records)


class JsonResults(Results):
    """One array, closed whatever happens; of an endless stream every line is an object of its own."""

    def write_records(self, records: list[dict[str, Any]]) -> None:
        for number, record in enumerate(records, self.num_written):
            text = json.dumps(record, ensure_ascii=False)
            print(text if self.is_endless else f",\n  {text}" if number else f"[\n  {text}", end="\n" * self.is_endless)

    def __exit__(self, *exception: object) -> None:
        if not self.is_endless and (self.num_written or exception[0] is None):
            print("\n]" if self.num_written else "[]")


class TableResults(Results):
    """Columns on a terminal, as wide as the first batch asks for; tab-separated elsewhere, for `cut` and `grep`."""

    def write_records(self, records: list[dict[str, Any]]) -> None:
        rows = [
            [r["image"].translate(ESCAPES), r["class"], f"{r['confidence']:.1%}", f"{r['disagreement']:.0%}"]
            for r in records
        ]
        if not self.num_written:
            rows.insert(0, COLUMNS)
            self.widths = [max(map(len, column)) if sys.stdout.isatty() else 0 for column in zip(*rows, strict=True)]
        between = "  " if sys.stdout.isatty() else "\t"
        for row in rows:
            print(between.join(word.ljust(width) for word, width in zip(row, self.widths, strict=True)).rstrip(" "))


RESULTS: dict[Format, type[Results]] = {
    Format.table: TableResults,
    Format.json: JsonResults,
    Format.csv: CsvResults,
}
