#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# NVRTC 13.0.88 (its ptxas), sm_90a: asynchronous products (wgmma) in a loop over parts of k.
#
# Expected: `for (; first < end; first += step)` and `do ... while (first < end)` around the same products make the same code, but
# for one comparison. In both, the products of a part are waited for before anything else touches the accumulators.
# Real: with `for`, once ordinary additions to the accumulators follow the loop, ptxas says C7515 and orders all products one
# after the other: the loop may be empty, and then an addition of the outer loop's previous round would be the accumulators'
# last definition. With `do` they overlap. The message is information, not a warning: the compilation succeeds, and the kernel is
# right and slow. In a larger kernel the same loop costs spills instead of the message.
#
# Output seen (x86-64 Linux, no GPU, 2026-11-30):
#     for: serialized
#     do: overlapped
#
# Needs python3 with venv and pip; no GPU, and no CUDA besides the wheel, which goes into a temporary folder. Exit status 0 while
# the compiler behaves so, 1 when it does not any more, 77 where the wheel cannot be had.
set -u
folder=$(mktemp -d) || exit 77
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" >"$folder/log" 2>&1 &&
    "$folder/venv/bin/pip" install -q --disable-pip-version-check nvidia-cuda-nvrtc==13.0.88 >>"$folder/log" 2>&1 ||
    { tail -n 1 "$folder/log" && exit 77; }
cat >"$folder/try.py" <<'END'
import ctypes
import glob
import sys

REGISTERS = 32
NAMES = ", ".join(f"%{i}" for i in range(REGISTERS))
BOUND = ", ".join(f'"+f"(c[{i}])' for i in range(REGISTERS))
KERNEL = f"""
extern "C" __global__ void products(const float *more, float *out, unsigned long long a, unsigned long long b, int rounds,
                                    int end, int step) {{
    float c[{REGISTERS}] = {{}};
    for (int round = 0; round < rounds; round++) {{
        int first = round;
        #pragma unroll 1
        BEGIN
            #pragma unroll 1
            for (int i = 0; i < step; i++) {{
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                asm volatile("{{.reg .pred p; setp.ne.b32 p, %{REGISTERS + 2}, 0;"
                             "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{NAMES}}}, %{REGISTERS}, "
                             "%{REGISTERS + 1}, p, 1, 1, 0, 0;}}" : {BOUND} : "l"(a + i), "l"(b + i), "r"(i) : "memory");
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            }}
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            for (int i = 0; i < {REGISTERS}; i++) asm volatile("" : "+f"(c[i]) :: "memory");
        END
        if (round & 1)
            for (int i = 0; i < {REGISTERS}; i++) c[i] += more[i * 128 + threadIdx.x];
        for (int i = 0; i < {REGISTERS}; i++) out[(round * {REGISTERS} + i) * 128 + threadIdx.x] = c[i];
    }}
}}
"""
nvrtc = ctypes.CDLL(glob.glob(sys.argv[1] + "/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.13")[0])
LOOPS = {"for": ("for (; first < end; first += step) {", "}"), "do": ("do {", "first += step; } while (first < end);")}
for name, (begin, end) in LOOPS.items():
    source = KERNEL.replace("BEGIN", begin).replace("END", end)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"products.cu", 0, None, None)
    options = [b"--gpu-architecture=sm_90a", b"--ptxas-options=-v"]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    said = log.value.decode()
    print(f"{name}: " + (said if status else "serialized" if "C7515" in said else "overlapped"))
END
"$folder/venv/bin/python" "$folder/try.py" "$folder/venv" | tee "$folder/seen"
printf 'for: serialized\ndo: overlapped\n' | cmp -s - "$folder/seen"
