"""An experiment: rows of methods to compare on some data, and what the paper prints (paper, § "Experiments").

Comes in: the name of one under experiments/, or a YAML file of the same form. Goes out: an Experiment, checked.
"""

from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from triplee.settings import InputError, describe_error, nearest, read_yaml, user_path

AVERAGE = "average"
_FOLDER = files("triplee.sweep") / "experiments"

Names = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(_Entry):
    """A line of the table: a method in the setting that the data have, with some recipe keys changed."""

    method: str = "triplee-fourier"
    backbone: Literal["resnet18", "resnet50"] | None = Field(
        default=None, description="where the data have a setting for it"
    )
    changes: Mapping[str, Any] = Field(default={}, alias="set")


class PaperTable(_Entry):
    """Accuracies as the paper prints them for some data, in its order of columns."""

    label: str
    data: Names
    columns: tuple[str, ...]
    figures: Mapping[str, tuple[float, ...]]


class Experiment(_Entry):
    """What to compare. With one set of data a column is a target, with several a column is a set."""

    about: str
    data: Names = Field(min_length=1)
    seeds: int = Field(default=3, ge=1)
    baseline: str = Field(description="the row that the others are compared with")
    rows: Mapping[str, Row] = Field(min_length=1)
    paper: tuple[PaperTable, ...] = ()

    @model_validator(mode="after")
    def _names_fit_together(self) -> "Experiment":
        if self.baseline not in self.rows:
            raise InputError(f"baseline {self.baseline!r} is no row: {nearest(self.baseline, self.rows)}")
        for table in self.paper:
            for row, figures in table.figures.items():
                if row not in self.rows:
                    raise InputError(f"{table.label} has figures for {row!r}, which is no row")
                if len(figures) != len(table.columns):
                    raise InputError(f"{table.label}, {row!r}: {len(figures)} figures for {len(table.columns)} columns")
        return self

    def paper_table(self, data: tuple[str, ...], in_full: Callable[[str], str]) -> PaperTable | None:
        """What the paper prints for such data; `in_full` tells how data are named there."""
        return next((table for table in self.paper if tuple(map(in_full, table.data)) == data), None)


_MODELS: dict[str, type[_Entry]] = {"rows": Row, "paper": PaperTable}


def experiment_names() -> list[str]:
    return sorted(file.name.removesuffix(".yaml") for file in _FOLDER.iterdir() if file.name.endswith(".yaml"))


def load_experiment(name: str) -> tuple[str, Experiment]:
    """What to call it, and the experiment of that name or in that YAML file; anything wrong is one line."""
    is_file = name.endswith((".yaml", ".yml"))
    if not is_file and name not in experiment_names():
        raise InputError(f"unknown experiment {name!r}: {nearest(name, experiment_names())}")
    source = user_path(name) if is_file else _FOLDER / f"{name}.yaml"
    content = read_yaml("experiment", name, source)
    try:
        return Path(name).stem, Experiment.model_validate(content)
    except InputError as error:
        raise InputError(f"experiment {name}: {error}") from None
    except ValidationError as error:
        raise InputError(f"experiment {name}: {_first_line(error)}") from None


def _first_line(error: ValidationError) -> str:
    # A key that is misspelt is missing as well: that it is unknown says more.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    *path, key = first["loc"] or ("",)
    inside = f" in {' '.join(map(str, path))}" if path else ""
    if first["type"] == "extra_forbidden":
        model = _MODELS[str(path[0])] if path else Experiment
        known = [field.alias or name for name, field in model.model_fields.items()]
        return f"unknown key {key!r}{inside}: {nearest(str(key), known)}"
    return f"{key!r}{inside}: " + describe_error(first)
