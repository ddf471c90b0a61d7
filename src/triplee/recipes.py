"""The named recipes: sets of values, each of which runs on any data (paper, § "Implementation Details" and "Ablation").

`<benchmark>[-<backbone>]-<method>`: Vanilla, Baseline† (`baseline-jitter`), Baseline, models a to f (each of EReplayB,
ESAug and EReplayD alone and in pairs), TripleE; `-short` is TripleE for a small budget. Expect (docs/results.md), mean
over four targets: real digits, 100 epochs, Vanilla 73.5, TripleE-Fourier 82.0, -style 82.3, -both 82.3; PACS at 160 px
with stand-in weights, 20 epochs, seed 0, Vanilla 66.0, TripleE-Fourier 71.8, with lr=0.006 75.4.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from triplee.settings import InputError, Recipe, make_recipe, nearest

Values = Mapping[str, object]

# What a row of the ablation table does without.
_NO_REPLAY_B: Values = {"batch_size": 64, "replay": 2}
_NO_ESAUG: Values = {"augment": "standard"}
_NO_REPLAY_D: Values = {"members": 1}
_NO_CONTRAST: Values = {"replay": 1, "supcon_weight": 0.0}

_METHODS: dict[str, tuple[str, Values]] = {
    "vanilla": (
        "cross-entropy, batch 64, crop and flip (digits: none), one network",
        {**_NO_REPLAY_B, **_NO_REPLAY_D, **_NO_CONTRAST, "augment": "vanilla"},
    ),
    "baseline-jitter": (
        "Baseline†: Vanilla + colour jitter",
        {**_NO_REPLAY_B, **_NO_ESAUG, **_NO_REPLAY_D, **_NO_CONTRAST},
    ),
    "baseline": ("Baseline† + supervised contrast on two views", {**_NO_REPLAY_B, **_NO_ESAUG, **_NO_REPLAY_D}),
    "a": ("Baseline + EReplayB", {**_NO_ESAUG, **_NO_REPLAY_D}),
    "b": ("Baseline + ESAug", {**_NO_REPLAY_B, **_NO_REPLAY_D}),
    "c": ("Baseline + EReplayD", {**_NO_REPLAY_B, **_NO_ESAUG}),
    "d": ("Baseline + EReplayB + ESAug", {**_NO_REPLAY_D}),
    "e": ("Baseline + ESAug + EReplayD", {**_NO_REPLAY_B}),
    "f": ("Baseline + EReplayB + EReplayD", {**_NO_ESAUG}),
    "triplee-fourier": ("EReplayB + ESAug with the Fourier op + EReplayD: the whole method", {}),
    "triplee-style": ("the same with AdaIN style in place of the Fourier op", {"ops": "style"}),
    "triplee-both": ("the same with both cross-image ops", {"ops": "both"}),
}

# Each benchmark's settings with all three components on: the method's table.
_DIGITS: Values = {"lr_gamma": 1.0, "average_share": 0.1}
_RESNET18: Values = {
    **{"backbone": "resnet18", "weights": "imagenet", "image_size": 224, "crop_area": 0.8, "flip": True},
    **{"lr": 1e-3, "weight_decay": 2e-5},
}
_RESNET50: Values = {**_RESNET18, "backbone": "resnet50"}
_OFFICE_HOME: Values = {"lr": 0.01, "batch_size": 32, "replay": 32}
_VLCS: Values = {"lr_step": 40, "batch_size": 16}
_DOMAINNET: Values = {"epochs": 40, "lr_step": 16, "batch_size": 16}
# Decays at 40 % and 80 % of the epochs, where the authors' scripts have them.
_SHORT: Values = {"image_size": 160, "epochs": 30, "lr_step": 12, "batch_size": 4, "replay": 4}

# A rate for four samples a batch is too low for 64. For digits the rate, the weight decay and averaged weights in place
# of a decaying rate were chosen with one more source held out (the paper's 0.01 learns slowly or ends in NaN at b = 4),
# the large batch's weight decay in favour of Vanilla. For ResNets 0.001 is the authors'; the large batch's 0.01 on PACS
# was chosen on source validation, for Vanilla with ResNet-18, and carried over to the rest (docs/results.md).
_LARGE_BATCH: dict[str, Values] = {
    "digits": {"lr": 0.01, "weight_decay": 4e-3},
    **{name: {"lr": 0.01} for name in ("pacs-resnet18", "pacs-resnet18-short", "pacs-resnet50")},
}

_MAIN = ("vanilla", "triplee-fourier", "triplee-style")
_TABLE: dict[str, tuple[Values, Iterable[str]]] = {
    "digits": (_DIGITS, _METHODS),
    "pacs-resnet18": (_RESNET18, _METHODS),
    "pacs-resnet50": (_RESNET50, _MAIN),
    "office-home-resnet18": ({**_RESNET18, **_OFFICE_HOME}, _MAIN),
    "office-home-resnet50": ({**_RESNET50, **_OFFICE_HOME}, _MAIN),
    "vlcs-resnet50": ({**_RESNET50, **_VLCS}, _MAIN),
    "terra-incognita-resnet50": ({**_RESNET50, **_VLCS}, _MAIN),
    "domainnet-resnet50": ({**_RESNET50, **_DOMAINNET}, _MAIN),
}
_SHORT_TABLE: dict[str, Values] = {
    **{name: _SHORT for name in ("pacs", "office-home", "vlcs", "terra-incognita")},
    "domainnet": {**_SHORT, "epochs": 10, "lr_step": 4, "batch_size": 16},
}

_SETTINGS: dict[str, Values] = {
    **{name: base for name, (base, _) in _TABLE.items()},
    **{f"{name}-resnet18-short": {**_RESNET18, **changes} for name, changes in _SHORT_TABLE.items()},
}


def method_recipe(setting: str, method: str, changes: Values | None = None) -> Recipe:
    """A method in a benchmark's setting, also where the two together have no name, with some keys changed."""
    if method not in _METHODS:
        raise InputError(f"unknown method {method!r}: {nearest(method, _METHODS)}")
    values = _METHODS[method][1]
    large = _LARGE_BATCH.get(setting, {}) if "batch_size" in values else {}
    return make_recipe({**_SETTINGS[setting], **values, **large, **(changes or {})})


