"""What a run is told: the validated Recipe, the errors meant for people and their words, and where files are kept.

Comes in: recipe values by name (from a named recipe, YAML or `--set key=value`). Goes out: one frozen Recipe.
Implements the "Recipes" table and the recipe keys of the method; knows nothing of devices or images.
"""

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

BACKBONES = ("digit-cnn", "resnet18", "resnet50", "mobilenet-v2")  # and timm:NAME
WEIGHT_SUFFIXES = (".pth", ".pt", ".safetensors")
Selection = Literal["source-val", "leave-one-out", "oracle"]
FILE_KEYS = {"weights": ("none", "imagenet"), "stylizer": ("fit",)}  # recipe keys that name a file, but for these words
FEW = 3  # names that a line shows


class InputError(Exception):
    """Bad input: one line that names the thing and the way out. The command line prints it and exits with 2."""


def read_yaml(kind: str, name: str, source: Traversable) -> dict[Any, Any]:
    """The `key: value` lines of a file that the user calls `name`."""
    try:
        content = yaml.safe_load(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{kind} file {name} does not exist") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        raise InputError(f"{kind} file {name} cannot be read as YAML") from None
    if not isinstance(content, dict):
        raise InputError(f"{kind} file {name} holds no `key: value` lines")
    return content


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint that ends an "unknown …" line: the closest known name, or all of them when they are few."""
    options = list(known)
    close = [option for option in options if name and option.startswith(name)]
    close = close if len(close) == 1 else difflib.get_close_matches(name, options, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(options)}" if len(options) <= 40 else f"{len(options)} are known"


def counted(count: int, what: str) -> str:
    """`1 image`, `2,000 images`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def first_few(names: Sequence[str]) -> str:
    """`a, b, c, …`, for lines that cannot hold them all."""
    return ", ".join(names[:FEW]) + (", …" if len(names) > FEW else "")


def user_path(text: str | Path) -> Path:
    """A path as people write it, `~` and all."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError(f"{text}: there is no such home folder, write the path in full") from None


def cache_folder() -> Path:
    """Where decoded images are kept: $TRIPLEE_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("TRIPLEE_CACHE"):
        return user_path(chosen)
    return user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "triplee"


def data_root() -> Path:
    """Where benchmarks are looked for: $TRIPLEE_DATA, else `data` in the working folder."""
    return user_path(os.environ.get("TRIPLEE_DATA") or "data")


class Recipe(BaseModel):
    """Everything that decides how members train, apart from the data, the target and the seed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    backbone: str = Field(default="digit-cnn", description=f"{', '.join(BACKBONES)} or timm:NAME")
    weights: str = Field(default="none", description="none, imagenet, or a .pth, .pt or .safetensors file")
    batch_norm: Literal["trained", "frozen"] = Field(
        default="trained", description="frozen: the backbone's keeps its pretrained statistics, scale and shift"
    )
    image_size: int = Field(default=32, ge=8, le=1024)
    epochs: int = Field(default=100, ge=1)
    batch_size: int = Field(default=4, ge=1, le=65536, description="b: samples per batch")
    replay: int = Field(default=4, ge=1, le=1024, description="r: views per sample")
    members: int = Field(default=3, ge=1, le=1024, description="m: networks in the ensemble")
    lr: float = Field(default=0.003, gt=0)
    lr_step: int = Field(default=30, ge=1, description="epochs between two decays")
    lr_gamma: float = Field(default=0.5, gt=0, le=1)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=1e-3, ge=0)
    average_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="test and keep running averages of the weights, in which an epoch counts 1/n, n being this share of"
        " the epochs; 0 = the weights as they are",
    )
    supcon_weight: float = Field(default=1.0, ge=0, description="weight of the supervised contrast; 0 leaves it out")
    temperature: float = Field(default=0.07, gt=0)
    augment: Literal["none", "vanilla", "standard", "esaug"] = "esaug"
    crop_area: float = Field(
        default=1.0, gt=0, le=1, description="smallest share of the area a random crop keeps; 1 = no crop"
    )
    flip: bool = Field(default=False, description="mirror half of the views, at random")
    ops: Literal["basic", "fourier", "style", "both"] = Field(
        default="fourier", description="the 14 ops of ESAug alone, or with Fourier mix, AdaIN style or both"
    )
    stylizer: str = Field(
        default="fit",
        description="of the style op. fit: one on the source domains; a file of `triplee style fit`; or a folder with"
        " vgg_normalised.pth and decoder.pth",
    )
    cross_image_probability: float | None = Field(default=None, ge=0, le=1, description="null: every op equally likely")
    ops_per_view: int = Field(default=1, ge=1, le=14, description="1 = singular; more are applied in a row")
    translate_pixels: int = Field(default=10, ge=0)
    ensemble: Literal["parts", "whole"] = "parts"
    selection: Selection = Field(
        default="source-val", description="how the epoch is chosen; oracle looks at the target"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="auto: bfloat16 where it is native"
    )

    @field_validator("backbone")
    @classmethod
    def _backbone_is_known(cls, name: str) -> str:
        if name not in BACKBONES and not (name.startswith("timm:") and name != "timm:"):
            raise ValueError(f"unknown backbone {name!r}: {nearest(name, [*BACKBONES, 'timm:NAME'])}")
        return name

    @field_validator("weights")
    @classmethod
    def _weights_are_known(cls, name: str) -> str:
        if name not in ("none", "imagenet") and not name.endswith(WEIGHT_SUFFIXES):
            raise ValueError(f"{name!r} is neither none, imagenet nor a file ending in {' '.join(WEIGHT_SUFFIXES)}")
        return name

    @model_validator(mode="after")
    def _keys_fit_together(self) -> "Recipe":
        if self.cross_image_probability is not None and self.ops == "basic":
            raise ValueError("cross_image_probability needs a cross-image op: set ops=fourier or ops=style")
        if self.supcon_weight > 0 and self.batch_size * self.replay == 1:
            raise ValueError(
                "supervised contrast needs two views in a batch: raise batch_size or replay, or set supcon_weight=0"
            )
        if self.backbone == "digit-cnn" and self.weights == "imagenet":
            raise ValueError("digit-cnn has no imagenet weights: set weights=none, or backbone=resnet18")
        if self.batch_norm == "frozen" and self.weights == "none":
            raise ValueError(
                "batch_norm=frozen keeps what pretrained weights bring: set weights too, or leave it trained"
            )
        return self

    @property
    def restyles(self) -> bool:
        """Whether views may be restyled, which takes a stylizer."""
        return self.augment == "esaug" and self.ops in ("style", "both")

    def learning_rate(self, epoch: int) -> float:
        """The rate in force during `epoch` (counted from 0)."""
        return self.lr * self.lr_gamma ** (epoch // self.lr_step)

    @property
    def averages(self) -> bool:
        """Whether the weights that are tested differ from those that are trained."""
        return self.average_share * self.epochs > 1

    def average_weight(self, epoch: int) -> float:
        """How far the running average moves towards the weights at the end of `epoch` (from 0).

        At first a plain mean, then 1/n with n epochs as `average_share` says: those before the last n keep a third.
        """
        return 1 / min(epoch + 1, max(1.0, self.average_share * self.epochs))


def make_recipe(values: Mapping[str, Any], base: Recipe | None = None) -> Recipe:
    """A Recipe of `values` over `base`; an unknown key or a bad value is one InputError line."""
    for key in values:
        if key not in Recipe.model_fields:
            raise InputError(f"unknown recipe key {key!r}: {nearest(key, Recipe.model_fields)}")
    try:
        return Recipe.model_validate({**(base.model_dump() if base else {}), **values})
    except ValidationError as error:
        first = error.errors()[0]
        where = f"recipe key {first['loc'][0]!r}: " if first["loc"] else ""
        raise InputError(where + describe_error(first)) from None


def describe_error(error: Mapping[str, Any]) -> str:
    """What pydantic found, for people: "should be greater than 0, not -1"."""
    if error["type"] in ("value_error", "missing"):
        return error["msg"].removeprefix("Value error, ")
    given = f", not {error['input']!r}" if isinstance(error["input"], str | int | float | bool) else ""
    return error["msg"].replace("Input should", "should").split(", unable")[0] + given


def files_in_full(recipe: Recipe) -> Recipe:
    """With the whole paths of its files, so that the run can go on from another working folder."""
    paths = {key: getattr(recipe, key) for key, words in FILE_KEYS.items() if getattr(recipe, key) not in words}
    return make_recipe({key: str(user_path(path).absolute()) for key, path in paths.items()}, recipe)
