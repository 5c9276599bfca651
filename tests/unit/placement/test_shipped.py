"""Shipped placements of regions: which known region is near enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from packager.errors import UsageError
from packager.placement import shipped
from packager.placement.choices.regions import generalize
from packager.placement.shipped import ShippedDevice, ShippedRegion, find_shipped

SMALL = ShippedRegion("ab", (8, 64, 64), "matmul float32[8,64]", "ccompiler(matmul)")
LARGE = ShippedRegion("ab", (8, 256, 64), "matmul float32[8,256]", "llvm(matmul)")
DEVICE = ShippedDevice(1, "AMD EPYC", 1, ("ccompiler", "llvm"), "packager 0", (SMALL, LARGE))
NAMES = ("ccompiler(matmul)", "llvm(matmul)")


@pytest.mark.parametrize(
    ("extents", "chosen"),
    [
        ((8, 64, 64), SMALL),
        ((8, 100, 64), SMALL),
        ((8, 150, 64), LARGE),  # 1.7 times smaller: 2.3 times as large as the other
        ((16, 512, 128), LARGE),
        ((8, 513, 64), None),
        ((8, 31, 64), None),
        ((0, 64, 64), None),
        ((8, 64), None),
    ],
)
def test_the_nearest_region_within_a_factor_of_two(extents: tuple[int, ...], chosen: ShippedRegion | None) -> None:
    found = DEVICE.find("ab", extents, NAMES)
    assert (found and found[0]) == chosen
    assert found is None or (found[1] == 0) == (extents == found[0].extents)


def test_other_patterns_and_alternatives_are_not_found() -> None:
    assert DEVICE.find("cd", SMALL.extents, NAMES) is None
    found = DEVICE.find("ab", (8, 128, 64), ("llvm(matmul)",))
    assert found is not None
    assert found[0] == LARGE


def test_extents_of_tensors_are_marked_in_texts() -> None:
    text = "%0: float32[1,n,64] = conv2d(in0: uint8[8,4], const1: float32[]){strides=[2, 2]}[float16[3]]"
    pattern, extents = generalize(text)
    assert extents == (1, 64, 8, 4, 3)
    assert pattern == "%0: float32[#,n,#] = conv2d(in0: uint8[#,#], const1: float32[]){strides=[2, 2]}[float16[#]]"


def test_files_are_read_and_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    kinds = ["llvm", "ccompiler"]
    with pytest.raises(UsageError, match="no measurements fit these Targets: none"):
        find_shipped(None, None, kinds)
    (tmp_path / "one.json").write_bytes(DEVICE.to_json())
    assert find_shipped("epyc", 1, kinds) == find_shipped(None, None, kinds) == DEVICE
    for device, threads, targets in (("Xeon", 1, kinds), (None, 2, kinds), (None, None, ["llvm"])):
        with pytest.raises(UsageError, match="no measurements fit these Targets: AMD EPYC with 1 threads for ccomp"):
            find_shipped(device, threads, targets)
    (tmp_path / "two.json").write_bytes(DEVICE.to_json().replace(b'"threads": 1', b'"threads": 2'))
    with pytest.raises(UsageError, match="several measurements fit: "):
        find_shipped("epyc", None, kinds)
    (tmp_path / "two.json").write_bytes(b"{}")
    with pytest.raises(UsageError, match=r"two\.json is damaged"):
        find_shipped("epyc", None, kinds)


def test_what_ships_can_be_read() -> None:
    for path in shipped.FOLDER.glob("*.json"):
        assert shipped._read(path).regions
