"""The any-folder reader: finds the images of `<root>/<domain>/<class>/<image>`, without opening one.

A domain that holds only `train` and `val` folders is read as `<domain>/{train,val}/<class>/<image>` (Digits-DG).
Comes in: a folder. Goes out: an ImageFolder, in byte order of the names, the same on every machine. Axis: N images.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplee.settings import InputError, counted, first_few

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})
TRAIN, VAL, UNSPLIT = 0, 1, 2  # where a data set itself puts an image
LAYOUT = "<domain>/<class>/<image> or <domain>/{train,val}/<class>/<image>"
_SPLITS = {"train": TRAIN, "val": VAL}
_NOT_READ = frozenset({".gif", ".heic", ".heif", ".avif", ".jp2", ".jfif", ".ppm", ".pgm", ".svg"})


@dataclass(frozen=True)
class ImageFolder:
    """All images of a folder and what their places say of them. Only domains and classes with an image are listed."""

    root: Path
    names: tuple[str, ...]  # relative to root
    domains_N: np.ndarray  # int64, index into domains
    labels_N: np.ndarray  # int64, index into classes
    split_N: np.ndarray  # int8: TRAIN, VAL or UNSPLIT
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()  # lines for people: what was passed over, and why
    benchmark: str = ""  # whose names these are, if not the folder's own

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> Path:
        return self.root / self.names[index]

    def image_keys(self) -> Iterator[str]:
        """`<domain>/<class>/<image>` of each image, the same in every layout of a benchmark."""
        for name, domain, label in zip(self.names, self.domains_N, self.labels_N, strict=True):
            yield f"{self.domains[domain]}/{self.classes[label]}/{name.rsplit('/', 1)[-1]}"


def list_images(root: Path, split_folders: Sequence[Mapping[str, int]] = ()) -> ImageFolder:
    """Every image of `root` with its domain, class and split; InputError when `root` is not laid out so.

    `split_folders`: further names of folders between domain and class; the first alternative found whole is read.
    """
    domain_names, strays = scan(root)
    if not domain_names:
        raise InputError(f"no domain folders in {root}: {_hint(root)}")
    rows: list[tuple[str, str, int, str]] = []
    bare: list[str] = []
    for domain in domain_names:
        bare += _list_domain(root, domain, split_folders, rows, strays)
    if not rows:
        raise InputError(f"no images in {root}: {_hint(root)}")
    row_domains, row_classes, splits, names = zip(*rows, strict=True)
    domains, classes = _in_byte_order(set(row_domains)), _in_byte_order(set(row_classes))
    if set(domains) <= set(_SPLITS):
        raise InputError(
            f"{root} is a single domain with train and val: give the folder above it, {root.resolve().parent}"
        )
    notes = _passed_over(strays, "image", f"not {LAYOUT}, or of a kind that is not read")
    notes += _passed_over(bare, "folder", "no images inside")
    notes += _alike(domains, "domain") + _alike(classes, "class")
    return ImageFolder(
        root=root,
        names=names,
        domains_N=_index(row_domains, domains),
        labels_N=_index(row_classes, classes),
        split_N=np.array(splits, np.int8),
        domains=tuple(domains),
        classes=tuple(classes),
        notes=tuple(notes),
    )


def fold_name(name: str) -> str:
    """A name without what labs write differently: case, spaces, `_` and `-`."""
    return "".join(character for character in name.casefold() if character.isalnum())


def scan(folder: Path, others: Iterable[str] = _NOT_READ) -> tuple[list[str], list[str]]:
    """Names of the folders and of the images directly inside `folder`, hidden ones left out, in byte order.

    Files with a suffix of `others` count as images here: whoever reads them says what they are.
    """
    wanted = SUFFIXES.union(others)
    folders: list[str] = []
    images: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == "__MACOSX":
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                # A link that leads nowhere counts as an image, so that it is reported as unreadable, not passed over.
                elif suffix_of(entry.name) in wanted and (entry.is_file() or entry.is_symlink()):
                    images.append(entry.name)
    except FileNotFoundError:
        raise InputError(f"folder {folder} does not exist: give one laid out as {LAYOUT}") from None
    except NotADirectoryError:
        raise InputError(f"{folder} is a file: give a folder laid out as {LAYOUT}") from None
    except OSError as error:
        raise InputError(f"cannot read folder {folder}: {error.strerror}: check its permissions and links") from None
    return _in_byte_order(folders), _in_byte_order(images)


def suffix_of(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 – half a million names: a Path each takes seconds


def _list_domain(
    root: Path,
    domain: str,
    split_folders: Sequence[Mapping[str, int]],
    rows: list[tuple[str, str, int, str]],
    strays: list[str],
) -> list[str]:
    """Adds (domain, class, split, name) of each image of one domain, and the images at another depth to `strays`.

    Returns the folders in which there are neither.
    """
    folders, loose = scan(root / domain)
    bare = [] if folders or loose else [domain]
    strays += [f"{domain}/{name}" for name in loose]
    splits = next((option for option in split_folders if set(option) <= set(folders)), None)
    # A data set may have a class called "train": train and val are splits only when class folders lie inside them.
    if splits is None and set(folders) <= set(_SPLITS) and any(scan(root / domain / name)[0] for name in folders):
        splits = {name: _SPLITS[name] for name in folders}
    for split_name, split in (splits or {"": UNSPLIT}).items():
        above = f"{domain}/{split_name}" if split_name else domain
        class_names, loose = scan(root / above) if split_name else (folders, [])
        strays += [f"{above}/{name}" for name in loose]
        for class_name in class_names:
            place = f"{above}/{class_name}"
            deeper, images = scan(root / place)
            for name in images:
                if suffix_of(name) in SUFFIXES:
                    rows.append((domain, class_name, split, f"{place}/{name}"))
                else:
                    strays.append(f"{place}/{name}")
            below = [image for name in deeper for image in _images_below(root, f"{place}/{name}")]
            strays += below
            bare += [] if images or below else [place]
    return bare


def _images_below(root: Path, place: str, depth: int = 4) -> list[str]:
    folders, images = scan(root / place)
    found = [f"{place}/{name}" for name in images]
    return found + [image for name in folders if depth for image in _images_below(root, f"{place}/{name}", depth - 1)]


def _passed_over(names: list[str], what: str, why: str) -> list[str]:
    return [f"passed over {counted(len(names), what)} ({why}): {first_few(names)}"] if names else []


def _alike(names: list[str], kind: str) -> list[str]:
    """A line for each pair of names that most people would take for one."""
    seen: dict[str, str] = {}
    lines = []
    for name in names:
        if (other := seen.setdefault(fold_name(name) or name, name)) != name:
            lines.append(f"{kind} {other!r} and {kind} {name!r} are taken for two: rename one if they are the same")
    return lines


def _index(values: Sequence[str], names: list[str]) -> np.ndarray:
    place = {name: index for index, name in enumerate(names)}
    return np.array([place[value] for value in values], np.int64)


def _in_byte_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=os.fsencode)


def _hint(root: Path) -> str:
    """What to do about a folder without images in their place: the likely root, judged by the first image found."""
    image = _first_image(root.resolve(), depth=4)
    if image is None:
        return f"expected {LAYOUT} with {', '.join(sorted(suffix[1:] for suffix in SUFFIXES))} images"
    split_or_domain = image.parent.parent
    domain = split_or_domain.parent if split_or_domain.name in _SPLITS else split_or_domain
    if image.parent == root.resolve():
        return (
            f"expected {LAYOUT}: images that are not sorted yet go into such folders first; if this is one class"
            f" of a domain, give {domain.parent}"
        )
    return f"expected {LAYOUT}; {image} lies at another depth, did you mean {domain.parent}?"


def _first_image(folder: Path, depth: int) -> Path | None:
    folders, images = scan(folder, others=())
    if images or depth == 0:
        return folder / images[0] if images else None
    return next((image for name in folders if (image := _first_image(folder / name, depth - 1))), None)
