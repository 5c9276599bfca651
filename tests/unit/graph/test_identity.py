"""Maps and sets by identity: keys are told apart though TVM's ``==`` says otherwise, and stay alive."""

import gc

from tvm import tirx

from packager.graph.identity import IdentityMap, IdentitySet, position, same_objects


def test_equal_integers_are_different_keys() -> None:
    a, b = tirx.IntImm("int64", 3), tirx.IntImm("int64", 3)
    found = IdentityMap([(a, "a")])
    assert a in found
    assert b not in found
    assert found.get(b) is None
    found[b] = "b"
    assert list(found.values()) == ["a", "b"]
    assert [key.same_as(x) for key, x in zip(found, (a, b), strict=True)] == [True, True]


def test_other_references_to_an_object_are_the_same_key() -> None:
    x = tirx.Var("x", "int64")
    again = (x + 1).a
    assert again is not x
    assert IdentityMap([(x, 1)])[again] == 1
    assert again in IdentitySet([x])
    assert same_objects([again], [x])
    assert position([tirx.Var("x", "int64"), x], again) == 1


def test_keys_stay_alive() -> None:
    found = IdentityMap((tirx.Var("x", "int64"), number) for number in range(100))
    held = IdentitySet(tirx.Var("x", "int64") for _ in range(100))
    gc.collect()
    new = [tirx.Var("x", "int64") for _ in range(200)]
    assert not any(variable in found or variable in held for variable in new)
    assert len(found) == len(held) == 100


def test_sets_combine_by_identity() -> None:
    a, b, c = (tirx.IntImm("int64", 1) for _ in range(3))
    left, right = IdentitySet([a, b]), IdentitySet([b, c])
    assert same_objects(list(left & right), [b])
    left |= right
    assert len(left) == 3
    assert right <= left
    left.discard(a)
    assert a not in left
