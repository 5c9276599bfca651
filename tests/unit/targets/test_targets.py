from __future__ import annotations

import dataclasses
import json
import platform
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.backends import registry as backends
from packager.backends.attributes import attributes_of
from packager.backends.registry import distribution, find_backend, known_kinds, origin
from packager.errors import BackendError, UsageError
from packager.targets.target_list import TargetList, parse_targets, require_available

HERE = platform.machine()
OTHER = "aarch64" if HERE == "x86_64" else "x86_64"

# A third party's distribution: real files, found by importlib.metadata, as pip would install them.
ACME = """
from __future__ import annotations
import dataclasses
from packager.backends.base import API_VERSION, PartitionOptions, Unavailable, attribute
from packager.backends.llvm.backend import LlvmBackend
from packager.errors import UsageError

@dataclasses.dataclass(frozen=True)
class AcmeOptions(PartitionOptions):
    fast: bool = attribute(False, "Whether to hurry")
    level: int = attribute(2, "How hard to try", choices=(0, 1, 2, 3))
    rows: int = attribute(4, "Rows of a tile", minimum=1)
    ratio: float = attribute(0.5, "How much of it", minimum=0)
    style: str = attribute("plain", "How to write", choices=("plain", "packed"))
    header: tuple[str, ...] = attribute((), "Headers to include")
    parts: tuple[str, ...] = attribute(("all",), "What to take", choices=("all", "dense", "conv"))
    cpu: str = attribute("", "CPU; default: the base Target's")

class Acme:
    api_version, kind, device, merges, options = API_VERSION, "acme", "cpu", False, AcmeOptions
    summary = "takes nothing"
    def canonical(self, options, base):
        if options.cpu == "crash":
            raise ValueError("no such CPU")
        if options.cpu == "wrong":
            return dataclasses.replace(options, rows="many")
        if options.cpu == "foreign":
            return base.options
        return dataclasses.replace(options, cpu=options.cpu or base.cpus[0])
    def probe(self, target):
        if target.options.cpu == "broken":
            raise RuntimeError("probing failed")
        return Unavailable("no ACME here", "install acme-tools") if target.options.fast else None
    def patterns(self, target): return ()
    def compile(self, partitions, target, context): raise NotImplementedError

class Second(Acme):
    kind = "second"

class Warp(Acme):
    kind, device = "warp", "cuda"
    def canonical(self, options, base):
        return dataclasses.replace(options, cpu=base.options.arch)

@dataclasses.dataclass(frozen=True)
class CudaOptions:
    arch: str = attribute("sm_90a", "GPU architecture")

class CudaGen:
    api_version, kind, device, options = API_VERSION, "cudagen", "cuda", CudaOptions
    summary = "kernels for a GPU"
    def canonical(self, options, base):
        assert base is None
        return options
    def probe(self, target): return None
    def generate(self, kernels, target, context): raise NotImplementedError

class OwnCpu(LlvmBackend):
    kind = "owncpu"

def make_second(): return Second()
own_cpu, acme = OwnCpu(), Acme()
"""
ENTRY_POINTS = """[packager.backends]
acme = acme_for_targets:acme
second = acme_for_targets:make_second
warp = acme_for_targets:Warp
cudagen = acme_for_targets:CudaGen
owncpu = acme_for_targets:own_cpu
"""


@pytest.fixture(scope="module", autouse=True)
def acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install distribution acme 1.2 for these tests."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "acme_for_targets.py").write_text(ACME)
    information = folder / "acme-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.2\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        backends._third_party.cache_clear()
        yield
    backends._third_party.cache_clear()
    backends._load_third_party.cache_clear()
    sys.modules.pop("acme_for_targets", None)


def canonical(*texts: object) -> dict[str, Any]:
    """Return the host Target as the manifest holds it."""
    (target,) = parse_targets(texts).to_json()  # type: ignore[arg-type]
    return target


def refused(*texts: object, error: type[UsageError | BackendError] = UsageError) -> UsageError | BackendError:
    with pytest.raises(error) as caught:
        parse_targets(texts)  # type: ignore[arg-type]
    return caught.value


