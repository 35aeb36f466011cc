# SPDX-License-Identifier: Apache-2.0
"""tessera compare A B and tessera history: what counts as slower, as noise and as wrong, and what is refused. Results are
written by hand, except one run of bench. The binary is $TESSERA."""
import json
import os
import resource
import sqlite3
import subprocess

import pytest

from sqlite_support import SENTENCE, skip_without_sqlite

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")


def run(*arguments, code, cwd=None, **environment):
    done = subprocess.run([TESSERA, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False,
                          cwd=cwd, env={**os.environ, **environment})
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout if code in (0, 1) else done.stderr


def result(cols=64, ms=1.0, spread=0.01, **more):
    return {"op": "softmax_forward", "params": {"rows": 8, "cols": cols}, "dtype": "f32", "device": "cpu", "isa": "avx2",
            "threads": 2, "variant": "fused", "peer": None, "median_ms": ms, "p20_ms": ms * (1 - spread),
            "p80_ms": ms * (1 + spread), "graph_ms": None, "err_over_bound": 0.5, "cache": "warm", "throttled": False,
            **more}


SAYS_SO = f"printf \"tessera history: '$4' cannot be opened%s\" '{SENTENCE}' >&2; exit"


@pytest.mark.parametrize("script, command, error, is_skipped", [
    (f"{SAYS_SO} 4", "history", SENTENCE, True),
    (f"{SAYS_SO} 4", "bench", SENTENCE, False),
    (f"{SAYS_SO} 4", "history", "Segmentation fault\n", False),
    (f"{SAYS_SO} 139", "history", SENTENCE, False),
    ("echo tessera history: no file 'built without SQLite' >&2; exit 4", "history", SENTENCE, False),
], ids=["said", "another command", "another error", "another exit code", "another sentence"])
def test_only_a_tool_without_sqlite_is_let_off(script, command, error, is_skipped, tmp_path, monkeypatch):
    binary = tmp_path / "tessera"
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o700)
    monkeypatch.setenv("TESSERA", str(binary))
    try:
        skip_without_sqlite(command, error)
        assert not is_skipped
    except pytest.skip.Exception:
        assert is_skipped


@pytest.fixture(name="write")
def fixture_write(tmp_path):
    def write(name, *results, cpu="a cpu", date="2026-01-01T00:00:00Z"):
        path = tmp_path / name
        env = {"cpu": cpu, "gpu": None, "date": date, "version": "0.1.0", "command": "tessera bench"}
        path.write_text(json.dumps({"schema": 1, "env": env, "results": list(results)}))
        return path
    return write


def verdicts(text):
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| softmax")]
    return {row[0].split("cols=")[1].split()[0]: row[-1].removesuffix(" |") for row in rows}


# ---- compare A B ---------------------------------------------------------------------------------

@pytest.mark.parametrize("now, verdict, code", [
    (result(), "same", 0),
    (result(ms=1.04), "same", 0),
    (result(ms=1.2), "slower", 1),
    (result(ms=0.5), "faster", 0),
    (result(ms=1.2, spread=0.3), "noise", 0),
    (result(ms=1.2, throttled=True), "noise", 0),
    (result(ms=0.5, spread=2), "noise", 0),
    (result(err_over_bound=1.5), "WRONG, err/bound 1.5", 1),
    (result(err_over_bound=None), "WRONG", 1),
    (result(median_ms=None, p20_ms=None, p80_ms=None), "WRONG", 1),
    (result(graph_ms=1.0), "same", 0),
    (result(ms=1.0, graph_ms=2.0), "slower", 1),
])
def test_what_a_change_counts_as(write, now, verdict, code):
    text = run("compare", write("a.json", result()), write("b.json", now), "--all", code=code)
    assert verdicts(text) == {"64": verdict}
    assert f"1 cases in both: {int('slower' in verdict)} slower, {int('WRONG' in verdict)} wrong," in text


