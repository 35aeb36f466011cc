# SPDX-License-Identifier: Apache-2.0
"""tessera tune from outside: its candidates, the file that it writes, and that other commands use it. The binary is $TESSERA."""
import json
import os
import subprocess

import pytest

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

MATMUL = ["matmul_forward", "--m", "64", "--n", "64", "--k", "64", "--threads", "1", "--rep", "2", "--warmup", "1"]


def run(*arguments, code=0, **environment):
    for _ in range(4):  # on a busy machine a sample may exceed the measured peak, which is refused
        done = subprocess.run([TESSERA, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False,
                              env={**os.environ, **environment})
        if "the figure is refused" not in done.stderr:
            break
    assert done.returncode == code, done.stderr
    return done


def test_candidates_and_the_file(tmp_path):
    path = tmp_path / "cache" / "tuning"
    document = json.loads(run("tune", *MATMUL, "--output", path, "--format", "json").stdout)
    results, [row] = document["results"], document["rows"]
    assert document["file"] == str(path)
    assert results[0]["built_in"] and results[0]["of_built_in"] == 1
    assert [r["chosen"] for r in results].count(True) == 1
    names = [r["candidate"] for r in results]
    assert len(set(names)) == len(names) and {"packed", "local"} <= {n.split()[0] for n in names}
    assert "naive" not in names and "reference" not in names  # other bits; the oracle
    for result in results:
        assert result["err_over_bound"] <= 1
    assert row["key"].startswith("matmul_forward ") and row["key"].endswith(" f32 64x64x64x1")
    lines = path.read_text().splitlines()
    assert lines[0] == "tessera-tuning 1"
    chosen = next(r for r in results if r["chosen"])
    if chosen["built_in"]:
        assert row["choice"] == "" and lines[1:] == []
    else:
        assert row["choice"].startswith(chosen["candidate"]) and lines[1:] == [f"{row['key']} {row['choice']}"]


def test_other_commands_obey_the_file(tmp_path):
    path = tmp_path / "tuning"
    [row] = json.loads(run("tune", *MATMUL, "--dry-run", "--format", "json").stdout)["rows"]
    for variant in ("packed", "local"):
        path.write_text(f"tessera-tuning 1\n{row['key']} {variant}\n")
        [result] = json.loads(run("bench", *MATMUL, "--format", "json", TSR_TUNING_FILE=str(path)).stdout)["results"]
        assert result["variant"] == variant
    path.write_text("nonsense\n")
    done = run("bench", *MATMUL, TSR_TUNING_FILE=str(path), TSR_LOG="plan")
    assert f"{path} is not used: line 1 is not understood" in done.stderr


def test_dry_run_and_clear(tmp_path):
    path = tmp_path / "tuning"
    table = run("tune", *MATMUL, "--dry-run", "--output", path).stdout.splitlines()
    assert table[0].startswith("| operation | shape | dtype | candidate |") and not path.exists()
    assert sum("built-in" in line for line in table[2:]) == 1
    path.write_text("tessera-tuning 1\n")
    run("tune", "--clear", "--output", path)
    assert not path.exists()
    path.write_text("notes\n")
    assert "is no tuning file" in run("tune", "--clear", "--output", path, code=4).stderr
    assert path.read_text() == "notes\n"


def test_the_file_in_use_does_not_choose_for_tune(tmp_path):
    path = tmp_path / "tuning"
    first = json.loads(run("tune", *MATMUL, "--dry-run", "--format", "json").stdout)
    path.write_text(f"tessera-tuning 1\n{first['rows'][0]['key']} packed\n")
    again = json.loads(run("tune", *MATMUL, "--dry-run", "--format", "json", TSR_TUNING_FILE=str(path)).stdout)
    assert again["results"][0]["candidate"] == first["results"][0]["candidate"] != "packed"


@pytest.mark.parametrize("arguments, word, code", [
    (["nothing"], "'nothing'", 2), ([*MATMUL, "--no-verify"], "--no-verify", 2),
    (["cast", "--rows", "2", "--cols", "2", "--dry-run", "--rep", "1"], "nothing to choose", 4),
    (["softmax", "--rows", "2", "--cols", "2", "--dry-run", "--rep", "1"], "nothing to choose", 4),
], ids=str)
def test_what_cannot_be_tuned_is_said(arguments, word, code, tmp_path):
    assert word in run("tune", *arguments, code=code, TSR_TUNING_FILE=str(tmp_path / "tuning")).stderr
