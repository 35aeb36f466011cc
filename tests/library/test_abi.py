# SPDX-License-Identifier: Apache-2.0
"""scripts/abi: the library matches tests/abi, and every kind of change is reported. The library is $TESSERA_LIBRARY."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

LIBRARY = os.environ.get("TESSERA_LIBRARY", "")
ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not os.path.exists(LIBRARY) or not shutil.which("nm"),
                                reason="$TESSERA_LIBRARY names no library, or there is no nm")


def run(root, verb="check"):
    return subprocess.run([root / "scripts/abi", verb, LIBRARY], capture_output=True, text=True, timeout=60,
                          check=False)


def test_the_abi_is_what_is_written_down():
    done = run(ROOT)
    assert done.returncode in (0, 77), done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path):
    """A copy of the files that the script reads."""
    for name in ("include", "tests/abi", "scripts/abi"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    return tmp_path


CHANGES = {
    "a field in the middle": (
        "softmax.h", r"(    tsr_tensor x;[^\n]*\n)(    tsr_tensor y;)", r"\1    int64_t extra;\n\2",
        r"struct tsr_softmax_forward_args: y has offset and bytes 152 104, had 144 104; new members go to the end"),
    "a field lost": ("softmax.h", r"    tsr_tensor dx;[^\n]*\n", "",
                     r"tsr_softmax_backward_args has lost dx: programs built before would break"),
    "a field at the end": ("cast.h", r"\} tsr_cast_args;", r"    int64_t extra;\n\g<0>",
                           r"tsr_cast_args has grown at its end \(extra\), which is legal: run 'scripts/abi update"),
    "a field in the padding": ("activation.h", r"\} tsr_activation_forward_args;", r"    int32_t extra;\n\g<0>",
                               r"extra lies at 356, in what programs built before"),
    "a struct that cannot grow": ("context.h", r"\} tsr_allocator;", r"    void *extra;\n\g<0>",
                                  r"struct tsr_allocator has 32 bytes, had 24"),
    "a value in the middle": ("types.h", r"    TSR_F64, ", "    TSR_I8,\n    TSR_F64, ",
                              r"enum tsr_dtype: TSR_F64 has value 2, had 1"),
    "another parameter": ("types.h", r"tsr_status_name\(tsr_status status\)", "tsr_status_name(int status)",
                          r"tsr_status_name is declared .* was "),
    "a function lost": ("types.h", r"TSR_API const char \*tsr_version\(void\);", "",
                        r"tsr_version is exported but declared in no public header"),
    "a function more": ("types.h", r"TSR_API const char \*tsr_last_error\(void\);", r"\g<0> TSR_API int tsr_new(int a);",
                        r"tsr_new is declared in a header but not exported"),
}


def test_every_change_is_told(tree):
    for name, (header, pattern, replacement, _) in CHANGES.items():
        path = tree / "include/tessera" / header
        text, count = re.subn(pattern, replacement, path.read_text(), count=1)
        assert count == 1, name
        path.write_text(text)
    done = run(tree)
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 1, done.stdout + done.stderr
    for name, (*_, sentence) in CHANGES.items():
        assert re.search(sentence, done.stdout), (name, done.stdout)


def test_update_keeps_versions_and_settles_it(tree):
    functions = tree / "tests/abi/functions.txt"
    lines = functions.read_text().splitlines(keepends=True)
    functions.write_text("0.0.9" + lines[0][lines[0].index(" "):] + "".join(lines[2:]))
    done = run(tree)
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 1 and "is new: run 'scripts/abi update" in done.stdout
    assert run(tree, "update").returncode == 0
    after = functions.read_text().splitlines(keepends=True)
    assert after[0].startswith("0.0.9 ") and after[1:] == lines[1:]
    assert run(tree).returncode == 0
