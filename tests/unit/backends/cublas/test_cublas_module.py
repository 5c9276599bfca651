"""Which of the library's answers a function begins with, and what records that depends on."""

from __future__ import annotations

import dataclasses

import pytest

from packager.backends.cublas.module import revision_of
from packager.backends.cublas.options import CublasOptions
from packager.backends.problem_module import ranked
from packager.bundle.tuning_records import Record, Timing, make_records

OPTIONS = CublasOptions()
KEY = "cublas float16 float16 128x768x768 batch 1 packed"


def record(problem: str, revision: str, chosen: str) -> Record:
    return Record(problem, revision, "NVIDIA H200", (Timing(chosen, 0.0, 0.1), Timing("cublaslt_0", 1.0, 0.1)))


@pytest.mark.parametrize(
    ("problem", "chosen", "rank"),
    [(KEY, "cublaslt_2", 2), ("another", "cublaslt_2", 0), (KEY, "cublaslt_9", 0), (KEY, "pk_gemm_sm90", 0)],
)
def test_records_choose_a_rank(problem: str, chosen: str, rank: int) -> None:
    revision = revision_of(OPTIONS)
    found = ranked(KEY, "cublaslt", 4, make_records([record(problem, revision, chosen)]), revision)
    assert found.names == ("cublaslt_0", "cublaslt_1", "cublaslt_2", "cublaslt_3")
    assert found.chosen == rank


def test_records_hold_for_how_the_library_is_asked() -> None:
    others = (
        dataclasses.replace(OPTIONS, workspace_mb=0),
        dataclasses.replace(OPTIONS, candidates=5),
        dataclasses.replace(OPTIONS, soname=("libcublasLt.so.12",)),
    )
    assert len({revision_of(options) for options in (OPTIONS, *others)}) == 4
    records = make_records([record(KEY, revision_of(others[0]), "cublaslt_2")])
    assert ranked(KEY, "cublaslt", 4, records, revision_of(OPTIONS)).chosen == 0
