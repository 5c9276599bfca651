"""Runs the blocks of one document in a folder that looks like the checkout of a user who reads it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from markdown_blocks import ROOT, Block

STRICT_C = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")
# What differs from one machine and build to the next: hashes, numbers, the CPU features of a list, column widths.
VARIABLE = [
    (r"\b[0-9a-f]{16,64}\b", "HASH"),
    (r"lacks [a-z0-9_, ]+", "lacks FEATURES"),
    (r"\d+(\.\d+)*", "N"),
    (r"\s+", " "),
]


class Workplace:
    """A folder with the samples, the header, ``model.onnx`` and ``model.so``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("samples", "examples", "runtime_stub"):
            (folder / name).symlink_to(ROOT / name)

    def run(self, block: Block) -> None:
        """Run a block as its language says; other languages are not run, nor is what is quoted from a file."""
        if block.source and not block.needs_gpu:
            quoted = (ROOT / block.source).read_text()
            assert f"\n{block.text}\n" in f"\n{quoted}", f"{block.place}: this is not in {block.source}"
            return
        runner = {
            "sh": self._shell,
            "console": self._console,
            "python": self._python,
            "c": self._c,
            "yaml": self._workflow,
            "toml": self._toml,
        }.get(block.language)
        if runner is not None:
            runner(block)

    def _execute(self, block: Block, command: str, *, status: int = 0) -> str:
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder / "site"),
        }
        argv = ["bash", "-euo", "pipefail", "-c", command]
        done = subprocess.run(
            argv, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=900
        )
        told = f"{block.place}: {command}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == status, told
        assert "PACKAGER_ERROR" not in done.stdout, told
        return done.stdout

    def _shell(self, block: Block) -> None:
        """Run the block as one script. Lines that start with ``# `` are output, ``# ...`` stands for more of it."""
        script = [self._make_dry(line) for line in block.text.splitlines()]
        output = self._execute(block, "\n".join(script))
        self._expect(block, [line[2:] for line in script if line.startswith("# ")], output)

    @staticmethod
    def _make_dry(line: str) -> str:
        """The targets of make would run these tests again, or change the checkout: see what they would do.

        What pip installs goes into a folder of this reader.
        """
        line = re.sub(r"^pip install (?=\./)", "pip install -q --no-deps --no-build-isolation --target site ", line)
        return re.sub(r"^make\b", f"make -n -C '{ROOT}'", line)

    def _console(self, block: Block) -> None:
        """Run what stands behind the prompts, and find the lines below it in its output."""
        for part in re.split(r"^(?=\w*\$ )", block.text, flags=re.MULTILINE)[1:]:
            first, *shown = part.splitlines()
            prompt, command = first.split("$ ", 1)
            refused = any("NOT accepted" in line for line in shown)
            output = self._execute(block, command, status=1 if refused else 0)
            self._expect(block, shown, output)
            if prompt == "edge":
                self._age(self.folder / command.rsplit("> ", 1)[1])

    @staticmethod
    def _age(description: Path) -> None:
        """Make the description of this machine one of a machine before AVX."""
        machine = json.loads(description.read_text())
        machine["cpu_features"] = [name for name in machine["cpu_features"] if not name.startswith(("avx", "fma"))]
        description.write_text(json.dumps(machine))

    def _expect(self, block: Block, lines: list[str], output: str) -> None:
        found = {_normalize(line) for line in output.splitlines()}
        for line in lines:
            if line.strip() not in ("", "..."):
                assert _normalize(line) in found, f"{block.place}: {line!r} is not in the output:\n{output}"

    def _python(self, block: Block) -> None:
        (self.folder / "example.py").write_text(block.text)
        self._execute(block, "python -W error example.py")

    def _c(self, block: Block) -> None:
        """Compile and run a C program as its first line says; ``/* prints: ... */`` tells the output."""
        match = re.match(r"/\* (\w+\.c): (gcc .*) \*/", block.text)
        assert match, f"{block.place}: the first line must be /* NAME.c: how to compile and run it */"
        (self.folder / match[1]).write_text(block.text)
        output = self._execute(block, match[2].replace("gcc", f"gcc {' '.join(STRICT_C)}", 1))
        for expected in re.findall(r"/\* prints: (.*) \*/", block.text):
            assert output.strip() == expected, f"{block.place}: prints {output!r}"

    def _workflow(self, block: Block) -> None:
        (self.folder / "machines").mkdir()
        self._execute(block, "packager machine --json > machines/edge.json")
        commands = re.findall(r"^- run: (.*)$", block.text, flags=re.MULTILINE)
        assert commands, f"{block.place}: no commands"
        for command in commands:
            self._execute(block, command)

    def _toml(self, block: Block) -> None:
        """Keep a file under the name in its first line, and use it if it says who is trusted; others are policies."""
        match = re.match(r"# (\w+\.toml)\n", block.text)
        if match:
            (self.folder / match[1]).write_text(block.text)
            if match[1] == "trust.toml":
                self._execute(block, "packager verify model.so --trust trust.toml")
        else:
            self._policy(block)

    def _policy(self, block: Block) -> None:
        (self.folder / "policies").mkdir(exist_ok=True)
        (self.folder / "policies" / "edge.toml").write_text(block.text)
        self._execute(block, "packager verify model.so --policy policies/edge.toml")


def _normalize(line: str) -> str:
    for pattern, replacement in VARIABLE:
        line = re.sub(pattern, replacement, line)
    return line.strip()
