# SPDX-License-Identifier: Apache-2.0
"""The kernels of `tessera bench --peer triton`: row kernels like those of Triton's tutorials, forward and backward, tuned over
the number of warps and, where a row is processed in pieces, over their width. A program holds a whole row if that fits (the
block is the next power of two); otherwise it sweeps over the row. Sums over rows take two kernels, as in the tutorials: partial
sums of groups of rows, then the sums of those.

To add an operation, add a function of its name that takes a job of peer_torch.py and returns a Contest."""
import torch
import triton
import triton.language as tl

import peer_torch
import peer_torch_matmul
from peer_library import Contest, Refusal

WIDEST = 65536  # the most columns that one program holds
WARPS = [triton.Config({}, num_warps=warps) for warps in (1, 2, 4, 8, 16, 32)]
SWEEPS = [triton.Config({"BLOCK": block}, num_warps=warps)
          for block in (1024, 2048, 4096, 8192) for warps in (4, 8, 16)]


def block_of(cols):
    return triton.next_power_of_2(cols)


# ---- Softmax -------------------------------------------------------------------------------------------------

@triton.autotune(WARPS, key=["cols"])
@triton.jit
def softmax_rows(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * cols + at, e / tl.sum(e, axis=0), mask=at < cols)


@triton.autotune(SWEEPS, key=["cols"])
@triton.jit
def softmax_sweeps(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, cols, BLOCK):
        v = tl.load(x + row * cols + first + at, mask=first + at < cols, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(most, v)
        shift = tl.where(larger == -float("inf"), 0.0, larger)
        total = total * tl.exp(most - shift) + tl.exp(v - shift)
        most = larger
    m = tl.max(most, axis=0)
    total = tl.sum(total * tl.exp(most - m), axis=0)
    for first in range(0, cols, BLOCK):
        v = tl.load(x + row * cols + first + at, mask=first + at < cols, other=0).to(tl.float32)
        tl.store(y + row * cols + first + at, tl.exp(v - m) / total, mask=first + at < cols)


@triton.autotune(WARPS, key=["cols"])
@triton.jit
def softmax_gradient(y, dy, dx, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    p = tl.load(y + row * cols + at, mask=at < cols, other=0).to(tl.float32)
    g = tl.load(dy + row * cols + at, mask=at < cols, other=0).to(tl.float32)
    tl.store(dx + row * cols + at, p * (g - tl.sum(p * g, axis=0)), mask=at < cols)


def softmax_forward(job):
    x = job["x"]
    y, (rows, cols) = torch.empty_like(x), x.shape

    def in_registers():
        softmax_rows[(rows,)](x, y, cols, BLOCK=block_of(cols))
        return (y,)

    def in_sweeps():
        softmax_sweeps[(rows,)](x, y, cols)
        return (y,)
    paths = [("triton, row in registers", in_registers)] if cols <= WIDEST else []
    return Contest(job.ours(), "y", paths + [("triton, sweeps", in_sweeps)])


def widest(cols):
    if cols > WIDEST:
        raise Refusal(f"the triton peer's rows have at most {WIDEST} columns")


def softmax_backward(job):
    job.tensors["y"] = torch.softmax(job["y"].float(), -1).to(job.dtype)
    y, dy = job["y"], job["dy"]
    dx, (rows, cols) = torch.empty_like(y), y.shape
    widest(cols)

    def run():
        softmax_gradient[(rows,)](y, dy, dx, cols, BLOCK=block_of(cols))
        return (dx,)
    return Contest(job.ours(), "dx", [("triton, row in registers", run)])


# ---- Norms: layer norm with its mean, RMS norm without -------------------------------------------------------

@triton.autotune(WARPS, key=["cols"])
@triton.jit
def norm_rows(x, residual, weight, bias, y, total_out, mean_out, rstd_out, cols, eps, HAS_RESIDUAL: tl.constexpr,
              HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MEAN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    here = at < cols
    v = tl.load(x + row * cols + at, mask=here, other=0).to(tl.float32)
    if HAS_RESIDUAL:
        v += tl.load(residual + row * cols + at, mask=here, other=0).to(tl.float32)
        tl.store(total_out + row * cols + at, v, mask=here)
    if HAS_MEAN:
        mean = tl.sum(v, axis=0) / cols
        tl.store(mean_out + row, mean)
        v = tl.where(here, v - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(v * v, axis=0) / cols + eps)
    tl.store(rstd_out + row, rstd)
    v = v * rstd
    if HAS_WEIGHT:
        v = v * tl.load(weight + at, mask=here, other=0).to(tl.float32)
    if HAS_BIAS:
        v = v + tl.load(bias + at, mask=here, other=0).to(tl.float32)
    tl.store(y + row * cols + at, v, mask=here)


@triton.autotune(WARPS, key=["cols", "rows"])
@triton.jit
def norm_gradient(x, weight, mean_in, rstd_in, dy, dx, dweight, dbias, rows, cols, HAS_WEIGHT: tl.constexpr,
                  HAS_MEAN: tl.constexpr, HAS_SUMS: tl.constexpr, BLOCK: tl.constexpr):
    """Program i of n takes rows i, i + n, i + 2 n... and writes its column sums to row i of dweight and dbias."""
    group = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    here = at < cols
    sum_w = tl.zeros([BLOCK], tl.float32)
    sum_b = tl.zeros([BLOCK], tl.float32)
    w = tl.full([BLOCK], 1.0, tl.float32)
    if HAS_WEIGHT:
        w = tl.load(weight + at, mask=here, other=0).to(tl.float32)
    for row in range(group, rows, tl.num_programs(0)):
        start = row.to(tl.int64) * cols
        v = tl.load(x + start + at, mask=here, other=0).to(tl.float32)
        g = tl.load(dy + start + at, mask=here, other=0).to(tl.float32)
        rstd = tl.load(rstd_in + row)
        if HAS_MEAN:
            v = tl.where(here, v - tl.load(mean_in + row), 0.0)
        v = v * rstd
        if HAS_SUMS:
            sum_w += g * v
            sum_b += g
        g = g * w
        d = g - v * (tl.sum(g * v, axis=0) / cols)
        if HAS_MEAN:
            d = d - tl.sum(g, axis=0) / cols
        tl.store(dx + start + at, d * rstd, mask=here)
    if HAS_SUMS:
        tl.store(dweight + group.to(tl.int64) * cols + at, sum_w, mask=here)
        tl.store(dbias + group.to(tl.int64) * cols + at, sum_b, mask=here)


@triton.autotune([triton.Config({"ROWS": 32, "COLS": cols}, num_warps=4) for cols in (16, 32, 64, 128)], key=["cols"])
@triton.jit
def sum_groups(partial_w, partial_b, dweight, dbias, groups, cols, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr,
               COLS: tl.constexpr):
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    sum_w = tl.zeros([ROWS, COLS], tl.float32)
    sum_b = tl.zeros([ROWS, COLS], tl.float32)
    for first in range(0, groups, ROWS):
        row = first + tl.arange(0, ROWS)
        here = (row[:, None] < groups) & (col[None, :] < cols)
        at = row[:, None] * cols + col[None, :]
        sum_w += tl.load(partial_w + at, mask=here, other=0)
        if HAS_BIAS:
            sum_b += tl.load(partial_b + at, mask=here, other=0)
    tl.store(dweight + col, tl.sum(sum_w, axis=0), mask=col < cols)
    if HAS_BIAS:
        tl.store(dbias + col, tl.sum(sum_b, axis=0), mask=col < cols)


def norm_forward(job, has_mean):
    x, residual, weight, bias = (job[name] for name in ("x", "residual", "weight", "bias"))
    y, total, (rows, cols) = torch.empty_like(x), torch.empty_like(x), x.shape
    mean, rstd = torch.empty((2, rows), device=x.device)
    widest(cols)

    def run():
        norm_rows[(rows,)](x, residual, weight, bias, y, total, mean, rstd, cols, job.params["eps"],
                           residual is not None, weight is not None, bias is not None, has_mean, BLOCK=block_of(cols))
        return (y, total) if residual is not None else (y,)
    outputs = "y residual_out" if residual is not None else "y"
    return Contest(job.ours(eps=job.params["eps"], has_eps=1), outputs, [("triton, row in registers", run)])


def norm_backward(job, has_mean, forward):
    weight = peer_torch.fill_statistics(job, forward, ("mean", "rstd") if has_mean else ("rstd",))
    x, dy, mean, rstd = (job[name] for name in ("x", "dy", "mean", "rstd"))
    dx, (rows, cols) = torch.empty_like(x), x.shape
    widest(cols)
    has_sums = job["dweight"] is not None or job["dbias"] is not None
    programs = torch.cuda.get_device_properties(x.device).multi_processor_count
    ways = []
    for groups in sorted({min(rows, programs * times) for times in (1, 2, 4, 8)}) if has_sums else (rows,):
        ways.append((groups, torch.empty((2, groups if has_sums else 1, cols), device=x.device)))
    dweight, dbias = (torch.empty(cols, device=x.device, dtype=job.dtype) for _ in range(2))
    names = [name for name in ("dx", "dweight", "dbias") if job[name] is not None]

    def way(groups, partial):
        def run():
            norm_gradient[(groups,)](x, weight, mean, rstd, dy, dx, partial[0], partial[1], rows, cols,
                                     weight is not None, has_mean, has_sums, BLOCK=block_of(cols))
            if has_sums:
                sum_groups[lambda meta: (triton.cdiv(cols, meta["COLS"]),)](
                    partial[0], partial[1], dweight, dbias, groups, cols, job["dbias"] is not None)
            results = {"dx": dx, "dweight": dweight, "dbias": dbias}
            return [results[name] for name in names]
        return run
    return Contest(job.ours(), " ".join(names),
                              [(f"triton, {groups} groups of rows", way(groups, partial)) for groups, partial in ways])


def layernorm_forward(job):
    return norm_forward(job, True)


def rmsnorm_forward(job):
    return norm_forward(job, False)


def layernorm_backward(job):
    return norm_backward(job, True, "layernorm_forward")


def rmsnorm_backward(job):
    return norm_backward(job, False, "rmsnorm_forward")


# ---- Matmul --------------------------------------------------------------------------------------------------

TILES = [triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": 8}, num_warps=warps, num_stages=stages)
         for m, n, k, warps, stages in ((128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 3),
                                        (128, 128, 64, 4, 4), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4),
                                        (64, 64, 64, 4, 5), (128, 128, 32, 4, 4), (64, 64, 32, 4, 5))]


@triton.autotune(TILES, key=["m", "n", "k"])
@triton.jit
def matmul_tiles(a, b, c, m, n, k, am, ak, bk, bn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                 BLOCK_K: tl.constexpr, GROUP: tl.constexpr, IEEE: tl.constexpr):
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    first = pid // (GROUP * tiles_n) * GROUP
    size = min(tiles_m - first, GROUP)
    tile_m = first + pid % (GROUP * tiles_n) % size
    tile_n = pid % (GROUP * tiles_n) // size
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % m
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % n
    depth = tl.arange(0, BLOCK_K)
    at_a = a + rows[:, None].to(tl.int64) * am + depth[None, :] * ak
    at_b = b + depth[:, None] * bk + cols[None, :].to(tl.int64) * bn
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        left = k - step * BLOCK_K
        x = tl.load(at_a, mask=depth[None, :] < left, other=0)
        y = tl.load(at_b, mask=depth[:, None] < left, other=0)
        total = tl.dot(x, y, total, input_precision="ieee" if IEEE else "tf32")
        at_a += BLOCK_K * ak
        at_b += BLOCK_K * bk
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(c + rows[:, None].to(tl.int64) * n + cols[None, :], total, mask=(rows[:, None] < m) & (cols[None, :] < n))


def matmul_forward(job):
    job.require(alpha=1.0, activation="none")
    job.without("b_up", "bias", "residual")
    a, b, options = peer_torch_matmul.matmul_operands(job)
    if a.dim() != 2 or b.dim() != 2:
        raise Refusal("the triton peer's matmul has no batches")
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=job.dtype)
    options["math"] = peer_torch_matmul.MATHS.index(job.params.get("math", peer_torch_matmul.MATHS[0]))
    is_ieee = job.dtype == torch.float32 and job.params.get("math") != "tf32"

    def run():
        matmul_tiles[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)](
            a, b, c, m, n, k, *a.stride(), *b.stride(), IEEE=is_ieee)
        return (c,)
    return Contest(job.ours(alpha=1, has_alpha=1, **options), "c", [("triton, tiles", run)])


OPERATIONS = {name: globals()[name] for name in (
    "softmax_forward", "softmax_backward", "layernorm_forward", "layernorm_backward", "rmsnorm_forward",
    "rmsnorm_backward", "matmul_forward")}
