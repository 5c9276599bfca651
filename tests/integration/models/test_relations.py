"""Several symbolic dims with relations: shape arithmetic, and extents that have to agree, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import check, feeds, graph, normal, save

import packager
from packager.errors import ModelError, RunError

pytestmark = pytest.mark.slow

GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
arithmetic (float[batch, rows, 6] x) => (float[batch, 3, rows, 2] heads, float[n, 6] flat, int64[m] places,
                                         float[batch, k, 6] middle, int64[2] sizes)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] six = {6},
 int64 first = {0}, int64 step = {1}, int64 half = {2}>
{
  batch1 = Shape <start = 0, end = 1> (x)
  rows1 = Shape <start = 1, end = 2> (x)
  split = Concat <axis = 0> (batch1, rows1, three, two)
  apart = Reshape (x, split)
  heads = Transpose <perm = [0, 2, 1, 3]> (apart)
  product = Mul (batch1, rows1)
  whole = Concat <axis = 0> (product, six)
  flat = Reshape (x, whole)
  rows0 = Squeeze (rows1)
  twice = Mul (rows0, half)
  longer = Add (twice, step)
  places = Range (first, longer, step)
  last = Sub (rows1, one)
  middle = Slice (x, zero, last, one)
  sizes = Concat <axis = 0> (product, rows1)
}
"""