def test_no_target_means_this_machine_at_its_portable_baseline() -> None:
    cpus = {"x86_64": ("x86-64-v3", "x86-64-v4"), "aarch64": ("generic",)}[HERE]
    assert canonical() == {"kind": "llvm", "mtriple": f"{HERE}-linux-gnu", "mcpu": cpus, "micro_batch": 0}
    assert parse_targets([]).host.cpus == cpus
    assert canonical("llvm") == canonical()


def test_no_target_takes_no_backend_that_happens_to_be_installed() -> None:
    """Unlike the Targets that are named: ``acme`` is installed and available."""
    assert parse_targets([]).specialized == ()
    assert require_available(parse_targets(["acme"])) is None


@pytest.mark.parametrize(
    "text",
    [
        "llvm -mcpu=x86-64-v4 -mtriple=x86_64-linux-gnu",
        "llvm --mcpu=x86-64-v4 --mtriple=x86_64-linux-gnu",
        "  llvm   -mtriple=x86_64-linux-gnu '-mcpu=x86-64-v4' ",
        '{"kind": "llvm", "mcpu": ["x86-64-v4"], "mtriple": "x86_64-linux-gnu"}',
        ' {"mtriple": "x86_64-linux-gnu", "kind": "llvm", "mcpu": ["x86-64-v4"]}',
        ' [ {"mtriple": "x86_64-linux-gnu", "kind": "llvm", "mcpu": ["x86-64-v4"]}]',
        {"kind": "llvm", "mcpu": ["x86-64-v4"], "mtriple": "x86_64-linux-gnu"},
    ],
)
def test_all_spellings_mean_the_same(text: object) -> None:
    named = {"mtriple": "x86_64-linux-gnu", "mcpu": ("x86-64-v4",)}
    assert canonical(text) == {"kind": "llvm", "micro_batch": 0} | named
    assert parse_targets(text) == parse_targets([text])  # type: ignore[arg-type, list-item]


def test_the_baseline_follows_the_triple() -> None:
    assert canonical("llvm -mtriple=aarch64-linux-gnu")["mcpu"] == ("generic",)
    assert canonical("llvm -mtriple=x86_64-linux-gnu")["mcpu"] == ("x86-64-v3", "x86-64-v4")
    assert parse_targets(["llvm -mtriple=aarch64-linux-gnu"]).host.machine == "aarch64"


def test_a_canonical_target_is_its_own_canonical_form() -> None:
    assert canonical(canonical("llvm -mtriple=aarch64-linux-gnu")) == canonical("llvm -mtriple=aarch64-linux-gnu")


