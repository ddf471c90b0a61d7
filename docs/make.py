"""Makes what the docs show from what was measured: performance.md and choices.md from bench/results/, demo.png.

python docs/make.py [folder of a finished `triplee demo`]
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "bench" / "results"

PERFORMANCE = """# Performance

Made by `make docs` from `bench/results/`; `make bench` measures what the machine at hand can, and each script under
`bench/` says how to run it. Rivals run in turn in one process; figures are the median, with the middle half of the
rounds in brackets. Ratios are taken round by round. A step is one member's: b = 4 samples, r = 4 views of each.

What is missed ([results](results.md)): on
*mnist*, where the aim of 98.1 is a single seed's, six seeds whose values sources chose target by target have
98.05 ± 0.12; nine of TripleE-Style have 98.13 ± 0.08.

Accuracies on PACS on this page were made [before statistics were mended](log/pacs-with-running-statistics.md).
"""
CHOICES = """# Searches and whole tables

How the values of the recipes were chosen, and the tables that they led to: what `bench/choose.py` and `bench/table.py`
wrote, put in order by `make docs`. What it comes to is in [results](results.md), the speed in
[performance](performance.md). Accuracies are means over seeds with the standard deviation.
"""

SPEED_NOTES = {
    "table-long": "The whole Digits-DG table, 4 targets × 3 seeds × 3 members, in one stack on one GPU, with nothing"
    " compiled or fitted before, and where the wall time went: `compile` is Triton and the capture of graphs,"
    " `files and the rest` what no clock covers, with some 16 s of fitting stylizers. What each target takes was"
    " chosen by its sources ([choose-long](choices.md#choose-long)). The eager member takes such steps by itself"
    " once the table is done, images resident and views from the same kernel. Accuracies are means over the seeds"
    " with the standard deviation; the tables of other recipes are [among the choices](choices.md).",
    "table-again": "The same choices with three more seeds and a later engine.",
    "pacs-fifth": "PACS at 160 px, 4 targets × 3 members, in one stack, stand-in weights, nothing compiled before: a"
    " fifth seed; the others, trained by earlier engines, are [among the choices](choices.md#pacs).",
    "step-gpu": "`percent of the step alone` sets the stack as it trains – plan, draws, views, copies, losses read,"
    " averages – against the same steps replayed on views that already lie there. The usual loop is Pillow views"
    " (crop and flip for ResNets, one of 14 ops, no Fourier) from 12 worker processes and an eager step, one"
    " member at a time. It waits for the host, the stack does not, so the ratio moves with the host:"
    " [step-gpu-quick-host](#step-gpu-quick-host) is the least we saw. Epochs are short here, 36 steps of ResNets"
    " against PACS's 450 or more, so what begins and ends one weighs more than in a training. Where we lose:"
    " ResNet-50 stays below ten times, and a single ResNet-18 at 224 px and digit stacks of 12 and of 108 give away"
    " a tenth of the step alone.\n\n**What stands between a step and its floors**, which are what it must multiply and"
    " move if nothing stayed in a cache (bench/limits.py says how they are counted), at the speed of a large"
    " product and of a large copy in the same run. Profiles are of a single stream, where kernels do not overlap."
    " *ResNet-18*:"
    " half of the kernels' time is cuDNN's convolutions, which reach a quarter of a large product's rate, as 16"
    " views are few: the last stage has 784 pixels of 512 channels to share among 132 multiprocessors. Three"
    " tenths are batch norm with ReLU and shortcut, whose launches too are too short to fill the GPU; 12 streams"
    " side by side gain 1.9 times over one. *ResNet-50* must move 3.5 times the bytes of ResNet-18, and takes 3.2"
    " times as long; the usual loop, which waits for launches, 2.3 times. *Digit networks*, 36 at once: a ninth"
    " of the product's rate and a sixth of the copy's. The first convolution takes 23 % of the time with 9 % of"
    " the arithmetic: its three colours fill 27 numbers of a window, while its outputs, each to be given a bias,"
    " rectified, pooled and remembered, are three quarters of all.",
    "step-gpu-quick-host": "The same with an engine of before, whose batch norm and averages took longer, on the host"
    " with the quickest usual loop that we met: 9.8 times for ResNet-18 at 224 px, where ten are aimed at, and 6.9 for"
    " ResNet-50.",
    "step-gpu-slow-host": "The same on a host with a slow usual loop, 16.1 and 10.9 times. Draws are made by the host,"
    " so digit stacks, which take the most views, give away 8 to 14 % of the step alone here.",
    "stem-gpu": "What the fused stem – normalising, the 7×7 convolution, batch norm, ReLU and pooling in kernels of"
    " our own – saves a ResNet-18 at 224 px, and what it does that each of 12 streams has a queue to the GPU of"
    " its own (32 queues, 8 unless told so).",
    "design": "Why the GPU engine is as it is: what was tried on one H200 before there were kernels of our own for"
    " batch norm and pooling, single measurements without spread, which `make bench` does not make again. Small"
    " networks: members batched in Triton kernels of our own, 3.5 times as fast as the next best. ResNets:"
    " captured graphs on up to 12 streams; 16 gain 3 % at most. torch.compile gained 12 % at 160 px on 12"
    " streams, which kernels of our own have gained since, and took 35 s to compile; at 224 px, where"
    " shapes were taken as dynamic, it was slower. The ESAug kernel gives the CPU's bytes; beside it, what a"
    " plain copy takes.",
    "style-gpu": "What the style op costs on a GPU: a stack that trains with it (one view in 15) against one with the"
    " 14 ops alone, and restyling by itself against one view at a time, content and style encoded each time, as the"
    " authors' code does. Stylizers with random weights, which cost the same.",
    "scaling-gpu": "One quantity at a time, digit networks on a GPU. A step of few members takes as long as its"
    " kernels take to follow one another, so 12 members cost 1.5 times what one does; from 36 on arithmetic counts."
    " For the same reason four times the pixels cost 2.7 times as much up to 64 px, and 4.9 times beyond; eight times"
    " the views cost 3.1 times as much. The number of images and of classes hardly counts.",
    "augment": "ESAug on the CPU, against one view at a time through Pillow, normalised per view, and whoever else the"
    " columns name, each doing the same: one of 14 ops of random strength per view. Where a ratio is below 1 we lose."
    " Batches follow one another here; with a training step in between caches are colder, and a batch of 16 views"
    " takes up to twice as long. Plain torch, where there is no Numba, is about as fast as Pillow, and slower at 224²"
    " on one thread. A second thread gains what row `threads alone` says where batch follows batch, and a"
    " tenth where others had the caches in between.\n\n"
    "The Fourier op alone stands against two rivals in NumPy: as it is usually written, a whole spectrum in float64"
    " with angles taken and undone, and with half the work and float32. Its passes are written in SIMD lanes by hand:"
    " in turn in one process the loops that were left to the compiler took 1.9 times as long at 32² and 2.1 times at"
    " 224².",
    "augment-gpu": "The same on a GPU, on resident images, on the host of [step-gpu-slow-host](#step-gpu-slow-host).",
    "step": "Three members of TripleE-Fourier on the embedded digits, on a CPU. The usual loop is Pillow views one by"
    " one and an eager float32 step in the same process. The share of augmentation was measured by itself.",
    "threads": "A single member's step of 16 views on two CPU cores, float32, alone and beside one busy process: with"
    " one thread, with two, and with what a run chooses at its start, each against one thread. Threads of one step wait"
    " for each other, so two gain where the cores are free and lose where they are not. What is chosen stays: company"
    " that comes later costs what the table says.",
    "style": "What the style op costs on a CPU: training with it (one view in 15) against training with the 14 ops"
    " alone, and restyling by itself against one view at a time, content and style encoded each time, as the authors'"
    " code does. Stylizers with random weights, which cost the same.",
    "scaling": "One quantity at a time, digit networks on a CPU of two cores. One member cannot keep both busy, so a"
    " second one costs a fifth more, and from there on members cost what they cost. A step takes some 4 ms whatever it"
    " trains on (the update and PyTorch's calls) and 2.3 ms for each of r: four times the views cost twice as much at"
    " first, then three times. Pixels bend likewise. The number of images and of classes does not count.",
    "startup": "Each in new processes; cold means with empty caches of compiled code.",
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

CHOICE_NOTES = {
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
    "table-style-more": "Six more seeds of that in one stack, nothing compiled or fitted before.",
    "choose-own": "What each target takes by its own column alone: every value with every other, seed 5, 40 epochs."
    " Below the settings, in `means`, the means over all settings with a window or a value; the highest are chosen.",
    "table-own": "What those choices came to on the targets, trained once, seeds 5, 6 and 7, nothing compiled or fitted"
    " before.",
    "choose-long": "The same search as long as the training, 100 epochs. What it came to on the targets is section"
    " [table-long](performance.md#table-long).",
    "choose-vanilla": "The same as `choose` for Vanilla.",
    "table-vanilla": "Vanilla on the targets, one network each, most kernels compiled.",
    "batch-norm": "What a ResNet-18 is tested with: accuracy of the same weights with batch norm's statistics taken in"
    " different ways, after 16 epochs on PACS at 160 px, seed 0. `running` averages follow the last 600 steps; for"
    " `still` the weights stand still. The runs themselves were trained by the engine of before.",
    "pacs": "PACS at 160 px, 4 targets × 2 seeds × 3 members, in one stack. A part of `evaluate` is in `files and"
    " the rest` here: the clock stopped before the GPU did.",
    "pacs-third": "A third seed by itself, nothing compiled before.",
    "pacs-vanilla": "Vanilla, the same seed.",
    "pacs-fourth": "A fourth seed of TripleE, with the stem of section `stem-gpu`, nothing compiled before: its steps"
    " take less time, compiling its kernels more, and on the whole nothing was gained in a table this short; the"
    " [fifth](performance.md#pacs-fifth) was quicker.",
}

# What, the section and its row that say so, the row's column, its unit, what was aimed at.
TABLE, PACS = {"images": 24000}, {"images": 9991}
GOALS: list[tuple[str, str, dict[str, object], str, str, str]] = [
    ("Digits table on one H200: 36 networks, 100 epochs", "table-long", TABLE, "total", " s", "under 300 s"),
    (
        "its member-steps/s, against one eager member's",
        "table-long",
        {"what": "one eager member"},
        "stack, times eager",
        " times",
        "60 times",
    ),
    *(
        (f"its accuracy on {target}{whose}", section, {"target": target}, "accuracy", "", f"{aim} at least")
        for whose, section in (
            ("", "table-long"),
            (", three more seeds", "table-again"),
            (", six seeds of TripleE-Style", "table-style-more"),
        )
        for target, aim in (("mnist", 98.1), ("mnist_m", 77.6), ("svhn", 65.8), ("syn", 80.9))
    ),
    ("PACS table at 160 px, one H200: 12 ResNet-18, 20 epochs", "pacs-fifth", PACS, "total", " s", "199 s at most"),
    ("its member-steps/s by epoch", "pacs-fifth", PACS, "member-steps/s by epoch", "", "770 (1.3 ms each)"),
    *(
        (
            f"its average accuracy, {seeds}",
            section,
            {"target": "average"},
            "accuracy",
            "",
            "71.8 on the mean of the five",
        )
        for seeds, section in (
            ("seeds 0 and 1", "pacs"),
            ("seed 2", "pacs-third"),
            ("seed 3", "pacs-fourth"),
            ("seed 4", "pacs-fifth"),
        )
    ),
    ("Vanilla's average accuracy, seed 2", "pacs-vanilla", {"target": "average"}, "accuracy", "", "65.9 at least"),
    *(
        row
        for name, loop, alone in (
            ("ResNet-18, 224 px", "10 times", "90 %"),
            ("ResNet-18, 160 px", "10 times", "90 %"),
            ("ResNet-50, 224 px", "", ""),
        )
        for row in (
            (
                f"12 × {name}, one H200, against the usual loop",
                "step-gpu",
                {"what": f"{name}, stack of 12", "against": "usual loop, float32"},
                "stack, times as fast",
                " times",
                loop,
            ),
            (
                f"12 × {name}, one H200, of the step alone",
                "step-gpu",
                {"what": name, "members": 12},
                "percent of the step alone",
                " %",
                alone,
            ),
        )
    ),
    *(
        (
            f"{title}, {views} views of {size} px, one CPU thread, against {rival}",
            "augment",
            {"ops": ops, "size": size, "threads": 1},
            f"ours / {rival.lower()}",
            " times",
            f"{aim} times" if aim else "",
        )
        for title, ops, rival, size, views, aim in (
            ("14 ops", "basic", "Pillow style", 32, 16, 25),
            ("14 ops", "basic", "ours in plain torch", 32, 16, 2),
            ("14 ops", "basic", "Pillow style", 224, 64, 3.5),
            ("with Fourier", "fourier", "Pillow style", 32, 16, 10),
            ("with Fourier", "fourier", "Pillow style", 224, 64, 5),
            ("Fourier alone", "fourier alone", "NumPy", 224, 16, 20),
            ("Fourier alone", "fourier alone", "NumPy, float32 rfft2", 224, 16, None),
        )
    ),
    (
        "augmentation in a digit step, two CPU cores",
        "step",
        {"what": "share of augmentation in a step"},
        "percent",
        " %",
        "2 % at most",
    ),
    (
        "importing the five pieces, beyond torch",
        "startup",
        {"what": "the five pieces beyond torch"},
        "seconds",
        " s",
        "under 1.5 s",
    ),
    ("`triplee --help`", "startup", {"what": "triplee --help"}, "seconds", " s", "under 1 s"),
]


def show(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if not isinstance(value, dict):
        return str(value)
    if {"median", "low", "high"} <= set(value):
        median, low, high = (f"{value[key]:,.10g}" for key in ("median", "low", "high"))
        return f"{median} [{low}–{high}]"
    if "mean" in value and "sd" in value:
        return f"{value['mean']:g} ± {value['sd']:g}" if value["sd"] else f"{value['mean']:g}"  # one seed
    return ", ".join(f"{name} {part}" for name, part in value.items())


def spread(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A row that measures several rivals, each in several ways, as a row for each of them."""
    rivals = {name: value for name, value in row.items() if isinstance(value, dict) and _is_nested(value)}
    rest = {name: value for name, value in row.items() if name not in rivals}
    if len(rivals) == 1:
        return [{**rest, **value} for value in rivals.values()]
    return [{**rest, "who": name, **value} for name, value in rivals.items()] or [row]


