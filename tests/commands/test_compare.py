# SPDX-License-Identifier: Apache-2.0
"""tessera compare: which pairs it measures, what it writes and refuses. The times do not matter. The binary is $TESSERA."""
import os
import subprocess

import pytest

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")


def compare(*arguments):
    return subprocess.run([TESSERA, "compare", *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_every_pair_has_a_row():
    done = compare("softmax", "--rows", "2", "--cols", "4,9", "--threads", "1", "--budget", "0.01", "--all")
    assert done.returncode in (0, 1), done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| softmax")]
    pairs = {(row[0][2:], row[1], row[5]) for row in rows}
    expected = {("softmax_forward", f"rows=2 cols={cols}", other) for cols in (4, 9) for other in ("online", "unfused")}
    expected |= {("softmax_backward", f"rows=2 cols={cols}", "unfused") for cols in (4, 9)}
    assert pairs == expected
    for row in rows:
        low, middle, high = float(row[7]), float(row[6]), float(row[8])
        assert 0 < low <= middle <= high and int(row[9].split()[0]) >= 5
    below = sum(float(row[6]) < 0.97 for row in rows)
    assert done.returncode == (1 if below else 0)
    assert f"4 cases, 6 pairs, {below} below 0.97;" in done.stdout


def test_what_is_not_below_the_limit_is_not_shown(tmp_path):
    table = tmp_path / "table.md"
    done = compare("layernorm", "--rows", "2", "--cols", "4", "--threads", "1", "--budget", "0.01", "--limit", "0.1",
                   "--pass", "forward", "--out", str(table))
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert "| layernorm" not in table.read_text() and "1 cases, 2 pairs, 0 below 0.1;" in table.read_text()


@pytest.mark.parametrize("arguments, word", [
    (["nothing"], "nothing"), (["softmax", "--limit", "-1"], "limit"), (["softmax", "--dtype", "f64"], "f64"),
])
def test_refusals(arguments, word):
    done = compare(*arguments)
    assert done.returncode == 2 and word in done.stderr and done.stdout == ""
