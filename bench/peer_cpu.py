# SPDX-License-Identifier: Apache-2.0
"""How the peers of `tessera bench` are timed on the CPU.

Fairness. The peer and Tessera take turns in blocks of up to 200 ms, and each block starts with calls that are not counted.
After a call the threads of either spin for at most about 1 ms (the tool sets GOMP_SPINCOUNT and KMP_BLOCKTIME), then sleep.
The calls in a block therefore find their own threads awake, and the uncounted calls last until the other's threads sleep.
With OMP_WAIT_POLICY=passive torch would wake its threads at every call. If single calls took turns, each would run beside the
other's spinning threads."""
import contextlib
import os
import resource
import time

BLOCK_S, OPENING_S, MIN_SAMPLES, MAX_SAMPLES = 0.2, 0.003, 5, 4000


def seconds_of(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def fastest(paths):
    """The path with the fastest call out of a few. A path is not called again once it takes twice the best time."""
    best_name, best_path, best = None, None, float("inf")
    for name, path in paths:
        path()
        seconds = seconds_of(path)
        for _ in range(4):
            if seconds < 2 * best:
                seconds = min(seconds, seconds_of(path))
        if seconds < best:
            best_name, best_path, best = name, path, seconds
    return best_name, best_path


def block(call, seconds, most):
    """For each call: its seconds, and whether another process took a processor from ours."""
    samples, opened = [], time.perf_counter()
    call()
    while time.perf_counter() - opened < OPENING_S:
        call()
    opened = time.perf_counter()
    while len(samples) < most:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        taken = seconds_of(call)
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
        samples.append((taken, switches > 20 * taken))
        if time.perf_counter() - opened >= seconds:
            break
    return samples


class Apart:
    """Places the calling thread on one processor and all others, ours and torch's, on the rest. Otherwise, if other work keeps
    every processor busy, the system may leave a worker on the processor of the thread that spins for it. Then every call
    lasts as long as that thread spins."""

    ALL = os.sched_getaffinity(0)

    @staticmethod
    def place(caller, others):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.sched_setaffinity(int(thread), caller if int(thread) == os.getpid() else others)

    def __enter__(self):
        first, *rest = sorted(self.ALL)
        self.place([first], rest or [first])

    def __exit__(self, *_):
        self.place(self.ALL, self.ALL)


def in_turns(calls, budget_s, rep):
    """Measures the calls in turns; returns each one's samples."""
    samples = [[] for _ in calls]
    most, opened = rep or MAX_SAMPLES, time.perf_counter()
    while True:
        for call, taken in zip(calls, samples):
            taken += block(call, min(BLOCK_S, budget_s / 5), most - len(taken))
        fewest, elapsed = min(map(len, samples)), time.perf_counter() - opened
        if fewest >= most or (not rep and elapsed >= len(calls) * budget_s
                              and (fewest >= MIN_SAMPLES or elapsed >= 3 * len(calls) * budget_s)):
            return samples


def figures(samples):
    """Median, p20 and p80 in ms of the undisturbed samples, or of all samples if too few are undisturbed."""
    good = sorted(taken for taken, is_disturbed in samples if not is_disturbed)
    is_throttled = len(good) < min(MIN_SAMPLES, len(samples))
    kept = sorted(taken for taken, _ in samples) if is_throttled else good

    def quantile(q):
        low = int(q * (len(kept) - 1))
        high = min(low + 1, len(kept) - 1)
        return 1e3 * (kept[low] + (q * (len(kept) - 1) - low) * (kept[high] - kept[low]))
    return {"median_ms": quantile(0.5), "p20_ms": quantile(0.2), "p80_ms": quantile(0.8),
            "samples": len(kept), "samples_set_aside": len(samples) - len(kept), "throttled": is_throttled}


def measure(ours, path, budget_s, rep):
    """The timing fields of the reply."""
    with Apart():
        ours, theirs = map(figures, in_turns([ours, path], budget_s, rep))
    return {**theirs, **{f"ours_{key}": ours[f"{key}_ms"] for key in ("p20", "p80")}, "ours_ms": ours["median_ms"]}
