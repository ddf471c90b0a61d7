"""How the tests of Triton kernels run: on a GPU as they are, elsewhere in Triton's interpreter, on the CPU.

The interpreter takes over at the first import of Triton, and for good: so it has a process of its own.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not INTERPRETED
DEVICE = torch.device("cuda" if ON_GPU else "cpu")

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton")
runs_kernels = pytest.mark.skipif(not ON_GPU and not INTERPRETED, reason="neither GPU nor interpreter")
starts_interpreter = pytest.mark.skipif(ON_GPU or INTERPRETED, reason="the kernels run in this very process")


def run_in_interpreter(file: str) -> None:
    """All tests of a file again, with the kernels interpreted."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", file]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
