"""The verbs that train and measure: demo, train, evaluate, recipes."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from triplee.cli.choices import (
    DataArgument,
    Device,
    Root,
    SkipBad,
    choose_device,
    choose_recipe,
    load_own_pool,
    load_pool,
    load_run,
)
from triplee.cli.printing import Stopped, percentages, print_table, warn
from triplee.progress import make_observer
from triplee.settings import Recipe


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
        raise Stopped("stopped and saved; go on with the same command") from None
    columns = ["method", "unseen domain", "source val", "epoch", "members alone", "last epoch", "seconds"]
    rows = [
        [
            title,
            f"{r['accuracy']:.1f} %",
            f"{r['val_accuracy']:.1f} %",
            str(r["epoch"]),
            percentages(r["members"]),
            f"{r['last_accuracy']:.1f} %",
            f"{r['seconds']:.0f}",
        ]
        for title, r in results.items()
    ]
    print_table(columns, rows)
    vanilla, triplee = (r["accuracy"] for r in results.values())
    print(f"TripleE against Vanilla on “{target}”: {triplee - vanilla:+.1f} points. Picture: {picture}")


def train(
    data: DataArgument,
    target: Annotated[str, typer.Option(help="domain to hold out and only test on")],
    recipe: Annotated[
        str | None,
        typer.Option(
            help="name from `triplee recipes`, a YAML file, or a run's config.yaml (its recipe only)"
            " (default: the one made for the data)"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="run folder (default: runs/<data>-<target>-<recipe>-<seed>)")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a recipe key")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="pretrained backbone, .pth or .safetensors; the same as --set weights=FILE")
    ] = None,
    root: Root = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the unfinished run in --out")] = False,
    skip_bad: SkipBad = False,
    device: Device = None,
) -> None:
    """Train a recipe on all domains but the target, select an epoch, and test on the target.

    Example: triplee train digits --target street --set epochs=10 --out runs/street
    """
    from triplee.data.load import default_recipe

    chosen, name = choose_recipe(recipe or default_recipe(data), set_ or [], weights)
    from triplee.data.split import split_pool
    from triplee.engine.selection import describe_calibration, describe_selection
    from triplee.engine.train import Interrupted, train_run

    where = choose_device(device)
    pool = load_pool(data, chosen.image_size, root, skip_bad, target)
    split = split_pool(pool, target, seed)
    for warning in split.warnings:
        warn(warning)
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
        raise Stopped(f"stopped and saved; go on with the same command and --out {out} --resume") from None
    print(f"{out}: {describe_selection(result)}")
    print(f"target {target}: {result['accuracy']:.2f} %  members alone {percentages(result['members'])}")
    print(f"last epoch {result['last_accuracy']:.2f} %  oracle {result['oracle_accuracy']:.2f} %")
    print(describe_calibration(result))
    if result.get("came_apart"):
        warn(f"{result['came_apart']}; look at metrics.jsonl, and try a lower lr or fewer epochs")
    print(f"images: {len(split.train_N)} to train, {len(split.val_N)} to validate, {len(split.target_N)} to test")


def evaluate(
    run: Annotated[Path, typer.Argument(help="run folder")],
    data: Annotated[str | None, typer.Option(help="other data (default: the run's own)")] = None,
    domain: Annotated[str | None, typer.Option(help="one domain (default: the target, or all of other data)")] = None,
    root: Root = None,
    skip_bad: SkipBad = False,
    device: Device = None,
) -> None:
    """Accuracy of a trained run on its target, another domain, or other data of the same classes.

    Example: triplee evaluate runs/street --domain printed
    """
    from triplee.engine.evaluate import evaluate_run

    classifier = load_run(run, choose_device(device))
    config, size = classifier.config, classifier.recipe.image_size
    if data is None:
        pool = load_own_pool(run, config, size, root, skip_bad, needed_domain=domain or config["target"])
    else:
        pool = load_pool(data, size, root, skip_bad, needed_domain=domain)
    rows = []
    for score in evaluate_run(classifier, pool, own_data=data is None, domain=domain):
        rows.append(
            [score.domain, score.role, str(score.num_images), f"{score.accuracy:.2f} %", percentages(score.members)]
        )
    print_table(["domain", "seen in training", "images", "ensemble", "members alone"], rows)


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
        print_table(["recipe", "what it is"], [[n, text] for n, text in DESCRIPTIONS.items()])
