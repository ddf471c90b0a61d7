"""A benchmark is found and read under its own names in every layout that labs hold."""

from pathlib import Path

import numpy as np
import pytest

from triplee.data.catalog import Benchmark, find_benchmark, read_val_images
from triplee.data.folder import TRAIN, UNSPLIT, VAL, ImageFolder
from triplee.data.locate import find_set, list_benchmark
from triplee.settings import InputError

PACS, VLCS, OFFICE, DOMAINNET = map(find_benchmark, ("pacs", "vlcs", "office-home", "domainnet"))


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def touch_pacs(root: Path) -> Path:
    return touch(root, *(f"{domain}/{name}/pic_1.jpg" for domain in PACS.domains for name in PACS.classes))


def refusal(benchmark: Benchmark, root: Path) -> str:
    with pytest.raises(InputError) as refused:
        list_benchmark(benchmark, root)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def splits(folder: ImageFolder) -> dict[str, int]:
    return dict(zip(folder.image_keys(), folder.split_N.tolist(), strict=True))


@pytest.mark.parametrize("place", ["PACS", "pacs/images", "PACS/kfold", "kfold", ".", "anything", "downloads/copy"])
def test_pacs_is_found_wherever_labs_put_it(tmp_path: Path, place: str) -> None:
    touch_pacs(tmp_path / place)
    assert find_set(PACS, tmp_path) == tmp_path / place
    folder = list_benchmark(PACS, tmp_path)
    assert (folder.domains, folder.classes) == (tuple(PACS.domains), tuple(PACS.classes))
    assert len(folder) == 28 and (folder.split_N == UNSPLIT).all()


def test_the_usual_place_goes_before_another_copy(tmp_path: Path) -> None:
    touch_pacs(tmp_path / "a copy")
    touch_pacs(tmp_path / "PACS")
    assert find_set(PACS, tmp_path) == tmp_path / "PACS"


def test_the_published_split_is_used(tmp_path: Path) -> None:
    val = sorted(read_val_images(PACS))
    touch_pacs(tmp_path)
    touch(tmp_path, *(f"{key}.webp" for key in val))
    folder = list_benchmark(PACS, tmp_path)
    assert {key for key, split in splits(folder).items() if split == VAL} == {f"{key}.webp" for key in val}
    assert (folder.split_N == TRAIN).sum() == len(folder) - 997 and folder.notes == ()
    (tmp_path / f"{val[0]}.webp").unlink()
    assert "1 of the 997 published validation images are not there" in list_benchmark(PACS, tmp_path).notes


@pytest.mark.parametrize("name", ["Real World", "Real_World", "RealWorld", "real-world"])
def test_office_home_with_any_spelling(tmp_path: Path, name: str) -> None:
    touch(tmp_path, *(f"{domain}/Alarm_Clock/1.jpg" for domain in ("Art", "Clipart", "Product", name)))
    folder = list_benchmark(OFFICE, tmp_path)
    assert folder.domains == ("Art", "Clipart", "Product", "Real World")
    assert folder.names[3] == f"{name}/Alarm_Clock/1.jpg"
    renamed = [note for note in folder.notes if f"{name} = Real World" in note]
    assert len(renamed) == (name != "Real World")


def test_vlcs_with_numbers_equals_vlcs_with_names(tmp_path: Path) -> None:
    names = {"Caltech101": "CALTECH", "LabelMe": "LABELME", "SUN09": "SUN", "VOC2007": "PASCAL"}
    for index, label in enumerate(VLCS.classes):
        for domain, other in names.items():
            touch(tmp_path / "named", f"{domain}/{label}/{index}.jpg")
            for part in ("train", "crossval", "test"):
                (tmp_path / "numbered" / other / part).mkdir(parents=True, exist_ok=True)
            part = ("train", "crossval", "test")[index % 3]
            # `full` repeats what lies in train and crossval: it must not be read beside them.
            touch(tmp_path / "numbered", f"{other}/full/{index}/{index}.jpg", f"{other}/{part}/{index}/{index}.jpg")
    named, numbered = list_benchmark(VLCS, tmp_path / "named"), list_benchmark(VLCS, tmp_path / "numbered")
    assert len(named) == len(numbered) == 20 and set(splits(named)) == set(splits(numbered))
    assert numbered.classes == ("bird", "car", "chair", "dog", "person") and splits(numbered)["SUN09/car/1.jpg"] == VAL


def test_domainnet_by_its_lists(tmp_path: Path) -> None:
    domains = list(DOMAINNET.domains)
    for domain in domains:
        touch(tmp_path, *(f"{domain}/airplane/{domain}_{k}.jpg" for k in range(4)))
    unsplit = list_benchmark(DOMAINNET, tmp_path)
    assert len(unsplit) == 24 and "no clipart_train.txt" in unsplit.notes[-1]
    for domain in domains:
        for split, numbers in (("train", (0, 1)), ("test", (2,))):
            lines = [f"{domain}/airplane/{domain}_{k}.jpg 0\n" for k in numbers]
            (tmp_path / f"{domain}_{split}.txt").write_text("".join(lines))
    folder = list_benchmark(DOMAINNET, tmp_path)
    assert np.bincount(folder.split_N).tolist() == [12, 6]
    assert splits(folder)["real/airplane/real_2.jpg"] == VAL
    assert folder.notes == ("left out 6 images that are on none of the published lists",)
    (tmp_path / "real/airplane/real_0.jpg").unlink()
    assert "not there: 1 image of the published lists" in list_benchmark(DOMAINNET, tmp_path).notes


def test_a_root_that_is_not_there(tmp_path: Path) -> None:
    assert refusal(PACS, tmp_path / "gone").startswith(f"root {tmp_path / 'gone'} is no folder")


def test_nothing_there(tmp_path: Path) -> None:
    message = refusal(PACS, tmp_path)
    assert message.startswith(f"no PACS under {tmp_path}") and "triplee data download pacs" in message


def test_another_set_under_its_name(tmp_path: Path) -> None:
    touch(tmp_path / "PACS", "mnist/0/1.png", "svhn/0/1.png")
    assert refusal(PACS, tmp_path).startswith(f"{tmp_path / 'PACS'} is not PACS: it has none of its domains")


def test_a_set_with_the_same_domains_but_other_classes(tmp_path: Path) -> None:
    touch(touch_pacs(tmp_path / "PACS"), "photo/zebra/1.jpg")
    assert "is not PACS: it has a class 'zebra'" in refusal(PACS, tmp_path)


def test_a_domain_is_missing(tmp_path: Path) -> None:
    touch(tmp_path / "PACS", "photo/dog/1.jpg", "sketch/dog/1.jpg")
    assert "has photo, sketch of PACS, but no art_painting, cartoon" in refusal(PACS, tmp_path)


def test_other_folders_beside_the_domains_are_passed_over(tmp_path: Path) -> None:
    touch(touch_pacs(tmp_path), "backup/zebra/1.jpg", "photo/dog/.hidden.jpg")
    folder = list_benchmark(PACS, tmp_path)
    assert len(folder) == 28
    assert "passed over backup: no domain of PACS" in folder.notes
