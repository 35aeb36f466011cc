# SPDX-License-Identifier: Apache-2.0
"""How scripts/check_cuda reads compute-sanitizer's output, with stand-ins for both programs."""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXPLAINED, OTHER = "attention_backward_flash3", "attention_flash2"

TESSERA = """#!/bin/sh
case $1 in info) echo '{"arch": "sm_90a"}' ;; esac
"""
SANITIZER = """#!/bin/sh
cat "$(dirname "$0")/report"
exit 99
"""


def race(kind, kernel, *others):
    """A report as racecheck prints it without backtraces."""
    return "\n".join([f"========= Error: Race reported between {kind} access at {kernel}+0x470",
                      *(f"=========     and {other} access at {of}+0xd3d0 [8 hazards]" for other, of in others),
                      "========= "])


def verdict(tmp_path, *reports, tool="racecheck"):
    for name, text in (("tessera", TESSERA), ("compute-sanitizer", SANITIZER)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    summary = (f"========= RACECHECK SUMMARY: {len(reports)} hazards displayed ({len(reports)} errors, 0 warnings)"
               if tool == "racecheck" else f"========= ERROR SUMMARY: {len(reports)} errors")
    (tmp_path / "report").write_text("\n".join(["========= COMPUTE-SANITIZER", *reports, summary, ""]))
    ran = subprocess.run(["sh", ROOT / "scripts/check_cuda", "--tessera", tmp_path / "tessera", "--tools", tool,
                          "--ops", "attention_backward", "--share", "1/100", "--keep", tmp_path / "logs"],
                         capture_output=True, text=True, timeout=60, check=False,
                         env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    line, = [line for line in ran.stdout.splitlines() if line.startswith(f"attention_backward {tool}:")]
    return line.split(": ", 1)[1].rsplit(",", 1)[0], ran.returncode


def test_pairs_behind_barriers_in_shared_memory_are_explained(tmp_path):
    read, write = ("Read", EXPLAINED), ("Write", EXPLAINED)
    assert verdict(tmp_path, race("Write", EXPLAINED, read, read), race("Read", EXPLAINED, write)) == (
        "clean, 2 reports explained", 0)


@pytest.mark.parametrize("reports", [
    [race("Write", EXPLAINED, ("Read", EXPLAINED), ("Write", EXPLAINED))],
    [race("Write", EXPLAINED, ("Read", EXPLAINED)), race("Write", OTHER, ("Read", OTHER))],
    [race("Read", EXPLAINED, ("Write", OTHER))],
    [race("Write", EXPLAINED)],
    [race("Write", EXPLAINED, ("Read", EXPLAINED)), "========= Invalid __shared__ write of size 4 bytes"]])
def test_other_reports_are_faults(tmp_path, reports):
    assert verdict(tmp_path, *reports) == ("FOUND", 1)


def uninitialised(kernel, between=(), size=16):
    return "\n".join([f"========= Uninitialized __global__ memory read of size {size} bytes", *between,
                      f"=========     at {kernel}+0x1230"])


def test_reads_of_what_the_copy_engine_wrote_are_explained(tmp_path):
    """Lines of the plan log, which is another stream, may appear between the lines of a report."""
    plan = "tessera: plan attention_backward: variant cuda-flash3, isa avx512"
    of_dq = uninitialised("attention_backward_flash3_dq"), uninitialised("attention_backward_flash3_dq", [plan])
    assert verdict(tmp_path, *of_dq, tool="initcheck") == ("clean, 2 reports explained", 0)
    assert verdict(tmp_path, *of_dq, uninitialised(OTHER), tool="initcheck") == ("FOUND", 1)


def test_reads_ahead_of_what_says_that_they_count_are_explained(tmp_path):
    """Explained: decode's flags of 8 bytes but not its keys, and columns of 16 bytes but not the states of a run."""
    marks, columns = uninitialised("attention_decode_mma", size=8), uninitialised("attention_few_merge")
    assert verdict(tmp_path, marks, columns, tool="initcheck") == ("clean, 2 reports explained", 0)
    assert verdict(tmp_path, marks, uninitialised("attention_decode_mma"), tool="initcheck") == ("FOUND", 1)
    assert verdict(tmp_path, columns, uninitialised("attention_few_merge", size=8), tool="initcheck") == ("FOUND", 1)


def test_a_warning_of_dropped_records_is_no_read(tmp_path):
    """The warning appears between the reports, and the summary counts it."""
    lost = "========= Warning: Error buffer overflow has been detected. Some records have been dropped"
    of_dq = uninitialised("attention_backward_flash3_dq")
    assert verdict(tmp_path, of_dq, lost, of_dq, lost, tool="initcheck") == ("clean, 2 reports explained", 0)
    assert verdict(tmp_path, of_dq, lost, uninitialised(OTHER), tool="initcheck") == ("FOUND", 1)


def missing_wait(kernel, between=()):
    return "\n".join(["========= Barrier error detected. Missing wait.", *between, f"=========     at {kernel}+0xddd0",
                      "=========     Barrier is located at shared address 0x35140"])


def test_phases_that_pass_without_a_wait_are_explained(tmp_path):
    plan = "tessera: plan attention_backward: variant cuda-flash3, isa avx512"
    known = missing_wait(EXPLAINED), missing_wait("attention_flash3", [plan])
    assert verdict(tmp_path, *known, tool="synccheck") == ("clean, 2 reports explained", 0)
    assert verdict(tmp_path, *known, missing_wait(OTHER), tool="synccheck") == ("FOUND", 1)
    assert verdict(tmp_path, *known, "========= Barrier error detected. Divergent thread(s) in block",
                   tool="synccheck") == ("FOUND", 1)
