#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gguf 0.19.0 (PyPI): MXFP4 rows, which llama.cpp makes and reads, beside the MXFP4 of OCP's Microscaling Formats v1.0 and of
# safetensors checkpoints such as gpt-oss.
#
# Expected: one name, one layout: a byte holds two neighbouring columns, the even one in its lower half, and the scale byte 255 is
# NaN, as e8m0 has it. So a converter may copy the codes and put the scales in front of them.
# Real: a byte holds columns i and i + 16. Copied codes give the right set of numbers, norms and histograms included, in the wrong
# columns. The scale byte 255 is 2^128: codes of 0 stay 0, 0.5 becomes 2^127, larger ones become infinite, and nothing is NaN. So a
# block that is NaN in one file is zeros and infinities in the other. Quantising clips: the scale follows from the exponent of
# the block's largest number alone, and 7.9 becomes 6.
#
# Output seen (x86-64 Linux, Python 3.11, numpy 2.4.6, 2026-12-01):
#     scale 127 - codes 31 42 53 64 75 16 27 31 42 53 64 75 16 27 31 42
#     columns i and i + 16: True - neighbours: False
#     scale 255: 0 -> 0.0, 0.5 -> 1.7014118346046923e+38, 1 -> inf, NaN: False
#     7.9 -> 6.0
#
# Needs python3 with venv, and PyPI. Exit status 0 while gguf behaves so, 1 when it does not any more, 77 where it cannot be had.
set -u
folder=$(mktemp -d) || exit 77
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q gguf==0.19.0 >"$folder/log" 2>&1 ||
    { tail -n 1 "$folder/log" && exit 77; }
"$folder/venv/bin/python" - <<'END'
import sys

import gguf
import numpy as np

MXFP4 = gguf.GGMLQuantizationType.MXFP4
NUMBERS = [0, 0.5, 1, 1.5, 2, 3, 4, 6]

# Which columns share a byte: column i has code 1 + i % 7, so that neighbours differ, and so do columns 16 apart.
codes = [1 + i % 7 for i in range(32)]
row = np.array([[NUMBERS[code] for code in codes]], np.float32)
block = gguf.quantize(row, MXFP4)[0]
halves = [codes[i] | codes[i + 16] << 4 for i in range(16)]
pairs = [codes[2 * i] | codes[2 * i + 1] << 4 for i in range(16)]
print("scale", block[0], "- codes", " ".join(f"{b:02x}" for b in block[1:]))
is_of_halves = list(block[1:]) == halves
print("columns i and i + 16:", is_of_halves, "- neighbours:", list(block[1:]) == pairs)

# The scale that e8m0 calls NaN.
block = np.array([[255, 0x10, 0x02] + [0] * 14], np.uint8)
with np.errstate(over="ignore"):
    numbers = gguf.dequantize(block, MXFP4)[0]
print("scale 255:", f"0 -> {numbers[0]}, 0.5 -> {float(numbers[16])}, 1 -> {numbers[1]}, NaN: {bool(np.isnan(numbers).any())}")

largest = gguf.dequantize(gguf.quantize(np.array([[7.9] + [0] * 31], np.float32), MXFP4), MXFP4)[0, 0]
print(f"7.9 -> {largest}")
is_so = is_of_halves and numbers[0] == 0 and numbers[16] == 2.0**127 and np.isinf(numbers[1])
sys.exit(0 if is_so and not np.isnan(numbers).any() and largest == 6 else 1)
END
