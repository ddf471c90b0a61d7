"""The entry point: runs a verb, and turns errors meant for people into one line and an exit code."""

import io
import os
import sys
from typing import Annotated

import typer

from triplee import __version__
from triplee.cli import data, exporting, predicting, style, verbs
from triplee.cli.printing import Stopped
from triplee.cli.report import figure, report
from triplee.cli.sweep import sweep
from triplee.settings import InputError

app = typer.Typer(
    help="Image classifiers that keep working on domains they never saw.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (
    verbs.demo,
    verbs.train,
    verbs.evaluate,
    predicting.predict,
    exporting.fuse,
    exporting.export,
    verbs.recipes,
    sweep,
    report,
    figure,
):
    app.command()(verb)
app.add_typer(data.app, name="data")
app.add_typer(style.app, name="style")

# Typer's base for wrong options and arguments; which module it lives in differs between Typer's versions.
UsageError: type[typer.BadParameter] = typer.BadParameter.__bases__[0]  # pyright: ignore[reportAssignmentType]


def main() -> None:
    """Entry point of `triplee`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may hold what the encoding cannot say
    try:
        code = app(prog_name="triplee", standalone_mode=False)
        if code == 130:  # Typer's word for Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
    except InputError as error:
        code = _fail(str(error))
    except UsageError as error:
        message = " ".join(error.format_message().split()).replace("Value error, ", "")
        # No message for a bare `triplee`, which has shown its help.
        code = _fail(f"{message} (see {error.ctx.command_path if error.ctx else 'triplee'} --help)") if message else 2
    except Stopped as stopped:
        _fail(str(stopped))
        code = 130
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted")
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