DESCRIPTIONS: dict[str, str] = {}
RECIPES: dict[str, Recipe] = {}
for _setting, (_, _methods) in _TABLE.items():
    for _method in _methods:
        DESCRIPTIONS[f"{_setting}-{_method}"] = _METHODS[_method][0]
        RECIPES[f"{_setting}-{_method}"] = method_recipe(_setting, _method)
for _benchmark in _SHORT_TABLE:
    _name = f"{_benchmark}-resnet18-short"
    DESCRIPTIONS[_name] = "TripleE-Fourier for a small budget: ResNet-18, 160 px, few epochs"
    RECIPES[_name] = method_recipe(_name, "triplee-fourier")


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; an unknown name is one line with the nearest one."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}: {nearest(name, RECIPES)}")
    return RECIPES[name]


def has_setting(name: str) -> bool:
    return name in _SETTINGS


def nearest_recipe(recipe: Recipe, benchmark: str) -> str:
    """The method in a setting of that benchmark that has most values in common, TripleE-Fourier before all."""
    values = recipe.model_dump()
    known = _methods_of(benchmark)
    in_common = {name: sum(values[k] == v for k, v in known[name].items()) for name in known}
    best = max(known, key=lambda name: (in_common[name], name.endswith("-triplee-fourier")))
    short = best.removesuffix("-triplee-fourier")
    return short if short in RECIPES else best


@lru_cache
def _methods_of(benchmark: str) -> dict[str, dict[str, object]]:
    settings = [setting for setting in _SETTINGS if setting == benchmark or setting.startswith(f"{benchmark}-")]
    return {f"{s}-{method}": method_recipe(s, method).model_dump() for s in settings for method in _METHODS}
