"""SGD on many weights at once, as a Triton kernel: weights, momenta and the copy for the matrix units in one pass.

Axes: M members, P weights of a member.
"""

# Kernels are written in Triton's language, which is no Python to a type checker.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false

import triton
import triton.language as tl
from torch import Tensor

RATES = 5  # a member's learning rate, momentum, weight decay, weight of the contrast, 1 / temperature
BLOCK = 1024


@triton.jit
def update(
    active,
    weights,
    momenta,
    gradients,
    copies,
    rates,
    step,
    advance,
    size,
    BLOCK: tl.constexpr,
    RATES: tl.constexpr,
):
    """SGD with momentum and weight decay on all members' weights (M, P), and their copy for the matrix units."""
    slot = tl.program_id(1).to(tl.int64)
    member = tl.load(active + slot)
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = k < size
    own = rates + member * RATES
    rate, momentum, decay = tl.load(own), tl.load(own + 1), tl.load(own + 2)
    place = member * size + k
    weight = tl.load(weights + place, mask=exists)
    gradient = tl.load(gradients + place, mask=exists).to(tl.float32)
    moved = momentum * tl.load(momenta + place, mask=exists) + gradient + decay * weight
    weight -= rate * moved
    tl.store(momenta + place, moved, mask=exists)
    tl.store(weights + place, weight, mask=exists)
    tl.store(copies + place, weight.to(copies.dtype.element_ty), mask=exists)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(step, tl.load(step) + advance)  # the last kernel of a step: nobody reads it any more


def update_members(
    active: Tensor,
    weights: Tensor,
    momenta: Tensor,
    gradients: Tensor,
    copies: Tensor,
    rates: Tensor,
    step: Tensor,
    advance: int,
) -> None:
    """Of (M, P) weights those of the `active` members, by their rows of `rates` (M, RATES); `step` counts `advance`."""
    size = weights.shape[-1]
    update[(triton.cdiv(size, BLOCK), len(active))](
        active, weights, momenta, gradients, copies, rates, step, advance, size, BLOCK, RATES
    )
