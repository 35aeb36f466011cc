# SPDX-License-Identifier: Apache-2.0
"""tessera conformance on folders from somebody else: what a case may contain, and what it must not be able to do. The
binary is $TESSERA."""
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from apply_support import TESSERA, write

pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

ESCAPE = "\x1b]0;title\x07"


def run(*arguments, code=0, timeout=60):
    done = subprocess.run([TESSERA, "conformance", *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def softmax(folder, name="case", **members):
    """Writes a case of softmax by hand."""
    folder.mkdir(exist_ok=True)
    write(folder / f"{name}.safetensors", {"x": np.zeros((2, 3), np.float32)})
    call = {"op": "softmax_forward", "params": {"rows": 2, "cols": 3}} | members
    (folder / f"{name}.json").write_text(json.dumps(call))
    return folder


def test_options_are_those_of_the_parameters(tmp_path):
    """Words under "options" could be any options of the answering command, so they are dropped."""
    cases = softmax(tmp_path / "cases", options=["--output=elsewhere", "--scale=2"])
    done = run("check", cases, "--command", "echo [{options}]", code=1)
    assert done.stderr.splitlines()[0] == "[]"


@pytest.mark.parametrize("operation", ["attention", "matmul", "adamw", "rope", "cross-entropy"])
def test_what_write_says_is_among_them(operation, tmp_path):
    run("write", operation, "--output", tmp_path, "--configs", 12, "--seed", 3, "--dtype", "f32")
    done = run("check", tmp_path, "--command", "printf '%s\\n' @{call} {options}", code=1)
    said = {}
    for line in done.stderr.splitlines():
        if line.startswith("@"):
            options = said[line[1:]] = []
        elif line.startswith("--"):
            options.append(line)
    paths = sorted(tmp_path.glob("*.json"))
    assert len(paths) == len(said) >= 12
    for path in paths:
        # Besides the given options there are those that follow from the tensors, such as rope's rotary_dim.
        call = json.loads(path.read_text())
        options = {option.removeprefix("--").replace("-", "_").partition("=")[0] for option in said[str(path)]}
        assert set(call["options"]) <= set(said[str(path)]) and options <= set(call["params"])


@pytest.mark.parametrize("name, value", [("rows", 1e300), ("rows", -1), ("rows", 2.5), ("rows", 2**31),
                                         ("cols", -1e300)])
def test_sizes_are_whole_numbers_that_are_exact(name, value, tmp_path):
    softmax(tmp_path, params={"rows": 2, "cols": 3, name: value})
    assert f"params.{name} has a wrong type or value" in run("check", tmp_path, "--results", tmp_path, code=2).stderr


def test_words_of_files_have_no_control_characters(tmp_path):
    cases, results = tmp_path / "cases", tmp_path / "results"
    softmax(cases, name="name" + ESCAPE)
    results.mkdir()
    header = json.dumps({"y": {"dtype": ESCAPE, "shape": [1], "data_offsets": [0, 1]}}).encode()
    (results / f"name{ESCAPE}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"0")
    texts = []
    for form in ("md", "json"):
        done = run("check", cases, "--results", results, "--format", form, code=1)
        texts += [done.stdout, done.stderr]
    assert "dtype ?]0;title?, expected f32" in texts[0] and "dtype ?]0;title?, expected f32" in texts[1]
    for text in ('{"op": "\\u001b[2J\\u009b2J", "params": {}}', "\x1b[2J"):
        softmax(tmp_path / "bad")
        (tmp_path / "bad" / "case.json").write_text(text)
        texts.append(run("check", tmp_path / "bad", "--results", results, code=2).stderr)
    for text in texts:
        assert all(c == "\n" or (c >= " " and not "\x7f" <= c < "\xa0") for c in text), text


@pytest.mark.parametrize("name, shown", [
    ("x" + "\u00e9" * 80, "x" + "\u00e9" * 59 + "? ("), ("no\udcff\udce2\udc82\udced\udca0\udc80utf8", "no??????utf8 (")],
    ids=["cut", "bytes"])
def test_words_that_are_no_utf8_have_their_place_in_json(name, shown, tmp_path):
    cases = softmax(tmp_path / "cases", name=name)
    (tmp_path / "none").mkdir()
    done = run("check", cases, "--results", tmp_path / "none", "--name", "\u20ac" * 20, "--format", "json", code=1)
    result = json.loads(done.stdout)["results"][0]
    assert result["failure"].startswith(shown) and "there is no " in result["failure"]
    assert result["variant"] == "\u20ac" * 10 + "?"


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "case.json")
    done = run("check", tmp_path, "--results", tmp_path, code=2, timeout=20)
    assert "case.json: it is no regular file" in done.stderr


def test_answers_do_not_take_the_place_of_inputs(tmp_path):
    cases = softmax(tmp_path / "cases")
    before = (cases / "case.safetensors").read_bytes()
    (tmp_path / "link").symlink_to(cases)
    for results in (cases, tmp_path / "link", f"{cases}/../cases/"):
        done = run("check", cases, "--command", "true", "--results", results, code=2)
        assert "is the folder of the cases" in done.stderr
        assert (cases / "case.safetensors").read_bytes() == before


# ---- Names that a shell could run as code ----------------------------------------------------------------------

HOSTILE = ["a$(touch RAN)", "b`touch RAN`", "c;touch RAN;", "d|touch RAN", "e&touch RAN&", "f\ntouch RAN\n", "g'$(touch RAN)'",
           'h"$(touch RAN)"', "i';touch RAN;'", 'j";touch RAN;"', "k') ; touch RAN ; ('", "l\\", "m\\'", "n \t*?[a-z]", "-o",
           "{output}", "{options}", "$RAN", "ü", "~", "#", "!!", "x=1", "%s%n", ">RAN", "<RAN", "a' + open('RAN', 'w') + '"]
CONTEXTS = {
    "bare": "TOOL apply {op} --input {input} --output {output} {options}",
    "single": "TOOL apply '{op}' --input '{input}' --output '{output}' {options}",
    "double": 'TOOL apply "{op}" --input "{input}" --output "{output}" {options}',
    "joined": "TOOL apply {op} --input={input} '--output={output}' {options}",
    "doubled": "TOOL apply {op} --input ''\"{input}\"'' --output \"\"'{output}'\"\" {options}",
    "nested in single": "sh -c 'TOOL apply {op} --input {input} --output {output} {options}'",
    "nested in double": 'sh -c "TOOL apply {op} --input \'{input}\' --output {output} {options}"',
    "nested twice": "sh -c 'sh -c \"TOOL apply {op} --input {input} --output {output} {options}\"'",
    "substituted": 'TOOL apply {op} --input "$(echo {input})" --output `echo {output}` {options}',
    "evaluated": "eval \"TOOL apply {op} --input {input} --output '{output}' {options}\"",
    "a variable": "i={input} o='{output}'; TOOL apply {op} --input $i --output \"$o\" {options}",
    "a default": 'TOOL apply {op} --input "${NONE:-{input}}" --output {output} {options}',
    "backslashes": "\\TOOL apply {op} --input \\\n {input} --output \\{output} {options}",
    "a document": "sh <<END\nTOOL apply {op} --input {input} --output {output} {options}\nEND",
    "another language": "PYTHON -c \"import subprocess as s; s.run(['TOOL', 'apply', '{op}', '-i', '{input}', '-o', '{output}', "
                        "*'{options}'.split()], check=True)\"",
    "a comment": "TOOL apply {op} --input {input} --output {output} {options} # {input} '{call}",
}
# These quote the path wrongly on purpose: nothing is answered, and nothing else runs.
WRONG = ["\\{input}", "$(({input}))", "${{input}}", "{input}{output}", ">'{input}", "'{input}\"", "(", "{call}"]


def run_with(folder, cwd, command, *more, code):
    """Any code in a name would leave a file."""
    before = {path.name for path in cwd.iterdir()}
    command = command.replace("TOOL", TESSERA).replace("PYTHON", sys.executable)
    done = subprocess.run([TESSERA, "conformance", "check", str(folder), "--command", command, *more],
                          capture_output=True, text=True, timeout=300, cwd=cwd, check=False)
    assert {path.name for path in cwd.iterdir()} - set(more) == before, command
    assert done.returncode == code, (command, done.stdout, done.stderr)
    return done


@pytest.fixture
def hostile(tmp_path):
    (tmp_path / "cwd").mkdir()
    for name in HOSTILE:
        softmax(tmp_path / "cwd" / "cases", name)
    softmax(tmp_path / "cwd" / "cases", "ordinary")
    return tmp_path / "cwd"


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_name_is_never_code_however_it_is_quoted(hostile, context):
    done = run_with("cases", hostile, CONTEXTS[context], code=0)
    assert f" {len(HOSTILE) + 1} random configurations" in done.stdout and " 0 failed" in done.stdout


@pytest.mark.parametrize("command", WRONG)
def test_a_name_is_not_code_in_a_command_that_is_wrong(hostile, command):
    run_with("cases", hostile, f"true {command} {{options}}", code=1)


def test_answers_to_hostile_names_are_kept_under_them(hostile):
    results = "the results' $(touch RAN) folder"
    run_with("cases", hostile, CONTEXTS["nested in single"], "--results", results, code=0)
    assert {p.name for p in (hostile / results).iterdir()} == {p.name for p in (hostile / "cases").glob("*.safetensors")}


def test_a_folder_of_any_name(tmp_path):
    folder = softmax(tmp_path / "my cases; touch RAN").rename(tmp_path / "it's $(touch RAN)")
    run_with(folder, tmp_path, CONTEXTS["double"], code=0)
    temporary = tmp_path / "tmp $(touch RAN)"
    temporary.mkdir()
    command = CONTEXTS["bare"].replace("TOOL", TESSERA)
    done = subprocess.run([TESSERA, "conformance", "check", str(folder), "--command", command], capture_output=True, text=True,
                          timeout=60, cwd=tmp_path, env={**os.environ, "TMPDIR": str(temporary)}, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(temporary.iterdir()) and not (tmp_path / "RAN").exists()


@pytest.mark.parametrize("quote", ["'", '"'])
def test_options_between_quotes_are_refused(tmp_path, quote):
    done = run("check", softmax(tmp_path / "cases"), "--command", f"true {quote}{{options}}{quote}", code=2)
    assert "{options}" in done.stderr and len(done.stderr.splitlines()) == 1
