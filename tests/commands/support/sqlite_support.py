# SPDX-License-Identifier: Apache-2.0
"""Whether the binary supports histories: it may be built without SQLite. The binary is $TESSERA."""
import functools
import os
import subprocess
import tempfile

import pytest

SENTENCE = ": this tessera was built without SQLite\n"


@functools.lru_cache(maxsize=None)
def has_sqlite(tessera):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([tessera, "history", "list", "--file", "none"], capture_output=True, text=True, timeout=20,
                              check=False, cwd=folder)
    return (done.returncode, done.stderr) != (4, f"tessera history: 'none' cannot be opened{SENTENCE}")


def skip_without_sqlite(command, error=SENTENCE):
    """Skips the test if history's error says that the binary has no SQLite, and it says so for any file."""
    if command == "history" and error.endswith(SENTENCE) and not has_sqlite(os.environ["TESSERA"]):
        pytest.skip("built without SQLite")
