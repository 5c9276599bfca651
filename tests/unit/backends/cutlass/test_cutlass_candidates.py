"""Which kernels rank for a problem, and which of them a bundle gets."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("tvm")

from packager.backends.cutlass.candidates import WORTH, Shipping, ship
from packager.backends.cutlass.core.drafts import GroupDraft, Ranking
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.core.row_ranges import range_ends
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape, rank_gemm, rank_rows
from packager.bundle.tuning_records import Record, Timing, make_records

SHAPE = GemmShape(1024, 3072, 768, 1)
FORM = GemmForm("float16", "float16", constant=True)
BOTH = CutlassOptions(arch=("sm_80", "sm_90a"))
HOPPER = CutlassOptions(arch=("sm_90a",))
REVISION = "cutlass 1"
ONCE = {"part": 1}
SIZES = (((3136, 192), (1568, 192)), ((25088, 1536),))  # rows and columns
SEVERAL = 1.3  # a margin within which there are more than three kernels


def names(ranking: Ranking) -> list[str]:
    return [candidate.name for candidate in ranking.candidates]


def test_newest_first_then_what_every_gpu_takes_if_asked() -> None:
    alone = names(rank_gemm(SHAPE, FORM, (768, 768), HOPPER))
    found = names(rank_gemm(SHAPE, FORM, (768, 768), replace(HOPPER, profile_all_alignments=True)))
    assert found[: len(alone)] == alone
    assert {name.split("_")[2] for name in alone} == {"sm90"}
    assert {name.split("_")[2] for name in found[len(alone) :]} == {"sm80"}
    assert len(set(found)) == len(found)


def test_what_is_estimated_to_be_slow_is_left_out() -> None:
    every = names(rank_gemm(SHAPE, FORM, (768, 768), HOPPER, margin=math.inf))
    some = names(rank_gemm(SHAPE, FORM, (768, 768), HOPPER))
    assert 1 <= len(some) < len(every)
    assert every[: len(some)] == some


def test_a_bundle_for_both_has_a_kernel_for_each_in_every_candidate() -> None:
    ranking = rank_gemm(SHAPE, FORM, (768, 768), BOTH)
    assert all([choice.arch for choice in candidate.choices] == [90, 0] for candidate in ranking.candidates)
    alone = rank_gemm(SHAPE, FORM, (768, 768), HOPPER)
    firsts = [name.split("+")[0] for name in names(ranking)]
    assert list(dict.fromkeys(firsts)) == names(alone)


def test_what_tma_cannot_take() -> None:
    found = names(rank_gemm(SHAPE, FORM, (4, 4), HOPPER))
    assert found
    assert all("_sm80_" in name and "_a4_" in name for name in found)


@pytest.mark.parametrize(("columns", "narrow"), [(10, 2), (1, 1), (1004, 4)])
def test_few_columns_are_stored_a_few_at_a_time(columns: int, narrow: int) -> None:
    """Classifiers of 10 classes loaded two elements of their operands at a time: 5.7 us for 500 x 10 x 128."""
    found = names(rank_gemm(SHAPE, FORM, (768, columns), HOPPER))
    assert found
    assert all("_sm80_" in name and f"_a8_d{narrow}_" in name for name in found)


@pytest.mark.parametrize(
    ("dtype", "change", "mark"),
    [
        ("float32", {"use_3xtf32": False}, "_tf32_"),
        ("float32", {"use_3xtf32": True}, "_f32_f32_"),
        ("float16", {"use_fast_math": True}, "_gelu_fast"),
        ("float16", {"profile_all_alignments": True}, "_a2_"),
    ],
)
def test_attributes_change_the_kernels(dtype: str, change: dict[str, bool], mark: str) -> None:
    form = GemmForm(dtype, dtype, activation="gelu", constant=True)
    assert any(mark in name for name in names(rank_gemm(SHAPE, form, (768, 768), replace(BOTH, **change))))
    if change != {"use_3xtf32": True}:
        assert not any(mark in name for name in names(rank_gemm(SHAPE, form, (768, 768), BOTH)))


def draft(*shapes: GemmShape) -> GroupDraft:
    group = GroupDraft(name="part")
    for shape in shapes:
        group.add("gemm", rank_gemm(shape, FORM, (768, 768), HOPPER, margin=SEVERAL))
    return group


def record(group: GroupDraft, index: int, number: int, device: str = "a", revision: str = REVISION) -> Record:
    ranking = group.functions[index].ranking
    return Record(ranking.problem, revision, device, (Timing(names(ranking)[number], 0.0, 0.0),))


def shipped(found: Shipping, group: GroupDraft) -> list[list[str]]:
    return [[candidate.name for candidate in found[draft.symbol]] for draft in group.functions]


def test_without_records_the_first_ones() -> None:
    group = draft(SHAPE)
    found, warnings = ship([group], 3, make_records([]), REVISION, ONCE)
    assert shipped(found, group) == [names(group.functions[0].ranking)[:3]]
    assert warnings == ()


def test_winners_of_each_device_and_no_others() -> None:
    group = draft(SHAPE, replace(SHAPE, rows=64))
    records = [record(group, 0, 4), record(group, 0, 2, "b"), record(group, 0, 4, "c")]
    found, _ = ship([group], 2, make_records(records), REVISION, ONCE)
    ranked = [names(draft.ranking) for draft in group.functions]
    assert shipped(found, group) == [[ranked[0][4], ranked[0][2]], ranked[1][:2]]


def test_records_of_other_kernels_are_ignored_with_a_warning() -> None:
    group = draft(SHAPE)
    found, (warning,) = ship([group], 1, make_records([record(group, 0, 4, revision="cutlass 0")]), REVISION, ONCE)
    assert shipped(found, group) == [names(group.functions[0].ranking)[:1]]
    assert warning.startswith("gemm float16->float16 nt 1024x3072x768 batch 1 aligned 8 none: its tuning records")


def test_a_winner_of_another_list_of_architectures_is_found() -> None:
    """What was measured with a bundle for one kind of GPU serves one for several."""
    group = draft(SHAPE)
    both = GroupDraft(name="both")
    both.add("gemm", rank_gemm(SHAPE, FORM, (768, 768), BOTH, margin=SEVERAL))
    found, _ = ship([both], 3, make_records([record(group, 0, 3)]), REVISION, {"both": 1})
    ((winner,),) = shipped(found, both)
    assert winner.split("+")[0] == names(group.functions[0].ranking)[3]


@pytest.mark.parametrize(("count", "workspaces"), [(1, 0), (2, 1)])
def test_a_workspace_is_for_kernels_that_are_shipped(count: int, workspaces: int) -> None:
    group = GroupDraft(name="part")
    group.add("gemm", rank_gemm(SHAPE, FORM, (768, 768), replace(HOPPER, split_k_slices=4)))
    group.reserve(ship([group], count, make_records([]), REVISION, ONCE)[0])
    assert len(group.workspaces) == workspaces
    assert [name for name, _ in group.functions[0].fields].count("workspace") == workspaces


def estimated(group: GroupDraft, found: Shipping) -> float:
    rankings = [(draft.symbol, draft.ranking) for draft in group.functions]
    return sum(ranking.estimates[ranking.candidates.index(found[symbol][0])] for symbol, ranking in rankings)


@pytest.mark.parametrize(("often", "kernels"), [(1, 3), (4, 2)])
def test_problems_share_kernels_that_are_not_worth_their_compilation(often: int, kernels: int) -> None:
    """The shorter a problem takes beside others, the less it is worth a kernel of its own."""
    others, large = (draft(*(replace(SHAPE, rows=rows, columns=columns) for rows, columns in sizes)) for sizes in SIZES)
    large.name = "large"
    for function in large.functions:
        function.symbol = "large"
    calls = {"part": 1, "large": often}
    found, _ = ship([others, large], 1, make_records([]), REVISION, calls)
    assert len(set(found.values())) == kernels
    apart = {each.symbol: each.ranking.candidates[:1] for each in (*others.functions, *large.functions)}
    times = [estimated(others, given) + often * estimated(large, given) for given in (found, apart)]
    assert times[1] <= times[0] <= (1 + WORTH * (3 - kernels)) * times[1]
    several, _ = ship([others, large], 2, make_records([]), REVISION, calls)
    assert [each[0] for each in several.values()] == [each[0] for each in apart.values()]


def test_tuned_problems_keep_the_winner_and_lend_it() -> None:
    group = draft(SHAPE, replace(SHAPE, rows=1000))
    found, _ = ship([group], 1, make_records([record(group, 0, 2)]), REVISION, ONCE)
    assert shipped(found, group)[0] == [names(group.functions[0].ranking)[2]]


@pytest.mark.parametrize(
    ("least", "most", "ends"),
    [
        (128, 4096, [256, 1024]),
        (49, 1568, [98, 392]),
        (1, 2048, [8, 128, 512]),
        (1, 32, [8]),
        (3136, 100352, [6272, 25088]),
        (1024, 2048, []),
        (1, 1, []),
    ],
)
def test_ranges_of_rows_end_in_steps(least: int, most: int, ends: list[int]) -> None:
    assert range_ends(least, most) == ends


def by_rows(options: CutlassOptions, least: int, most: int) -> Ranking:
    shape = replace(SHAPE, rows=most, has_fixed_rows=False)
    return rank_rows(shape, least, partial(rank_gemm, form=FORM, divisors=(768, 3072), options=options))


def test_rows_of_the_run_choose_the_best_kernel_of_their_range() -> None:
    whole = rank_gemm(replace(SHAPE, rows=4096), FORM, (768, 3072), HOPPER)
    ranking = by_rows(HOPPER, 128, 4096)
    first, *others = ranking.candidates
    assert others == [*whole.candidates]
    *ranges, last = first.choices
    assert last == whole.candidates[0].choices[0]
    assert 0 < len(ranges) <= 2
    assert [choice.rows for choice in ranges] == sorted(choice.rows for choice in ranges)
    for choice in ranges:
        best = rank_gemm(replace(SHAPE, rows=choice.rows, has_fixed_rows=True), FORM, (768, 3072), HOPPER)
        assert choice.kernel == best.candidates[0].choices[0].kernel
    assert len({choice.kernel.name for choice in first.choices}) == len(first.choices)


def test_few_rows_of_symbolic_ones_have_the_kernel_of_few_rows() -> None:
    first = by_rows(HOPPER, 1, 32).candidates[0].choices
    assert [choice.rows for choice in first] == [8, 0]
    assert first[0].kernel.name.startswith("pk_gemm_rows_f16_f16_8")


def test_each_gpu_of_a_bundle_has_kernels_of_all_ranges() -> None:
    first = by_rows(BOTH, 128, 4096).candidates[0].choices
    archs = [choice.arch for choice in first]
    assert archs == sorted(archs, reverse=True)
    assert [choice.rows for choice in first if choice.arch == 90][-1] == 0
    assert first[-1].arch == first[-1].rows == 0


def test_known_rows_have_one_kernel() -> None:
    shape = replace(SHAPE, has_fixed_rows=True)
    ranking = rank_rows(shape, 1, partial(rank_gemm, form=FORM, divisors=(768, 3072), options=HOPPER))
    assert all(len(candidate.choices) == 1 for candidate in ranking.candidates)


def test_a_function_launches_the_first_kernel_whose_conditions_hold() -> None:
    group = GroupDraft(name="part")
    draft = group.add("gemm", by_rows(BOTH, 128, 4096))
    (cases,) = draft.view(draft.ranking.candidates[:1])["candidates"]
    whens = [case["when"] for case in cases]
    assert whens[-1] == ""
    assert any("arch == 90 && problem.m <= " in when for when in whens)
    assert {case["kernel"] for case in cases} == {c.kernel.name for c in draft.choices(draft.ranking.candidates[:1])}
