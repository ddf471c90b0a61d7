"""The verbs about the style op: fit a stylizer, and look at what one does."""

from pathlib import Path
from typing import Annotated, Any

import typer

from triplee.cli.choices import DataArgument, Device, Root, SkipBad, choose_device, load_pool, split_words
from triplee.cli.printing import image_bar
from triplee.settings import InputError, make_recipe

app = typer.Typer(help="The stylizer of ESAug's style op: fit one, look at one.", no_args_is_help=True)


@app.command()
def fit(
    data: DataArgument,
    target: Annotated[str | None, typer.Option(help="domain to leave out, as in training (default: none)")] = None,
    out: Annotated[Path | None, typer.Option(help="write it here as well (default: into the cache alone)")] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="small, resnet18, resnet50, mobilenet-v2 or vgg19 (default: as the data's own recipe has it)"
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="of the encoder: a backbone's file, vgg_normalised.pth, or imagenet")
    ] = None,
    size: Annotated[int | None, typer.Option(min=16, max=1024, help="pixels (default: the recipe's)")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="of the decoder (default: 600)")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    root: Root = None,
    skip_bad: SkipBad = False,
    device: Device = None,
) -> None:
    """Fit a stylizer on all domains but the target; a recipe with `ops: style` does so by itself.

    Example: triplee style fit digits --target street --out street.safetensors
    """
    from dataclasses import replace

    from triplee.data.load import EMBEDDED, default_recipe, list_data
    from triplee.engine.style_fit import STEPS, StyleFit
    from triplee.engine.stylizers import fit_for_domains
    from triplee.nets.stylizer_file import read_stylizer
    from triplee.recipes import find_recipe
    from triplee.runfolder import write_atomically

    where = choose_device(device)
    if data != EMBEDDED:
        list_data(data, root)  # no weights are fetched for data that are not there
    recipe = find_recipe(default_recipe(data))
    if encoder is None:
        chosen = StyleFit.for_recipe(make_recipe({"weights": weights or recipe.weights}, recipe))
    else:
        chosen = StyleFit(encoder, "none" if encoder == "small" else weights or recipe.weights, STEPS)
    if weights and chosen.encoder == "small":
        raise InputError("--weights is for an encoder that has some, the small one is fitted: name it with --encoder")
    chosen = replace(chosen, seed=seed, steps=steps or STEPS)
    chosen.build()  # refuses what cannot be read before images are
    pool = load_pool(data, size or recipe.image_size, root, skip_bad, target)
    domains = [name for name in pool.domains if name != target]
    with image_bar(f"fitting on {', '.join(domains)}") as bar:
        path, is_new = fit_for_domains(pool, domains, chosen, where, lambda done, total: bool(bar(done, total)))
    facts = read_stylizer(path)[1]
    if out is not None:
        write_atomically(out, path.read_bytes())
        path = out
    print(f"{path}: {'fitted' if is_new else 'was fitted before'} on {', '.join(domains)}")
    print(_describe(facts))
    if target:
        print(f"use it: triplee train {data} --target {target} --set ops=style --set stylizer={path}")


@app.command()
def show(
    stylizer: Annotated[
        Path, typer.Argument(help="a stylizer, a run that restyles, or a folder of published AdaIN weights")
    ],
    data: Annotated[str | None, typer.Option(help="take the images from here (default: what it was fitted on)")] = None,
    content: Annotated[str | None, typer.Option(help="domains of the contents, comma-separated")] = None,
    style: Annotated[str | None, typer.Option(help="domains of the styles, comma-separated")] = None,
    strength: Annotated[float, typer.Option(min=0, max=1, help="0: the content, encoded and decoded")] = 1.0,
    size: Annotated[int | None, typer.Option(min=16, max=1024, help="pixels (default: as it was fitted)")] = None,
    seed: Annotated[int, typer.Option(min=0, help="which images")] = 0,
    out: Annotated[Path, typer.Option(help="a .png, .svg or .pdf file")] = Path("style.png"),
    root: Root = None,
    device: Device = None,
) -> None:
    """A grid of contents (rows) in the styles of others (columns), as a picture.

    Example: triplee style show street.safetensors --content handwritten --out grid.png
    """
    from triplee.nets.stylizer_file import read_stylizer
    from triplee.results.figures import check_format, save_figure
    from triplee.results.style_grid import choose_images, draw_style_grid

    check_format(out)
    loaded, facts = read_stylizer(_stylizer_of(stylizer))
    where = choose_device(device)
    data = data or facts.get("data")
    if data is None:
        raise InputError(f"{stylizer} says nothing of images: name some with --data")
    own_root = facts.get("root")
    root = root or (Path(own_root) if own_root else None)
    pool = load_pool(data, size or facts.get("size", 224), root, skip_bad=True)
    known = [name for name in facts.get("domains", pool.domains) if name in pool.domains] or list(pool.domains)
    contents, styles = (
        choose_images(pool, split_words(words) or known, seed + column) for column, words in enumerate((content, style))
    )
    save_figure(draw_style_grid(pool, loaded.to(where), contents, styles, strength), out)
    print(f"{out}: {len(contents)} contents in {len(styles)} styles")
    if "psnr" in facts:
        print(_describe(facts))


def _stylizer_of(path: Path) -> Path:
    """Where the stylizer lies: of a run in its folder, or where its recipe says."""
    if not (path / "config.yaml").is_file():
        return path
    from triplee.runfolder import RunFolder, read_config, recipe_of

    recipe = recipe_of(read_config(path), path / "config.yaml")
    if not recipe.restyles:
        raise InputError(f"{path} is a run without the style op (ops: {recipe.ops}): name a stylizer")
    return RunFolder(path).stylizer_path if recipe.stylizer == "fit" else Path(recipe.stylizer)


def _describe(facts: dict[str, Any]) -> str:
    return (
        f"strength 0 gives the image back at {facts['psnr']:.1f} dB; at strength 1 the statistics are"
        f" {facts['style_error']:.0%} off the style's, from {facts['style_distance']:.0%} before"
    )
