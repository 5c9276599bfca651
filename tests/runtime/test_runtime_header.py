"""packager.h as users compile it, and the example of docs/abi.md."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from runtime_builder import ROOT, STUB, Builder, execute

INCLUDE = f"-I{STUB / 'include'}"
FLAGS = ["-Wall", "-Wextra", "-Werror", "-pedantic", INCLUDE]
USE = """
#include "packager.h"
int use(const packager_bundle_v1_t *bundle, DLTensor *tensor);
int use(const packager_bundle_v1_t *bundle, DLTensor *tensor) {
  tensor->device.device_type = kDLCPU;
  return bundle->abi_version == PACKAGER_ABI_VERSION && tensor->ndim > 0;
}
"""
DLPACK = """
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
#include <stdint.h>
typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLVulkan = 7 } DLDeviceType;
typedef struct { DLDeviceType device_type; int32_t device_id; } DLDevice;
typedef enum { kDLInt = 0U, kDLUInt = 1U, kDLFloat = 2U } DLDataTypeCode;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct {
  void *data; DLDevice device; int32_t ndim; DLDataType dtype; int64_t *shape; int64_t *strides; uint64_t byte_offset;
} DLTensor;
#endif
"""


@pytest.mark.parametrize("dlpack", ["", DLPACK], ids=["alone", "after dlpack"])
@pytest.mark.parametrize("language", ["gcc c99", "gcc c11", "g++ c++11", "g++ c++20"])
def test_header_compiles(tmp_path: Path, language: str, dlpack: str) -> None:
    compiler, standard = language.split()
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    source = tmp_path / ("use.c" if compiler == "gcc" else "use.cc")
    source.write_text(dlpack + USE)
    execute([compiler, f"-std={standard}", *FLAGS, "-c", source, "-o", tmp_path / "use.o"])


def test_example_of_the_documentation(plain: Builder, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "abi.md").read_text()
    (example,) = re.findall(r"```c\n(/\* example\.c.*?)```", text, re.DOTALL)
    source = tmp_path / "example.c"
    source.write_text(example)
    execute(["gcc", "-std=c99", *FLAGS, source, "-o", tmp_path / "example", "-ldl"])
    assert execute([tmp_path / "example", plain.static]) == "y: 1 3 5 7 9 11\n"
    message = execute([tmp_path / "example", plain.static, "4"])
    assert message == "PACKAGER_ERROR_SHAPE: input 'x': axis 1 is 4, expected 3\n"


def test_error_table_of_the_documentation() -> None:
    header = (STUB / "include" / "packager.h").read_text()
    statuses = dict(re.findall(r"(PACKAGER_(?:OK|ERROR_\w+)) = (-?\d+)", header))
    rows = dict(re.findall(r"^\| `(PACKAGER_\w+)` \| (-?\d+) \|", (ROOT / "docs/abi.md").read_text(), re.MULTILINE))
    assert rows == statuses
