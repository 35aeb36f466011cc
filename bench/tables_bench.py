# SPDX-License-Identifier: Apache-2.0
"""What the tables of tables.py share: requests, the measuring of calls in turns, and the printing of a table."""
import ctypes
import os
import time

import peer_device
import peer_torch
from peer_library import BF16, E4M3, E5M2, F16, F32, I32, Refusal


def tensors_of(shapes, dtype="bf16", **others):
    """The tensors of a request: those of `shapes` have one dtype, `others` are (shape, dtype)."""
    given = {name: {"shape": list(shape), "dtype": dtype} for name, shape in shapes.items()}
    return {**given, **{name: {"shape": list(shape), "dtype": kind} for name, (shape, kind) in others.items()}}


class Bench:
    def __init__(self, torch, library, index, budget_s):
        self.torch, self.library, self.budget_s = torch, library, budget_s
        self.device = torch.device("cuda", index)
        self.timing = peer_device.Timing(torch, self.device)
        self.context = library.context(0, 0, (1, index), self.timing.stream.cuda_stream)
        self.is_compiling = os.environ.get("TESSERA_TORCH_COMPILE") != "0"
        self.number_of = {torch.float32: F32, torch.bfloat16: BF16, torch.float16: F16, torch.int32: I32,
                          torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}

    def job(self, request):
        return peer_torch.Job({"device": str(self.device), "dtype": "bf16", "isa": 0, "threads": 0, "variant": None,
                              "flags": 0, **request}, self.torch, self.library)

    def contest(self, request):
        """Our call, torch's fastest path and its name. Their results agree."""
        job = self.job(request)
        found = peer_torch.OPERATIONS[job.op](job)
        way, path = self.timing.fastest(found.paths)
        share = peer_torch.compare(job, found, path)[1]
        if not share <= peer_torch.ALLOWED["bf16"]:
            raise Refusal(f"torch ({way}) and tessera differ by {share:.2g} of the largest value")
        return found.ours, path, way

    def ours_of(self, request):
        return peer_torch.OPERATIONS[request["op"]](self.job(request)).ours

    def ours(self, op, tensors, **fields):
        return self.library.call(op, self.context, tensors, self.number_of, **fields)

    def variant(self, call):
        """The name of the variant that the call uses."""
        call()
        function = self.library.library.tsr_context_last_variant
        function.restype = ctypes.c_char_p
        return function(self.context).decode()

    def in_turns(self, calls, most=peer_device.MOST_CALLS):
        """Measures graphs of the calls, of up to `most` each, in turns; returns each call's median in microseconds."""
        graphs, samples = [self.timing.graph_of(call, most) for call in calls], [[] for _ in calls]
        opened = time.perf_counter()
        while len(samples[0]) < 5 or time.perf_counter() - opened < self.budget_s * len(calls):
            for (graph, count), taken in zip(graphs, samples):
                taken.append(1e6 * self.timing.elapsed(graph.replay) / count)
        return [peer_device.quantile(taken, 0.5) for taken in samples]

    def random(self, *shape):
        return self.torch.randn(shape, device=self.device).to(self.torch.bfloat16)


def show(title, columns, lines):
    """Prints a markdown table row by row. If a row cannot be measured, it says why."""
    print(f"\n## {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for name, measure in lines:
        try:
            cells = measure()
        except Exception as problem:  # noqa: BLE001: the next row may work
            cells = [f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"]
        print("| " + " | ".join([name, *map(text_of, cells), *[""] * (len(columns) - 1 - len(cells))]) + " |", flush=True)


def text_of(cell):
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.2f}" if cell < 100 else f"{cell:.0f}"
