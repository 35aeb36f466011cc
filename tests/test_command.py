# SPDX-License-Identifier: Apache-2.0
"""The tessera command from outside: what its options mean, what it refuses, and its exit codes. The
binary is $TESSERA."""
import os
import pathlib
import subprocess

import pytest

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

SMALL = ["--rows", "2", "--cols", "2", "--rep", "1", "--warmup", "1"]


def run(*arguments, **options):
    return subprocess.run([TESSERA, *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, **options)


# ---- What cannot be written ----------------------------------------------------------------------

@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [
    ["--help"], ["--version"], ["info", "--no-measure"], ["info", "--no-measure", "--format", "json"],
    ["verify", "--op", "cast", "--configs", "3", "--dtype", "f32"], ["verify", "--help"],
    ["bench", "cast", *SMALL], ["bench", "cast", *SMALL, "--format", "json"], ["apply", "--help"],
], ids=" ".join)
def test_a_full_disk_behind_standard_output_is_an_error(arguments):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([TESSERA, *arguments], stdout=full, stderr=subprocess.PIPE, text=True,
                              timeout=120, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith("tessera: cannot write ") and done.stderr.count("\n") == 1


def test_out_is_looked_at_before_anything_is_measured(tmp_path):
    for path, word in ((tmp_path, "directory"), (tmp_path / "none" / "file", "No such file")):
        done = run("bench", "cast", *SMALL, "--out", path)
        assert done.returncode == 2 and done.stdout == ""
        assert word in done.stderr and str(path) in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_out_through_a_link(tmp_path):
    (tmp_path / "file.csv").write_text("earlier")
    link = tmp_path / "link.csv"
    link.symlink_to("file.csv")
    done = run("bench", "cast", *SMALL, "--out", link)
    assert done.returncode == 0 and done.stdout == ""
    assert link.is_symlink() and pathlib.Path(os.readlink(link)) == pathlib.Path("file.csv")
    header, row = (tmp_path / "file.csv").read_text().splitlines()
    assert header.startswith("op,params,dtype") and row.startswith('"cast","rows=2 cols=2","f32"')
