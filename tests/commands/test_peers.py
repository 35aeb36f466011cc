# SPDX-License-Identifier: Apache-2.0
"""tessera bench --peer: what is missing is said and the rest is measured, a peer that disagrees is not timed, and its
rows are those that results.json promises. Libraries are stood in for by small ones built here, torch by a script;
the real torch takes part where $TESSERA_PYTHON, or the Python of the tests, has it. How fast anything is is not
looked at."""
import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import peer_library  # noqa: E402
import peer_torch_matmul  # noqa: E402
import tables  # noqa: E402

TESSERA = os.environ.get("TESSERA", "")
CC = shutil.which("cc")
needs_tessera = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")
needs_compiler = pytest.mark.skipif(not CC, reason="no C compiler")
MATMUL = ["matmul", "--m", "5", "--n", "7", "--k", "6", "--rep", "2"]
SOFTMAX = ["softmax", "--rows", "3", "--cols", "8", "--rep", "2"]


def bench(*arguments, code=0, **environment):
    """Results by peer (None: ours), and what was said."""
    done = subprocess.run([TESSERA, "bench", *map(str, arguments), "--format", "jsonl"], capture_output=True,
                          text=True, timeout=300, env={**os.environ, **environment})
    assert done.returncode == code, done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith("bench: ")]
    return [json.loads(line) for line in done.stdout.splitlines()], said


def peers_of(results):
    return [result["peer"] for result in results]


# ---- What is not there -------------------------------------------------------------------------------------------

@needs_tessera
def test_unknown_peers_are_a_usage_error():
    for names in ("mkl", "torch,mkl", "openblas,,blis", "", "triton"):  # which is of GPUs
        _, said = bench(*SOFTMAX, "--peer", names, code=2)
        assert len(said) == 1 and said[0].startswith("tessera bench: ")


def test_every_operation_has_a_function_that_python_knows():
    peer_torch = pytest.importorskip("peer_torch")
    assert set(peer_torch.OPERATIONS) == set(peer_library.ARGS)


class Number:
    """As much of a tensor as comparing asks for."""

    def __init__(self, value):
        self.value = value

    def __sub__(self, other):
        return Number(self.value - other.value)

    def abs(self):
        return Number(abs(self.value))

    def item(self):
        return self.value
    float = detach = max = lambda self: self


def test_an_output_is_compared_with_what_is_expected_of_it():
    peer_torch = pytest.importorskip("peer_torch")
    job, ran = {"dx": Number(2), "dweight": Number(100)}, []
    contest = peer_library.Contest(lambda: ran.append("ours"), "dx dweight", [])
    assert peer_torch.compare(job, contest, lambda: [Number(2), Number(80)]) == (20, 0.25)
    contest.expected = {"dweight": Number(99), "dbias": Number(0)}
    assert peer_torch.compare(job, contest, lambda: [Number(2), Number(80)]) == (1, 1 / 99)
    assert ran == ["ours", "ours"]


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


# ---- The current directory may be somebody else's -----------------------------------------------------------------

@needs_tessera
@pytest.mark.parametrize("path", [None, "", ".", ":/usr/lib", "lib:"])
def test_nothing_of_the_current_directory_is_imported(tmp_path, monkeypatch, path):
    """Modules that the scripts import, that Python imports at its start, and its own name."""
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
    assert said == ["tessera: peer onednn left out: onednn has no product of f16"]
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


# ---- A process in the place of torch's ---------------------------------------------------------------------------

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
    ({"unsupported": "torch has nothing like it"}, 0, "nothing like it"),
    ({"disagrees": "torch (softmax) and we differ"}, 3, "differ"),
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
    assert header[at - 1] == "ours beside, ms" and ours[at] == "-" and theirs[at] == "4.00x"
    assert "torch: somehow" in theirs


# ---- The structs that Python hands to the library ----------------------------------------------------------------

