"""Eight floats at once, as a type of Numba: for loops that its compiler does not turn into SIMD by itself.

`load(array, at)` gives eight neighbours of a float32 or uint8 array, `store` puts them back (into bytes to the nearest
grey level, halves to the even one); lanes are added, subtracted, multiplied and divided. No index is checked.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

LANES = 8
LINE = 64  # bytes of a line of a CPU's cache

_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTEGERS = ir.VectorType(ir.IntType(32), LANES)
_BYTES = ir.VectorType(ir.IntType(8), LANES)


_function: Any = intrinsic  # for the type checker: who calls one leaves its first argument out


class _Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__("Lanes")


_LANES = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _FLOATS)


def _operator(function: Callable[..., Any], instruction: str) -> None:
    @type_callable(function)
    def _(context: Any) -> Any:
        return lambda a, b: _LANES if a == b == _LANES else None

    @lower_builtin(function, _LANES, _LANES)
    def _(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*arguments)


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
_operator(operator.truediv, "fdiv")


def _call(builder: Any, name: str, value: Any) -> Any:
    """One of LLVM's own functions of lanes."""
    function_type = ir.FunctionType(_FLOATS, [_FLOATS])
    function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}.v{LANES}f32")
    return builder.call(function, [value])


def _spread(builder: Any, value: Any) -> Any:
    first = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, first, ir.Constant(_INTEGERS, [0] * LANES))


def _place(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    """A pointer to one number of an array in one piece."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [at])


def _load(builder: Any, place: Any) -> Any:
    return builder.load(builder.bitcast(place, _FLOATS.as_pointer()), align=4)


def _store(builder: Any, value: Any, place: Any) -> None:
    builder.store(value, builder.bitcast(place, _FLOATS.as_pointer()), align=4)


@_function
def load(typing: Any, array: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, array, *arguments)
        if array.dtype == types.float32:
            return _load(builder, place)
        return builder.uitofp(builder.load(builder.bitcast(place, _BYTES.as_pointer()), align=1), _FLOATS)

    return _LANES(array, types.intp), generate


@_function
def store(typing: Any, array: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, value = _place(context, builder, array, *arguments[:2]), arguments[2]
        if array.dtype == types.float32:
            _store(builder, value, place)
        else:
            level = _call(builder, "rint", value)
            for comparison, bound in ((">", 0), ("<", 255)):
                bounds = ir.Constant(_FLOATS, [bound] * LANES)
                level = builder.select(builder.fcmp_ordered(comparison, level, bounds), level, bounds)
            level = builder.trunc(builder.fptosi(level, _INTEGERS), _BYTES)
            builder.store(level, builder.bitcast(place, _BYTES.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES), generate


@_function
def spread(typing: Any, value: Any) -> Any:
    """One number in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _spread(builder, arguments[0])

    return _LANES(types.float32), generate


@_function
def spread_from(typing: Any, array: Any, at: Any) -> Any:
    """One number of a float32 array in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _spread(builder, builder.load(_place(context, builder, array, *arguments)))

    return _LANES(array, types.intp), generate


@_function
def sqrt(typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(builder, "sqrt", arguments[0])

    return _LANES(_LANES), generate


@_function
def where_above(typing: Any, value: Any, bound: Any, above: Any, otherwise: Any) -> Any:
    """Lane by lane: one or the other."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, bound, above, otherwise = arguments
        return builder.select(builder.fcmp_ordered(">", value, bound), above, otherwise)

    return _LANES(_LANES, _LANES, _LANES, _LANES), generate


@_function
def turn(typing: Any, array: Any, at: Any, step: Any) -> Any:
    """Transpose LANES lines of LANES floats in place; the lines begin `step` apart."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, start, stride = arguments
        places = [
            _place(context, builder, array, data, builder.add(start, builder.mul(stride, ir.Constant(stride.type, k))))
            for k in range(LANES)
        ]
        lines = [_load(builder, place) for place in places]
        for side in (4, 2, 1):  # squares of this side, above and below the diagonal, change places
            upper = ir.Constant(_INTEGERS, [k + (LANES - side if k & side else 0) for k in range(LANES)])
            lower = ir.Constant(_INTEGERS, [k + (LANES if k & side else side) for k in range(LANES)])
            for k in range(LANES):
                if not k & side:
                    pair = lines[k], lines[k + side]
                    lines[k], lines[k + side] = (builder.shuffle_vector(*pair, mask) for mask in (upper, lower))
        for place, line in zip(places, lines, strict=True):
            _store(builder, line, place)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


def aligned(*shape: int) -> np.ndarray:
    """Float32 memory in which lanes do not cross cache lines: half as slow again where they do."""
    values = np.empty(math.prod(shape) + LINE // 4, np.float32)
    start = -values.ctypes.data % LINE // 4
    return values[start : start + math.prod(shape)].reshape(shape)
