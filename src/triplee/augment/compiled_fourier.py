"""The Fourier op (Eq. 3 to 5) compiled for the CPU, with a transform of its own, the same bytes on every CPU.

Comes in: uint8 views (V,3,H,W), a pool (N,3,H,W), partners and shares; the views are changed in place.
LANES lines are transformed at once, as one array of points: per point LANES real parts, then LANES imaginary parts.
Two real lines go as one complex one. The spectrum is (H//2+1, W), in blocks of LANES rows, each an array of W points.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from triplee.augment.compiled_ops import compile_ahead, inner_function
from triplee.augment.lanes import LANES, aligned, load, spread, spread_from, sqrt, store, turn, where_above

f32 = np.float32
POINT = 2 * LANES  # floats
LARGEST_ODD = 7

_inner = inner_function()


def can_transform(height: int, width: int) -> bool:
    """Both sides are a power of two times a small odd number, and columns go in pairs of LANES."""
    return width % (2 * LANES) == 0 and all(n // (n & -n) <= LARGEST_ODD for n in (height, width))


@lru_cache(maxsize=64)
def roots_of_one(n: int) -> np.ndarray:
    """exp(−2πi·k/n), real and imaginary parts in turn, as float32 (2·n)."""
    angles = [-2 * math.pi * k / n for k in range(n)]
    return np.array([part for angle in angles for part in (math.cos(angle), math.sin(angle))], np.float32)


@_inner
def _pass_of_2(x: Any, y: Any, rest: int, done: int, roots: Any) -> None:
    half, step = rest // 2, done * POINT
    for q in range(half):
        w = q * done
        wr, wi = spread_from(roots, 2 * w), spread_from(roots, 2 * w + 1)
        for k in range(done):
            a = (w + k) * POINT
            b, to = a + half * step, a + q * step
            ar, ai, br, bi = load(x, a), load(x, a + LANES), load(x, b), load(x, b + LANES)
            store(y, to, ar + br)
            store(y, to + LANES, ai + bi)
            _store_turned(y, to + step, ar - br, ai - bi, wr, wi)


@_inner
def _pass_of_4(x: Any, y: Any, rest: int, done: int, roots: Any) -> None:
    """One pass of Stockham's transform: four lines' parts into four, in the order that needs no sorting."""
    quarter, step = rest // 4, done * POINT
    for q in range(quarter):
        w1, w2, w3 = 2 * q * done, 4 * q * done, 6 * q * done
        w1r, w2r, w3r = spread_from(roots, w1), spread_from(roots, w2), spread_from(roots, w3)
        w1i, w2i, w3i = spread_from(roots, w1 + 1), spread_from(roots, w2 + 1), spread_from(roots, w3 + 1)
        for k in range(done):
            a = (q * done + k) * POINT
            b, c, d, to = a + quarter * step, a + 2 * quarter * step, a + 3 * quarter * step, a + 3 * q * step
            ar, br, cr, dr = load(x, a), load(x, b), load(x, c), load(x, d)
            ai, bi, ci, di = load(x, a + LANES), load(x, b + LANES), load(x, c + LANES), load(x, d + LANES)
            sum_r, sum_i, dif_r, dif_i = ar + cr, ai + ci, ar - cr, ai - ci
            odd_r, odd_i, turned_r, turned_i = br + dr, bi + di, bi - di, dr - br
            store(y, to, sum_r + odd_r)
            store(y, to + LANES, sum_i + odd_i)
            _store_turned(y, to + step, dif_r + turned_r, dif_i + turned_i, w1r, w1i)
            _store_turned(y, to + 2 * step, sum_r - odd_r, sum_i - odd_i, w2r, w2i)
            _store_turned(y, to + 3 * step, dif_r - turned_r, dif_i - turned_i, w3r, w3i)


@_inner
def _store_turned(y: Any, to: int, real: Any, imaginary: Any, wr: Any, wi: Any) -> None:
    store(y, to, real * wr - imaginary * wi)
    store(y, to + LANES, real * wi + imaginary * wr)


@_inner
def _last_pass(x: Any, y: Any, odd: int, done: int, roots: Any) -> None:
    """The odd factor. x_j and x_−j go together; against 2·x_0, so that equal pixels give zeros, not rounding noise."""
    step, two = done * POINT, spread(f32(2))
    for k in range(done):
        to = k * POINT
        first_r, first_i = load(x, to), load(x, to + LANES)
        total_r, total_i = first_r, first_i
        for j in range(1, odd // 2 + 1):
            a, b = to + j * step, to + (odd - j) * step
            ar, ai, br, bi = load(x, a), load(x, a + LANES), load(x, b), load(x, b + LANES)
            real, imaginary = ar + br, ai + bi
            total_r, total_i = total_r + real, total_i + imaginary
            store(x, a, real - two * first_r)
            store(x, a + LANES, imaginary - two * first_i)
            store(x, b, ar - br)
            store(x, b + LANES, ai - bi)
        store(y, to, total_r)
        store(y, to + LANES, total_i)
    # Three pairs at most; where there are fewer, the first one stands in with weight 0.
    second, third = 2 if odd > 3 else 1, 3 if odd > 5 else 1
    has_second, has_third = spread(f32(odd > 3)), spread(f32(odd > 5))
    for u in range(1, odd // 2 + 1):
        w1, w2, w3 = 2 * (u * done), 2 * (u * 2 % odd * done), 2 * (u * 3 % odd * done)
        w1r, w1i = spread_from(roots, w1), spread_from(roots, w1 + 1)
        w2r, w2i = spread_from(roots, w2) * has_second, spread_from(roots, w2 + 1) * has_second
        w3r, w3i = spread_from(roots, w3) * has_third, spread_from(roots, w3 + 1) * has_third
        for k in range(done):
            at = k * POINT
            a1, a2, a3 = at + step, at + second * step, at + third * step
            b1, b2, b3 = at + (odd - 1) * step, at + (odd - second) * step, at + (odd - third) * step
            to, back = at + u * step, at + (odd - u) * step
            even_r = w1r * load(x, a1) + w2r * load(x, a2) + w3r * load(x, a3)
            even_i = w1r * load(x, a1 + LANES) + w2r * load(x, a2 + LANES) + w3r * load(x, a3 + LANES)
            odd_r = w1i * load(x, b1 + LANES) + w2i * load(x, b2 + LANES) + w3i * load(x, b3 + LANES)
            odd_i = w1i * load(x, b1) + w2i * load(x, b2) + w3i * load(x, b3)
            store(y, to, even_r - odd_r)
            store(y, to + LANES, even_i + odd_i)
            store(y, back, even_r + odd_r)
            store(y, back + LANES, even_i - odd_i)


@_inner
def _transform(x: Any, y: Any, roots: Any) -> tuple[Any, Any]:
    """LANES lines at once; gives the one that holds the result, and the other. Backwards: swap the parts."""
    rest, done = len(roots) // 2, 1
    while rest % 4 == 0:
        _pass_of_4(x, y, rest, done, roots)
        x, y, rest, done = y, x, rest // 4, done * 4
    if rest % 2 == 0:
        _pass_of_2(x, y, rest, done, roots)
        x, y, rest, done = y, x, rest // 2, done * 2
    if rest > 1:
        _last_pass(x, y, rest, done, roots)
        x, y = y, x
    return x, y


@_inner
def _part(x: Any, height: int, width: int, left: int, out: Any) -> None:
    """The spectra of two real lines out of that of the complex line they made, as columns of the blocks."""
    half = spread(f32(0.5))
    for top in range(0, height // 2 + 1, LANES):
        to = (top * width + left * LANES) * 2
        to_2 = to + LANES * POINT
        for k in range(LANES):
            row = min(top + k, height // 2)  # the last block repeats its last row: all of it is numbers
            here, there = row * POINT, (height - row if row else 0) * POINT
            ar, ai, br, bi = load(x, here), load(x, here + LANES), load(x, there), load(x, there + LANES)
            store(out, to + k * POINT, half * (ar + br))
            store(out, to + k * POINT + LANES, half * (ai - bi))
            store(out, to_2 + k * POINT, half * (ai + bi))
            store(out, to_2 + k * POINT + LANES, half * (br - ar))
        _turn_parts(out, to)
        _turn_parts(out, to_2)


@_inner
def _turn_parts(spectrum: Any, at: int) -> None:
    turn(spectrum, at, POINT)
    turn(spectrum, at + LANES, POINT)


@_inner
def _pair(spectrum: Any, height: int, width: int, left: int, x: Any) -> None:
    """The way back of `_part`, parts swapped before and after; the blocks are not needed any more."""
    for top in range(0, height // 2 + 1, LANES):
        at = (top * width + left * LANES) * 2
        at_2 = at + LANES * POINT
        _turn_parts(spectrum, at)
        _turn_parts(spectrum, at_2)
        for k in range(min(LANES, height // 2 + 1 - top)):
            row = top + k
            here, there = row * POINT, (height - row if row else 0) * POINT
            kept = spread(f32(0 if here == there else 1))  # of the imaginary part: rounding noise where lines are real
            ar, ai = load(spectrum, at + k * POINT + LANES), load(spectrum, at + k * POINT) * kept
            br, bi = load(spectrum, at_2 + k * POINT + LANES), load(spectrum, at_2 + k * POINT) * kept
            store(x, here + LANES, ar - bi)
            store(x, here, ai + br)
            store(x, there + LANES, ar + bi)
            store(x, there, br - ai)


@_inner
def _down(plane: Any, width: int, roots: Any, lines: Any, spectrum: Any) -> None:
    """Transform the columns of an image, 2·LANES at a time, into half a spectrum."""
    height = len(roots) // 2
    for left in range(0, width, 2 * LANES):
        for row in range(height):
            store(lines[0], row * POINT, load(plane, row * width + left))
            store(lines[0], row * POINT + LANES, load(plane, row * width + left + LANES))
        z, _ = _transform(lines[0], lines[1], roots)
        _part(z, height, width, left, spectrum)


@_inner
def _up(spectrum: Any, width: int, roots: Any, lines: Any, plane: Any) -> None:
    """Columns back out of half a spectrum, whose parts are swapped."""
    height = len(roots) // 2
    scale = spread(f32(1 / (height * width)))
    for left in range(0, width, 2 * LANES):
        _pair(spectrum, height, width, left, lines[0])
        z, _ = _transform(lines[0], lines[1], roots)
        for row in range(height):
            store(plane, row * width + left, load(z, row * POINT + LANES) * scale)
            store(plane, row * width + left + LANES, load(z, row * POINT) * scale)


@_inner
def _mix(x: Any, other: Any, share: Any, no_phase: Any) -> None:
    """Eq. 4 in place: amplitudes mixed, own phase kept. The parts come out swapped, for the way back."""
    none, one = spread(f32(0)), spread(f32(1))
    for at in range(0, len(x), POINT):
        real, imaginary = load(x, at), load(x, at + LANES)
        other_r, other_i = load(other, at), load(other, at + LANES)
        amplitude = sqrt(real * real + imaginary * imaginary)
        other_amplitude = sqrt(other_r * other_r + other_i * other_i)
        divisor = where_above(amplitude, no_phase, amplitude, one)
        gain = (amplitude + (other_amplitude - amplitude) * share) / divisor
        store(x, at + LANES, where_above(amplitude, no_phase, real, one) * gain)
        store(x, at, where_above(amplitude, no_phase, imaginary, none) * gain)


@compile_ahead(
    "b1(u1[:,:,:,::1], i8[:], u1[:,:,:,::1], i8[:], f8[:], f4, f4[::1], f4[::1], f4[:,::1], f4[:,::1], i8, i8)"
)
def mix_views(
    views_VCHW: Any,
    where_M: Any,
    pool_NCHW: Any,
    partner_M: Any,
    share_M: Any,
    no_phase: np.float32,
    roots_down: Any,
    roots_across: Any,
    spectra: Any,
    lines: Any,
    first: int,
    last: int,
) -> bool:
    """Mix views `where_M[first:last]` with their partners. False: a number is out of range, and no more was done.

    `room_for_spectra` gives what to write in between.
    """
    height, width = views_VCHW.shape[2:]
    views_VCP = views_VCHW.reshape((len(views_VCHW), 3, height * width))
    pool_NCP = pool_NCHW.reshape((len(pool_NCHW), 3, height * width))
    size = width * POINT
    for m in range(first, last):
        if not (0 <= where_M[m] < len(views_VCP) and 0 <= partner_M[m] < len(pool_NCP)):
            return False
        for c in range(3):
            plane = views_VCP[where_M[m], c]
            _down(plane, width, roots_down, lines, spectra[0])
            _down(pool_NCP[partner_M[m], c], width, roots_down, lines, spectra[1])
            for start in range(0, spectra.shape[1], size):
                x, y = _transform(spectra[0, start : start + size], lines[0, :size], roots_across)
                other, _ = _transform(spectra[1, start : start + size], lines[1, :size], roots_across)
                _mix(x, other, spread(f32(share_M[m])), spread(no_phase))
                _transform(x, y, roots_across)  # as many passes back as forth: it ends where it began
            _up(spectra[0], width, roots_down, lines, plane)
    return True


def room_for_spectra(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """`spectra` (own and partner's) and `lines` for one thread: no kernel allocates."""
    num_blocks = (height // 2 + LANES) // LANES
    return aligned(2, num_blocks * width * POINT), aligned(2, max(height, width) * POINT)