def test_scripts_are_python(tmp_path):
    """Where there is no torch nothing else reads them."""
    for script in sorted((ROOT / "bench").glob("*.py")):
        compile(script.read_text(), str(script), "exec")
        if script.stem.startswith("peer_"):  # the tool carries it along
            assert f" {script.stem}" in (ROOT / "cmake" / "TesseraTool.cmake").read_text()


class Tensors:
    """The part of torch's tensors that the library's calls look at."""
    class device:
        type, index = "cuda", 3
    dtype, shape = "f32", (2, 3)

    def dim(self):
        return 2

    def stride(self, i):
        return (3, 1)[i]

    def data_ptr(self):
        return 4096


def test_tensors_of_a_device_say_so():
    library = object.__new__(peer_library.Library)
    library.library = type("library", (), {"tsr_softmax_forward": None})
    run = library.call("softmax_forward", None, {"x": Tensors()}, {"f32": 2})
    view = run.keep[0].x
    assert list(view.device) == [1, 3] and view.data == 4096 and list(view.stride)[:2] == [3, 1]


# ---- The tables of bench/tables.py -------------------------------------------------------------------------------

def test_tables_ask_for_what_there_is():
    """Their requests and fields are those of the library; sizes of a product's tensors fit each other."""
    requests = [request for _, request in tables.SMALL]
    requests += [tables.product(*shape, activation, extra) for shape in tables.PRODUCTS
                 for _, activation, extra in tables.EPILOGUES]
    requests += [tables.linear_gradient(*shape, ["db", "dbias"]) for shape in tables.LINEAR]
    for request in requests:
        assert set(request["tensors"]) <= set(peer_library.ARGS[request["op"]][0].split())
        assert request["params"].get("activation", "none") in peer_torch_matmul.ACTIVATIONS
    fields = {name for name, *_ in peer_library.args_struct("attention_forward")._fields_}
    for name, given, extra, group in tables.FEATURES:
        assert set(given) | set(extra) <= fields and tables.HEADS % group == 0, name
    made = tables.product(2, 3, 5, "silu", ("b_up", "bias"))["tensors"]
    assert {name: given["shape"] for name, given in made.items()} == {
        "a": [2, 5], "b": [3, 5], "c": [2, 3], "b_up": [3, 5], "bias": [3]}


def test_shares_of_scores():
    assert tables.visible_share({"softcap": 30.0}, 8) == 1
    assert tables.visible_share({"mask": 1}, 4) == 10 / 16
    assert tables.visible_share({"mask": 1, "window_left": 1}, 4) == 7 / 16


def test_a_row_that_cannot_be_had_says_why(capsys):
    def refuse():
        raise peer_library.Refusal("not here\nat all")
    tables.show("Title", ["a", "b", "c"], [("one", lambda: [1.234, 250.4]), ("two", refuse)])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "## Title", "", "| a | b | c |", "|---|---|---|", "| one | 1.23 | 250 |", "| two | Refusal: not here |  |"]


