"""The main job on the embedded digits: Vanilla against TripleE with one domain held out, in minutes on two cores.

Goes out: two run folders, the rows of a table and a picture.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from triplee.data.load import load_data
from triplee.data.split import split_pool
from triplee.engine.train import Observer, train_run
from triplee.recipes import find_recipe
from triplee.results.figures import save_figure
from triplee.results.pictures import draw_demo_picture
from triplee.runfolder import RunFolder
from triplee.settings import make_recipe

RUNS = {"Vanilla": "digits-vanilla", "TripleE-Fourier": "digits-triplee-fourier"}


def run_demo(
    out: Path, target: str, epochs: int, seed: int, observe: Callable[[str], AbstractContextManager[Observer]]
) -> tuple[dict[str, dict[str, Any]], Path]:
    """Train both recipes (or take up what an earlier call left), and draw the picture; gives results and its path."""
    pool = load_data("digits", 32, target=target)
    split = split_pool(pool, target, seed)
    results, curves = {}, {}
    for title, name in RUNS.items():
        recipe = make_recipe({"epochs": epochs}, find_recipe(name))
        folder = RunFolder(out / f"{name}-{target}-{epochs}-epochs-seed-{seed}")
        resume = folder.config_path.exists()
        with observe(title) as observer:
            results[title] = train_run(
                pool, split, recipe, out=folder.path, observer=observer, recipe_name=name, seed=seed, resume=resume
            )
        curves[title] = folder.read_metrics()
    picture = out / "demo.png"
    drawn = draw_demo_picture(pool, split, curves, f"embedded digits, {target} held out, seed {seed}")
    save_figure(drawn, picture, dpi=110)
    return results, picture