def _is_nested(value: dict[str, Any]) -> bool:
    return any(isinstance(part, dict) for part in value.values())


def table(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(show(row.get(column, "")) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def goals() -> list[dict[str, Any]]:
    """What the engine is held to, beside the first row of a result that says how it did."""
    rows = []
    for what, section, wanted, column, unit, aim in GOALS:
        result = json.loads((RESULTS / f"{section}.json").read_text())
        row = next(row for row in result["rows"] if row.items() >= wanted.items())
        value = row["seconds"]["total"] if column == "total" else row[column]
        page = "" if section in SPEED_NOTES else "choices.md"
        link = f"[{section}]({page}#{section})"
        rows.append({"what": what, "measured": f"{show(value)}{unit}", "aim": aim, "section": link})
    return rows


def make_page(introduction: str, notes: dict[str, str]) -> str:
    parts = [introduction]
    for name, note in notes.items():
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
    return "\n".join(parts)


if __name__ == "__main__":
    (DOCS / "performance.md").write_text(make_page(f"{PERFORMANCE}\n{table(goals())}\n", SPEED_NOTES))
    (DOCS / "choices.md").write_text(make_page(CHOICES, CHOICE_NOTES))
    if len(sys.argv) > 1:
        shutil.copy(Path(sys.argv[1]) / "demo.png", DOCS / "demo.png")