def test_only_what_differs_is_shown_and_the_limit_is_an_option(write):
    old, new = write("a.json", result(), result(128)), write("b.json", result(), result(128, 1.2))
    assert verdicts(run("compare", old, new, code=1)) == {"128": "slower"}
    text = run("compare", "--slower", "1.3", old, new, code=0)
    assert verdicts(text) == {} and "geometric mean of now / before is 1.095; 0 only before, 0 only now." in text


def test_rows_meet_by_what_was_measured(write):
    peer = result(peer="torch", ms=9)
    old = write("a.json", result(), result(128), peer, result(256, variant="unfused"), result(256))
    new = write("b.json", result(variant="online"), result(512), result(256, 2.0), result(256, variant="unfused"))
    text = run("compare", old, new, "--all", code=1)
    assert "| softmax_forward rows=8 cols=64 f32, 2 threads | fused -> online | 1 | 1 | 1.000 | same |" in text
    assert "cols=256 f32, 2 threads | fused | 1 | 2 | 2.000 | slower" in text
    assert "3 cases in both: 1 slower," in text and "1 only before, 1 only now." in text


def test_a_wrong_case_that_is_new_counts(write):
    text = run("compare", write("a.json", result()), write("b.json", result(), result(128, err_over_bound=3)), code=1)
    assert verdicts(text) == {"128": "WRONG, err/bound 3"} and "| - | 1 | - | WRONG" in text
    assert "1 cases in both: 0 slower, 0 wrong, 0 faster, 1 same," in text
    assert "0 only before, 1 only now, 1 of them wrong." in text
    text = run("compare", write("c.json", result(512)), write("d.json", result(128, err_over_bound=3)), code=1)
    assert "0 cases in both" in text and "1 only before, 1 only now, 1 of them wrong." in text


def test_what_cannot_be_compared(write, tmp_path):
    old = write("a.json", result())
    assert "no case in common" in run("compare", old, write("b.json", result(128)), code=3)
    assert "different machines, a cpu and b cpu" in run("compare", old, write("b.json", result(), cpu="b cpu"), code=3)
    assert "expected two" in run("compare", old, code=2)
    assert "No such file" in run("compare", old, tmp_path / "none.json", code=4)
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "other.json").write_text('{"schema": 2, "results": []}')
    (tmp_path / "list.json").write_text('{"schema": 1, "results": 3}')
    for name in ("text", "other", "list"):
        assert "is no results.json" in run("compare", old, tmp_path / f"{name}.json", code=2)
    assert "compare A B" in run("compare", "softmax", "--slower", "1.1", code=2)
    assert "--device" in run("compare", "softmax", "--device", "cpu", code=2)
    assert "--device" not in run("compare", "--help", code=0)
    text = run("compare", old, old, "--help", code=0)
    assert all(len(line.split()) > 4 for line in text.splitlines() if line.strip().startswith("--")), text


def test_folders_and_out(write, tmp_path):
    (tmp_path / "é").mkdir()
    write("é/results.json", result())
    text = tmp_path / "table.md"
    assert run("compare", tmp_path / "é", write("b.json", result(ms=2)), "--out", text, code=1) == ""
    assert verdicts(text.read_text()) == {"64": "slower"}
    assert "cannot write" in run("compare", tmp_path / "é", tmp_path / "é", "--out", tmp_path, code=4)


def test_out_is_touched_when_both_runs_are_judged(write, tmp_path):
    now = write("b.json", result(ms=2))
    before = now.read_text()
    assert "No such file" in run("compare", tmp_path / "none.json", now, "--out", now, code=4)
    assert "no case in common" in run("compare", write("a.json", result(128)), now, "--out", now, code=3)
    assert now.read_text() == before
    run("compare", write("a.json", result()), now, "--out", now, code=1)
    assert verdicts(now.read_text()) == {"64": "slower"}


def test_the_name_of_an_operation_is_no_folder(write, tmp_path):
    (tmp_path / "softmax").mkdir()
    write("softmax/results.json", result())
    assert "there is no operation" in run("compare", "softmax", "softmax/results.json", code=2, cwd=tmp_path)
    assert "1 same" in run("compare", "./softmax", "softmax", code=0, cwd=tmp_path)


