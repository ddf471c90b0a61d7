"""The catalog: what is known of each benchmark, one YAML file each under benchmarks/ (paper, § "Evaluation …").

Comes in: a benchmark's name. Goes out: a Benchmark: its domains, classes, published counts, variants, official split,
where to get it and how to cite it. Nothing here touches the images (data/locate.py finds them).
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from triplee.settings import InputError, nearest

SplitName = Literal["train", "val", "unsplit"]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Archive(_Entry):
    """One file to download. `urls` are tried in turn; a checksum that is not published stays null."""

    file: str
    urls: tuple[str, ...] = ()
    num_bytes: int | None = None
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    md5: str | None = Field(default=None, pattern="^[0-9a-f]{32}$")
    into: str = Field(default="", description="folder of the set that the content belongs to, '' for its root")


class Variant(_Entry):
    """A copy of the set that labs hold: images per domain, by class where that is published."""

    name: str
    note: str
    counts: Mapping[str, int | Mapping[str, int]]

    def num_images(self, domain: str) -> int:
        count = self.counts[domain]
        return count if isinstance(count, int) else sum(count.values())

    @property
    def total(self) -> int:
        return sum(map(self.num_images, self.counts))


class Benchmark(_Entry):
    """A benchmark. Names that differ only in case, spaces, `_` or `-` are taken for the same without being listed."""

    name: str
    title: str
    folders: tuple[str, ...] = Field(description="where it may lie under the root; a download goes to the first")
    domains: Mapping[str, tuple[str, ...]] = Field(description="a domain's name → other names of its folder")
    classes: Mapping[str, tuple[str, ...]] = Field(description="a class's name → other names of its folder")
    split_folders: tuple[Mapping[str, SplitName], ...] = Field(
        default=(), description="folders between domain and class; the first alternative found whole is read"
    )
    split_lists: Mapping[SplitName, str] = Field(
        default={},
        description="text files of the set, `{domain}` in their names: one image a line; unlisted are left out",
    )
    val_images: str | None = Field(default=None, description="list beside this file: the published validation images")
    variants: tuple[Variant, ...]
    archives: tuple[Archive, ...] = ()
    arrange: Literal["camera-traps"] | None = Field(default=None, description="what to do after unpacking")
    manual: str = Field(description="the way by hand: which file, from where")
    recipe: str
    homepage: str
    citation: str
    licence: str

    @model_validator(mode="after")
    def _counts_name_domains_and_classes(self) -> "Benchmark":
        for variant in self.variants:
            if set(variant.counts) != set(self.domains):
                raise ValueError(f"variant {variant.name!r} does not count the domains {', '.join(self.domains)}")
            for counts in variant.counts.values():
                if not isinstance(counts, int) and not set(counts) <= set(self.classes):
                    raise ValueError(f"variant {variant.name!r} counts a class that is not listed")
        return self


_FOLDER = files("triplee.data") / "benchmarks"


def benchmark_names() -> list[str]:
    return sorted(file.name.removesuffix(".yaml") for file in _FOLDER.iterdir() if file.name.endswith(".yaml"))


@cache
def find_benchmark(name: str) -> Benchmark:
    """The entry of that name; an unknown name is one line with the nearest one."""
    if name not in benchmark_names():
        raise InputError(f"unknown benchmark {name!r}: {nearest(name, benchmark_names())}")
    try:
        benchmark = Benchmark.model_validate(yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        reason = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where = ".".join(map(str, reason["loc"]))
        raise InputError(" ".join(f"benchmarks/{name}.yaml: {where} {reason['msg']}".split())) from None
    if benchmark.name != name:
        raise InputError(f"benchmarks/{name}.yaml says that its name is {benchmark.name!r}: rename one of them")
    return benchmark


def read_val_images(benchmark: Benchmark) -> frozenset[str]:
    """The published validation images as `<domain>/<class>/<name without suffix>`; empty where none is published."""
    if benchmark.val_images is None:
        return frozenset()
    return frozenset((_FOLDER / benchmark.val_images).read_text(encoding="utf-8").split("\n")) - {""}
