"""The Fourier op (Eq. 3 to 5) compiled for the CPU, with a transform of its own, the same bytes on every CPU.

Comes in: uint8 views (V,3,H,W), a pool (N,3,H,W), partners and shares; the views are changed in place.
A block of lines is transformed at once, line by line in SIMD lanes: (n, LANES), real and imaginary parts apart.
Two real lines go as one complex one. The spectrum is (H//2+1, W), in blocks (W, LANES) of LANES rows.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numba.core.compiler import Compiler

from triplee.augment.compiled_ops import compile_ahead, inner_function

f32, index = np.float32, np.uint64  # an unsigned index is not looked at for being negative
LANES = 8
LARGEST_ODD = 7


class _NoAlias(Compiler):
    """Tells LLVM that a pass reads and writes different memory; without it, loops do not become SIMD."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, args: Any, *rest: Any) -> None:
        return_type, flags, local = rest
        flags.noalias = True
        super().__init__(typingctx, targetctx, library, args, return_type, flags, local)


_pass, _inner = inner_function(pipeline_class=_NoAlias), inner_function()


def can_transform(height: int, width: int) -> bool:
    """Both sides are a power of two times a small odd number, and columns go in pairs of blocks."""
    return width % (2 * LANES) == 0 and all(n // (n & -n) <= LARGEST_ODD for n in (height, width))


@lru_cache(maxsize=64)
def roots_of_one(n: int) -> np.ndarray:
    """exp(−2πi·k/n) as float32 (2,n)."""
    angles = [-2 * math.pi * k / n for k in range(n)]
    return np.array([[math.cos(angle) for angle in angles], [math.sin(angle) for angle in angles]], np.float32)


@_pass
def _pass_of_2(xr: Any, xi: Any, yr: Any, yi: Any, rest: int, done: int, roots: Any) -> None:
    half, step = rest // 2, done * LANES
    for q in range(half):
        wr, wi = roots[0, q * done], roots[1, q * done]
        a, b, to = index(q * step), index((q + half) * step), index(2 * q * step)
        to_b = index((2 * q + 1) * step)
        for k in range(index(step)):
            yr[to + k], yi[to + k] = xr[a + k] + xr[b + k], xi[a + k] + xi[b + k]
            real, imaginary = xr[a + k] - xr[b + k], xi[a + k] - xi[b + k]
            yr[to_b + k], yi[to_b + k] = real * wr - imaginary * wi, real * wi + imaginary * wr


@_pass
def _pass_of_4(xr: Any, xi: Any, yr: Any, yi: Any, rest: int, done: int, roots: Any) -> None:
    """One pass of Stockham's transform: four lines' parts into four, in the order that needs no sorting."""
    quarter, step = rest // 4, done * LANES
    for q in range(quarter):
        w1r, w2r, w3r = roots[0, q * done], roots[0, 2 * q * done], roots[0, 3 * q * done]
        w1i, w2i, w3i = roots[1, q * done], roots[1, 2 * q * done], roots[1, 3 * q * done]
        a, b = index(q * step), index((q + quarter) * step)
        c, d = index((q + 2 * quarter) * step), index((q + 3 * quarter) * step)
        to_0, to_1 = index(4 * q * step), index((4 * q + 1) * step)
        to_2, to_3 = index((4 * q + 2) * step), index((4 * q + 3) * step)
        for k in range(index(step)):
            sum_r, sum_i = xr[a + k] + xr[c + k], xi[a + k] + xi[c + k]
            dif_r, dif_i = xr[a + k] - xr[c + k], xi[a + k] - xi[c + k]
            odd_r, odd_i = xr[b + k] + xr[d + k], xi[b + k] + xi[d + k]
            turned_r, turned_i = xi[b + k] - xi[d + k], xr[d + k] - xr[b + k]
            yr[to_0 + k], yi[to_0 + k] = sum_r + odd_r, sum_i + odd_i
            real, imaginary = dif_r + turned_r, dif_i + turned_i
            yr[to_1 + k], yi[to_1 + k] = real * w1r - imaginary * w1i, real * w1i + imaginary * w1r
            real, imaginary = sum_r - odd_r, sum_i - odd_i
            yr[to_2 + k], yi[to_2 + k] = real * w2r - imaginary * w2i, real * w2i + imaginary * w2r
            real, imaginary = dif_r - turned_r, dif_i - turned_i
            yr[to_3 + k], yi[to_3 + k] = real * w3r - imaginary * w3i, real * w3i + imaginary * w3r


@_pass
def _last_pass(xr: Any, xi: Any, yr: Any, yi: Any, odd: int, done: int, roots: Any) -> None:
    """The odd factor. x_j and x_−j go together; against 2·x_0, so that equal pixels give zeros, not rounding noise."""
    step = done * LANES
    for k in range(index(step)):
        yr[k], yi[k] = xr[k], xi[k]
    for j in range(1, odd // 2 + 1):
        a, b = index(j * step), index((odd - j) * step)
        for k in range(index(step)):
            real, imaginary = xr[a + k] + xr[b + k], xi[a + k] + xi[b + k]
            xr[b + k], xi[b + k] = xr[a + k] - xr[b + k], xi[a + k] - xi[b + k]
            yr[k], yi[k] = yr[k] + real, yi[k] + imaginary
            xr[a + k], xi[a + k] = real - f32(2) * xr[k], imaginary - f32(2) * xi[k]
    # Three pairs at most; where there are fewer, the first one stands in with weight 0.
    second, third = 2 if odd > 3 else 1, 3 if odd > 5 else 1
    has_second, has_third = f32(odd > 3), f32(odd > 5)
    a1, a2, a3 = index(step), index(second * step), index(third * step)
    b1, b2, b3 = index((odd - 1) * step), index((odd - second) * step), index((odd - third) * step)
    for u in range(1, odd // 2 + 1):
        w1, w2, w3 = u * done, u * 2 % odd * done, u * 3 % odd * done
        w1r, w2r, w3r = roots[0, w1], roots[0, w2] * has_second, roots[0, w3] * has_third
        w1i, w2i, w3i = roots[1, w1], roots[1, w2] * has_second, roots[1, w3] * has_third
        to, back = index(u * step), index((odd - u) * step)
        for k in range(index(step)):
            even_r = w1r * xr[a1 + k] + w2r * xr[a2 + k] + w3r * xr[a3 + k]
            even_i = w1r * xi[a1 + k] + w2r * xi[a2 + k] + w3r * xi[a3 + k]
            odd_r = w1i * xi[b1 + k] + w2i * xi[b2 + k] + w3i * xi[b3 + k]
            odd_i = w1i * xr[b1 + k] + w2i * xr[b2 + k] + w3i * xr[b3 + k]
            yr[to + k], yi[to + k] = even_r - odd_r, even_i + odd_i
            yr[back + k], yi[back + k] = even_r + odd_r, even_i - odd_i


@_inner
def _transform(xr: Any, xi: Any, yr: Any, yi: Any, roots: Any) -> tuple[Any, Any, Any, Any]:
    """LANES lines at once; gives the two that hold the result, and the other two. Backwards: swap the parts."""
    # Loops that are short or have many parts become SIMD only where the compiler knows their lengths: Numba compiles a
    # function anew for every number written out in a call.
    rest, done = roots.shape[1], 1
    while rest % 4 == 0:
        if done == 1:
            _pass_of_4(xr, xi, yr, yi, rest, 1, roots)
        elif done == 4:
            _pass_of_4(xr, xi, yr, yi, rest, 4, roots)
        else:
            _pass_of_4(xr, xi, yr, yi, rest, done, roots)
        xr, xi, yr, yi, rest, done = yr, yi, xr, xi, rest // 4, done * 4
    if rest % 2 == 0:
        _pass_of_2(xr, xi, yr, yi, rest, done, roots)
        xr, xi, yr, yi, rest, done = yr, yi, xr, xi, rest // 2, done * 2
    if rest > 1:
        if rest == 3:
            _last_pass(xr, xi, yr, yi, 3, done, roots)
        elif rest == 5:
            _last_pass(xr, xi, yr, yi, 5, done, roots)
        else:
            _last_pass(xr, xi, yr, yi, 7, done, roots)
        xr, xi, yr, yi = yr, yi, xr, xi
    return xr, xi, yr, yi


@_pass
def _read(plane: Any, width: int, left: int, height: int, first: Any, second: Any) -> None:
    for y in range(height):
        here, to = index(y * width + left), index(y * LANES)
        for j in range(index(LANES)):
            first[to + j] = plane[here + j]
            second[to + j] = plane[here + index(LANES) + j]


@_pass
def _part(zr: Any, zi: Any, height: int, width: int, left: int, out_r: Any, out_i: Any) -> None:
    """The spectra of two real lines out of that of the complex line they made, as columns of the blocks."""
    for y in range(height // 2 + 1):
        here, there = index(y * LANES), index((height - y if y else 0) * LANES)
        to = index((y // LANES * width + left) * LANES + y % LANES)
        to_2 = to + index(LANES * LANES)
        for j in range(index(LANES)):
            ar, ai, br, bi = zr[here + j], zi[here + j], zr[there + j], zi[there + j]
            out_r[to + j * index(LANES)] = f32(0.5) * (ar + br)
            out_i[to + j * index(LANES)] = f32(0.5) * (ai - bi)
            out_r[to_2 + j * index(LANES)] = f32(0.5) * (ai + bi)
            out_i[to_2 + j * index(LANES)] = f32(0.5) * (br - ar)


@_pass
def _pair(in_r: Any, in_i: Any, height: int, width: int, left: int, zr: Any, zi: Any) -> None:
    """The way back of `_part`."""
    for y in range(height // 2 + 1):
        here, there = index(y * LANES), index((height - y if y else 0) * LANES)
        kept = f32(0 if here == there else 1)  # of the imaginary part, which is rounding noise where lines are real
        a = index((y // LANES * width + left) * LANES + y % LANES)
        b = a + index(LANES * LANES)
        for j in range(index(LANES)):
            ar, ai = in_r[a + j * index(LANES)], in_i[a + j * index(LANES)] * kept
            br, bi = in_r[b + j * index(LANES)], in_i[b + j * index(LANES)] * kept
            zr[here + j], zi[here + j] = ar - bi, ai + br
            zr[there + j], zi[there + j] = ar + bi, br - ai


@_pass
def _write(first: Any, second: Any, scale: np.float32, width: int, left: int, height: int, plane: Any) -> None:
    """To the nearest grey level, halves to the even one."""
    for y in range(height):
        here, to = index(y * LANES), index(y * width + left)
        for j in range(index(LANES)):
            plane[to + j] = _grey_level(first[here + j] * scale)
        for j in range(index(LANES)):
            plane[to + index(LANES) + j] = _grey_level(second[here + j] * scale)


@_inner
def _grey_level(value: np.float32) -> np.uint8:
    return np.uint8(np.int32(min(max(np.rint(value), f32(0)), f32(255))))


@_inner
def _down(plane: Any, width: int, roots: Any, lines: Any, out_r: Any, out_i: Any) -> None:
    """Transform the columns of an image, 2·LANES at a time, into half a spectrum."""
    height = roots.shape[1]
    for left in range(0, width, 2 * LANES):
        _read(plane, width, left, height, lines[0], lines[1])
        zr, zi, _, _ = _transform(lines[0], lines[1], lines[2], lines[3], roots)
        _part(zr, zi, height, width, left, out_r, out_i)


@_inner
def _up(in_r: Any, in_i: Any, width: int, roots: Any, lines: Any, plane: Any) -> None:
    """Columns back out of half a spectrum."""
    height = roots.shape[1]
    scale = f32(1 / (height * width))
    for left in range(0, width, 2 * LANES):
        _pair(in_r, in_i, height, width, left, lines[0], lines[1])
        zi, zr, _, _ = _transform(lines[1], lines[0], lines[3], lines[2], roots)
        _write(zr, zi, scale, width, left, height, plane)


@_pass
def _mix(xr: Any, xi: Any, other_r: Any, other_i: Any, share: np.float32, no_phase: np.float32) -> None:
    """Eq. 4 in place: amplitudes mixed, own phase kept."""
    for k in range(len(xr)):
        amplitude = np.sqrt(xr[k] * xr[k] + xi[k] * xi[k])
        other = np.sqrt(other_r[k] * other_r[k] + other_i[k] * other_i[k])
        has_phase = amplitude > no_phase
        gain = (amplitude + (other - amplitude) * share) / (amplitude if has_phase else f32(1))
        xr[k] = (xr[k] if has_phase else f32(1)) * gain
        xi[k] = (xi[k] if has_phase else f32(0)) * gain


@compile_ahead(
    "b1(u1[:,:,:,::1], i8[:], u1[:,:,:,::1], i8[:], f8[:], f4, f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], i8, i8)"
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
    size = width * LANES
    for m in range(first, last):
        if not (0 <= where_M[m] < len(views_VCP) and 0 <= partner_M[m] < len(pool_NCP)):
            return False
        for c in range(3):
            plane = views_VCP[where_M[m], c]
            _down(plane, width, roots_down, lines, spectra[0], spectra[1])
            _down(pool_NCP[partner_M[m], c], width, roots_down, lines, spectra[2], spectra[3])
            for start in range(0, spectra.shape[1], size):
                xr, xi = spectra[0, start : start + size], spectra[1, start : start + size]
                other_r, other_i = spectra[2, start : start + size], spectra[3, start : start + size]
                xr, xi, yr, yi = _transform(xr, xi, lines[0], lines[1], roots_across)
                other_r, other_i, _, _ = _transform(other_r, other_i, lines[2], lines[3], roots_across)
                _mix(xr, xi, other_r, other_i, f32(share_M[m]), no_phase)
                _transform(xi, xr, yi, yr, roots_across)  # as many passes back as forth: it ends where it began
            _up(spectra[0], spectra[1], width, roots_down, lines, plane)
    return True


def room_for_spectra(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """`spectra` (own and partner's, real and imaginary) and `lines` for one thread: no kernel allocates."""
    num_blocks = (height // 2 + LANES) // LANES
    spectra = np.zeros((4, num_blocks * width * LANES), np.float32)
    return spectra, np.empty((4, max(height, width) * LANES), np.float32)