KINDS_HINT = (
    "valid kinds: acme, ccompiler, cublas, cuda, cudagen, cudnn, cutlass, external, llvm, owncpu, second, "
    "tensorrt, warp"
)
LIST_HINT = "write a,b on a command line or repeat the attribute"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("lvm", "unknown Target kind 'lvm'", f"did you mean 'llvm'? {KINDS_HINT}"),
        ("openvino", "unknown Target kind 'openvino'", KINDS_HINT),
        ("acm", "unknown Target kind 'acm'", "did you mean 'acme'? valid kinds: acme, "),
        (
            "llvm -mcp=x",
            "Target 'llvm' has no attribute 'mcp'",
            "did you mean 'mcpu'? valid attributes: mcpu, micro_batch, mtriple",
        ),
        ("llvm mcpu=x", "cannot read 'mcpu=x'", "attributes are written -name=value"),
        ("llvm -mcpu", "cannot read '-mcpu'", "-name=value"),
        ("llvm -mtriple=a -mtriple=b", "attribute 'mtriple' stands twice in Target 'llvm': 'a' and 'b'", "only lists"),
        ("llvm -mcpu=a,b,a", "attribute 'mcpu' of Target 'llvm' is a,b,a, which names a CPU twice", "the least first"),
        ("llvm -kind=acme", "has two kinds", "at the front"),
        ("", "has no kind", "llvm -mcpu="),
        ("-mcpu=x", "has no kind", "llvm -mcpu="),
        ("llvm 'x", "cannot be read: No closing quotation", ""),
        ("{", "is not valid JSON", ""),
        ('{"kind": "llvm", "kind": "acme"}', "is not valid JSON: an object has the same key twice", ""),
        ("[" * 100_000, "is not valid JSON", ""),
        ("[]", "is not a list of objects", '[{"kind": "llvm"}]'),
        ('["llvm"]', "is not a list of objects", '[{"kind": "llvm"}]'),
        ('{"mcpu": "x"}', "has no 'kind'", '{"kind": "llvm"}'),
        ('{"kind": 3}', "has no 'kind'", '{"kind": "llvm"}'),
        ('{"kind": "llvm", "mcpu": 3}', "attribute 'mcpu' of Target 'llvm' is 3, expected type list of str", LIST_HINT),
        ('{"kind": "llvm", "mtriple": 3}', "is 3, expected type str", "write a text"),
        ('{"kind": "llvm", "mcpu": null}', "is None, expected type list of str", ""),
        ('{"kind": "llvm", "mcpu": "x86-64-v3"}', "is 'x86-64-v3', expected type list of str", LIST_HINT),
        ('{"kind": "llvm", "mcpu": ["a\\u0000"]}', "expected type list of str", ""),
        ("llvm -mcpu=\udc80", "expected type list of str", ""),
        (3, "Target 3 is neither a text nor an object", "llvm"),
        ({1: 2, "kind": "llvm"}, "Target 'llvm' has no attribute 1", "valid attributes: mcpu, micro_batch, mtriple"),
        ({"kind": "llvm", "mtriple": Path("x")}, "expected type str", ""),
        (
            "llvm -mtriple=riscv64-linux-gnu",
            "'riscv64-linux-gnu', which packager cannot build for",
            "aarch64-linux-gnu",
        ),
        ("llvm -mtriple=x86_64-w64-mingw32", "which packager cannot build for", "x86_64-linux-gnu"),
        ("llvm -mtriple=x86_64", "which packager cannot build for", "x86_64-linux-gnu"),
        ("acme -levl=1", "Target 'acme' has no attribute 'levl'", "did you mean 'level'? valid attributes: cpu, fast"),
        ("acme -mcpu=x", "Target 'acme' has no attribute 'mcpu'", "of Target 'llvm': add -t 'llvm -mcpu=...'"),
        ("acme -fast=yes", "'fast' of Target 'acme' is 'yes', expected type bool", "valid values: 0, 1, false, true"),
        ('{"kind": "acme", "fast": "1"}', "'fast' of Target 'acme' is '1', expected type bool", "valid values: 0, 1"),
        ('{"kind": "acme", "fast": 2}', "'fast' of Target 'acme' is 2, expected type bool", "valid values: 0, 1"),
        ("acme -level=7", "'level' of Target 'acme' is 7, which is not valid", "valid values: 0, 1, 2, 3"),
        ("acme -level=high", "is 'high', expected type int", "valid values: 0, 1, 2, 3"),
        ("acme -rows=1e3", "'rows' of Target 'acme' is '1e3', expected type int", "3"),
        ("acme -rows=1_0", "expected type int", "3"),
        ("acme -rows=0", "'rows' of Target 'acme' is 0, expected at least 1", ""),
        ("acme -rows=" + "9" * 29, "expected type int", ""),
        ("acme -rows=" + "9" * 9999, "expected type int", ""),
        ('{"kind": "acme", "rows": true}', "is True, expected type int", ""),
        ('{"kind": "acme", "rows": 2.0}', "is 2.0, expected type int", ""),
        ("acme -ratio=nan", "is 'nan', expected type float", "0.5"),
        ("acme -ratio=1e999", "is inf, expected type float", "0.5"),
        ("acme -ratio=-1", "is -1.0, expected at least 0", ""),
        ('{"kind": "acme", "ratio": 1e999}', "is inf, expected type float", "0.5"),
        ('{"kind": "acme", "ratio": 1' + "0" * 400 + "}", "expected type float", "0.5"),
        ('{"kind": "acme", "ratio": NaN}', "is not valid JSON", ""),
        ("acme -style=paked", "is 'paked', which is not valid", "did you mean 'packed'? valid values: plain, packed"),
        ("acme -header=a,,b", "is ['a', '', 'b'], expected type list of str", LIST_HINT),
        ('{"kind": "acme", "header": "a.h"}', "is 'a.h', expected type list of str", LIST_HINT),
        ('{"kind": "acme", "header": ["a", 3]}', "is ['a', 3], expected type list of str", LIST_HINT),
        ('{"kind": "acme", "header": [""]}', "is [''], expected type list of str", "none of them empty"),
        ("acme -parts=dense,con", "is ['dense', 'con'], and 'con' is not valid", "did you mean 'conv'? valid values"),
        ("acme -compiler=llvm", "Target 'acme' has no attribute 'compiler'", "'acme' alone, or 'llvm -compiler=acme'"),
        ("llvm -compiler=acm", "attribute 'compiler' of Target 'llvm' is 'acm'", "did you mean 'acme'? valid values"),
        ("llvm -compiler=llvm", "'llvm', which is not a backend that specializes it", "acme"),
        ("llvm -compiler=acme -compiler=second", "'compiler' is given twice", "a Target for each"),
        (
            '{"kind": "llvm", "compiler": 3}',
            "attribute 'compiler' of Target 'llvm' is 3, expected type str",
            "the kind",
        ),
        (
            "llvm -compiler=acme -levl=1",
            "Target 'llvm -compiler=acme' has no attribute 'levl'",
            "did you mean 'level'?",
        ),
        ("llvm -compiler=acme -mcp=1", "Target 'llvm -compiler=acme' has no attribute 'mcp'", "did you mean 'mcpu'?"),
        ("llvm -compiler=acme -level=9", "attribute 'level' of Target 'acme' is 9", "valid values: 0, 1, 2, 3"),
        (
            "llvm -compiler=warp",
            "wrong device: 'llvm' is for device 'cpu', and 'warp' for device 'cuda'",
            "'warp' alone",
        ),
        ("warp", "Target 'warp' is for device 'cuda', but no base Target", "add -t cuda"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_errors_name_what_is_wrong_and_what_is_right(text: object, message: str, hint: str) -> None:
    error = refused(text)
    assert message in error.message
    assert hint in (error.hint or "")


def test_an_mcpu_of_native_is_of_this_machine() -> None:
    assert canonical("llvm -mcpu=native")["mcpu"] == ("native",)
    assert "means one CPU and nothing else" in refused("llvm -mcpu=native,x86-64-v3").message
    assert "-mcpu=native means this machine" in refused(f"llvm -mcpu=native -mtriple={OTHER}-linux-gnu").message


@pytest.mark.parametrize("given", ["x86-64-v4,x86-64-v2", "x86-64-v2,x86-64-v4", "x86-64-v4 -mcpu=x86-64-v2"])
def test_levels_of_x86_64_stand_in_their_order(given: str) -> None:
    """Other CPUs are not compared: they stand as they are given."""
    host = parse_targets(f"llvm -mtriple=x86_64-linux-gnu -mcpu={given}").host
    assert host.cpus == ("x86-64-v2", "x86-64-v4")
    assert parse_targets("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4,haswell").host.cpus == ("znver4", "haswell")


def test_two_base_targets_of_one_device_contradict() -> None:
    triples = (f"{HERE}-linux-gnu", f"{OTHER}-linux-gnu")
    for texts, message, hint in (
        (("llvm", "llvm"), "2 Targets of kind 'llvm' were given, which mean the same: 'llvm', 'llvm'", "one llvm"),
        (
            ("llvm -mcpu=x86-64-v2 -mtriple=x86_64-linux-gnu", "llvm -mcpu=x86-64-v4 -mtriple=x86_64-linux-gnu"),
            "2 Targets of kind 'llvm' contradict each other: attribute 'mcpu' is 'x86-64-v2' and 'x86-64-v4'",
            "give one llvm Target; it compiles for one machine",
        ),
        (
            tuple(f"llvm -mtriple={triple}" for triple in triples),
            f"attribute 'mtriple' is '{triples[0]}' and '{triples[1]}'",
            "one machine",
        ),
        (("llvm", "owncpu"), "Targets 'llvm' and 'owncpu' are both base Targets", "one of them"),
    ):
        error = refused(*texts)
        assert message in error.message
        assert hint in (error.hint or "")


def test_two_specialized_targets_of_one_kind() -> None:
    error = refused("acme -level=1", "llvm -compiler=acme -fast=1")
    assert error.message == "2 Targets of kind 'acme' were given: 'acme -level=1', 'llvm -compiler=acme -fast=1'"
    assert error.hint == "give one acme Target, with all attributes"


def test_the_order_given_is_the_order_of_precedence() -> None:
    def kinds(*texts: str) -> list[str]:
        return [target["kind"] for target in parse_targets(texts).to_json()]

    assert kinds("acme", "second") == ["llvm", "acme", "second"]
    assert kinds("second", "llvm", "acme") == ["llvm", "second", "acme"]
    assert kinds("cudagen", "warp", "acme") == ["llvm", "cudagen", "warp", "acme"]
    assert kinds("acme", "owncpu") == ["owncpu", "acme"]


def test_every_device_has_its_base_target() -> None:
    targets = parse_targets(["warp -cpu=x", "llvm -mtriple=aarch64-linux-gnu", "acme", "cudagen -arch=sm_80"])
    warp, acme = targets.specialized
    assert targets.host.machine == "aarch64"
    assert targets.base_of(acme) == targets.base_of(targets.host) == targets.host
    assert targets.base_of(warp).to_json() == {"kind": "cudagen", "arch": "sm_80"}
    assert acme.options.cpu == "generic"
    assert warp.options.cpu == "sm_80"


@pytest.mark.parametrize(
    "texts",
    [
        ["acme -level=3 -fast=1 -header=a.h,b.h"],
        ["acme -fast=true -header=a.h -level=3 -header=b.h"],
        ["llvm", "acme -level=+3 -fast=1 -header=a.h,b.h -rows=4 -ratio=.5 -style=plain -parts=all"],
        ["acme --level=3 --fast=1 --header=a.h,b.h", "llvm"],
        ["llvm -compiler=acme -level=3 -fast=1 -header=a.h,b.h"],
        ["llvm", "llvm -compiler=acme -level=3 -fast=1 -header=a.h,b.h"],
        [{"kind": "acme", "level": 3, "fast": True, "header": ["a.h", "b.h"]}],
        [{"kind": "acme", "level": 3, "fast": 1, "header": ("a.h", "b.h"), "ratio": 0.5}],
        [{"kind": "llvm", "compiler": "acme", "level": 3, "fast": True, "header": ["a.h", "b.h"]}],
        ['[{"kind": "acme", "level": 3, "fast": true, "header": ["a.h", "b.h"]}, {"kind": "llvm"}]'],
    ],
)
def test_specialized_targets_have_one_canonical_form(texts: list[Any]) -> None:
    targets = parse_targets(texts)
    (acme,) = targets.specialized
    assert targets.host == parse_targets([]).host
    assert acme.to_json() == {
        "kind": "acme",
        "min_partition_flops": 0,
        "max_partition_depth": 0,
        "fast": True,
        "level": 3,
        "rows": 4,
        "ratio": 0.5,
        "style": "plain",
        "header": ("a.h", "b.h"),
        "parts": ("all",),
        "cpu": targets.host.cpus[0],
    }
    assert hash(targets) == hash(parse_targets(["acme -level=3 -fast=1 -header=a.h,b.h"]))
    assert parse_targets(json.dumps(targets.to_json())) == targets


@pytest.mark.parametrize(
    "texts",
    [
        ["llvm -mcpu=x86-64-v4", "llvm -compiler=ccompiler -opt_level=2 -header=<a.h>,<b.h>"],
        ["ccompiler -opt_level=2 -header=<a.h> -header=<b.h>", "llvm -mcpu=x86-64-v4"],
        ["llvm -mcpu=x86-64-v4 -compiler=ccompiler -opt_level=2 -header=<a.h>,<b.h>"],
        [{"kind": "llvm", "mcpu": ["x86-64-v4"]}, {"kind": "ccompiler", "opt_level": 2, "header": ["<a.h>", "<b.h>"]}],
    ],
)
@pytest.mark.skipif(HERE != "x86_64", reason="names a CPU of x86-64")
def test_the_ccompiler_in_all_spellings(texts: list[Any]) -> None:
    (ccompiler,) = parse_targets(texts).specialized
    assert parse_targets(texts) == parse_targets(parse_targets(texts).to_json())
    assert parse_targets(texts).host.options.mcpu == ("x86-64-v4",)
    assert (ccompiler.options.opt_level, ccompiler.options.header) == (2, ("<a.h>", "<b.h>"))
    assert parse_targets(texts) == parse_targets(
        ["llvm -mcpu=x86-64-v4", {"kind": "ccompiler", "opt_level": 2, "header": ["<a.h>", "<b.h>"]}]
    )


def test_an_int_is_taken_for_a_float_and_becomes_one() -> None:
    texts: list[Any] = ["acme -ratio=2", {"kind": "acme", "ratio": 2}, "acme -ratio=2.0", "acme -ratio=20e-1"]
    spelled = {json.dumps(parse_targets([text]).to_json()) for text in texts}
    assert len(spelled) == 1
    assert '"ratio": 2.0' in spelled.pop()


def test_an_empty_text_is_an_empty_list() -> None:
    assert parse_targets("acme -parts=").specialized[0].options.parts == ()
    assert parse_targets({"kind": "acme", "parts": []}).specialized[0].options.parts == ()


def test_a_specialized_target_may_set_what_its_base_has() -> None:
    triple = "aarch64-linux-gnu"
    alone = parse_targets([f"llvm -mtriple={triple} -compiler=acme -level=1"])
    assert alone == parse_targets([f"llvm -mtriple={triple}", "acme -level=1"])
    assert alone == parse_targets([f"llvm -mtriple={triple}", f"llvm -mtriple={triple} -compiler=acme -level=1"])
    both = parse_targets([f"llvm -mtriple={triple} -compiler=acme", "llvm -mcpu=generic -compiler=second"])
    assert both == parse_targets([f"llvm -mtriple={triple}", "acme", "second"])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["llvm -mcpu=x86-64-v2", "llvm -mcpu=x86-64-v4 -compiler=acme"], "is 'x86-64-v2', but 'x86-64-v4' in 'llvm"),
        (["llvm -mcpu=x86-64-v4 -compiler=acme", "llvm"], "is 'x86-64-v3,x86-64-v4', but 'x86-64-v4' in 'llvm"),
        (
            ["llvm -mcpu=x86-64-v2 -compiler=acme", "llvm -mcpu=x86-64-v4 -compiler=second"],
            "attribute 'mcpu' of Target 'llvm' is 'x86-64-v2', but 'x86-64-v4' in 'llvm -mcpu=x86-64-v4",
        ),
        (["owncpu", "llvm -compiler=acme"], "specializes 'llvm', but the Target of device 'cpu' is 'owncpu'"),
    ],
)
def test_a_specialized_target_must_agree_with_its_base(texts: list[str], message: str) -> None:
    triple = " -mtriple=x86_64-linux-gnu"
    error = refused(*(f"llvm{triple}{text.removeprefix('llvm')}" if "llvm" in text else text for text in texts))
    assert message.replace("'llvm -mcpu", f"'llvm{triple} -mcpu") in error.message
    assert error.hint


