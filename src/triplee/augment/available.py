"""Which compiled code this machine can run, found out on first use, so that importing the package stays quick.

Goes out: the module with the kernels of a device, or none, and then plain torch does the same.
"""

import warnings
from functools import lru_cache
from importlib import import_module
from types import ModuleType

# The Fourier op apart from the rest: it takes seconds to compile the first time, and not every recipe draws it.
_MODULES = {
    "cpu": "triplee.augment.compiled",
    "cpu fourier": "triplee.augment.compiled_fourier",
    "cuda": "triplee.augment.cuda",
}


@lru_cache
def find_kernels(what: str) -> ModuleType | None:
    """The kernels for a kind of device (or "cpu fourier"), where what they need (Numba, Triton) is there and works."""
    if what not in _MODULES:
        return None
    try:
        return import_module(_MODULES[what])
    except ModuleNotFoundError:
        return None
    except Exception as error:
        warnings.warn(f"plain torch runs instead of compiled code, which is slower: {error}", stacklevel=2)
        return None
