"""The runs over one set of data, and what they come to in three sentences.

Comes in: Records; goes out: Parts, of which each is a chapter of the page.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from triplee.engine.selection import describe_fall, fall_of
from triplee.results.pieces import Looks
from triplee.results.records import Method, Record, group_by_method
from triplee.results.statistics import Estimate
from triplee.results.tables import signed
from triplee.settings import counted


@dataclass(frozen=True)
class Part:
    """The runs over one set of data: a chapter of the page."""

    data: str
    targets: list[str]
    methods: list[Method]
    looks: Looks = field(default_factory=Looks)

    @property
    def best(self) -> Method:
        """Of the methods with runs for most targets the one with the best average."""
        return max(self.methods, key=lambda method: _rank(method, self.targets))

    @property
    def baseline(self) -> Method | None:
        """What the best is compared with: the first of the paper's baselines that is there."""
        for title in ("Baseline", "Baseline†", "Vanilla"):
            for method in self.methods:
                if method.word == title and method is not self.best:
                    return method
        return next((method for method in self.methods if method is not self.best), None)

    def choose(self, most: int) -> list[Method]:
        """So many methods, in their order: the best, the baseline, the first under each name, then the others."""
        chosen = [method for method in (self.best, self.baseline) if method]
        names = {method.word for method in chosen}
        for method in self.methods:
            if method.word not in names:
                names.add(method.word)
                chosen.append(method)
        chosen += [method for method in self.methods if method not in chosen]
        return [method for method in self.methods if method in chosen[:most]]


def _rank(method: Method, targets: Sequence[str]) -> tuple[int, float]:
    found = [e.mean for target in targets if (e := method.accuracy(target))]
    return len(found), statistics.fmean(found) if found else 0.0


def make_parts(records: Sequence[Record]) -> list[Part]:
    """A part for each set of data, targets in the order of the data."""
    by_data: dict[tuple[str, str], list[Record]] = {}
    for record in records:  # what they are says more than what they are called
        by_data.setdefault((record.data, record.config["data_fingerprint"]), []).append(record)
    parts = []
    names = [data for data, _ in by_data]
    for (data, _), own in by_data.items():
        if names.count(data) > 1:  # at another size, or changed since
            data = f"{data}, {own[0].recipe.image_size} px, {own[0].config['data_fingerprint'][:6]}"
        order = own[0].config["domains"]
        targets = sorted({record.target for record in own}, key=lambda name: order.index(name) if name in order else -1)
        parts.append(Part(data, targets, group_by_method(own)))
    return parts


def summarise(part: Part) -> list[str]:
    """Three sentences: what there is, what is best, and by how much."""
    num_runs = sum(len(method.records) for method in part.methods)
    seeds = {record.seed for method in part.methods for record in method.records}
    what = f"{counted(num_runs, 'finished run')} of {counted(len(part.methods), 'method')}"
    domains = counted(len(part.targets), "held-out domain")
    lines = [f"{what} on {part.data}: {domains}, {counted(len(seeds), 'seed')}."]
    best, rival = part.best, part.baseline
    average = best.average(part.targets)
    if average is None:
        return [*lines, "No method has a run for every held-out domain with one seed yet."]
    told = show(average)
    if rival is None or (other := rival.average(part.targets)) is None:
        return [*lines, f"{best.title} reaches {told} on average."]
    if round(average.mean - other.mean, 1):
        lines.append(f"{best.title} is best with {told} on average, against {show(other)} for {rival.title}.")
    else:
        lines.append(f"{best.title} and {rival.title} are level: {told} and {show(other)} on average.")
    gains = {t: a.mean - b.mean for t in part.targets if (a := best.accuracy(t)) and (b := rival.accuracy(t))}
    return [*lines, compare(best.title, {target: round(gain, 1) for target, gain in gains.items()})]


def tell_falls(method: Method) -> str | None:
    """A line on a method's trainings whose last epoch is clearly worse than their best, which a best figure hides."""
    fallen = [record for record in method.records if record.rows and describe_fall(record.rows)]
    if not fallen:
        return None
    worst = max(fallen, key=lambda record: fall_of(record.rows)[1])
    epoch, points = fall_of(worst.rows)
    return (
        f"{method.title}: {len(fallen)} of {counted(len(method.records), 'training')} came apart. The worst, with"
        f" {worst.target} held out and seed {worst.seed}, lost {points:.1f} points of source validation after epoch"
        f" {epoch}."
    )


def compare(title: str, gains: Mapping[str, float]) -> str:
    """Where the best is ahead of its rival, level and behind, by its gain on each domain as far as it is shown."""
    ahead, level = sum(gain > 0 for gain in gains.values()), sum(gain == 0 for gain in gains.values())
    if level == len(gains):
        return f"They are level on {level} of {counted(level, 'domain')}."
    least = min(gains, key=lambda target: gains[target])
    text = f"{title} is ahead on {ahead} of {counted(len(gains), 'domain')}"
    text += f" and level on {level}" if level else ""
    if len(gains) == 1:
        text += f", by {signed(gains[least])} points"
    elif gains[least]:
        text += f"; its smallest gain is {signed(gains[least])} points on {least}"
    return f"{text}."


def show(found: Estimate) -> str:
    error = found.standard_error
    return f"{found.mean:.1f}" + (f" ± {error:.1f}" if error is not None else "") + " %"
