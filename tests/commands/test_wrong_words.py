# SPDX-License-Identifier: Apache-2.0
"""Wrong command lines of every command: one sentence on stderr, nothing on stdout, the exit code, and no measurement."""
import os
import signal
import subprocess

import pytest

from sqlite_support import skip_without_sqlite

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

SMALL = ["--rows", "4", "--cols", "4", "--budget", "0.005"]
WRONG = [
    (["nonsense"], 2, "there is no command 'nonsense', expected one of info, verify,"),
    (["bench"], 2, "no operation given, expected one of activation, adamw,"),
    (["bench", "sofmax"], 2, "there is no operation 'sofmax', expected one of activation, adamw,"),
    (["bench", "softmax", "--dtype", "f64"], 2, "--dtype is 'f64', expected f32, bf16 or f16"),
    (["bench", "softmax", "--rows", "-5"], 2, "--rows is -5, expected a whole number, 0 or more"),
    (["bench", "softmax", "--rows", "1e30"], 2, "--rows is 1e+30, expected a whole number"),
    (["bench", "softmax", "--rows", ""], 2, "--rows: '' is not a number"),
    (["bench", "softmax", "--rows", "256:1:x2"], 2, "the sweep is empty"),
    (["bench", "softmax", "--rows", "1:100:x1"], 2, "never ends"),
    (["bench", "softmax", "--rows"], 2, "--rows needs a value"),
    (["bench", "softmax", "--variant", ""], 2, "--variant is '', expected at most"),
    (["memory", "softmax", "--variant", "fused,,online"], 2, "--variant is 'fused,,online', expected at most"),
    (["bench", "softmax", "--peer", "nope"], 2, "there is no peer 'nope'"),
    (["bench", "softmax", "--threads", "0"], 2, "--threads is 0, expected 1 to 4096"),
    (["bench", "softmax", "--device", "gpu"], 2, "--device is 'gpu', expected cpu, cuda or cuda:N"),
    (["bench", "softmax", "--head-dim", "4"], 2, "there is no option --head-dim"),
    (["bench", "cast", "--pass", "backward"], 2, "cast has no backward pass"),
    (["bench", "softmax_forward", "--pass", "backward"], 2, "softmax_forward has no backward pass"),
    (["bench", "attention", "--embed-dim", "100", "--num-heads", "7"], 2, "no multiple of num_heads 7"),
    (["verify", "--op", "nope"], 2, "there is no operation 'nope' for cpu"),
    (["verify", "--cases", "m=5"], 2, "--cases needs --op, whose cases they are"),
    (["verify", "--op", "softmax", "--configs", "0", "--edges", "none"], 2, "there are no cases: --configs, --edges"),
    (["verify", "--op", "softmax", "--configs", "0", "--edges", "none", "--cases", ""], 2, "there are no cases: --configs"),
    (["compare", "none.json"], 2, "1 file given, expected two"),
    (["compare", "a.json", "b.json", "c.json"], 2, "3 files given, expected two"),
    (["compare", "none.json", "none.json"], 4, "cannot read 'none.json': No such file"),
    (["history"], 2, "expected add, list, show, check or remove"),
    (["history", "list", "--file", "none"], 4, "'none' does not exist yet, 'tessera history add' makes it"),
    (["memory", "softmax", "--out", "none/file"], 2, "--out is 'none/file', which cannot be written: No such file"),
    (["profile"], 2, "no operation and no workload given"),
    (["profile", "softmax", "--output", "none/file"], 2, "which cannot be written"),
    (["profile", "softmax", "--rows", "99999999", "--cols", "99999999"], 4, "softmax_forward: the tensors need 80.0 PB"),
    (["scale", "softmax", "--times", "0"], 2, "--times has 0, expected whole numbers from 1"),
    (["tune", "softmax", "--output", "text", *SMALL], 4, "'text' is no tuning file"),
    (["tune", "softmax", "--output", "folder", *SMALL], 4, "'folder' is no tuning file"),
    (["apply"], 2, "expected one operation, got 0"),
    (["tune", "softmax", "--output", "text/tuning", *SMALL], 4, "'text/tuning' cannot be changed: Not a directory"),
    (["apply", "softmax", "--input", "", "--output", "o"], 2, "--input is empty, expected the name of a file"),
    (["apply", "softmax", "--input", "text", "--output", ""], 2, "--output is empty, expected the name of a file"),
    (["apply", "softmax", "--input", "none", "--output", "o"], 4, "none"),
    (["apply", "softmax", "--input", "text", "--output", "o"], 2, "text: has 2 bytes"),
    (["conformance"], 2, "expected write or check"),
    (["conformance", "check", "folder", "--results", "folder"], 2, "no cases"),
    (["conformance", "write", "softmax", "--output", ""], 2, "--output is empty, expected a folder"),
    (["conformance", "write", "softmax", "--output", "text"], 4, "cannot write text: Not a directory"),
    (["conformance", "check", "folder", "--results", "none"], 4, "cannot open the folder 'none': No such file"),
    (["conformance", "check", "folder", "--results", "text"], 4, "cannot open the folder 'text': Not a directory"),
    (["conformance", "check", "folder", "--results", ""], 4, "cannot open the folder '': No such file"),
    (["conformance", "check", "folder", "--command", " "], 2, "--command is empty, expected a command"),
    (["kernels", "pack", "--out", "folder"], 2, "--out is 'folder', which cannot be written: Is a directory"),
    (["kernels", "pack", "--out", "none/pack"], 2, "--out is 'none/pack', which cannot be written: No such file"),
    (["kernels", "frob"], 2, "expected one of check, pack, list and clear"),
    (["report", "--save-dir", ""], 2, "--save-dir is empty, expected a folder"),
    (["report", "--save-dir", "text"], 4, "cannot make the folder text: Not a directory"),
    (["report", "--embed-dim", "100", "--num-heads", "3"], 2, "makes no head-dim"),
    (["manual", "--output", ""], 2, "--output is empty, expected a folder"),
    (["manual", "nope"], 2, "there is no command 'nope'"),
    (["completion", "ksh"], 2, "expected bash or zsh"),
    (["info", "extra"], 2, "unexpected 'extra'"),
]


