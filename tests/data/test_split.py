from dataclasses import replace

import numpy as np
import pytest
import torch

from triplee.data.folder import TRAIN, UNSPLIT, VAL
from triplee.data.pool import Pool
from triplee.data.split import Split, split_pool
from triplee.settings import InputError

SEEDS = range(5)
Groups = dict[tuple[str, str], int | tuple[int, int]]


def make_pool(groups: Groups) -> Pool:
    """`groups`: (domain, class) → number of unsplit images, or (train, val) numbers. In no order: none is promised."""
    domains = tuple(sorted({domain for domain, _ in groups}))
    classes = tuple(sorted({name for _, name in groups}))
    rows: list[tuple[int, int, int]] = []
    for (domain, name), num in groups.items():
        parts = [UNSPLIT] * num if isinstance(num, int) else [TRAIN] * num[0] + [VAL] * num[1]
        rows += [(domains.index(domain), classes.index(name), part) for part in parts]
    table = np.array(rows, np.int64).reshape(-1, 3)
    table = np.random.default_rng(0).permutation(table)
    return Pool(
        name="somewhere",
        images_NCHW=torch.zeros(len(table), 3, 2, 2, dtype=torch.uint8),
        labels_N=table[:, 1],
        domains_N=table[:, 0],
        split_N=table[:, 2].astype(np.int8),
        classes=classes,
        domains=domains,
        fingerprint="0",
    )


def even_pool(num: int = 20) -> Pool:
    return make_pool({(domain, name): num for domain in "abc" for name in ("cat", "dog")})


def only(pool: Pool, chosen_N: np.ndarray, domain: str) -> list[int]:
    return [int(i) for i in chosen_N if pool.domains[pool.domains_N[i]] == domain]


def refusal(pool: Pool, target: str) -> str:
    with pytest.raises(InputError) as refused:
        split_pool(pool, target, 0)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("target", ["a", "b", "c"])
def test_train_and_val_share_the_sources_and_the_target_is_whole(seed: int, target: str) -> None:
    pool = even_pool()
    split = split_pool(pool, target, seed)
    target_index = pool.domains.index(target)
    assert split.target == target
    assert split.source_domains == tuple(name for name in "abc" if name != target)
    assert np.array_equal(split.target_N, np.flatnonzero(pool.domains_N == target_index))
    both = np.concatenate([split.train_N, split.val_N])
    assert np.array_equal(np.sort(both), np.flatnonzero(pool.domains_N != target_index))
    for chosen_N in (split.train_N, split.val_N, split.target_N):
        assert chosen_N.dtype == np.int64
        assert np.array_equal(chosen_N, np.unique(chosen_N))
    assert split.warnings == ()


@pytest.mark.parametrize(
    ("num", "num_val"),
    [(1, 0), (4, 0), (5, 1), (9, 1), (10, 1), (14, 1), (16, 2), (24, 2), (26, 3), (100, 10), (600, 60)],
)
def test_a_tenth_of_each_domain_and_class_is_val(num: int, num_val: int) -> None:
    pool = make_pool({("a", "cat"): num, ("a", "dog"): 30, ("b", "cat"): 50, ("b", "dog"): 70, ("t", "cat"): 3})
    split = split_pool(pool, "t", 0)
    counted = {
        (domain, name): int(np.sum((pool.domains_N[split.val_N] == d) & (pool.labels_N[split.val_N] == c)))
        for d, domain in enumerate("ab")
        for c, name in enumerate(("cat", "dog"))
    }
    assert counted == {("a", "cat"): num_val, ("a", "dog"): 3, ("b", "cat"): 5, ("b", "dog"): 7}


def test_the_seed_decides() -> None:
    pool = even_pool()
    val = [split_pool(pool, "a", seed).val_N.tolist() for seed in SEEDS]
    assert len({tuple(chosen) for chosen in val}) == len(SEEDS)
    assert val == [split_pool(pool, "a", seed).val_N.tolist() for seed in SEEDS]


def test_every_source_image_is_val_for_some_seed_and_train_for_most() -> None:
    pool = even_pool(10)
    times = np.zeros(len(pool))
    for seed in range(200):
        times[split_pool(pool, "c", seed).val_N] += 1
    sources = times[pool.domains_N != 2]
    assert sources.min() >= 5 and sources.max() <= 45  # 20 on average, standard deviation 4.2


@pytest.mark.parametrize("seed", SEEDS)
def test_domains_are_drawn_independently(seed: int) -> None:
    pool = make_pool({(domain, "cat"): 100 for domain in "abc"})
    val_N = split_pool(pool, "c", seed).val_N
    first, second = (
        [np.flatnonzero(pool.domains_N == index).tolist().index(i) for i in only(pool, val_N, name)]
        for index, name in enumerate("ab")
    )
    assert first != second


