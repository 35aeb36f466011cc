# SPDX-License-Identifier: Apache-2.0
"""How the peers of `tessera bench` are timed on a CUDA device: in turns with Tessera, on one stream, with its events, as the
tool times Tessera. A single call on an idle stream gives the latency (median_ms). A replayed graph of many calls gives the
device time (graph_ms), which is compared. Each of a peer's paths is tried as it is written, and through torch.compile if that
works within a minute ($TESSERA_TORCH_COMPILE=0 turns torch.compile off); the one with the shortest device time counts."""
import contextlib
import os
import signal
import time

GRAPH_S, MOST_CALLS = 0.002, 64  # the intended time of one replay; the most calls in a graph
COMPILE_S = 60
MIN_SAMPLES, MAX_SAMPLES = 5, 200


class TooLong(Exception):
    pass


@contextlib.contextmanager
def time_limit(seconds):
    def stop(*_):
        raise TooLong(f"took more than {seconds} s")
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Plain:
    """In place of a graph."""

    def __init__(self, call):
        self.replay = call


def quantile(samples, q):
    return sorted(samples)[int(q * (len(samples) - 1) + 0.5)]


class Timing:
    streams = {}  # one per device, so that there are few Tessera contexts

    def __init__(self, torch, device):
        self.torch = torch
        if device not in self.streams:
            self.streams[device] = torch.cuda.Stream(device)
        self.stream = self.streams[device]

    @contextlib.contextmanager
    def place(self):
        self.torch.cuda.synchronize()  # another stream filled the tensors
        with self.torch.cuda.stream(self.stream):
            yield
            self.stream.synchronize()

    def elapsed(self, run):
        """Seconds that the idle stream takes for the work of run()."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.stream.synchronize()
        start.record(self.stream)
        run()
        end.record(self.stream)
        end.synchronize()
        return 1e-3 * start.elapsed_time(end)

    def graph_of(self, call, most=MOST_CALLS):
        """Warms up; returns a graph of several calls and their number. A call that waits for the device, as a loop over experts
        does, cannot be captured and is itself replayed."""
        for _ in range(3):
            seconds = self.elapsed(call)
        count = max(1, min(most, int(GRAPH_S / max(seconds, 1e-6)) + 1))
        graph = self.torch.cuda.CUDAGraph()
        try:
            with self.torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                for _ in range(count):
                    call()
        except Exception:  # noqa: BLE001
            self.torch.cuda.synchronize()
            graph, count = Plain(call), 1
        self.elapsed(graph.replay)
        return graph, count

    def device_time(self, call):
        graph, count = self.graph_of(call, 16)
        return quantile([self.elapsed(graph.replay) / count for _ in range(5)], 0.5)

    def compiled(self, name, path):
        self.torch._dynamo.reset()
        fast = self.torch.compile(path, dynamic=False)
        with time_limit(COMPILE_S):
            fast()
            self.stream.synchronize()
        return f"{name}, torch.compile", fast

    def ways(self, paths):
        """Each path as it is and compiled. Paths with out=, sdpa and triton are not: it would change nothing."""
        is_compiling = os.environ.get("TESSERA_TORCH_COMPILE") != "0"
        for name, path in paths:
            if name != "formula":  # "formula" is written for the compiler only
                yield name, path
            if is_compiling and not getattr(path, "is_final", False) and not name.endswith("out=") and not name.startswith(("sdpa", "triton")):
                with contextlib.suppress(Exception):  # noqa: BLE001: a path that does not compile is left out
                    yield self.compiled(name, path)

    def fastest(self, paths):
        best, problem = (None, None, float("inf")), None
        for name, path in self.ways(paths):
            try:
                seconds = self.device_time(path)
            except Exception as error:  # noqa: BLE001: this back end cannot compute the case
                problem = error
                self.torch.cuda.synchronize()
                continue
            if seconds < best[2]:
                best = name, path, seconds
        if best[1] is None:
            raise problem or RuntimeError("no path computes it")
        return best[:2]

    def measure(self, ours, path, budget_s, rep):
        """The timing fields of the reply."""
        most, calls = rep or MAX_SAMPLES, (path, ours)
        graphs = [self.graph_of(call) for call in calls]
        latency, device = [[], []], [[], []]
        for samples, runs, parts in ((device, [graph.replay for graph, _ in graphs], [n for _, n in graphs]),
                                     (latency, calls, [1, 1])):
            opened = time.perf_counter()
            while len(samples[0]) < most:
                for taken, run, count in zip(samples, runs, parts):
                    taken.append(self.elapsed(run) / count)
                if len(samples[0]) >= MIN_SAMPLES and time.perf_counter() - opened > budget_s and not rep:
                    break
        return {"median_ms": 1e3 * quantile(latency[0], 0.5), "p20_ms": 1e3 * quantile(latency[0], 0.2),
                "p80_ms": 1e3 * quantile(latency[0], 0.8), "graph_ms": 1e3 * quantile(device[0], 0.5),
                "ours_ms": 1e3 * quantile(device[1], 0.5), "ours_call_ms": 1e3 * quantile(latency[1], 0.5),
                "samples": len(latency[0]), "samples_set_aside": 0, "throttled": False}
