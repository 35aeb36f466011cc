# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of `tessera bench --peer`: the command, its cases, and its requirements. The binary is $TESSERA."""
import json
import os
import shutil
import subprocess

import pytest

TESSERA = os.environ.get("TESSERA", "")
CC = shutil.which("cc")
needs_tessera = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")
needs_compiler = pytest.mark.skipif(not CC, reason="no C compiler")
MATMUL = ["matmul", "--m", "5", "--n", "7", "--k", "6", "--rep", "2"]
SOFTMAX = ["softmax", "--rows", "3", "--cols", "8", "--rep", "2"]


def bench(*arguments, code=0, **environment):
    """The results by peer (None: ours), and the messages."""
    done = subprocess.run([TESSERA, "bench", *map(str, arguments), "--format", "jsonl"], capture_output=True,
                          text=True, timeout=300, env={**os.environ, **environment})
    assert done.returncode == code, done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith("bench: ")]
    return [json.loads(line) for line in done.stdout.splitlines()], said


def peers_of(results):
    return [result["peer"] for result in results]