def test_an_attribute_of_both_kinds_belongs_to_the_specialized_one() -> None:
    """owncpu and acme share none, so this asks for one of PartitionOptions, and for ``cpu``."""
    targets = parse_targets(["owncpu -compiler=acme -cpu=abc -min_partition_flops=7"])
    assert (targets.specialized[0].options.cpu, targets.specialized[0].options.min_partition_flops) == ("abc", 7)


def test_an_unavailable_backend_is_refused_with_what_to_install() -> None:
    with pytest.raises(UsageError) as caught:
        require_available(parse_targets(["acme -fast=1"]))
    assert caught.value.message == "Target 'acme' cannot be used: no ACME here"
    assert caught.value.hint == "install acme-tools"


@pytest.mark.parametrize(
    ("cpu", "detail"),
    [
        ("crash", "ValueError: no such CPU"),
        ("wrong", "TypeError: canonical() set 'rows' to 'many', expected int"),
        ("foreign", "TypeError: canonical() returned LlvmOptions("),
    ],
)
def test_a_third_party_that_fails_is_named(cpu: str, detail: str) -> None:
    error = refused(f"acme -cpu={cpu}", error=BackendError)
    assert error.message == "the backend 'acme' of acme 1.2 cannot be used: it failed"
    assert detail in (error.detail or "")
    assert error.hint