def test_extents_of_two_dims(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(GRAPH)
    onnx.save(model, tmp_path / "m.onnx")
    dims = {"batch": (1, 4), "rows": (2, 9)}
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    with packager.load(packager.build(tmp_path / "m.onnx", tmp_path / "m.so", dims=dims, targets=["llvm"])) as bundle:
        for shape in ((2, 5, 6), (4, 9, 6), (1, 2, 6)):
            x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            for result, wanted in zip(bundle.run({"x": x}).values(), theirs.run(None, {"x": x}), strict=True):
                assert result.dtype == wanted.dtype
                np.testing.assert_array_equal(result, wanted)


LLVM = ("llvm",)
FCN = graph(
    """fcn (float[n,3,h,w] x) => (float[n,2,oh,ow] y) {
      c1 = Conv<strides=[2,2],pads=[1,1,1,1]>(x, k1)  r1 = Relu(c1)
      p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(r1)  c2 = Conv<pads=[1,1,1,1]>(p, k2)  r2 = Relu(c2)
      up = Resize<mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor">(r2, , scales)
      skip = Concat<axis=1>(r1, up)  c3 = ConvTranspose<strides=[2,2]>(skip, k3)  both = Concat<axis=1>(x, c3)
      y = Conv(both, k4) }""",
    {
        "k1": normal(4, 3, 3, 3),
        "k2": normal(4, 4, 3, 3),
        "k3": normal(8, 4, 2, 2),
        "k4": normal(2, 7, 1, 1),
        "scales": np.array([1, 1, 2, 2], np.float32),
    },
)


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("targets", [LLVM, ("llvm", "ccompiler")], ids=",".join)
def test_image_sizes_through_strides_pools_and_skips(targets: tuple[str, ...], tmp_path: Path) -> None:
    """Sizes have to be multiples of 4, which the model demands where it joins what was made smaller and larger."""
    points = [{"n": 1, "h": 8, "w": 64}, {"n": 2, "h": 64, "w": 64}, {"n": 2, "h": 12, "w": 4}]
    dims = {"n": (1, 2), "h": (4, 67), "w": (4, 67)}
    with check(FCN, tmp_path, dims, points, targets=targets) as bundle, bundle.session() as session:
        good = feeds(FCN, {"n": 1, "h": 8, "w": 8})
        expected = session.run(good)["y"]
        for _ in range(2):  # of equal shapes, too, the second is refused
            for sizes, values in (({"h": 10, "w": 8}, "4 and 5"), ({"h": 8, "w": 67}, "68 and 67")):
                with pytest.raises(RunError, match=f"the shapes do not fit together: .*, but {values}"):
                    session.run(feeds(FCN, {"n": 1, **sizes}))
        with pytest.raises(RunError, match=r"dim h = 68 is outside 4\.\.67"):
            session.run(feeds(FCN, {"n": 1, "h": 68, "w": 8}))
        with pytest.raises(RunError, match="the shapes do not fit together"):
            session.run(feeds(FCN, {"n": 1, "h": 10, "w": 8}))
        np.testing.assert_array_equal(session.run(good)["y"], expected)


def test_heads_of_a_batch_of_sequences(tmp_path: Path) -> None:
    """Batch and sequence, batch times heads, what remains, and half of a sequence."""
    model = graph(
        """encoder (float[b,s,12] x) => (float[bh,s,s2] p, float[b,s,12] y, float[l,24] pairs, float[b,half,12] first) {
          sh = Shape(x)  i = Constant<value_ints=[0]>()  j = Constant<value_ints=[1]>()  k = Constant<value_ints=[2]>()
          b = Gather(sh, i)  s = Gather(sh, j)  three = Constant<value_ints=[3]>()  bh = Mul(b, three)
          four = Constant<value_ints=[4]>()  rest = Constant<value_ints=[-1]>()  wide = Constant<value_ints=[24]>()
          h = Concat<axis=0>(b, s, three, four)  r = Reshape(x, h)  t = Transpose<perm=[0,2,1,3]>(r)
          g = Concat<axis=0>(bh, rest, four)  q = Reshape(t, g)  kt = Transpose<perm=[0,2,1]>(q)
          m = MatMul(q, kt)  p = Softmax(m)  a = MatMul(p, q)  e = Concat<axis=0>(b, three, s, four)
          u = Reshape(a, e)  v = Transpose<perm=[0,2,1,3]>(u)  f = Concat<axis=0>(b, rest, twelve)  y = Reshape(v, f)
          twice = Concat<axis=1>(x, x)  z = Concat<axis=0>(rest, wide)  pairs = Reshape(twice, z)
          n = Div(s, k)  first = Slice(x, i, n, j) }""",
        {"twelve": np.array([12])},
    )
    points = [{"b": 1, "s": 2}, {"b": 3, "s": 7}, {"b": 4, "s": 9}]
    check(model, tmp_path, {"b": (1, 4), "s": (2, 9)}, points, targets=LLVM).close()


def test_past_and_new_tokens(tmp_path: Path) -> None:
    """A decoder's cache grows by what is new; positions are sliced by both lengths, as is the mask."""
    model = graph(
        """decoder (float[b,new,8] x, float[b,past,8] keys, float[b,total,1] mask) =>
            (float[b,new,8] y, float[b,both,8] keys_out) {
          one = Constant<value_ints=[1]>()  zero = Constant<value_ints=[0]>()
          p = Shape<start=1,end=2>(keys)  n = Shape<start=1,end=2>(x)  t = Add(p, n)
          here = Slice(table, p, t, zero)  placed = Add(x, here)  k = MatMul(placed, w)
          keys_out = Concat<axis=1>(keys, k)  masked = Add(keys_out, mask)  kt = Transpose<perm=[0,2,1]>(masked)
          s = MatMul(placed, kt)  a = Softmax(s)  y = MatMul(a, keys_out) }""",
        {"table": normal(40, 8), "w": normal(8, 8)},
    )
    dims = {"b": (1, 2), "new": (1, 8), "past": (1, 32), "total": (2, 40)}
    points = [
        {"b": b, "new": n, "past": p, "total": n + p} for b, n, p in ((1, 8, 1), (2, 1, 32), (2, 8, 32), (1, 3, 5))
    ]
    with check(model, tmp_path, dims, points, targets=LLVM) as bundle:
        assert bundle.outputs[1].shape[1] in ("new + past", "past + new")
        for total in (9, 11):
            with pytest.raises(RunError, match=f"masked: .*, but ({total} and 10|10 and {total})"):
                bundle.run(feeds(model, {"b": 1, "new": 3, "past": 7, "total": total}))


DEMANDS = {
    "product": ("float[a,4] y", "y = MatMul(x, v)", "float[a,k] x, float[m,4] v", {"a": 2, "k": 9, "m": 5}),
    "sum": ("float[a,4] y", "y = Add(x, v)", "float[a,4] x, float[k,4] v", {"a": 9, "k": 5}),
    "concat": ("float[a,8] y", "y = Concat<axis=1>(x, v)", "float[a,4] x, float[k,4] v", {"a": 9, "k": 5}),
    "reshape": ("float[4,6] y", "y = Reshape(x, s)", "float[a,k] x", {"a": 1, "k": 3}),
    "batch": ("float[a,2,2] y", "y = MatMul(x, v)", "float[a,2,3] x, float[k,3,2] v", {"a": 9, "k": 2}),
    "channels": ("float[1,2,2] y", "y = Conv(x, v)", "float[1,a,4] x, float[2,k,3] v", {"a": 2, "k": 9}),
    "bias": ("float[a,4] y", "y = Gemm(x, w, v)", "float[a,3] x, float[k] v", {"a": 2, "k": 3}),
    "einsum": (
        "float[a,4] y",
        """y = Einsum<equation="ab,bc->ac">(x, v)""",
        "float[a,k] x, float[m,4] v",
        {"a": 2, "k": 9, "m": 3},
    ),
    "elements": ("float[k,4] y", "y = GatherElements<axis=1>(x, i)", "float[a,4] x, int64[k,4] i", {"a": 2, "k": 9}),
    "expand_known": ("float[3,4] y", "s1 = Constant<value_ints=[3,4]>() y = Expand(x, s1)", "float[a,1] x", {"a": 2}),
    "expand": ("float[k,4] y", "s1 = Shape(v) y = Expand(x, s1)", "float[a,1] x, float[k,4] v", {"a": 2, "k": 9}),
}


EXPANDS = {
    "ones": ("float[n,m,1] y", "t = Constant<value_ints=[1,1,1]>()"),
    "wider": ("float[n,m,4] y", "t = Constant<value_ints=[1,1,4]>()"),
    "rank": ("float[2,n,m,4] y", "t = Constant<value_ints=[2,1,1,4]>()"),
    "shorter": ("float[n,m,4] y", "t = Constant<value_ints=[4]>()"),
    "known": ("float[n,3,4] y", "t = Constant<value_ints=[3,4]>()"),
    "dims": (
        "float[k,n,m,n] y",
        "k = Shape(v)  s = Shape<start=0,end=2>(x)  f = Shape<start=0,end=1>(x)  t = Concat<axis=0>(k, s, f)",
    ),
    "short": ("float[n,m,k] y", "t = Shape(v)"),
}


@pytest.mark.parametrize("name", EXPANDS)
def test_a_symbolic_extent_expands(name: str, tmp_path: Path) -> None:
    """To a shape of any rank, of numbers and dims: the data keep their extents where it has 1."""
    output, shape = EXPANDS[name]
    model = graph(f"e (float[n,m,1] x, float[k] v) => ({output}) {{ {shape}  y = Expand(x, t) }}")
    points = [{"n": 1, "m": 3, "k": 2}, {"n": 5, "m": 3, "k": 7}]
    check(model, tmp_path, dict.fromkeys("nmk", (1, 8)), points, targets=LLVM).close()


def test_a_dim_is_how_often_data_are_repeated(tmp_path: Path) -> None:
    model = graph("""t (float[n,m,3] x, float[k] v) => (float[nk,m,rest] y) {
        k = Shape(v)  n = Shape<start=0,end=1>(x)  one = Constant<value_ints=[1]>()
        t = Concat<axis=0>(k, one, n)  y = Tile(x, t) }""")
    points = [{"n": 1, "m": 3, "k": 2}, {"n": 2, "m": 3, "k": 7}]
    check(model, tmp_path, dict.fromkeys("nmk", (1, 8)), points, targets=LLVM).close()


@pytest.mark.parametrize("name", DEMANDS)
def test_what_an_operator_demands_is_checked_before_the_run(name: str, tmp_path: Path) -> None:
    """TVM takes it for granted, or refuses such a model: either way a run of these sizes may read no foreign memory."""
    output, body, inputs, sizes = DEMANDS[name]
    model = graph(f"m ({inputs}) => ({output}) {{ {body} }}", {"s": np.array([4, 6]), "w": normal(3, 4)})
    path = packager.build(
        save(model, tmp_path / "m.onnx"), tmp_path / "m.so", dims=dict.fromkeys(sizes, (1, 16)), targets=LLVM
    )
    with packager.load(path) as bundle, pytest.raises(RunError, match="the shapes do not fit together: y: "):
        bundle.run(feeds(model, sizes))


def test_what_never_holds_is_refused(tmp_path: Path) -> None:
    model = graph("m (float[a,4] x, float[b,4] v) => (float[a,4] y) { y = Add(x, v) }")
    with pytest.raises(ModelError, match="node 'y' requires b == a, which never holds"):
        packager.build(save(model, tmp_path / "m.onnx"), dims={"a": (2, 4), "b": (5, 9)}, targets=LLVM)


RESIZES = {
    "nearest": ('mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor"', (2.0, 3.0)),
    "half_pixel": ('mode="nearest",coordinate_transformation_mode="half_pixel"', (2.0, 1.5)),
    "smaller": ('mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="ceil"', (0.5, 0.75)),
    "linear": ('mode="linear",coordinate_transformation_mode="half_pixel"', (2.0, 0.5)),
    "align": ('mode="linear",coordinate_transformation_mode="align_corners"', (2.0, 3.0)),
    "pytorch": ('mode="linear",coordinate_transformation_mode="pytorch_half_pixel"', (2.5, 2.0)),
}


@pytest.mark.parametrize("name", RESIZES)
def test_resize_of_symbolic_sizes(name: str, tmp_path: Path) -> None:
    attributes, (high, wide) = RESIZES[name]
    model = graph(
        f"""r (float[n,2,h,w] x, float[n,2,p,q] like) => (float[n,2,a,b] y, float[n,2,p,q] z) {{
          y = Resize<{attributes}>(x, , scales)  s = Shape(like)  z = Resize<{attributes}>(x, , , s) }}""",
        {"scales": np.array([1, 1, high, wide], np.float32)},
    )
    dims = {"n": (1, 2), "h": (2, 16), "w": (2, 16), "p": (2, 32), "q": (2, 32)}
    points = [
        {"n": 1, "h": 4, "w": 8, "p": 8, "q": 16},
        {"n": 2, "h": 7, "w": 5, "p": 5, "q": 31},
        {"n": 2, "h": 16, "w": 3, "p": 32, "q": 2},
    ]
    check(model, tmp_path, dims, points, targets=LLVM).close()
