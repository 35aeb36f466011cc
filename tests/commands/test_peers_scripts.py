# SPDX-License-Identifier: Apache-2.0
"""The Python behind tessera bench --peer: bench/peer_*.py know every operation, pass the library the structs of its
headers and compare the right results; bench/tables.py only requests what exists. No test needs a GPU; tests that need
torch are skipped without it."""
import ctypes
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
from peers_support import CC, needs_compiler

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import peer_library  # noqa: E402
import peer_torch_matmul  # noqa: E402
import tables  # noqa: E402


# ---- Operations --------------------------------------------------------------------------------------------------

def test_every_operation_has_a_function_that_python_knows():
    peer_torch = pytest.importorskip("peer_torch")
    assert set(peer_torch.OPERATIONS) == set(peer_library.ARGS)


class Number:
    """The part of a tensor that a comparison needs."""

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


# ---- The structs that Python passes to the library ----------------------------------------------------------------

def test_scripts_are_python(tmp_path):
    """Without torch no other test reads them."""
    for script in sorted((ROOT / "bench").glob("*.py")):
        compile(script.read_text(), str(script), "exec")
        if script.stem.startswith("peer_"):  # the tool embeds it
            assert f" {script.stem}" in (ROOT / "cmake" / "TesseraTool.cmake").read_text()


class Tensors:
    """The part of torch's tensors that the library's calls read."""
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
    """Their requests and fields exist in the library, and the sizes of a product's tensors match."""
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


@pytest.mark.parametrize("arguments, word", [
    (["--tables", "cold,none"], "'none'"),
    ([], "has no PyTorch, which the tables compare with: broken")], ids=str)
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
