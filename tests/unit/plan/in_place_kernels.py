"""Kernels as the schedules make them: loop nests that may write their result over an operand, and such that may not.

TVM's parser looks through all modules for each: this is imported when a test needs it, not when all are collected.
"""

from __future__ import annotations

from tvm.script import tirx as T  # noqa: N812  (as TVM's own code calls it)


@T.prim_func(s_tir=True)
def scatter(x: T.Buffer((16,), "float32"), i: T.Buffer((2,), "int64"), y: T.Buffer((16,), "float32")) -> None:
    with T.sblock("root"), T.sblock("update"):
        T.reads()
        T.writes()
        for v in T.parallel(16):
            y[v] = x[v]
        for v in range(2):
            y[i[v]] = T.float32(1)


@T.prim_func(s_tir=True)
def only_copy(x: T.Buffer((4, 4), "float32"), y: T.Buffer((4, 4), "float32")) -> None:
    for v in T.parallel(16):
        with T.sblock("copy"):
            a = T.axis.spatial(4, v // 4)
            b = T.axis.spatial(4, v % 4)
            y[a, b] = x[a, b]


@T.prim_func(s_tir=True)
def elementwise(x: T.Buffer((4, 4), "float32"), b: T.Buffer((4,), "float32"), y: T.Buffer((4, 4), "float32")) -> None:
    for i in T.parallel(4):
        for j in T.vectorized(4):
            with T.sblock("add"):
                vi = T.axis.spatial(4, i)
                vj = T.axis.spatial(4, j)
                y[vi, vj] = x[vi, vj] * x[vi, vj] + b[vj]


@T.prim_func(s_tir=True)
def partly_bound(x: T.Buffer((10,), "float32"), y: T.Buffer((10,), "float32")) -> None:
    for i in T.parallel(3):
        for j in T.vectorized(4):
            with T.sblock("add"):
                v = T.axis.spatial(10, i * 4 + j)
                T.where(i * 4 + j < 10)
                y[v] = x[v] + T.float32(1)


@T.prim_func(s_tir=True)
def update_before_copy(
    x: T.Buffer((16,), "float32"), i: T.Buffer((2,), "int64"), y: T.Buffer((16,), "float32")
) -> None:
    with T.sblock("root"), T.sblock("update"):
        T.reads()
        T.writes()
        for v in range(2):
            y[i[v]] = T.float32(1)
        for v in range(8):
            y[v] = x[v]


@T.prim_func(s_tir=True)
def copy_between_updates(
    x: T.Buffer((16,), "float32"), i: T.Buffer((16,), "int64"), y: T.Buffer((16,), "float32")
) -> None:
    with T.sblock("root"), T.sblock("update"):
        T.reads()
        T.writes()
        for v in range(16):
            y[v] = x[v]
            y[i[v]] = T.float32(1)


@T.prim_func(s_tir=True)
def update_from_operand(
    x: T.Buffer((16,), "float32"), i: T.Buffer((2,), "int64"), y: T.Buffer((16,), "float32")
) -> None:
    with T.sblock("root"), T.sblock("update"):
        T.reads()
        T.writes()
        for v in range(16):
            y[v] = x[v]
        for v in range(2):
            y[i[v]] = x[v]


@T.prim_func(s_tir=True)
def shifted_copy(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")) -> None:
    for i in range(16):
        with T.sblock("copy"):
            v = T.axis.spatial(16, i)
            y[v] = x[(v + 1) % 16]


@T.prim_func(s_tir=True)
def transposed(x: T.Buffer((4, 4), "float32"), y: T.Buffer((4, 4), "float32")) -> None:
    for i, j in T.grid(4, 4):
        with T.sblock("copy"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi, vj] = x[vj, vi]


@T.prim_func(s_tir=True)
def neighbors(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")) -> None:
    for i in range(16):
        with T.sblock("add"):
            v = T.axis.spatial(16, i)
            y[v] = x[v] + x[(v + 15) % 16]


@T.prim_func(s_tir=True)
def reduction(x: T.Buffer((4,), "float32"), w: T.Buffer((8,), "float32"), y: T.Buffer((4,), "float32")) -> None:
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi] * w[vk]


@T.prim_func(s_tir=True)
def more_than_once(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")) -> None:
    for _again in range(2):
        for i in range(4):
            with T.sblock("add"):
                v = T.axis.spatial(4, i)
                y[v] = x[v] + T.float32(1)


@T.prim_func(s_tir=True)
def other_type(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "int32")) -> None:
    for i in range(4):
        with T.sblock("cast"):
            v = T.axis.spatial(4, i)
            y[v] = T.Cast("int32", x[v])


@T.prim_func(s_tir=True)
def other_shape(x: T.Buffer((1, 4), "float32"), y: T.Buffer((4,), "float32")) -> None:
    for i in range(4):
        with T.sblock("add"):
            v = T.axis.spatial(4, i)
            y[v] = x[0, v] + T.float32(1)
