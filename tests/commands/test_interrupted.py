# SPDX-License-Identifier: Apache-2.0
"""SIGINT, SIGTERM, SIGHUP: a command that has worked for a while writes its results so far, and earlier files stay intact."""
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import numpy as np
import pytest

from apply_support import write

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

ROWS = ["--rows", "64:16384:+64", "--cols", "512"]
NUM_ROWS = 256
EARLIER = "tessera-tuning 1\n# an earlier file\n"
# Each with a budget per case, times a factor.
COMMANDS = {
    "bench": lambda factor: ["bench", "cast", *ROWS, "--format", "json", "--budget", str(0.3 * factor)],
    "memory": lambda factor: ["memory", "softmax", *ROWS, "--pass", "forward", "--format", "json", "--rep",
                              str(20 * factor)],
    "scale": lambda factor: ["scale", "softmax", "--pass", "forward", "--rows", "64:512:+64", "--cols", "512", "--over",
                             "batch", "--format", "json", "--budget", str(0.5 * factor)],
    "tune": lambda factor: ["tune", "matmul", "--m", "64:16384:+64", "--n", "64", "--k", "64", "--pass", "forward", "--format", "json", "--budget",
                            str(0.1 * factor)],
    "compare": lambda factor: ["compare", "softmax", *ROWS, "--pass", "forward", "--all", "--limit", "2", "--budget",
                               str(0.05 * factor)],
}