@pytest.mark.parametrize("arguments, word", [(["--tables", "cold,none"], "'none'"), ([], "has no PyTorch, which the tables are beside: broken")], ids=str)
def test_tables_without_a_gpu(arguments, word, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('broken')")
    done = subprocess.run([sys.executable, ROOT / "bench" / "tables.py", "libtessera.so", *arguments], timeout=60,
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode != 0 and word in done.stderr and done.stdout == ""


@needs_compiler
def test_structs_are_those_of_the_headers(tmp_path):
    structs = {"tsr_tensor": peer_library.Tensor, "tsr_context_options": peer_library.ContextOptions,
               **{f"tsr_{op}_args": peer_library.args_struct(op) for op in peer_library.ARGS}}
    nested = {"device_type": "device.type", "device_index": "device.index"}
    lines, expected = [], []
    for name, struct in structs.items():
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        expected.append(ctypes.sizeof(struct))
        for field, *_ in struct._fields_:
            lines.append(f'printf("%zu %zu\\n", offsetof({name}, {nested.get(field, field)}), '
                         f'sizeof((({name} *)0)->{field}));')
            expected += [getattr(struct, field).offset, getattr(struct, field).size]
    (tmp_path / "sizes.c").write_text(textwrap.dedent("""\
        #include <stddef.h>
        #include <stdio.h>
        #include <tessera/tessera.h>
        int main(void) {
            %s
            return 0;
        }
        """) % "\n    ".join(lines))
    subprocess.run([CC, "-I", ROOT / "include", "-o", tmp_path / "sizes", tmp_path / "sizes.c"], check=True,
                   timeout=60)
    done = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True, timeout=60)
    assert list(map(int, done.stdout.split())) == expected


# ---- The real one ------------------------------------------------------------------------------------------------

def find_torch():
    """A Python that has torch, for its script's own search is tested above."""
    for python in filter(None, (os.environ.get("TESSERA_PYTHON"), sys.executable)):
        try:
            done = subprocess.run([python, "-c", "import torch"], capture_output=True, timeout=120)
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return None


@pytest.fixture(scope="module")
def torch():
    python = find_torch() if TESSERA else None
    if python is None:
        pytest.skip("no torch")
    return {"TESSERA_PYTHON": python}


NORM = ["--rows", "5", "--cols", "24", "--pass", "both"]
PRODUCT = ["matmul", "--pass", "both", "--m", "5", "--n", "7", "--k", "6"]
EPILOGUE = [*PRODUCT[:2], "forward", *PRODUCT[3:]]
ATTENTION = ["attention", "--pass", "both", "--batch-size", "2", "--seqlen-q", "5", "--seqlen-k", "9",
             "--num-heads", "4", "--num-kv-heads", "2", "--head-dim", "16"]


@pytest.mark.parametrize("cases, count", [
    (["softmax", "layernorm", "rmsnorm", *NORM], 6),
    (["layernorm", *NORM, "--weight", "--bias", "--residual", "--residual-out"], 2),
    (["layernorm", "rmsnorm", "--rows", "16384", "--cols", "64", "--pass", "backward"], 2),
    (["cast", "activation", *NORM[:4]], 2), (["adamw", *NORM[:4]], 1),
    (["rope", "--batch", "2", "--seqlen", "5", "--num-heads", "3", "--head-dim", "16", "--pass", "both"], 2),
    (["embedding", "--tokens", "20", "--vocab", "7", "--hidden", "24", "--pass", "both"], 2),
    (PRODUCT, 2), ([*PRODUCT, "--transpose-a", "--transpose-b"], 2),
    ([*EPILOGUE, "--bias", "--activation", "none,gelu,gelu_tanh,silu,relu"], 5),
    ([*EPILOGUE, "--b-up", "--activation", "silu,gelu", "--transpose-b"], 2),
    ([*EPILOGUE, "--bias", "--residual", "--b-up", "--activation", "relu"], 1),
    ([*EPILOGUE, "--residual"], 1), ([*PRODUCT[:2], "backward", *PRODUCT[3:], "--db", "--dbias"], 1),
    ([*ATTENTION, "--mask", "none,causal,causal-top-left", "--softmax-scale", "0.3"], 6),
], ids=("rows", "residual", "sums over many rows", "elements", "step", "rotations", "lookups", "matmul", "transposed", "bias", "gate", "all of it", "sum", "bias gradient",
                                         "attention"))
def test_torch_and_we_agree(torch, cases, count):
    results, said = bench(*cases, "--dtype", "f32,bf16", "--rep", 2, "--peer", "torch", **torch)
    theirs = [result for result in results if result["peer"] == "torch"]
    assert len(theirs) == 2 * count, said
    for result in theirs:
        assert result["median_ms"] > 0 and result["ours_ms"] > 0 and result["max_abs_err"] < 0.1


def test_what_torch_cannot_do(torch):
    results, said = bench(*ATTENTION, "--softcap", "5", "--rep", 2, "--peer", "torch", **torch)
    assert set(peers_of(results)) == {None} and len(said) == 1 and "nothing like softcap" in said[0]