def test_a_third_party_whose_probe_fails_is_named() -> None:
    with pytest.raises(BackendError, match=r"'acme' of acme 1\.2 cannot be used: it failed"):
        require_available(parse_targets(["acme -cpu=broken"]))


def test_a_third_party_is_known_by_its_version() -> None:
    assert (origin("acme"), distribution("acme")) == ("acme 1.2", "acme==1.2")
    assert (origin("llvm"), distribution("llvm")) == ("packager", None)


def test_every_attribute_is_documented() -> None:
    for kind in known_kinds():
        declared = attributes_of(find_backend(kind).options)
        for attribute in declared.values():
            assert attribute.doc.strip()
            assert "\n" not in attribute.doc


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "mcpu", "x"]), inner, max_size=3)
    ),
)


@given(st.text(max_size=30) | st.text(alphabet='llvm -mcpu="{}:x', max_size=30) | JSON.map(json.dumps))
def test_any_text_is_a_target_or_a_usage_error(text: str) -> None:
    try:
        targets = parse_targets([text])
    except UsageError:
        return
    assert all(target["kind"] in known_kinds() for target in targets.to_json())


# What a manifest can hold; on a command line an item of a list holds no comma.
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
ITEMS = st.lists(TEXTS.filter(lambda text: text and "," not in text), max_size=3)
ACME_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "fast": st.booleans(),
        "level": st.integers(0, 3),
        "rows": st.integers(1, 2**63 - 1),
        "ratio": st.floats(0, allow_nan=False, allow_infinity=False),
        "style": st.sampled_from(["plain", "packed"]),
        "header": ITEMS,
        "parts": st.lists(st.sampled_from(["all", "dense", "conv"]), max_size=3),
        "cpu": TEXTS.filter(lambda text: text not in ("crash", "wrong", "foreign")),
    },
)


