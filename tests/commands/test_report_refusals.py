# SPDX-License-Identifier: Apache-2.0
"""tessera report when something fails: it reports the failure, and the previous report stays unchanged."""
import os
import pathlib
import re
import resource
import signal
import subprocess
import time

import pytest

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

MINIMAL = ["report", "--quick", "--rep", "1", "--warmup", "1", "--dtype", "f32"]
ENTRIES = ["plots", "report.html", "results.json", "results.md"]


@pytest.fixture
def folder(tmp_path):
    """A folder that looks like a report."""
    place = tmp_path / "out"
    (place / "plots").mkdir(parents=True)
    for name in (*ENTRIES[1:], "plots/softmax.gp"):
        (place / name).write_text(f"the previous {name}")
    return place


def contents(place):
    """Every file below a folder, with its bytes."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_the_previous_report(folder, name):
    before = contents(folder)
    run = subprocess.Popen(
        [TESSERA, *MINIMAL, "--save-dir", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(name, signal.SIG_DFL), # a job in the background comes without SIGINT
    )
    time.sleep(1)
    run.send_signal(name)
    assert run.wait(timeout=300) != 0
    assert contents(folder) == before
    assert sorted(p.name for p in folder.iterdir()) == ENTRIES


def test_full_disk_leaves_the_previous_report_and_says_so(folder):
    before = contents(folder)
    # No file may grow beyond 32 KiB, but the page does.
    run = subprocess.run(
        [TESSERA, *MINIMAL, "--seconds", "1", "--isa", "scalar", "--save-dir", str(folder)],
        capture_output=True, text=True, timeout=900,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (32768, 32768)),
    )
    assert run.returncode == 4, run.stderr
    assert "cannot write" in run.stderr
    assert contents(folder) == before


def cpu_seconds():
    """CPU time of ended child processes, which does not depend on other load."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("arguments, words", [
    (["--embed-dim", "97", "--num-heads", "3"], ["--embed-dim 97", "--num-heads 3"]),
    (["--embed-dim", "97"], ["--embed-dim 97", "--head-dim 64"]),
    (["--embed-dim", "1024", "--num-heads", "2"], ["--embed-dim 1024", "1 to 256"]),
    (["--embed-dim", "96", "--num-heads", "3", "--head-dim", "32"], ["--embed-dim", "--head-dim"]),
    (["--max-seq-len", "0"], ["--max-seq-len"]),
])
def test_sweeps_that_cannot_be_are_refused(tmp_path, arguments, words):
    run = subprocess.run([TESSERA, *MINIMAL, *arguments, "--save-dir", str(tmp_path / "out")],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 2 and all(word in run.stderr for word in words), run.stderr
    assert not (tmp_path / "out").exists()


def test_sweeps_of_the_sizes_asked_for(tmp_path):
    run = subprocess.run(
        [TESSERA, *MINIMAL, "--seconds", "60", "--max-seq-len", "300", "--embed-dim", "96", "--num-heads", "3",
         "--batch-size", "2", "--no-plots", "--save-dir", str(tmp_path)],
        capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    page = (tmp_path / "results.md").read_text()
    assert re.search(r"\bnan\b", page) is None  # if the time is up, missing values are not printed as NaN
    if "The time limit ended the measuring" in page and "## Attention by sequence length" not in page:
        pytest.skip("too busy a machine to come to the sweeps in this time")
    table = page.split("## Attention by sequence length")[1].split("\n## ")[0]
    rows = [line.split(" | ")[:2] for line in table.splitlines() if line.startswith("| ")][2:]
    assert rows == [["| 256", "2 × 3"], ["| 300", "2 × 3"]]
    assert "head\\_dim 32" in table


def test_folder_that_cannot_be_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    used = cpu_seconds()
    run = subprocess.run(
        [TESSERA, *MINIMAL, "--save-dir", str(tmp_path / "file" / "report")],
        capture_output=True, text=True, timeout=300,
    )
    assert run.returncode == 4
    assert "file" in run.stderr
    assert cpu_seconds() - used < 5  # it would be a minute if it measured first
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("arguments", [
    ["--theme", "pink"], ["--dtype", "f8"], ["--rep", "0"], ["--threads", "-1"], ["--no-such"],
    ["--quick", "--full"], ["stray"],
])
def test_wrong_options_are_usage_errors(arguments, tmp_path):
    run = subprocess.run(
        [TESSERA, "report", *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert run.returncode == 2
    assert run.stderr.startswith("tessera report: ")
    assert list(tmp_path.iterdir()) == []


def test_help():
    run = subprocess.run([TESSERA, "report", "--help"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0
    for option in ("--quick", "--full", "--save-dir", "--theme", "--no-plots", "--dtype", "--isa",
                   "--threads", "--rep", "--warmup", "--non-causal"):
        assert option in run.stdout
