"""What goes wrong around a build: no compiler, no room, no right to write, a signal, a damaged cache, a crowd."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from command_line import Cli, assert_refused, command, environment, tree
from graphs import graph, normal, save

import packager

GCC = shutil.which("gcc") or "gcc"


def can(*wrap: str) -> bool:
    """Whether this process may use a way to run another one."""
    return subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode == 0


# A user and mount namespace of its own: the child may mount there, and nobody else sees it.
MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
needs_mounts = pytest.mark.skipif(not can(*MOUNTS), reason="needs user namespaces")
# A user namespace without a mapping: even root loses its right to ignore permissions.
needs_users = pytest.mark.skipif(not can("unshare", "--user"), reason="needs user namespaces")


def on_tmpfs(folder: Path, options: str) -> tuple[str, ...]:
    """A command that runs another with a tmpfs mounted on a folder."""
    return (*MOUNTS, "sh", "-c", f'mount -t tmpfs -o {options} tmpfs "$0" && exec "$@"', str(folder))


@pytest.fixture
def without_cache(models: Path) -> tuple[object, ...]:
    """A build of a small model that the cache does not shorten."""
    return ("build", models / "mlp.onnx", "--no-cache")


class TestToolchain:
    """The C compiler is missing, fails, or is killed."""

    def wrapper(self, tmp_path: Path, script: str, tool: str = "gcc") -> dict[str, str | None]:
        """An environment in which a tool is a shell script."""
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / tool).write_text(f"#!/bin/sh\n{script}\n")
        (folder / tool).chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}"}

    @pytest.mark.usefixtures("leaves_nothing")
    def test_no_compiler(self, warm_cli: Cli, models: Path) -> None:
        done = warm_cli("build", models / "mlp.onnx", env={"PATH": "/nonexistent"})
        assert_refused(done, 4, "gcc is not on PATH", hint="apt-get install gcc")

    @pytest.mark.slow
    @pytest.mark.usefixtures("leaves_nothing")
    def test_a_failing_compiler(self, warm_cli: Cli, without_cache: tuple[object, ...], tmp_path: Path) -> None:
        env = self.wrapper(
            tmp_path, f'[ "$1" = --version ] && exec {GCC} --version\necho "internal compiler error: sorry" >&2\nexit 3'
        )
        done = warm_cli(*without_cache, env=env)
        assert_refused(done, 4, "gcc failed with exit code 3", "internal compiler error: sorry", "command: ")

    @pytest.mark.slow
    @pytest.mark.usefixtures("leaves_nothing")
    def test_a_failing_linker(self, warm_cli: Cli, without_cache: tuple[object, ...], tmp_path: Path) -> None:
        env = self.wrapper(
            tmp_path,
            f'for word; do [ "$word" = -shared ] && {{ echo "ld: out of luck" >&2; exit 1; }}; done\nexec {GCC} "$@"',
        )
        assert_refused(warm_cli(*without_cache, env=env), 4, "gcc failed with exit code 1", "ld: out of luck")

    @pytest.mark.slow
    @pytest.mark.usefixtures("leaves_nothing")
    def test_a_killed_compiler(self, warm_cli: Cli, without_cache: tuple[object, ...], tmp_path: Path) -> None:
        env = self.wrapper(tmp_path, f'[ "$1" = --version ] && exec {GCC} --version\nkill -9 $$')
        assert_refused(warm_cli(*without_cache, env=env), 4, "gcc was killed by signal 9")

    @pytest.mark.slow
    def test_variables_that_mean_something_to_compilers_do_not_matter(
        self, warm_cli: Cli, without_cache: tuple[object, ...], tmp_path: Path
    ) -> None:
        odd = {"CPATH": "/nonexistent", "GCC_EXEC_PREFIX": "/nonexistent/", "COMPILER_PATH": "/nonexistent",
               "LIBRARY_PATH": "/nonexistent", "SOURCE_DATE_EPOCH": "1", "LC_ALL": "C.UTF-8"}  # fmt: skip
        plain, other = tmp_path / "a.so", tmp_path / "b.so"
        assert warm_cli(*without_cache, "-o", plain).returncode == 0
        assert warm_cli(*without_cache, "-o", other, env=odd).returncode == 0
        assert plain.read_bytes() == other.read_bytes()
        assert not any((tmp_path / "cwd").iterdir())


@pytest.mark.slow
class TestNoRoom:
    """Nothing can be written, or not enough."""

    def test_a_folder_that_may_not_be_written(self, cli: Cli, models: Path) -> None:
        done = cli("build", models / "mlp.onnx", "-o", "/proc/out.so")
        assert_refused(done, 2, "/proc/out.so")

    @needs_users
    @pytest.mark.usefixtures("leaves_nothing")
    def test_a_folder_without_write_permission(self, cli: Cli, models: Path, tmp_path: Path) -> None:
        (tmp_path / "closed").mkdir(mode=0o555)
        done = cli("build", models / "mlp.onnx", "-o", tmp_path / "closed" / "out.so", wrap=("unshare", "--user"))
        assert_refused(done, 2, "closed cannot be written to")

    @needs_users
    @pytest.mark.usefixtures("leaves_nothing")
    def test_a_file_at_the_output_that_may_not_be_read(self, cli: Cli, models: Path, tmp_path: Path) -> None:
        (tmp_path / "out.so").write_bytes(b"")
        (tmp_path / "out.so").chmod(0)
        done = cli("build", models / "mlp.onnx", "-o", tmp_path / "out.so", wrap=("unshare", "--user"))
        assert done.returncode == 2
        assert "out.so' is not readable" in done.stderr

    @needs_users
    @pytest.mark.usefixtures("leaves_nothing")
    def test_a_model_that_may_not_be_read(self, cli: Cli, models: Path, tmp_path: Path) -> None:
        shutil.copy(models / "mlp.onnx", tmp_path / "m.onnx")
        (tmp_path / "m.onnx").chmod(0)
        done = cli("build", tmp_path / "m.onnx", wrap=("unshare", "--user"))
        assert done.returncode == 2
        assert "m.onnx' is not readable" in done.stderr

    @pytest.mark.slow
    @needs_mounts
    @pytest.mark.parametrize("what", ["output", "work folder", "cache"])
    def test_a_read_only_file_system(
        self, cli: Cli, without_cache: tuple[object, ...], tmp_path: Path, what: str
    ) -> None:
        place = tmp_path / "place"
        place.mkdir()
        wrap = on_tmpfs(place, "ro")
        if what == "output":
            assert_refused(cli(*without_cache, "-o", place / "o.so", wrap=wrap), 2, f"{place} cannot be written to")
        elif what == "work folder":
            done = cli(*without_cache, "-o", tmp_path / "o.so", "--keep-workdir", place / "w", wrap=wrap)
            assert_refused(done, 2, f"{place / 'w'}: the work folder cannot be written: Read-only file system")
        else:
            done = cli(*without_cache[:-1], "-o", tmp_path / "o.so", env={"XDG_CACHE_HOME": str(place)}, wrap=wrap)
            assert done.returncode == 0, done.stderr
            assert packager.verify(tmp_path / "o.so").ok

    @pytest.mark.sampled(3, every_value=False)
    @needs_mounts
    @pytest.mark.parametrize("what", ["output", "work folder", "cache"])
    @pytest.mark.parametrize("size", ["4k", *(pytest.param(size, marks=pytest.mark.slow) for size in ("24k", "100k"))])
    def test_a_full_disk(
        self, cli: Cli, without_cache: tuple[object, ...], tmp_path: Path, what: str, size: str
    ) -> None:
        place = tmp_path / "place"
        place.mkdir()
        wrap = on_tmpfs(place, f"size={size}")
        # Told from inside the namespace, where the file system is: what is left on it after the build.
        left = (*wrap, "sh", "-c", '"$@"; code=$?; find "$0" -mindepth 1 >&2; exit $code', str(place))
        if what == "output":
            done = cli(*without_cache, "-o", place / "o.so", wrap=left)
            if size == "100k" and done.returncode == 0:
                assert done.stderr.rstrip().endswith("o.so")
                return
            assert_refused(done, 2, "o.so: cannot be written: No space left on device")
            assert not [line for line in done.stderr.splitlines() if line.startswith(str(place))]
        elif what == "work folder":
            done = cli(*without_cache, "-o", tmp_path / "o.so", env={"TMPDIR": str(place)}, wrap=left)
            assert done.returncode in (2, 4), done.stderr
            assert_refused(done, done.returncode, "No space left on device")
            assert not [line for line in done.stderr.splitlines() if line.startswith(str(place))]
            assert not (tmp_path / "o.so").exists()
        else:
            done = cli(*without_cache[:-1], "-o", tmp_path / "o.so", env={"XDG_CACHE_HOME": str(place)}, wrap=wrap)
            assert done.returncode == 0, done.stderr
            assert packager.verify(tmp_path / "o.so").ok

    @pytest.mark.usefixtures("leaves_nothing")
    def test_an_old_file_survives(self, cli: Cli, without_cache: tuple[object, ...], tmp_path: Path, mlp: Path) -> None:
        """RLIMIT_FSIZE: no file may grow beyond it, wherever it is."""
        old = tmp_path / "old"
        old.mkdir()
        shutil.copy(mlp, old / "o.so")
        before = tree(old)
        done = cli(*without_cache, "-o", old / "o.so", wrap=("prlimit", "--fsize=16384"))
        assert done.returncode in (2, 4), done.stderr
        assert_refused(done, done.returncode)
        assert tree(old) == before

    @pytest.mark.skipif(not can("unshare", "--user", "--map-user=54321"), reason="needs user namespaces")
    def test_a_user_without_a_home(self, cli: Cli, models: Path, tmp_path: Path) -> None:
        done = cli(
            *("build", models / "mlp.onnx", "-o", tmp_path / "o.so"),
            env={"HOME": None, "XDG_CACHE_HOME": None},
            wrap=("unshare", "--user", "--map-user=54321"),
        )
        assert_refused(done, 2, "there is no home folder: HOME is not set", hint="set HOME or XDG_CACHE_HOME")


@pytest.fixture(scope="module")
def long_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose build takes some time in every stage."""
    layers = [f"h{i + 1} = Conv<pads=[1,1,1,1]>(h{i}, w{i})  r{i} = Sigmoid(h{i + 1})" for i in range(6)]
    body = "\n".join(layers).replace("(h0,", "(x,")
    weights = {f"w{i}": normal(16, 16, 3, 3, seed=i) for i in range(6)}
    text = f"long (float[1,16,20,20] x) => (float[1,16,20,20] y) {{ {body}\n y = Add(r5, r0) }}"
    return save(graph(text, weights), tmp_path_factory.mktemp("long") / "long.onnx")


