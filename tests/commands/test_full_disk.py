# SPDX-License-Identifier: Apache-2.0
"""Every command that writes a file, on a full disk and with a limit on file sizes: exit code 4 and a sentence, the earlier
file is intact, and no other file is left. Also the order in which a file reaches the disk. The binary is $TESSERA."""
import json
import os
import re
import resource
import shutil
import subprocess

import numpy as np
import pytest

from apply_support import write
from sqlite_support import skip_without_sqlite

TESSERA = os.environ.get("TESSERA", "")
CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

SHAPE = ["--rows", "8", "--cols", "8", "--budget", "0.001", "--rep", "1"]
EARLIER = "tessera-tuning 1\n# what was there before\n"
# If a command writes a folder, {out} is one of its files.
COMMANDS = {
    "bench": ["bench", "softmax", *SHAPE, "--format", "json", "--out", "{out}"],
    "compare": ["compare", "softmax", "--rows", "8", "--cols", "8", "--pass", "forward", "--budget", "0.001", "--limit", "2", "--out",
                "{out}"],
    "compare files": ["compare", "run.json", "run.json", "--all", "--out", "{out}"],
    "memory": ["memory", "softmax", "--rows", "8", "--cols", "8", "--rep", "1", "--out", "{out}"],
    "profile": ["profile", "softmax", "--rows", "8", "--cols", "8", "--output", "{out}"],
    "tune": ["tune", "matmul", "--m", "8", "--n", "8", "--k", "8", "--pass", "forward", "--budget", "0.001", "--output",
             "{out}"],
    "apply": ["apply", "softmax", "-i", "x.safetensors", "-o", "{out}"],
    "history": ["history", "add", "run.json", "--file", "{out}"],
    "manual": ["manual", "--output", "{folder}"],
    "conformance": ["conformance", "write", "softmax", "--configs", "1", "--output", "{folder}"],
}
FILES = {"manual": "tessera-bench.1", "conformance": None}


@pytest.fixture(name="folder")
def fixture_folder(tmp_path):
    (tmp_path / "out").mkdir()
    results = [{"op": "softmax_forward", "params": {"cols": cols}, "dtype": "f32", "variant": "fused", "peer": None,
                "median_ms": 1.0, "p20_ms": 0.9, "p80_ms": 1.1, "err_over_bound": 0.5} for cols in range(300)]
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "env": {"cpu": "a", "date": "b"}, "results": results}))
    write(tmp_path / "x.safetensors", {"x": np.ones((100, 100), np.float32)})
    return tmp_path


def run(name, folder, target, **more):
    command = [word.format(out=target / FILES.get(name, "file") if FILES.get(name, "file") else "", folder=target)
               for word in COMMANDS[name]]
    environment = {**os.environ, "TSR_TUNING_FILE": "/dev/null", **more.pop("env", {})}
    done = subprocess.run([TESSERA, *command], cwd=folder, capture_output=True, text=True, timeout=120, check=False, env=environment,
                          **more)
    skip_without_sqlite(command[0], done.stderr)
    return done


def earlier(name, target):
    """Creates an earlier file that the command accepts as its own, and returns its bytes."""
    if FILES.get(name, "file") is None:
        return {}
    path = target / FILES.get(name, "file")
    if name == "history":
        assert run(name, target.parent, target).returncode == 0
        os.rename(target.parent / "run.json", target.parent / "first.json")
        (target.parent / "run.json").write_text((target.parent / "first.json").read_text().replace("0.9", "0.8"))
    else:
        path.write_text(EARLIER)
    return {path.name: path.read_bytes()}


def is_refused(name, done, target, before):
    assert done.returncode == 4, (done.stdout, done.stderr)
    assert re.search(r"tessera[ \w]*: .*(File too large|No space left|full|I/O error)", done.stderr), done.stderr
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_beyond_the_limit_of_the_process(folder, name):
    target = folder / "out"
    before = earlier(name, target)
    done = run(name, folder, target, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (48, 48)))
    is_refused(name, done, target, before)


@pytest.fixture(name="disk")
def fixture_disk(folder):
    place = folder / "disk"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tessera", str(place)], capture_output=True,
                                           check=False).returncode != 0:
        pytest.skip("no disk can be mounted")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk(folder, disk, name):
    before = earlier(name, disk)
    with open(disk / "filler", "wb", buffering=0) as filler:
        for size in (4096, 1):
            try:
                while True:
                    filler.write(b"x" * size)
            except OSError:
                pass
    before["filler"] = (disk / "filler").read_bytes()
    is_refused(name, run(name, folder, disk), disk, before)


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void put(const char *what, const char *from, const char *to) {
    char text[2 * PATH_MAX];
    int length = snprintf(text, sizeof text, "%s\t%s\t%s\n", what, from, to);
    int log = open(getenv("SHIM_LOG"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (log < 0 || write(log, text, (size_t)length) != length) abort();
    close(log);
}
static int sync_file(const char *name, int file) {
    char link[64], path[PATH_MAX] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t used = readlink(link, path, sizeof path - 1);
    path[used > 0 ? used : 0] = 0;
    put("sync", path, "");
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(file);
}
int fsync(int file) { return sync_file("fsync", file); }
int rename(const char *from, const char *to) {
    put("rename", from, to);
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}
"""


@pytest.mark.skipif(not CC, reason="no C compiler")
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "history"])  # SQLite writes that file
def test_a_file_is_on_the_disk_before_its_name_and_the_name_after_it(folder, name):
    (folder / "shim.c").write_text(SHIM)
    subprocess.run([CC, "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c", "-ldl"], check=True, timeout=60)
    target = folder / "out"
    earlier(name, target)
    done = run(name, folder, target, env={"LD_PRELOAD": str(folder / "shim.so"), "SHIM_LOG": str(folder / "log")})
    assert done.returncode in (0, 1), done.stderr
    steps = [line.split("\t") for line in (folder / "log").read_text().splitlines()]
    renames = [i for i, step in enumerate(steps) if step[0] == "rename" and str(target) in step[2]]
    assert renames
    for i in renames:
        assert ["sync", steps[i][1], ""] in steps[:i], steps
        assert ["sync", str(target), ""] in steps[i:], steps