def by_default(*ignored):
    """Default signal handling, which a background job or one under nohup would not have."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN if name in ignored else signal.SIG_DFL)


@contextlib.contextmanager
def at_work(arguments, folder, **how):
    """The command after its first case: the first line of progress comes between two cases."""
    environment = {**os.environ, "TSR_TUNING_FILE": str(folder / "tuning")}
    with subprocess.Popen([TESSERA, *arguments], stderr=subprocess.PIPE, text=True, env=environment,
                          preexec_fn=by_default, **how) as process:
        try:
            assert any(line.startswith(f"{arguments[0]}: ") for line in process.stderr)
            yield process
        finally:
            process.kill()


def count_results(command, path):
    if command != "compare":
        results = json.loads(path.read_text())["results"]
        if command != "scale":
            assert len({json.dumps(result["params"]) for result in results}) < NUM_ROWS
        return len(results)
    text = path.read_text()
    done, cases = map(int, re.search(r"\ninterrupted after (\d+) of (\d+) cases", text).groups())
    assert 1 <= done < cases
    return text.count("| softmax_forward |") + text.count("| matmul_forward |")


@pytest.mark.parametrize("name, command", [*((signal.SIGINT, c) for c in COMMANDS), (signal.SIGTERM, "bench"),
                                           (signal.SIGHUP, "bench")])
def test_what_was_measured_is_written(tmp_path, name, command):
    path = tmp_path / "out"
    for file in (path, tmp_path / "tuning"):
        file.write_text(EARLIER)
    with at_work([*COMMANDS[command](1), "--out", str(path)], tmp_path) as process:
        process.send_signal(name)
        _, error = process.communicate(timeout=100)
    assert process.returncode == -name
    assert count_results(command, path) >= 1
    assert {p.name for p in tmp_path.iterdir()} == {"out", "tuning"}
    assert (tmp_path / "tuning").read_text().startswith(EARLIER)
    if command == "tune":
        assert re.search(r"\d+ of [1-9]\d* choices differ from the built-in ones", error)


@pytest.mark.parametrize("command", ["bench", "scale", "tune"])  # their cases take exactly their budget
def test_a_second_signal_of_another_kind_ends_at_once(tmp_path, command):
    for name in ("out", "tuning"):
        (tmp_path / name).write_text(EARLIER)
    with at_work([*COMMANDS[command](10), "--out", str(tmp_path / "out")], tmp_path) as process:
        process.send_signal(signal.SIGINT)
        pending = pathlib.Path(f"/proc/{process.pid}/status")
        while int(re.search(r"ShdPnd:\s*(\w+)", pending.read_text())[1], 16) != 0:
            time.sleep(0.01)  # until it has handled the first
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"out": EARLIER, "tuning": EARLIER}


def test_what_is_ignored_stays_ignored(tmp_path):
    path = tmp_path / "out"
    arguments = [*COMMANDS["bench"](1)[:2], "--rows", "64:1024:+64", "--cols", "512", "--format", "json", "--budget", "0.3"]
    with subprocess.Popen([TESSERA, *arguments, "--out", str(path)], stderr=subprocess.PIPE, text=True,
                          preexec_fn=lambda: by_default(signal.SIGHUP)) as process:
        assert any(line.startswith("bench: ") for line in process.stderr)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=100)
    assert process.returncode == 0 and count_results("bench", path) == 16


@pytest.mark.parametrize("form", ["md", "json"])
def test_an_interrupted_verify_shows_what_was_proved(tmp_path, form):
    arguments = ["verify", "--op", "softmax_forward", "--configs", "1000000", "--edges", "none", "--format", form]
    with at_work(arguments, tmp_path, stdout=subprocess.PIPE) as process:
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGINT
    if form == "json":
        document = json.loads(out)
        assert document["verify"]["interrupted"] is True and document["verify"]["failed"] == 0
        assert 0 < document["verify"]["configs"] < 1000000 and document["results"]
    else:
        assert "| softmax_forward | reference | f32 |" in out
        assert out.endswith(" 0 failed\nINTERRUPTED: the rest was not run\n")


def test_an_interrupted_verify_does_not_say_what_is_unsupported(tmp_path):
    """A variant that served none of the cases so far might serve the rest."""
    arguments = ["verify", "--op", "matmul_forward", "--isa", "scalar", "--configs", "1000000", "--edges", "none"]
    with at_work(arguments, tmp_path, stdout=subprocess.PIPE) as process:
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGINT
    verdicts = {(variant, configs == "0", verdict) for variant, configs, verdict
                in re.findall(r"\| matmul_forward \| (\S+) \| \w+ \| scalar \| (\d+) \|.* \| (.*) \|\n", out)}
    assert ("reference", False, "PASS") in verdicts
    assert ("amx_bf16", True, "was not run") in verdicts  # does not serve scalar code
    assert {(is_none, verdict) for _, is_none, verdict in verdicts} == {(False, "PASS"), (True, "was not run")}


def write_cases(folder):
    subprocess.run([TESSERA, "conformance", "write", "softmax", "--configs", "20", "--output", str(folder)], check=True,
                   capture_output=True)


@pytest.mark.parametrize("to_group", [False, True], ids=["to tessera", "as Ctrl-C does"])
def test_an_interrupted_conformance_check_counts_answers_alone(tmp_path, to_group):
    write_cases(tmp_path / "cases")
    gate = tmp_path / "gate"
    for turn in ("1", "2"):
        (gate / turn).mkdir(parents=True)  # the third case waits
    command = (f"echo answering >&2; until rmdir {gate}/1 2>/dev/null || rmdir {gate}/2 2>/dev/null; do sleep 0.05; done; "
               f"{TESSERA} apply {{op}} --input {{input}} --output {{output}} {{options}}")
    with subprocess.Popen([TESSERA, "conformance", "check", str(tmp_path / "cases"), "--command", command],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                          env={**os.environ, "TMPDIR": str(tmp_path)}, preexec_fn=by_default) as process:
        num_begun = 0
        while num_begun < 3:
            line = process.stderr.readline()
            assert line != ""
            num_begun += line == "answering\n"
        if to_group:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGTERM)  # system() ignores SIGINT while the command runs
            (gate / "1").mkdir()
        try:
            out, error = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == -(signal.SIGINT if to_group else signal.SIGTERM), out + error
    done = re.search(r"(\d+) edge cases and (\d+) random configurations .* 0 failed\nINTERRUPTED", out)
    assert sum(map(int, done.groups())) == (2 if to_group else 3)
    assert {path.name for path in tmp_path.iterdir()} == {"cases", "gate"}  # the answers' folder is removed


def test_an_interrupted_conformance_write_leaves_whole_cases(tmp_path):
    folder = tmp_path / "cases"
    with subprocess.Popen([TESSERA, "conformance", "write", "softmax", "--configs", "1000000", "--output", str(folder)],
                          stdout=subprocess.PIPE, text=True,
                          preexec_fn=by_default) as process:
        while not folder.exists() or not any(folder.iterdir()):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGINT
    calls = sorted(folder.glob("*.json"))
    assert out.startswith(f"{len(calls)} cases in ")
    assert [call.with_suffix(".safetensors") for call in calls] == sorted(folder.glob("*.safetensors"))
    assert all(json.loads(call.read_text())["schema"] == 1 for call in calls)


# ---- While a file is written -----------------------------------------------------------------------------------------

NUM_SIGNALS = int(os.environ.get("TESSERA_SIGNALS", "24"))
OLD = b"an earlier file"


def interrupt(call, took, draw, **how):
    """Sends a signal during the last two thirds of the run, or just too late. Returns the exit code."""
    name = draw.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    with subprocess.Popen([TESSERA, *map(str, call)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=by_default,
                          **how) as process:
        time.sleep(took * draw.uniform(0.3, 1.1))
        process.send_signal(name)
        try:
            error = process.communicate(timeout=100)[1]
        finally:
            process.kill()
    assert process.returncode in (0, -name), error
    return process.returncode


def test_an_interrupted_apply_leaves_the_earlier_file_or_the_whole_one(tmp_path):
    seed = int(os.environ.get("TESSERA_TEST_SEED", random.randrange(10**6)))
    draw = random.Random(seed)
    print(f"seed {seed}")
    write(tmp_path / "in", {"x": np.random.default_rng(seed).standard_normal((2000, 2000)).astype(np.float32)})
    call = ["apply", "softmax", "-i", tmp_path / "in", "-o", tmp_path / "out"]
    start = time.monotonic()
    subprocess.run([TESSERA, *map(str, call)], check=True, timeout=100)
    took, whole = time.monotonic() - start, (tmp_path / "out").read_bytes()
    ended = 0
    for _ in range(NUM_SIGNALS):
        (tmp_path / "out").write_bytes(OLD)
        code = interrupt(call, took, draw)
        ended += code != 0
        there = (tmp_path / "out").read_bytes()
        assert there in (OLD, whole) and (code != 0 or there == whole)
        assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}
    assert ended > 0


@pytest.mark.parametrize("second", [False, True], ids=["once", "twice"])
def test_an_interrupted_check_leaves_nothing(tmp_path, second):
    """The temporary folder is removed even if a second signal ends the command at once."""
    write_cases(tmp_path / "cases")
    (tmp_path / "tmp").mkdir()
    command = [TESSERA, "conformance", "check", str(tmp_path / "cases"), "--command", "touch {output}.more; echo answering; sleep 0.2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
                          env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, preexec_fn=by_default) as process:
        assert any("answering" in line for line in process.stderr)
        assert list((tmp_path / "tmp").iterdir())
        for _ in range(1 + second):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        process.communicate(timeout=100)
    assert process.returncode == -signal.SIGTERM
    assert not list((tmp_path / "tmp").iterdir())


def test_a_closed_pipe_leaves_nothing(tmp_path):
    write_cases(tmp_path / "cases")
    (tmp_path / "tmp").mkdir()
    command = [TESSERA, "conformance", "check", str(tmp_path / "cases"), "--command", "yes | head -c 1000000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}) as process:
        process.stderr.read(1000)
        process.stderr.close()
        process.wait(timeout=100)
    assert not list((tmp_path / "tmp").iterdir())