def as_command_line(kind: str, values: dict[str, Any], *, repeat: bool) -> str:
    words = kind.split()
    for name, value in values.items():
        if isinstance(value, list):
            words += [f"-{name}={text}" for text in (value if repeat and value else [",".join(value)])]
        else:
            words.append(f"-{name}={int(value) if isinstance(value, bool) else value}")
    return shlex.join(words)


@given(ACME_VALUES, st.booleans())
def test_text_and_json_are_two_spellings_of_one_target(values: dict[str, Any], repeat: bool) -> None:
    as_json = {"kind": "acme", **values}
    targets = parse_targets([as_json])
    assert parse_targets([as_command_line("acme", values, repeat=repeat)]) == targets
    assert parse_targets([as_command_line("llvm -compiler=acme", values, repeat=repeat)]) == targets
    assert parse_targets([json.dumps({"kind": "llvm", "compiler": "acme", **values})]) == targets
    assert parse_targets([json.dumps(targets.to_json())]) == targets
    for name, value in values.items():
        found = getattr(targets.specialized[0].options, name)
        if name != "cpu":
            assert found == (tuple(value) if isinstance(value, list) else value)


@given(st.permutations(["acme -level=1", "second -rows=9", "llvm -mtriple=aarch64-linux-gnu", "cudagen", "warp"]))
def test_any_order_is_a_list_with_its_host_first(texts: list[str]) -> None:
    targets = parse_targets(texts)
    assert isinstance(targets, TargetList)
    assert [base.kind for base in targets.bases] == ["llvm", "cudagen"]
    order = [text.split()[0] for text in texts if text.split()[0] in ("acme", "second", "warp")]
    assert [target.kind for target in targets.specialized] == order
    assert parse_targets(targets.to_json()) == targets


def test_options_are_frozen() -> None:
    for target in (parse_targets(["acme"]).specialized[0], parse_targets([]).host):
        with pytest.raises(dataclasses.FrozenInstanceError):
            target.options.cpu = target.options.mcpu = "x"
