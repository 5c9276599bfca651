from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.bundle.buckets import Buckets
from packager.bundle.manifest import Dim
from packager.errors import UsageError
from packager.frontends.dims import DimRequest, check_argument, make_request, named_dims, parse_dims, resolve_dims


def test_sizes_and_bounds() -> None:
    assert parse_dims(["n=8", "seq=1:512", " m = 3".replace(" ", "")]) == {
        "n": DimRequest(8, 8),
        "seq": DimRequest(1, 512),
        "m": DimRequest(3, 3),
    }
    assert parse_dims(["n=8"])["n"].fixed
    assert not parse_dims(["n=1:8"])["n"].fixed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n",
        "n=",
        "=3",
        "n=a",
        "n=1:",
        "n=:3",
        "n=1:2:3",
        "n=-1",
        "n=1.5",
        "n 3",
        "n=1-3",
        "n==3",
        "n=1,",
        "n=,1",
        "n=1,2:3",
        "n=" + "9" * 5000,
    ],
)
def test_other_texts_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_dims([text])
    assert "cannot be read" in caught.value.message
    assert caught.value.hint == "write --dim NAME=SIZE, --dim NAME=MIN:MAX or --dim NAME=SIZE,SIZE"


@pytest.mark.parametrize("text", ["n=0:4", "n=5:4", f"n={2**31}", f"n=1:{2**31}"])
def test_bounds_that_hold_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="1 <= MIN <= MAX"):
        parse_dims([text])


def test_a_dim_is_given_once() -> None:
    with pytest.raises(UsageError, match="--dim n is given twice"):
        parse_dims(["n=1", "n=2"])


@given(st.text(max_size=20))
def test_any_text_is_a_request_or_a_usage_error(text: str) -> None:
    try:
        requests = parse_dims([text])
    except UsageError:
        return
    for request in requests.values():
        sizes = request.sizes if isinstance(request, Buckets) else (request.min, request.max)
        assert 1 <= sizes[0] <= sizes[-1] < 2**31


def test_buckets() -> None:
    assert parse_dims(["seq=128,256,512", "n=1:4"]) == {"seq": Buckets(128, 256, 512), "n": DimRequest(1, 4)}
    assert check_argument("seq", Buckets(128)) == DimRequest(128, 128), "one size fixes the dim"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seq=256,128", "128 comes after 256"),
        ("seq=128,128", "duplicate size 128"),
        ("seq=0,128", "size 0 is not in 1"),
        (f"seq=1,{2**31}", f"size {2**31} is not in"),
    ],
)
def test_buckets_rise(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=f"--dim {text}: {problem}"):
        parse_dims([text])


@pytest.mark.parametrize("value", [[1, 32], (1, 2, 3), "1:32", 1.5, None, (1,)])
def test_what_is_neither_bounds_nor_buckets_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="expected a size, bounds or buckets") as caught:
        check_argument("seq", value)  # type: ignore[arg-type]
    assert "packager.Buckets(128, 256)" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="there is no size"):
        check_argument("seq", Buckets())


FOUND = {"n": "input 'x', axis 0", "m": "input 'x', axis 1"}


def test_bounded_dims_remain_and_fixed_ones_go() -> None:
    assert resolve_dims(FOUND, {"n": make_request("n", 1, 4), "m": make_request("m", 3, 3)}) == (Dim("n", 1, 4),)
    assert resolve_dims({}, {}) == ()


def test_all_unbounded_dims_are_named_with_their_place() -> None:
    with pytest.raises(UsageError) as caught:
        resolve_dims(FOUND, {})
    assert caught.value.message == "2 symbolic dims have no bounds"
    assert caught.value.detail == "n: input 'x', axis 0\nm: input 'x', axis 1"
    assert "--dim n=1:32" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="1 symbolic dim has no bounds"):
        resolve_dims(FOUND, {"n": make_request("n", 1, 4)})


def test_an_unknown_dim_is_named_with_those_that_are() -> None:
    with pytest.raises(UsageError) as caught:
        resolve_dims(FOUND, {"batch": make_request("batch", 1, 4)})
    assert caught.value.message == "--dim batch: the model has no such dim"
    assert caught.value.hint == "its symbolic dims: m, n"
    with pytest.raises(UsageError) as caught:
        resolve_dims({}, {"batch": make_request("batch", 1, 4)})
    assert caught.value.hint == "its symbolic dims: none"


def test_bounds_of_the_model_hold_and_can_be_narrowed() -> None:
    declared = {"n": DimRequest(2, 16), "m": DimRequest(1, 8)}
    assert resolve_dims(FOUND, {}, declared) == (Dim("n", 2, 16), Dim("m", 1, 8))
    assert resolve_dims(FOUND, {"n": DimRequest(4, 8)}, declared)[0] == Dim("n", 4, 8)
    for low, high in ((1, 8), (4, 17)):
        with pytest.raises(UsageError, match="outside the bounds 2:16 of the model"):
            resolve_dims(FOUND, {"n": DimRequest(low, high)}, declared)


def test_a_dim_may_be_spelled_as_in_the_model() -> None:
    """Names here are identifiers: of ``DynamicDimension.0`` the model's dim is called ``DynamicDimension_0``."""
    assert named_dims({"DynamicDimension.0": 1, "sequence length": 2, "n": 3, "2n": 4, "_m": 5}) == {
        "DynamicDimension_0": 1,
        "sequence_length": 2,
        "n": 3,
        "dim_2n": 4,
        "_m": 5,
    }
    with pytest.raises(UsageError, match=r"--dim a_b is given twice, once as 'a\.b'"):
        named_dims({"a_b": 1, "a.b": 2})