def test_a_pipe_in_a_folder_is_not_waited_for(write, tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "results.json")
    assert "it is no regular file" in run("compare", tmp_path / "folder", write("b.json", result()), code=2)


def test_as_many_rows_as_a_file_may_have(tmp_path):
    """Two lists of 150,000 results that match in opposite order: comparing all pairs took minutes."""
    paths = tmp_path / "a.json", tmp_path / "b.json"
    for path, step in zip(paths, (1, -1)):
        rows = ",".join(f'{{"op":"{cols:x}","median_ms":1,"variant":"{step * (cols % 2)}"}}'
                        for cols in range(150000)[::step])
        path.write_text(f'{{"schema":1,"results":[{rows}]}}')
    text = run("compare", *paths, code=0)
    assert "150000 cases in both: 0 slower, 0 wrong, 0 faster, 150000 same, 0 within noise" in text


# ---- history -------------------------------------------------------------------------------------

@pytest.fixture(name="history")
def fixture_history(tmp_path):
    skip_without_sqlite("history")

    def history(*arguments, code=0):
        return run("history", *arguments, code=code, TESSERA_HISTORY=str(tmp_path / "h.sqlite"))
    return history


def test_runs_are_kept_once(history, write, tmp_path):
    first, second = write("a.json", result()), write("b.json", result(ms=3))
    assert history("add", first, second, first).splitlines() == [
        "run 1: 1 cases, 2026-01-01T00:00:00Z", "run 2: 1 cases, 2026-01-01T00:00:00Z",
        "run 1 (there already): 1 cases, 2026-01-01T00:00:00Z"]
    assert history("list").count("| a cpu | 0.1.0 | 1 | tessera bench |") == 2
    assert "| fused | 2 | 3 | 2.97 | 3.03 |" in history("show", "cols=64")
    assert "no run has a case with this text" in history("show", "cols=65", code=2)
    history("remove", "1")
    assert "there is no run 1" in history("remove", "1", code=2)
    with sqlite3.connect(tmp_path / "h.sqlite") as file:
        assert file.execute("SELECT run, ms FROM results").fetchall() == [(2, 3.0)]


def test_check_takes_the_spread_of_earlier_runs_for_noise(history, write):
    for index, ms in enumerate((1.0, 1.1, 1.3, 9.0)):
        history("add", write(f"{index}.json", result(ms=ms), cpu="b cpu" if ms == 9 else "a cpu"))
    history("add", write("noise.json", result(ms=1.31)))
    text = history("check", "--all")
    assert verdicts(text) == {"64": "noise"} and "compared with 3 before it" in text and "| 1.1 | 1.31 |" in text
    history("add", write("slow.json", result(ms=1.5)))
    assert verdicts(history("check", code=1)) == {"64": "slower"}
    assert verdicts(history("check", "5", "--all")) == {"64": "noise"}
    assert "| 1.31 | 1.5 |" in history("check", "--last", "1", code=1)
    assert "no earlier run" in history("check", "1", code=3)
    assert "no earlier run" in history("check", "4", code=3)
    assert "no run 99" in history("check", "99", code=2)


def test_history_refuses_what_is_not_its_own(history, write, tmp_path):
    assert "h.sqlite' does not exist yet, 'tessera history add' makes it" in history("list", code=4)
    assert not (tmp_path / "h.sqlite").exists()
    (tmp_path / "text").write_text("a text that is no database " * 50)
    assert "not a database" in history("list", "--file", tmp_path / "text", code=4)
    with sqlite3.connect(tmp_path / "other") as file:
        file.execute("CREATE TABLE t (x)")
    assert "is no history" in history("add", write("a.json", result()), "--file", tmp_path / "other", code=4)
    assert "No such file" in history("add", tmp_path / "none.json", code=4)
    assert "there is no run yet" in history("check", code=2)
    for words in (["add"], ["forget"], [], ["list", "3"], ["check", "x"]):
        assert "tessera history: " in history(*words, code=2)


