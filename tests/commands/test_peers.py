# SPDX-License-Identifier: Apache-2.0
"""tessera bench --peer: a missing peer is reported and the rest is measured, a peer with wrong results is not timed, and
its rows match results.json's format. Small libraries built here replace the real ones, and a script replaces torch; the
real torch is in test_peers_torch.py. Speed does not matter."""
import json
import os
import subprocess
import sys

import pytest
from peers_support import CC, MATMUL, SOFTMAX, TESSERA, bench, needs_compiler, needs_tessera, peers_of

# ---- Missing peers -----------------------------------------------------------------------------------------------

@needs_tessera
def test_unknown_peers_are_a_usage_error():
    for names in ("mkl", "torch,mkl", "openblas,,blis", "", "triton"):  # triton needs a GPU
        _, said = bench(*SOFTMAX, "--peer", names, code=2)
        assert len(said) == 1 and said[0].startswith("tessera bench: ")


@needs_tessera
@pytest.mark.parametrize("peer, variable, cases", [
    ("openblas", "TESSERA_OPENBLAS", MATMUL), ("blis", "TESSERA_BLIS", MATMUL),
    ("onednn", "TESSERA_ONEDNN", MATMUL), ("torch", "TESSERA_PYTHON", SOFTMAX),
])
def test_a_missing_peer_is_said_once_and_ours_is_measured(peer, variable, cases):
    results, said = bench(*cases, "--dtype", "f32,bf16", "--peer", peer, **{variable: "/no/such/file"})
    assert peers_of(results) == [None, None]
    assert len(said) == 1 and said[0].startswith(f"tessera: peer {peer} left out: ")
    assert "/no/such/file" in said[0]


@needs_tessera
def test_python_without_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('broken\\nin two lines')")
    _, said = bench(*SOFTMAX, "--peer", "torch", TESSERA_PYTHON=sys.executable, PYTHONPATH=str(tmp_path))
    assert said == [f"tessera: peer torch left out: {sys.executable}: broken"]


# ---- A foreign current directory ----------------------------------------------------------------------------------

