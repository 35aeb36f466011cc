# SPDX-License-Identifier: Apache-2.0
"""README and CONTRIBUTING state how many requests the fault tests refuse with AVX2, within 2 % of the programs' output. The
binary is $TESSERA."""
import os
import pathlib
import re
import subprocess

import pytest

BUILD = pathlib.Path(os.environ.get("TESSERA", "")).resolve().parent
ROOT = pathlib.Path(__file__).parents[2]
HAS_AVX2 = "avx2" in pathlib.Path("/proc/cpuinfo").read_text().split()
# In the order of CONTRIBUTING's sentence.
PROGRAMS = ["test_tool_faults", "test_tool_faults_cuda", "test_tool_faults_device", "test_model_faults"]


def number(text):
    return int(text.replace(",", ""))


def documented():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    sentence = re.search(r"on the CPU ([\d,]+) requests of (\d+) calls, on CUDA ([\d,]+) of (\d+) and (\d+) of (\d+), "
                         r"in the model library (\d+) of\s+(\d+)", text.replace("\n", " "))
    figures = [number(figure) for figure in sentence.groups()]
    return list(zip(figures[::2], figures[1::2]))


def test_readme_says_the_sum():
    requests, calls = (sum(column) for column in zip(*documented()))
    assert f"{requests:,} requests that {calls} calls make" in (ROOT / "README.md").read_text()


# All supported variants are called, and machines with bf16 units have more of them. Their own count is part of the C
# tests.
@pytest.mark.parametrize("program, figures", zip(PROGRAMS, documented()))
def test_each_program_counts_as_many(program, figures):
    if not (BUILD / program).exists():
        pytest.skip("the C tests are not built")
    environment = os.environ | ({"TSR_ISA": "avx2"} if HAS_AVX2 else {})
    done = subprocess.run([BUILD / program], capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    counted = re.search(r"faults: (\d+) requests of (\d+) calls refused", done.stdout)
    for said, found in zip(figures, counted.groups()):
        assert abs(int(found) - said) <= 0.02 * said + 1, counted[0]