def test_a_case_is_held_beside_runs_that_have_it_whatever_variant_they_chose(history, write):
    for index, now in enumerate((result(variant="a"), result(variant="a", ms=1.02), result(128), result(128),
                                 result(variant="b", ms=2))):
        history("add", write(f"{index}.json", now, date=f"2026-01-0{index + 1}T00:00:00Z"))
    text = history("check", "--last", "2", code=1)
    assert verdicts(text) == {"64": "slower"} and "| a -> b | 1.01 | 2 |" in text
    assert "compared with 2 before it" in text and "1 only before, 0 only now." in text
    history("add", write("both.json", result(variant="a", ms=1.2), result(variant="b", ms=2)))
    text = history("check", "--all", code=1)
    assert "| a | 1.01 | 1.2 |" in text and "| b | 2 | 2 |" in text and "compared with 3 before it" in text
    history("add", write("lost.json", result(variant="a", err_over_bound=None)))
    assert verdicts(history("check", code=1)) == {"64": "WRONG"}


def test_a_damaged_history_is_no_empty_one(history, write, tmp_path):
    for index in range(3):
        history("add", write(f"{index}.json", *(result(cols, ms=index + 1) for cols in range(1, 200))))
    path = tmp_path / "h.sqlite"
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    for words in (["list"], ["show"], ["show", "cols=3"], ["check"], ["check", "2"], ["remove", "2"],
                  ["add", write("more.json", result())]):
        assert "is damaged" in history(*words, code=4)


def test_a_locked_history_has_its_runs(history, write, tmp_path):
    history("add", write("a.json", result()))
    file = sqlite3.connect(tmp_path / "h.sqlite", isolation_level=None)
    file.execute("BEGIN IMMEDIATE")
    assert "is locked" in history("remove", "1", code=4)
    assert "| a cpu |" in history("list")
    file.close()
    history("remove", "1")


def test_words_of_files_cannot_move_the_cursor_or_the_columns(history, write):
    odd = write("a.json", result(variant="a|b\x1b[2J\n\u0085é"), cpu="a\x1b]0;cpu|")
    assert "| a/b?[2J???é |" in run("compare", odd, odd, "--all", code=0)
    history("add", odd)
    assert "| a?]0;cpu/ |" in history("list") and "| a/b?[2J???é |" in history("show")


def test_names_of_files_that_cannot_be(history, write):
    assert "--file is empty" in history("list", "--file", "", code=2)
    assert "name too long" in run("compare", write("a.json", result()), "x/" * 3000, code=4)


def test_the_file_is_made_where_users_data_lie(history, write, tmp_path):  # pylint: disable=unused-argument
    run("history", "add", write("a.json", result()), code=0, TESSERA_HISTORY="", XDG_DATA_HOME=str(tmp_path / "data"))
    assert (tmp_path / "data" / "tessera" / "history.sqlite").exists()
    assert (tmp_path / "data").stat().st_mode & 0o777 == (tmp_path / "data/tessera").stat().st_mode & 0o777 == 0o700


def test_what_bench_writes_can_be_compared_and_kept(history, tmp_path):
    path = tmp_path / "bench.json"
    run("bench", "softmax", "--rows", "4", "--cols", "8", "--rep", "3", "--threads", "1", "--out", path, code=0)
    assert "| fused |" in run("compare", path, path, "--all", code=0)
    assert "1 cases" in history("add", path)


def test_long_runs_are_checked_in_seconds(tmp_path, write):
    """60,000 rows: comparing all pairs would take minutes."""
    skip_without_sqlite("history")
    def cases(ms):
        return [result(cols // 2, ms * (1 + cols % 7), variant="fused" if cols % 2 else "online") for cols in range(60000)]

    runs = write("a.json", *cases(1)), write("b.json", *cases(1.2), date="2026-01-02T00:00:00Z")
    for arguments, code in ((["add", *runs], 0), (["check"], 1)):
        done = subprocess.run([TESSERA, "history", *map(str, arguments), "--file", str(tmp_path / "runs")], check=False,
                              capture_output=True, text=True,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (20, 20)))
        assert done.returncode == code, done.stderr
    assert "60000 cases in both: 60000 slower" in done.stdout
    assert done.stdout.count(" | 1.200 | slower |\n") == 60000
