"""The catalog is whole: every entry can be read, sums up, and names a recipe that exists."""

import pytest

from triplee.data.catalog import Benchmark, benchmark_names, find_benchmark, read_val_images
from triplee.recipes import RECIPES
from triplee.settings import InputError

# As the field publishes them ("Benchmarks" of the method), and the copy of TerraIncognita that most labs hold.
TOTALS = {
    "digits-dg": {24_000},
    "pacs": {9_991},
    "office-home": {15_588},
    "vlcs": {10_729},
    "terra-incognita": {24_788, 24_330},
    "domainnet": {586_575},
}
CLASSES = {"digits-dg": 10, "pacs": 7, "office-home": 65, "vlcs": 5, "terra-incognita": 10, "domainnet": 345}


def test_six_benchmarks() -> None:
    assert set(benchmark_names()) == set(TOTALS)


@pytest.mark.parametrize("name", TOTALS)
def test_an_entry_is_whole(name: str) -> None:
    benchmark = find_benchmark(name)
    assert benchmark.name == name
    assert TOTALS[name] <= {variant.total for variant in benchmark.variants}
    assert len(benchmark.classes) == CLASSES[name]
    assert len(benchmark.domains) == (6 if name == "domainnet" else 4)
    assert benchmark.recipe in RECIPES
    for text in (benchmark.citation, benchmark.licence, benchmark.homepage, benchmark.manual):
        assert len(text) > 10 and "TODO" not in text
    for variant in benchmark.variants:
        for counts in variant.counts.values():
            assert isinstance(counts, int) or set(counts) == set(benchmark.classes), variant.name
    for archive in benchmark.archives:
        assert all(url.startswith(("https://", "http://")) for url in archive.urls), archive.file


def test_pacs_split_is_the_published_one() -> None:
    val = read_val_images(find_benchmark("pacs"))
    by_domain = {domain: sum(key.startswith(f"{domain}/") for key in val) for domain in find_benchmark("pacs").domains}
    assert by_domain == {"art_painting": 204, "cartoon": 234, "photo": 167, "sketch": 392}
    assert len(val) == 997


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown benchmark 'pac': did you mean 'pacs'"):
        find_benchmark("pac")


def test_counts_of_a_domain_that_is_not_listed_are_refused() -> None:
    entry = find_benchmark("pacs").model_dump()
    entry["variants"][0]["counts"]["statue"] = 3
    with pytest.raises(ValueError, match="does not count the domains"):
        Benchmark.model_validate(entry)
