"""A single member's step on a CPU: one thread, all of them, and what a run chooses at its start; quiet and disturbed.

python bench/threads.py    # on a machine where nothing else runs; writes bench/results/threads.json
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from measuring import ratios, save, summary, time_in_turn
from triplee.engine.epoch import MemberSpec
from triplee.engine.member import Member
from triplee.engine.threads import quickest_threads
from triplee.settings import make_recipe

NETWORKS = (("resnet18", 48), ("resnet18", 160), ("mobilenet-v2", 48), ("mobilenet-v2", 160), ("digit-cnn", 32))
ROUNDS, SECONDS_A_ROUND = 7, 0.4


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Others that never rest."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    most = torch.get_num_threads()
    rows = []
    for others in (0, 1):
        for backbone, size in NETWORKS:
            recipe = make_recipe({"backbone": backbone, "image_size": size, "members": 1, "lr": 1e-4})
            spec = MemberSpec(recipe, 0, 0, np.arange(64), 7)
            images = torch.randint(0, 256, (64, 3, size, size), dtype=torch.uint8)
            member = Member(spec, torch.device("cpu"), "float32")
            views, labels = images[:16], torch.arange(4).repeat_interleave(4)
            with busy_processes(others):
                began = time.perf_counter()
                chosen = quickest_threads(spec, images, "float32")
                choosing = time.perf_counter() - began
                torch.set_num_threads(1)
                member.step(views, labels)
                began = time.perf_counter()
                member.step(views, labels)
                steps = max(2, round(SECONDS_A_ROUND / (time.perf_counter() - began)))

                def take(
                    threads: int, steps: int = steps, member: Member = member, of: tuple = (views, labels)
                ) -> None:
                    torch.set_num_threads(threads)
                    for _ in range(steps):
                        member.step(*of)

                rivals = {name: lambda count=count: take(count) for name, count in (("one", 1), ("all", most))}
                seconds = time_in_turn({**rivals, "chosen": lambda chosen=chosen: take(chosen)}, ROUNDS)
            torch.set_num_threads(most)
            rows.append(
                {
                    "network": f"{backbone}, {size} px",
                    "beside": f"{others} busy process" if others else "nothing",
                    "chosen, threads": chosen,
                    "choosing, s": round(choosing, 1),
                    "one thread, ms": summary([1000 * s / steps for s in seconds["one"]], 1),
                    f"{most} threads / one": ratios(seconds["all"], seconds["one"]),
                    "chosen / one": ratios(seconds["chosen"], seconds["one"]),
                }
            )
            print(rows[-1], flush=True)
    save("threads", rows)


if __name__ == "__main__":
    main()