@needs_tessera
@pytest.mark.parametrize("path", [None, "", ".", ":/usr/lib", "lib:"])
def test_nothing_of_the_current_directory_is_imported(tmp_path, monkeypatch, path):
    """Modules that the scripts import, modules that Python imports at its start, and a program named python3."""
    (tmp_path / "lib").mkdir()
    for name in ("json", "importlib", "linecache", "os", "site", "sitecustomize", "usercustomize", "torch", "ctypes", "contextlib",
                 "resource", "time", "signal", "lib/json", "lib/torch"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'RAN')!r}, 'a').write(__name__)")
    program = tmp_path / "python3"
    program.write_text(f"#!/bin/sh\necho python3 >>{tmp_path / 'RAN'}\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    more = {} if path is None else {"PYTHONPATH": path}
    for folders in (f".:{os.environ['PATH']}", f":{os.environ['PATH']}", f"lib/..:{os.environ['PATH']}:"):
        peers = bench(*SOFTMAX, "--peer", "torch", PATH=folders, **more)[0]
        assert None in peers_of(peers)
    bench(*SOFTMAX, "--peer", "torch", TESSERA_PYTHON=sys.executable, **more)
    assert not (tmp_path / "RAN").exists(), (tmp_path / "RAN").read_text()


# ---- Libraries ---------------------------------------------------------------------------------------------------

CBLAS = """
#include <stdio.h>
#include <stdlib.h>
void SET_THREADS(COUNT count) {
    FILE *file = fopen(getenv("PEER_THREADS"), "w");
    fprintf(file, "%d", (int)count);
    fclose(file);
}
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
    if (order != 101 || beta != 0) return;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum += (double)(ta == TRANS ? a[l * lda + i] : a[i * lda + l]) *
                       (tb == TRANS ? b[j * ldb + l] : b[l * ldb + j]);
            c[i * ldc + j] = (float)(alpha * sum);
        }
}
"""
DNNL = """
#include <stdint.h>
void omp_set_num_threads(int count) { (void)count; }
static float load(const void *x, int64_t i, int is_bf16) {
    if (!is_bf16) return ((const float *)x)[i];
    union { uint32_t bits; float value; } u = {(uint32_t)((const uint16_t *)x)[i] << 16};
    return u.value;
}
static int gemm(int is_bf16, char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const void *a,
                int64_t lda, const void *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += (double)load(a, ta == 'T' ? l * lda + i : i * lda + l, is_bf16) *
                       load(b, tb == 'T' ? j * ldb + l : l * ldb + j, is_bf16);
            c[i * ldc + j] = (float)(alpha * sum);
        }
    return beta != 0 ? 2 : STATUS;
}
#define GEMM(name, is_bf16)                                                                                          \\
    int name(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const void *a, int64_t lda,            \\
             const void *b, int64_t ldb, float beta, float *c, int64_t ldc) {                                       \\
        return gemm(is_bf16, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                                  \\
    }
GEMM(dnnl_sgemm, 0)
GEMM(dnnl_gemm_bf16bf16f32, 1)
"""


def build(tmp_path, source, **defines):
    library = tmp_path / "libpeer.so"
    subprocess.run([CC, "-shared", "-fPIC", "-o", library, *(f"-D{k}={v}" for k, v in defines.items()),
                    "-xc", "-"], input=source, text=True, check=True, timeout=60)
    return str(library)


@needs_tessera
@needs_compiler
@pytest.mark.parametrize("peer, variable, setter, count", [
    ("openblas", "TESSERA_OPENBLAS", "openblas_set_num_threads", "int"),
    ("blis", "TESSERA_BLIS", "bli_thread_set_num_threads", "long"),
])
@pytest.mark.parametrize("transposes", [[], ["--transpose-a"], ["--transpose-b"]])
def test_a_library_gets_our_threads_and_the_same_case(tmp_path, peer, variable, setter, count, transposes):
    library = build(tmp_path, CBLAS, SET_THREADS=setter, COUNT=count, TRANS=112)
    (ours, theirs), said = bench(*MATMUL, *transposes, "--threads", 2, "--peer", peer, "--alpha", 0.5,
                                 PEER_THREADS=str(tmp_path / "threads"), **{variable: library})
    assert said == [] and (tmp_path / "threads").read_text() == "2"
    assert ours["peer"] is None and ours["ours_ms"] is None and ours["speedup_over_peer"] is None
    assert theirs["peer"] == peer and theirs["variant"] == "cblas_sgemm" and theirs["isa"] is None
    assert theirs["params"] == ours["params"] and theirs["threads"] == ours["threads"] == 2
    assert theirs["ours_ms"] == ours["median_ms"]
    assert theirs["speedup_over_peer"] == pytest.approx(theirs["median_ms"] / ours["median_ms"])
    assert 0 <= theirs["max_abs_err"] < 1e-4 and theirs["err_over_bound"] is None
    assert theirs["peak_bytes"] is None and theirs["p20_ms"] <= theirs["median_ms"] <= theirs["p80_ms"]


@needs_tessera
@needs_compiler
def test_onednn_in_two_dtypes_and_what_it_has_not(tmp_path):
    library = build(tmp_path, DNNL, STATUS=0)
    results, said = bench(*MATMUL, "--dtype", "f32,bf16,f16", "--peer", "onednn", TESSERA_ONEDNN=library)
    assert [(r["dtype"], r["peer"], r["variant"]) for r in results if r["peer"]] == [
        ("f32", "onednn", "dnnl_sgemm"), ("bf16", "onednn", "dnnl_gemm_bf16bf16f32")]
    assert said == ["tessera: peer onednn left out: onednn has no matmul of f16"]
    for extra, word in ((["--activation", "gelu"], "activation"), (["--bias"], "bias"), (["--batch", "2"], "batch")):
        results, said = bench(*MATMUL, *extra, "--peer", "onednn", TESSERA_ONEDNN=library)
        assert peers_of(results) == [None] and len(said) == 1 and word in said[0]


@needs_tessera
@needs_compiler
def test_a_library_that_disagrees_or_fails_is_not_timed(tmp_path):
    wrong = build(tmp_path, CBLAS, SET_THREADS="openblas_set_num_threads", COUNT="int", TRANS=113)
    environment = {"PEER_THREADS": str(tmp_path / "threads"), "TESSERA_OPENBLAS": wrong}
    results, said = bench(*MATMUL, "--transpose-b", "--peer", "openblas", code=3, **environment)
    assert peers_of(results) == [None] and len(said) == 1 and "disagrees" in said[0]
    failing = build(tmp_path, DNNL, STATUS=3)
    results, said = bench(*MATMUL, "--peer", "onednn", TESSERA_ONEDNN=failing)
    assert peers_of(results) == [None] and len(said) == 1 and "failed" in said[0]


@needs_tessera
@needs_compiler
def test_a_library_without_the_functions(tmp_path):
    library = build(tmp_path, "int nothing;")
    results, said = bench(*MATMUL, "--peer", "blis", TESSERA_BLIS=library)
    assert peers_of(results) == [None] and said == ["tessera: peer blis left out: blis lacks an sgemm"]


# ---- A process in place of torch's -------------------------------------------------------------------------------

SCRIPT = """\
#!{python}
import json, sys
print(json.dumps({{"ready": "9.9", "library": {version!r}}}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    open({log!r}, "a").write(line)
    {answer}
"""
REPLY = {"path": "somehow", "median_ms": 2.0, "p20_ms": 1.5, "p80_ms": 2.5, "ours_ms": 0.5, "ours_p20": 0.4,
         "ours_p80": 0.6, "max_abs_err": 1e-6, "samples": 7, "samples_set_aside": 1, "throttled": False}


def stand_in(tmp_path, answer, version=None):
    if version is None:
        done = subprocess.run([TESSERA, "--version"], capture_output=True, text=True, timeout=60, check=True)
        version = done.stdout.split()[-1]
    script = tmp_path / "python"
    script.write_text(SCRIPT.format(python=sys.executable, version=version, log=str(tmp_path / "log"),
                                    answer=answer))
    script.chmod(0o755)
    return {"TESSERA_PYTHON": str(script)}


@needs_tessera
def test_what_torch_is_asked_and_what_becomes_of_its_answer(tmp_path):
    environment = stand_in(tmp_path, f"print('''{json.dumps(REPLY)}''', flush=True)")
    (ours, theirs), said = bench("attention", "--batch-size", 2, "--seqlen-q", 3, "--seqlen-k", 5, "--num-heads", 4,
                                 "--num-kv-heads", 2, "--head-dim", 8, "--mask", "causal", "--threads", 2,
                                 "--seed", 5, "--rep", 3, "--variant", "naive", "--peer", "torch", **environment)
    request = json.loads((tmp_path / "log").read_text())
    assert said == []
    assert {key: request[key] for key in ("op", "dtype", "variant", "threads", "seed", "rep", "flags")} == {
        "op": "attention_forward", "dtype": "f32", "variant": "naive", "threads": 2, "seed": 5, "rep": 3, "flags": 0}
    assert request["params"]["mask"] == "causal"
    assert request["tensors"]["q"] == {"shape": [2, 3, 4, 8], "dtype": "f32"}
    assert request["tensors"]["v"] == {"shape": [2, 5, 2, 8], "dtype": "f32"}
    assert ours["peer"] is None and ours["variant"] == "naive"
    assert theirs["peer"] == "torch" and theirs["variant"] == "somehow" and theirs["params"] == ours["params"]
    assert (theirs["p20_ms"], theirs["median_ms"], theirs["p80_ms"]) == (1.5, 2, 2.5)
    assert theirs["ours_ms"] == 0.5 and theirs["speedup_over_peer"] == 4 and theirs["samples"] == 7
    assert theirs["tflops"] == pytest.approx(ours["tflops"] * ours["median_ms"] / 2)
    assert theirs["err_over_bound"] is None and theirs["threads"] == 2 and theirs["peak_bytes"] is None


@needs_tessera
@pytest.mark.parametrize("reply, code, word", [
    ({"unsupported": "torch has no equivalent of it"}, 0, "no equivalent of it"),
    ({"disagrees": "torch (softmax) and tessera differ"}, 3, "differ"),
    ({"error": "RuntimeError: out of luck"}, 0, "out of luck"),
    (None, 0, "without an answer"),
])
def test_answers_that_are_no_figures(tmp_path, reply, code, word):
    answer = f"print('''{json.dumps(reply)}''', flush=True)" if reply else "sys.exit(1)"
    results, said = bench(*SOFTMAX, "--peer", "torch", code=code, **stand_in(tmp_path, answer))
    assert peers_of(results) == [None] and len(said) == 1 and word in said[0]


@needs_tessera
def test_a_library_of_another_version_is_refused(tmp_path):
    _, said = bench(*SOFTMAX, "--peer", "torch", **stand_in(tmp_path, "pass", version="0.0.1"))
    assert len(said) == 1 and "is version 0.0.1, this is" in said[0]


@needs_tessera
def test_the_table_shows_ours_beside_the_peer(tmp_path):
    environment = stand_in(tmp_path, f"print('''{json.dumps(REPLY)}''', flush=True)")
    done = subprocess.run([TESSERA, "bench", *SOFTMAX, "--peer", "torch"], capture_output=True, text=True,
                          timeout=120, env={**os.environ, **environment}, check=True)
    header, _, ours, theirs = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines()[:4]]
    at = header.index("peer / ours")
    assert header[at - 1] == "ours, ms" and ours[at] == "-" and theirs[at] == "4.00x"
    assert "torch: somehow" in theirs
