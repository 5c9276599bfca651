"""Plans by the real cuDNN, where it is installed: for each GPU that packager describes, and as they were recorded.

The problems are all convolutions that the backend takes of ResNet-50, ResNeXt-50 (batches of 8), a 3-D ResNet (2) and
the generator of DCGAN (8), in half precision.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from packager.backends.cudnn import module
from packager.backends.cudnn.devices import find_device, known_devices
from packager.backends.cudnn.options import CudnnOptions
from packager.backends.cudnn.planner import Libraries, Plans, ask, find_libraries
from packager.codegen.toolchain import find_toolchain
from packager.errors import UsageError
from packager.resources import folder

RECORD: dict[str, Any] = json.loads((Path(__file__).parent / "plans_9_19.json").read_text(encoding="utf-8"))
PROBLEMS = [[int(number) for number in text.split()] for text in RECORD["problems"].values()]


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    found = find_libraries(CudnnOptions().soname)
    if found is None:
        pytest.skip("no cuDNN: pip install nvidia-cudnn-cu13 nvidia-cublas (0.8 GB)")
    return found


def text(plans: Plans) -> list[str]:
    """Return the first plans as the record has them."""
    return [
        " ".join([str(choices[0].engine), *(f"{knob}={value}" for knob, value in choices[0].knobs)])
        for choices in plans.choices
        if choices
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", known_devices())
def test_every_convolution_has_a_plan(name: str, libraries: Libraries, tmp_path: Path) -> None:
    """The same in two processes, and as recorded where the version is."""
    device = find_device(name)
    first, second = (ask(libraries, device, PROBLEMS, 4, tmp_path) for _ in range(2))
    assert all(first.choices)
    assert first == second
    if first.version == RECORD["version"]:
        assert text(first) == RECORD["plans"][name]


def test_the_record_has_a_plan_for_each() -> None:
    assert sorted(RECORD["plans"]) == known_devices()
    assert all(len(plans) == len(PROBLEMS) and all(plans) for plans in RECORD["plans"].values())


@pytest.mark.parametrize("name", known_devices())
def test_devices(name: str) -> None:
    """Every description has the same numbers, of a GPU of its architecture."""
    device = find_device(name)
    described = json.loads(device.path.read_text(encoding="utf-8"))
    assert described.keys() == json.loads(find_device("H200").path.read_text(encoding="utf-8")).keys()
    assert described["maxSharedMemoryPerBlockOptin"] == {80: 166912, 90: 232448, 100: 232448}.get(device.arch, 101376)


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON", '{"deviceVer": "90"}', '{"deviceVer": 9}'])
def test_what_describes_no_gpu(content: str, tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text(content)
    with pytest.raises(UsageError, match=r"does not describe a GPU|deviceVer"):
        find_device(str(tmp_path / "gpu.json"))


def test_a_library_that_cannot_be_asked_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions then ask theirs."""
    (tmp_path / "libcudnn.so.9").write_text("no library")
    broken = Libraries(tmp_path / "libcudnn.so.9", tmp_path / "libcudnn.so.9")
    monkeypatch.setattr(module, "find_libraries", lambda _: broken)
    planned = module.plan([], CudnnOptions(device=("H100",)), tmp_path)
    assert (planned.version, planned.plans) == (None, {})
    (warning,) = planned.warnings
    assert "libcudnn.so.9 makes no plans" in warning
    assert "sessions will" in warning


def test_the_planner_has_no_warnings(tmp_path: Path) -> None:
    templates = folder("templates") / "cudnn"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]
    cc = find_toolchain("x86_64").cc
    for source, more in (("planner.c", ["-ldl"]), ("planner_driver.c", ["-shared", "-fPIC"])):
        subprocess.run([cc, *flags, templates / source, "-o", tmp_path / source, *more], check=True)
