# SPDX-License-Identifier: Apache-2.0
"""tessera history with files from somebody else, and with file names that SQLite interprets. The binary is $TESSERA."""
import json
import os
import sqlite3
import struct
import subprocess

import pytest

from sqlite_support import has_sqlite

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA or not has_sqlite(TESSERA), reason="no binary with a history")
PAGE = 512


def history(*words, cwd, code):
    done = subprocess.run([TESSERA, "history", *map(str, words)], capture_output=True, text=True, timeout=60, check=False, cwd=cwd)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def add(folder, file, count=1, runs=1):
    for number in range(runs):
        results = [{"op": "softmax_forward", "params": {"cols": cols}, "dtype": "f32", "variant": "fused", "peer": None,
                    "median_ms": 1.0, "p20_ms": 0.9, "p80_ms": 1.1, "err_over_bound": 0.5} for cols in range(count)]
        (folder / "run.json").write_text(json.dumps({"schema": 1, "env": {"cpu": "a", "date": str(number)}, "results": results}))
        history("add", "run.json", "--file", file, cwd=folder, code=0)


@pytest.mark.parametrize("name", [":memory:", "file:runs?mode=memory", "file:runs", "file::memory:?cache=shared", "x?vfs=none",
                                  "file:///etc/none", " ", "-runs", "%00"])
def test_a_name_is_the_name_of_a_file(tmp_path, name):
    (tmp_path / "file:" / "etc").mkdir(parents=True)
    add(tmp_path, name)
    assert (tmp_path / name).read_bytes().startswith(b"SQLite format 3\0")
    assert "| 1 | 0 | a |" in history("list", "--file", name, cwd=tmp_path, code=0)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("statement", [
    "DROP TABLE results; CREATE VIEW results AS SELECT 1 AS run, 'k' AS key, 'l' AS label, 'v' AS variant, 1.0 AS ms, 1.0 AS "
    "p20_ms, 1.0 AS p80_ms, 0.5 AS err_over_bound, 0 AS throttled",
    "CREATE VIEW other AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    "CREATE TRIGGER grow AFTER INSERT ON runs BEGIN INSERT INTO results (run) VALUES (new.id); END",
    "CREATE TRIGGER keep BEFORE DELETE ON runs BEGIN SELECT raise(IGNORE); END",
    "CREATE VIRTUAL TABLE words USING fts4(word)",
    "ALTER TABLE results ADD COLUMN more AS (hex(zeroblob(100000000)))",
    "CREATE INDEX slow ON results(length(hex(zeroblob(10000000))))",
    "CREATE TABLE more (i)",
    "DROP INDEX results_run",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, "
    "digest TEXT UNIQUE, date TEXT CHECK (load_extension(''x'')), cpu TEXT, gpu TEXT, version TEXT, command TEXT)' "
    "WHERE name = 'runs'",
], ids=lambda text: text.split(" AS ")[0][:40])
def test_another_schema_is_refused_before_anything_of_it_runs(tmp_path, statement):
    add(tmp_path, "h", 3)
    with sqlite3.connect(tmp_path / "h") as database:
        try:
            database.executescript(statement)
        except sqlite3.OperationalError as error:
            pytest.skip(f"this SQLite has no such thing: {error}")
    database.close()
    before = (tmp_path / "h").read_bytes()
    for words in (["list"], ["show"], ["check"], ["remove", "1"], ["add", "run.json"]):
        assert "'h' has other tables than a history" in history(*words, "--file", "h", cwd=tmp_path, code=4)
    assert (tmp_path / "h").read_bytes() == before


def interior(child, start=0, room=PAGE):
    """A page of a table's tree whose children are all the same page."""
    cells = (room - 12) // 8
    content = b"".join(struct.pack(">IBB", child, 0x81, 0x00) for _ in range(cells))
    pointers = b"".join(struct.pack(">H", start + room - 6 * (i + 1)) for i in range(cells))
    head = struct.pack(">BHHHBI", 5, 0, cells, start + room - len(content), 0, child) + pointers
    return head + bytes(room - len(head) - len(content)) + content


@pytest.mark.parametrize("table", ["results", "sqlite_master"])
def test_pages_that_lie_in_each_other_do_not_make_it_hang(tmp_path, table):
    """A table of 60^15 rows in a small file."""
    with sqlite3.connect(tmp_path / "h") as database:
        database.execute(f"PRAGMA page_size = {PAGE}")
        database.execute("VACUUM")
    database.close()
    add(tmp_path, "h", 400)
    with sqlite3.connect(tmp_path / "h") as database:
        root = 1 if table == "sqlite_master" else database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone()[0]
        largest = database.execute("PRAGMA page_count").fetchone()[0]
    database.close()
    data = bytearray((tmp_path / "h").read_bytes())
    chain = [page for page in range(largest - 15, largest + 1) if page != root]
    start = 100 if root == 1 else 0
    for page, child in zip([root, *chain[:-1]], chain):
        first = start if page == root else 0
        at = (page - 1) * PAGE + first
        data[at:page * PAGE] = interior(child, first, PAGE - first)
    data[(chain[-1] - 1) * PAGE:chain[-1] * PAGE] = struct.pack(">BHHHB", 13, 0, 0, 0, 0) + bytes(PAGE - 8)
    (tmp_path / "h").write_bytes(data)
    for words in (["list"], ["show"], ["check"], ["add", "run.json"]):
        error = history(*words, "--file", "h", cwd=tmp_path, code=4)
        assert "damaged" in error or "malformed" in error, error


def journal(page_size, pages, super_journal):
    """An unfinished journal without pages: playing it back changes nothing but removes the file that it names."""
    magic = bytes([0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7])
    head = magic + struct.pack(">IIIII", 0, 7, pages, 512, page_size)
    name = str(super_journal).encode()
    tail = struct.pack(">I", 0x40000000 // page_size + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    return head.ljust(512, b"\0") + tail


def test_a_journal_removes_no_other_file(tmp_path):
    add(tmp_path, "h")
    victim = tmp_path / "victim"
    victim.write_text("to be kept")
    data = (tmp_path / "h").read_bytes()
    page_size = struct.unpack(">H", data[16:18])[0]
    hostile = journal(page_size, len(data) // page_size, victim)
    (tmp_path / "h-journal").write_bytes(hostile)
    assert "names another file" in history("list", "--file", "h", cwd=tmp_path, code=4)
    assert victim.exists() and (tmp_path / "h-journal").read_bytes() == hostile
    (tmp_path / "link").symlink_to("h")
    assert "names another file" in history("list", "--file", "link", cwd=tmp_path, code=4)
    assert victim.exists()
    (tmp_path / "h-journal").write_bytes(hostile[:512])  # an ordinary journal is played back
    assert "| 1 | 0 | a |" in history("list", "--file", "h", cwd=tmp_path, code=0)
    assert not (tmp_path / "h-journal").exists()


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert "'fifo' is no regular file" in history("list", "--file", "fifo", cwd=tmp_path, code=4)
    assert "'.' is no regular file" in history("list", "--file", ".", cwd=tmp_path, code=4)


def test_a_large_history_is_within_its_steps(tmp_path):
    add(tmp_path, "h", 300, runs=30)
    assert "30 before it" not in history("check", "--last", "1000", "--file", "h", cwd=tmp_path, code=0)
    history("show", "--file", "h", cwd=tmp_path, code=0)