def interrupt(
    model: Path,
    tmp_path: Path,
    number: int,
    *,
    after: str = "",
    delay: float = 0.0,
    times: int = 1,
    group: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Start a build and send it a signal some time after it reports a stage; return how it ended."""
    out = tmp_path / "cwd"
    arguments = ("build", model, "-o", out / "o.so", "--header", out / "o.h", "--weights", "external", "--golden", 1)
    targets = ("-t", "llvm", "-t", "ccompiler -operators=conv2d")  # the addition is left to llvm
    process = subprocess.Popen(
        command(*arguments, *targets, "--no-cache"),
        cwd=out,
        env=environment({}, tmp_path / "tmp"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    seen = ""
    while after and after not in seen:
        line = process.stderr.readline()
        assert line, f"the build ended before {after!r}: {seen}"
        seen += line
    time.sleep(delay)
    for _ in range(times):
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        time.sleep(0.005)
    stdout, stderr = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, seen + stderr)


def assert_interrupted(done: subprocess.CompletedProcess[str], out: Path) -> None:
    """Check that a build left nothing and says so, or was done before the signal and left everything."""
    if (out / "o.so").exists():
        assert packager.verify(out / "o.so", run=True).ok
        assert sorted(path.name for path in out.iterdir()) == ["o.h", "o.safetensors", "o.so"]
        for path in out.iterdir():
            path.unlink()
        return
    assert done.returncode == 130, f"{done.returncode}: {done.stderr}"
    assert "interrupted" in done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


STAGES = ["importing", "lowering", "planning", "compiling", "linking", "running the golden"]

# Both are handled alike; tests with seeds send either.
SIGNALS = [
    *((signal.SIGINT, after) for after in STAGES),
    *((signal.SIGTERM, after) for after in STAGES[3:5]),
    *(pytest.param(signal.SIGTERM, after, marks=pytest.mark.thorough) for after in (*STAGES[:3], *STAGES[5:])),
]


@pytest.mark.sampled(4, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize(("number", "after"), SIGNALS)
@pytest.mark.usefixtures("leaves_nothing")
def test_a_signal_in_any_stage_leaves_nothing(after: str, number: int, long_build: Path, tmp_path: Path) -> None:
    assert_interrupted(interrupt(long_build, tmp_path, number, after=after), tmp_path / "cwd")


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_control_c_in_a_terminal_reaches_the_compilers_too(long_build: Path, tmp_path: Path) -> None:
    done = interrupt(long_build, tmp_path, signal.SIGINT, after="linking", delay=0.05, times=3, group=True)
    assert_interrupted(done, tmp_path / "cwd")


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(4, 12))]
)
@pytest.mark.usefixtures("leaves_nothing")
def test_a_signal_at_any_moment_leaves_nothing(seed: int, long_build: Path, tmp_path: Path) -> None:
    rng = random.Random(seed)
    done = interrupt(
        long_build,
        tmp_path,
        rng.choice([signal.SIGINT, signal.SIGTERM]),
        after=rng.choice(STAGES),
        delay=rng.random() * 0.6,
        times=rng.choice([1, 2, 5]),
        group=rng.random() < 0.5,
    )
    assert_interrupted(done, tmp_path / "cwd")


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 12))])
@pytest.mark.parametrize("group", [True, False])
def test_what_killed_builds_leave_is_removed_by_the_next(
    seed: int, group: bool, long_build: Path, tmp_path: Path
) -> None:
    for folder in ("cwd", "tmp"):
        (tmp_path / folder).mkdir()
    (tmp_path / "cwd" / ".o.so.mine").write_text("the user's")
    (tmp_path / "tmp" / "packager-build-notebook").mkdir()
    rng = random.Random(seed)
    for after in (rng.choice(STAGES), STAGES[-1]):
        interrupt(long_build, tmp_path, signal.SIGKILL, after=after, delay=rng.random() * 0.6, group=group)
    time.sleep(0 if group else 2)  # the compilers of a build that was killed alone end by themselves
    out = tmp_path / "cwd"
    packager_build = command("build", long_build, "-o", out / "o.so", "--weights", "external", "--golden", 1)
    subprocess.run(packager_build, cwd=out, env=environment({}, tmp_path / "tmp"), capture_output=True, check=True)
    assert tree(tmp_path / "tmp") == {"packager-build-notebook": b""}
    assert {path.name for path in out.iterdir()} <= {"o.so", "o.safetensors", "o.h", ".o.so.mine"}


def test_an_interrupt_inside_exec_gives_the_documented_code(tmp_path: Path) -> None:
    """CPython would end the process by the signal after a handled KeyboardInterrupt that passed through an exec()."""
    (tmp_path / "inside_exec.py").write_text(
        "import typer\n"
        "from packager.cli import main as cli\n"
        "cli.app = typer.Typer()\n"
        "@cli.app.command()\n"
        "def build() -> None:\n"
        "    exec('import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(5)')\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "inside_exec"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(packager.__file__).parents[1])])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


class TestCache:
    """Entries that are damaged, and builds that meet in one cache."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "damage", ["truncated bundle", "flipped bundle", "empty bundle", "truncated object", "no bundle"]
    )
    def test_a_damaged_entry_is_not_handed_out(
        self, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        model = models / "mlp.onnx"
        first = packager.build(model, tmp_path / "a.so").read_bytes()
        (bundle,) = (tmp_path / "cache").rglob("bundle.so")
        match damage:
            case "truncated bundle":
                os.truncate(bundle, len(first) // 2)
            case "flipped bundle":
                bundle.write_bytes(first[:-100] + bytes([first[-100] ^ 1]) + first[-99:])
            case "empty bundle":
                os.truncate(bundle, 0)
            case "no bundle":
                bundle.unlink()
            case "truncated object":
                for path in (tmp_path / "cache").rglob("*.o"):
                    os.truncate(path, 100)
                bundle.unlink()
        assert packager.build(model, tmp_path / "b.so").read_bytes() == first
        assert next((tmp_path / "cache").rglob("bundle.so")).read_bytes() == first

    @pytest.mark.slow
    def test_a_large_model_is_not_cached(self, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """External data count; copies of such bundles would fill the disk."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        data = (models / "external.data").stat().st_size
        for limit, cached in ((data, False), (data + (models / "external.onnx").stat().st_size, True)):
            monkeypatch.setattr("packager.pipeline.cache_key.MAX_CACHED_BYTES", limit)
            packager.build(models / "external.onnx", tmp_path / "a.so", dims={"n": 1})
            assert bool(list((tmp_path / "cache").rglob("bundle.so"))) == cached

    @pytest.mark.slow
    def test_the_key_tells_builds_apart(self, models: Path, tmp_path: Path) -> None:
        """Whatever changes the bundle must change the key: none of these may be answered with another's bundle."""
        model = tmp_path / "m.onnx"
        shutil.copy(models / "batched.onnx", model)
        fixed = {"dims": {"n": 2}}
        variants: list[dict[str, object]] = [
            fixed,
            {"dims": {"n": 3}},
            {"dims": {"n": (1, 3)}},
            {"dims": {"n": (1, 4)}},
            fixed | {"name": "other"},
            fixed | {"golden": 1},
            fixed | {"golden": 2},
            fixed | {"weights": "external"},
            fixed | {"targets": ["llvm -mcpu=x86-64-v2"]},
        ]
        seen = set()
        for index, options in enumerate(variants):
            seen.add(packager.build(model, tmp_path / f"{index}.so", **options).read_bytes())  # type: ignore[arg-type]
        assert len(seen) == len(variants)

    def test_a_change_of_external_data_is_a_change_of_the_model(self, models: Path, tmp_path: Path) -> None:
        for name in ("external.onnx", "external.data"):
            shutil.copy(models / name, tmp_path / name)
        first = packager.build(tmp_path / "external.onnx", tmp_path / "a.so", dims={"n": 1}).read_bytes()
        data = bytearray((tmp_path / "external.data").read_bytes())
        data[3] ^= 0x40
        (tmp_path / "external.data").write_bytes(data)
        assert packager.build(tmp_path / "external.onnx", tmp_path / "b.so", dims={"n": 1}).read_bytes() != first

    @pytest.mark.slow
    def test_concurrent_builds_share_one_cache(self, models: Path, tmp_path: Path) -> None:
        env = environment({"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path / "tmp")

        def build(index: int) -> subprocess.CompletedProcess[str]:
            arguments = (
                "build",
                models / "mlp.onnx",
                "-o",
                tmp_path / f"{index}.so",
                "--header",
                tmp_path / f"{index}.h",
            )
            return subprocess.run(command(*arguments), env=env, capture_output=True, text=True, check=False)

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(build, range(4)))
        assert [done.returncode for done in results] == [0] * 4, "".join(done.stderr for done in results)
        assert len({(tmp_path / f"{index}.so").read_bytes() for index in range(4)}) == 1
        assert not list((tmp_path / "cache").rglob("packager-*"))
        assert not list(tmp_path.glob("*.packager-tmp"))
        assert not list((tmp_path / "tmp").iterdir())

    @pytest.mark.slow
    def test_builds_to_one_output_leave_one_whole_bundle(self, models: Path, tmp_path: Path) -> None:
        packager.build(models / "mlp.onnx", tmp_path / "first.so")
        script = (
            f"import packager; [packager.build({str(models / 'mlp.onnx')!r}, 'o.so', header='o.h') for _ in range(30)]"
        )
        env = environment({}, tmp_path / "tmp")
        (tmp_path / "cwd").mkdir()
        running = [subprocess.Popen([sys.executable, "-c", script], env=env, cwd=tmp_path / "cwd") for _ in range(4)]
        assert [process.wait(60) for process in running] == [0] * 4
        assert sorted(path.name for path in (tmp_path / "cwd").iterdir()) == ["o.h", "o.so"]
        assert (tmp_path / "cwd" / "o.so").read_bytes() == (tmp_path / "first.so").read_bytes()
