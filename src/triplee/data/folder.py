"""The any-folder reader: finds the images of `<root>/<domain>/<class>/<image>`, without opening one.

A domain that holds only `train` and `val` folders is read as `<domain>/{train,val}/<class>/<image>` (Digits-DG).
Comes in: a folder. Goes out: an ImageFolder, in byte order of the names, the same on every machine.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from triplee.data.pool import TRAIN, UNSPLIT, VAL
from triplee.settings import InputError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})
LAYOUT = "<domain>/<class>/<image> or <domain>/{train,val}/<class>/<image>"
_SPLITS = {"train": TRAIN, "val": VAL}


@dataclass(frozen=True)
class ImageFile:
    """One image on disk and what its place in the folder says of it. `split` is TRAIN, VAL or UNSPLIT."""

    path: Path
    domain: int
    label: int
    split: int


@dataclass(frozen=True)
class ImageFolder:
    """All images of a folder. Only domains and classes that have an image are listed."""

    root: Path
    files: tuple[ImageFile, ...]
    domains: tuple[str, ...]
    classes: tuple[str, ...]


def list_images(root: Path) -> ImageFolder:
    """Every image of `root` with its domain, class and split; InputError when `root` is not laid out so."""
    if not (domain_folders := _scan(root)[0]):
        raise InputError(f"no domain folders in {root}: {_hint(root)}")
    found = [(domain.name, *image) for domain in domain_folders for image in _list_domain(domain)]
    if not found:
        raise InputError(f"no images in {root}: {_hint(root)}")
    domains = tuple(_in_byte_order({domain for domain, *_ in found}))
    if set(domains) <= set(_SPLITS):
        raise InputError(
            f"{root} is a single domain with train and val: give the folder above it, {root.resolve().parent}"
        )
    classes = tuple(_in_byte_order({name for _, name, _, _ in found}))
    domain_index = {name: index for index, name in enumerate(domains)}
    class_index = {name: index for index, name in enumerate(classes)}
    files = tuple(
        ImageFile(path, domain_index[domain], class_index[name], split) for domain, name, split, path in found
    )
    return ImageFolder(root, files, domains, classes)


def _list_domain(domain: Path) -> list[tuple[str, int, Path]]:
    """(class, split, image) of one domain."""
    folders = _scan(domain)[0]
    # A data set may have a class called "train": train and val are splits only when class folders lie inside them.
    if {folder.name for folder in folders} <= set(_SPLITS) and any(_scan(folder)[0] for folder in folders):
        class_folders = [(_SPLITS[split.name], folder) for split in folders for folder in _scan(split)[0]]
    else:
        class_folders = [(UNSPLIT, folder) for folder in folders]
    return [(folder.name, split, image) for split, folder in class_folders for image in _scan(folder)[1]]


def _scan(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders and the images directly inside `folder`, hidden ones left out, in byte order."""
    folders: set[str] = set()
    images: set[str] = set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == "__MACOSX":
                    continue
                if entry.is_dir():
                    folders.add(entry.name)
                # A link that leads nowhere counts as an image, so that it is reported as unreadable, not passed over.
                elif Path(entry.name).suffix.lower() in SUFFIXES and (entry.is_file() or entry.is_symlink()):
                    images.add(entry.name)
    except FileNotFoundError:
        raise InputError(f"folder {folder} does not exist: give one laid out as {LAYOUT}") from None
    except NotADirectoryError:
        raise InputError(f"{folder} is a file: give a folder laid out as {LAYOUT}") from None
    except OSError as error:
        raise InputError(f"cannot read folder {folder}: {error.strerror}: check its permissions and links") from None
    return [folder / name for name in _in_byte_order(folders)], [folder / name for name in _in_byte_order(images)]


def _in_byte_order(names: set[str]) -> list[str]:
    return sorted(names, key=os.fsencode)


def _hint(root: Path) -> str:
    """What to do about a folder without images in their place: the likely root, judged by the first image found."""
    image = _first_image(root.resolve(), depth=4)
    if image is None:
        return f"expected {LAYOUT} with {', '.join(sorted(suffix[1:] for suffix in SUFFIXES))} images"
    split_or_domain = image.parent.parent
    domain = split_or_domain.parent if split_or_domain.name in _SPLITS else split_or_domain
    return f"expected {LAYOUT}; {image} lies at another depth, did you mean {domain.parent}?"


def _first_image(folder: Path, depth: int) -> Path | None:
    folders, images = _scan(folder)
    if images or depth == 0:
        return images[0] if images else None
    return next((image for inner in folders if (image := _first_image(inner, depth - 1))), None)