@pytest.mark.parametrize("arguments, code, words", WRONG, ids=[" ".join(row[0]) for row in WRONG])
def test_a_wrong_command_line(arguments, code, words, tmp_path):
    (tmp_path / "text").write_text("x\n")
    (tmp_path / "folder").mkdir()
    done = subprocess.run([TESSERA, *arguments], capture_output=True, text=True, timeout=20, check=False, cwd=tmp_path)
    skip_without_sqlite(arguments[0], done.stderr)
    assert done.returncode == code and done.stdout == "", done.stderr
    assert done.stderr.startswith("tessera") and done.stderr.count("\n") == 1
    assert words in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "text"]


@pytest.mark.parametrize("arguments", [
    ["bench", "cast", *SMALL], ["memory", "cast", *SMALL[:4]], ["scale", "cast", "--over", "batch", "--times", "1", *SMALL],
    ["compare", "softmax", *SMALL, "--pass", "forward", "--limit", "0.1"],
], ids=lambda arguments: arguments[0])
def test_a_full_disk_behind_out(arguments):
    done = subprocess.run([TESSERA, *arguments, "--out", "/dev/full"], capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 4 and done.stdout == ""
    assert "tessera: cannot write '/dev/full': No space left on device\n" in done.stderr


def test_a_closed_pipe_loses_no_file(tmp_path):
    for arguments, name in ((["profile", "softmax", *SMALL[:4], "--no-measure"], "trace"),
                            (["tune", "matmul", "--m", "8", "--n", "8", "--k", "8", "--pass", "forward", *SMALL[4:]], "tuning")):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([TESSERA, *arguments, "--output", str(tmp_path / name)], stdout=writer, stderr=subprocess.PIPE,
                              text=True, timeout=120, check=False)
        os.close(writer)
        assert done.returncode == -signal.SIGPIPE and (tmp_path / name).stat().st_size > 0, done.stderr


def test_a_closed_pipe_ends_quietly():
    line = f"{TESSERA} bench --help | true; {TESSERA} completion bash | head -1 > /dev/null"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stderr == ""
