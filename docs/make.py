"""Makes what the docs show from what was measured: performance.md from bench/results/, demo.png from a demo.

python docs/make.py [folder of a finished `triplee demo`]
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "bench" / "results"

INTRODUCTION = """# Performance

Made by `make docs` from `bench/results/`; `make bench` measures what the machine at hand can, and each script under
`bench/` says how to run it. Rivals run in turn in one process; figures are the median, with the middle half of the
rounds in brackets. Ratios are taken round by round. A step is one member's: b = 4 samples, r = 4 views of each.
"""

NOTES = {
    "table": "The whole Digits-DG table, 4 targets × 3 seeds × 3 members, in one stack on one GPU, and where the wall"
    " time went: `compile` is Triton and the capture of graphs, `files and the rest` what no clock covers. The eager"
    " member takes such steps by itself once the table is done, images resident and views from the same kernel."
    " Accuracies are means over seeds with the standard deviation.",
    "choose": "How values of the digits recipes were chosen: one source more left out, bench/choose.py. Columns are"
    " targets, whose images take no part; a figure is the mean accuracy over the three other domains, each held out"
    " in turn, after 60 epochs of one seed. `the recipe` is the one of then, with a rate halved every 18 epochs;"
    " `lr_gamma=1` is a rate that does not decay. In a window of n an epoch counts 1/n.",
    "choose-more": "The same with what that led to: a rate that does not decay.",
    "choose-crop": "The same with crops that keep at least so much of the area; here `the recipe` is today's. No digit"
    " is mirrored.",
    "table-crops": "What that choice came to on the targets: the table of section `table` once more, with crops of 80"
    " to 100 % of the area and translations up to 5 px. Kernels had been compiled before. The recipe had these values"
    " then; `changes` was entered by hand.",
    "choose-fourier": "Weight and temperature of the contrast, rates, and the Fourier op for every fourth view, with"
    " today's recipe (73.68 in section `choose-crop`, window 6) for the rest.",
    "table-fourier": "What that choice came to on the targets. PACS was trained beside it, so the times are too long.",
    "choose-ops": "Which cross-image op, two seeds: Fourier, style or both, with stylizers of a run's own two sources.",
    "table-both": "What that choice came to on the targets: the table with both cross-image ops, nothing compiled or"
    " fitted before. `files and the rest` has the fitting of four stylizers, some 30 s. The eager member restyles its"
    " views too.",
    "table-both-warm": "The same seeds, trained before that with kernels compiled and stylizers fitted already.",
    "table-style": "The same with style in place of both, kernels compiled and stylizers fitted.",
    "choose-own": "What each target takes by its own column alone: every value with every other, seed 5, 40 epochs."
    " Below the settings, in `means`, the means over all settings with a window or a value; the highest are chosen.",
    "table-own": "What those choices came to on the targets, trained once, seeds 5, 6 and 7, nothing compiled or fitted"
    " before.",
    "choose-long": "The same search as long as the training, 100 epochs.",
    "table-long": "What these came to, trained once, seeds 8, 9 and 10, nothing compiled or fitted before.",
    "choose-vanilla": "The same as `choose` for Vanilla.",
    "table-vanilla": "Vanilla on the targets, one network each, most kernels compiled.",
    "pacs": "PACS at 160 px, 4 targets × 2 seeds × 3 members, in one stack. A part of `evaluate` is in `files and"
    " the rest` here: the clock stopped before the GPU did.",
    "pacs-third": "A third seed by itself, nothing compiled before.",
    "pacs-vanilla": "Vanilla, the same seed.",
    "pacs-fourth": "A fourth seed of TripleE, with the stem of section `stem-gpu`, nothing compiled before: its steps"
    " take less time, compiling its kernels more, and on the whole nothing is gained in a table this short.",
    "step-gpu": "`percent of the step alone` sets the stack as it trains – plan, draws, views, copies, losses read –"
    " against the same steps replayed on views that already lie there. The usual loop is Pillow views (crop and flip"
    " for ResNets, one of 14 ops, no Fourier) from 12 worker processes and an eager step, one member at a time. The"
    " floors are what a step must multiply and move if nothing stayed in a cache (bench/limits.py says how they are"
    " counted), at the speed of a large product and of a large copy in the same run. Profiles are of a single stream,"
    " where kernels do not overlap. The rivals wait for the host, the stack does not: so the ratio moves with the"
    " host. ResNet-50 stays below ten times: the usual loop, which waits for launches, takes 2.4 times as long as for"
    " ResNet-18, with 2.7 times the convolutions; ours, which waits for memory and arithmetic, 2.9 times."
    " Batch norm, ReLU and shortcuts are three tenths of a ResNet step, in launches too short to fill the GPU alone,"
    " which is why 12 streams gain 1.7 times over one. Where we lose: the views of ResNet-18 at 224 px cost more than"
    " the tenth of a step that we allow them, on this host; the host was a third slower than that of the next section"
    " (one eager digit member: 120 steps/s, there 174), and the step itself has become shorter. In this run epochs"
    " began with chunks of few steps, to wait less for their first views; it is not known to help and was taken back.",
    "step-gpu-again": "On another host, with a quicker usual loop: ResNet-18 at 224 px is below ten times it there,"
    " and ResNet-50 below seven."
    " Steps are a little longer than in section `step-gpu`: every program of a batch norm still added up all parts by"
    " itself.",
    "stem-gpu": "What the fused stem – normalising, the 7×7 convolution, batch norm, ReLU and pooling in kernels of"
    " our own – saves a ResNet-18 at 224 px, and what it does that each of 12 streams has a queue to the GPU of its"
    " own (32 queues, 8 unless told so).",
    "design": "Why the GPU engine is as it is: what was tried on one H200 before there were kernels of our own for"
    " batch norm and pooling, single measurements without spread, which `make bench` does not make again. Small"
    " networks: members batched in Triton kernels of our own, 3.5 times as fast as the next best. ResNets: captured"
    " graphs on up to 12 streams; 16 gain 3 % at most. torch.compile gained 12 % at 160 px on 12 streams, which our"
    " kernels do now (0.94 ms against its 0.92), and took 35 s to compile; at 224 px, where shapes were taken as"
    " dynamic, it was slower. The ESAug kernel gives the CPU's bytes; beside it, what a plain copy takes.",
    "style-gpu": "What the style op costs on a GPU: a stack that trains with it (one view in 15) against one with the"
    " 14 ops alone, and restyling by itself against one view at a time, content and style encoded each time, as the"
    " authors' code does. Stylizers with random weights, which cost the same.",
    "scaling-gpu": "One quantity at a time, digit networks on a GPU. A step of few members takes as long as its"
    " kernels take to follow one another, so 12 members cost 1.5 times what one does; from 36 on arithmetic counts."
    " For the same reason four times the pixels cost 2.7 times as much up to 64 px, and 4.9 times beyond; eight times"
    " the views cost 3.2 times as much. The number of images and of classes hardly counts.",
    "augment": "ESAug on the CPU, against one view at a time through Pillow, normalised per view, and whoever else the"
    " columns name, each doing the same: one of 14 ops of random strength per view. Where a ratio is below 1 we lose."
    " Batches follow one another here; with a training step in between caches are colder, and a batch of 16 views"
    " takes up to twice as long. Ours was made a tenth quicker at 32² of late: 25 times Pillow style before, 28 after,"
    " in turn on one day. Plain torch, where there is no Numba, is about as fast as Pillow, and slower at 224² on one"
    " thread. The Fourier op alone is 14 times numpy's at 224², not the 20 we aimed at: most of its time goes into"
    " moving blocks of the spectrum between memory and registers, not into the transforms.",
    "augment-gpu": "The same on a GPU, on resident images.",
    "step": "Three members of TripleE-Fourier on the embedded digits, on a CPU. The usual loop is Pillow views one by"
    " one and an eager float32 step in the same process. The share of augmentation was measured by itself.",
    "style": "What the style op costs on a CPU: training with it (one view in 15) against training with the 14 ops"
    " alone, and restyling by itself against one view at a time, content and style encoded each time, as the authors'"
    " code does. Stylizers with random weights, which cost the same.",
    "scaling": "One quantity at a time, digit networks on a CPU.",
    "startup": "Each in new processes; cold means with empty caches of compiled code.",
    "startup-gpu": "The same where there is a GPU.",
    "prepare": "Decoding, against a plain Pillow loop on one thread; `difference` is in grey levels from its pixels."
    " Two threads gain little where images are small, because Pillow holds Python's lock while it decodes; so"
    " `prepare` takes a process per core. Pillow stays the decoder: OpenCV is faster on WebP and on JPEGs of middling"
    " size, but farther from the plain pixels where it shrinks, slower on large JPEGs (it decodes them whole), and 60"
    " MB more to install; simplejpeg reads JPEG only, at about our speed. Where we lose: against OpenCV, as the table"
    " says. The last rows are whole data sets, from files to a store, with hashing, checksums and writing, none of"
    " which the plain loop does.",
    "predict": "From files on disk to class, confidence and disagreement, by three networks of random weights on two"
    " CPU cores. The plain loop opens, converts and resizes one image after another, stacks 64 and runs the networks"
    " in float32. Where decoding takes the time, ours gains by decoding in processes, and JPEGs at a fraction of their"
    " size; where the networks do, nothing but bfloat16 (which a run that was trained in it uses where the chip has"
    " it): in float32 ours is level with the plain loop there. Memory does not grow with the number of images.",
    "big_tree": "600,000 files of 48 px, a tree as large as DomainNet's, stored at 32 px. `own` is anonymous memory,"
    " `resident` counts mapped files as well; each step is a process of its own and `begins with` what Python and"
    " torch take. An epoch reads every image once, in random windows, from the store on disk.",
}


def show(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if not isinstance(value, dict):
        return str(value)
    if {"median", "low", "high"} <= set(value):
        median, low, high = (f"{value[key]:,.10g}" for key in ("median", "low", "high"))
        return f"{median} [{low}–{high}]"
    if "mean" in value and "sd" in value:
        return f"{value['mean']:g} ± {value['sd']:g}"
    return ", ".join(f"{name} {part}" for name, part in value.items())


def spread(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A row that measures several rivals, each in several ways, as a row for each of them."""
    rivals = {name: value for name, value in row.items() if isinstance(value, dict) and _is_nested(value)}
    rest = {name: value for name, value in row.items() if name not in rivals}
    return [{**rest, "who": name, **value} for name, value in rivals.items()] or [row]


def _is_nested(value: dict[str, Any]) -> bool:
    return any(isinstance(part, dict) for part in value.values())


def table(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(show(row.get(column, "")) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def make_performance() -> None:
    parts = [INTRODUCTION]
    for name, note in NOTES.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():  # measured on another kind of machine, and not yet
            continue
        result = json.loads(path.read_text())
        machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items() if value)
        parts.append(f"## {name}\n\n{note}\n\n{machine}\n")
        # Rows of one shape make one table.
        while rows := result["rows"]:
            alike = [row for row in rows if set(row) >= set(rows[0]) or set(row) <= set(rows[0])]
            result["rows"] = [row for row in rows if row not in alike]
            parts.append(table([part for row in alike for part in spread(row)]) + "\n")
    (DOCS / "performance.md").write_text("\n".join(parts))


if __name__ == "__main__":
    make_performance()
    if len(sys.argv) > 1:
        shutil.copy(Path(sys.argv[1]) / "demo.png", DOCS / "demo.png")