@pytest.mark.parametrize("seed", SEEDS)
def test_a_domain_is_split_alike_whichever_is_the_target(seed: int) -> None:
    pool = even_pool()
    for domain, targets in {"a": "bc", "b": "ac", "c": "ab"}.items():
        first, second = (split_pool(pool, target, seed) for target in targets)
        assert only(pool, first.val_N, domain) == only(pool, second.val_N, domain) != []
        assert only(pool, first.train_N, domain) == only(pool, second.train_N, domain)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_target_images_decide_nothing(seed: int) -> None:
    pool = even_pool()
    target_N = np.flatnonzero(pool.domains_N == 1)
    kept = np.delete(np.arange(len(pool)), target_N[pool.labels_N[target_N] == 0])  # all cats of the target go
    thinned = replace(
        pool,
        images_NCHW=pool.images_NCHW[kept],
        labels_N=pool.labels_N[kept],
        domains_N=pool.domains_N[kept],
        split_N=pool.split_N[kept],
    )
    split, split_thinned = split_pool(pool, "b", seed), split_pool(thinned, "b", seed)
    assert len(split_thinned.target_N) == len(split.target_N) // 2
    assert np.array_equal(kept[split_thinned.val_N], split.val_N)
    assert np.array_equal(kept[split_thinned.train_N], split.train_N)


@pytest.mark.parametrize("seed", SEEDS)
def test_given_parts_are_kept_and_other_domains_are_drawn(seed: int) -> None:
    pool = make_pool(
        {("a", "cat"): (8, 2), ("a", "dog"): (3, 9), ("b", "cat"): 10, ("b", "dog"): 20, ("t", "cat"): (4, 6)}
    )
    split = split_pool(pool, "t", seed)
    in_a = pool.domains_N == 0
    assert only(pool, split.train_N, "a") == np.flatnonzero(in_a & (pool.split_N == TRAIN)).tolist()
    assert only(pool, split.val_N, "a") == np.flatnonzero(in_a & (pool.split_N == VAL)).tolist()
    assert len(only(pool, split.val_N, "b")) == 3
    assert len(split.target_N) == 10, "train and val of the target are both tested on"


def test_unknown_target() -> None:
    pool = make_pool({("photo", "cat"): 10, ("sketch", "cat"): 10})
    assert refusal(pool, "scetch") == "unknown target 'scetch' in somewhere: did you mean 'sketch'?"
    assert "known: photo, sketch" in refusal(pool, "x")


def test_the_only_domain() -> None:
    message = refusal(make_pool({("photo", "cat"): 10}), "photo")
    assert "'photo' is the only domain of somewhere" in message


def test_a_class_only_the_target_has() -> None:
    pool = make_pool({("a", "cat"): 10, ("b", "cat"): 10, ("t", "cat"): 10, ("t", "emu"): 1, ("t", "dog"): 1})
    message = refusal(pool, "t")
    assert "'dog', 'emu'" in message and "'cat'" not in message and "'t'" in message
    split_pool(pool, "a", 0)


def test_a_class_that_sources_have_in_val_only() -> None:
    pool = make_pool({("a", "cat"): (5, 5), ("a", "dog"): (0, 5), ("t", "cat"): 10})
    assert "'dog'" in refusal(pool, "t")


def test_no_training_images() -> None:
    assert "no training images" in refusal(make_pool({("a", "cat"): (0, 5), ("t", "cat"): 10}), "t")


def test_no_validation_images() -> None:
    assert "no validation images" in refusal(make_pool({("a", "cat"): (5, 0), ("t", "cat"): 10}), "t")
    assert "at least 5 images" in refusal(make_pool({("a", "cat"): 4, ("a", "dog"): 4, ("t", "cat"): 10}), "t")


def warnings_of(groups: Groups, target: str) -> tuple[str, ...]:
    split: Split = split_pool(make_pool(groups), target, 0)
    return split.warnings


def test_warnings_name_the_class_and_where_it_is_missing() -> None:
    groups: Groups = {
        ("a", "cat"): 10,
        ("a", "dog"): 10,
        ("a", "emu"): 10,
        ("b", "cat"): 10,
        ("c", "cat"): 9,
        ("c", "dog"): 9,
    }
    assert warnings_of(groups, "c") == (
        "source domain 'b' has no image of class 'dog', 'emu'",
        "target 'c' has no image of class 'emu'",
    )


def test_warnings_name_a_source_without_validation_or_training_images() -> None:
    assert warnings_of({("a", "cat"): 10, ("b", "cat"): (9, 0), ("c", "cat"): (0, 9), ("t", "cat"): 2}, "t") == (
        "source domain 'b' has no validation images",
        "source domain 'c' has no training images",
    )
