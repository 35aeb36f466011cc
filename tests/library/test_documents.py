# SPDX-License-Identifier: Apache-2.0
"""Man pages and shell completions describe every command and operation exactly as --help does. The binary is $TESSERA."""
import os
import re
import shlex
import shutil
import subprocess

import pytest

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")


def run(*arguments, code=0):
    done = subprocess.run([TESSERA, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def options_of(*command):
    """The options in a command's --help, such as {"--eps"}, without --help itself."""
    return set(re.findall(r"^  (?:-\w, |    )(--[\w-]+)", run(*command, "--help"), re.M)) - {"--help"}


COMMANDS = re.findall(r"^  ([a-z]+) +\S", run("--help").split("First steps")[0], re.M) if TESSERA else []
OPERATIONS = ["softmax", "matmul", "attention", "cross-entropy"]


# ---- Man pages ---------------------------------------------------------------------------------

def page_options(page):
    """The options of each operand or of the command itself: {None or operand: {"--eps"}}"""
    sections, current = {None: set()}, None
    for line in page.replace("\\-", "-").splitlines():
        if line.startswith(".SS "):
            current = line[4:]
            sections[current] = set()
        elif line.startswith("\\fB-"):
            sections[current].add(re.search(r"--[\w-]+", line)[0])
    sections[None].discard("--help")
    return sections


def test_a_page_has_every_option_of_help():
    assert {"verify", "apply", "manual"} <= set(COMMANDS)
    for command in COMMANDS:
        page = run("manual", command)
        assert page.startswith(f'.TH "TESSERA-{command.upper()}" 1 ') and ".SH EXIT STATUS\n" in page
        sections = page_options(page)
        assert sections[None] == options_of(command), command
        for operation in OPERATIONS if command in ("apply", "bench") else []:
            assert sections[None] | sections.get(operation, set()) == options_of(command, operation)


def test_pages_are_written_into_a_folder(tmp_path):
    run("manual", "--output", tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"tessera.1", *(f"tessera-{command}.1" for command in COMMANDS)}
    assert (tmp_path / "tessera-bench.1").read_text() == run("manual", "bench")
    main = (tmp_path / "tessera.1").read_text()
    for command in COMMANDS:
        assert f".BR tessera\\-{command} (1)\n" in main
    assert "cannot write" in run("manual", "-o", tmp_path / "none", code=4)


def test_nothing_in_a_page_is_taken_for_a_request():
    for command in COMMANDS:
        for line in run("manual", command).splitlines():
            assert not line.startswith("'") and re.match(r"(\.(TH|SH|SS|TP|BR|nf|fi)\b|[^.])|$", line), line


def test_manual_and_completion_usage():
    assert "there is no command 'nothing'" in run("manual", "nothing", code=2)
    assert "expected bash or zsh" in run("completion", "ksh", code=2)
    assert "expected bash or zsh" in run("completion", code=2)


# ---- Completions -------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """What bash completes for a line. The last word is the one under the cursor."""
    if not shutil.which("bash"):
        pytest.skip("no bash")
    script = tmp_path_factory.mktemp("bash") / "tessera"
    script.write_text(run("completion", "bash"))

    def offer(*words, cwd="/"):
        line = " ".join(shlex.quote(word) for word in ("tessera", *words))
        done = subprocess.run(["bash", "--norc", "-c", f'. {script}; COMP_WORDS=({line}); '
                               f'COMP_CWORD={len(words)}; _tessera; printf "%s\\n" "${{COMPREPLY[@]}}"'],
                              capture_output=True, text=True, timeout=60, check=True, cwd=cwd)
        assert done.stderr == ""
        return set(filter(None, done.stdout.splitlines()))
    return offer


def test_bash_commands_operands_and_options(complete):
    assert complete("") == {*COMMANDS, "--help", "--version"}
    assert complete("ver") == {"verify"}
    assert complete("apply", "soft") == {"softmax"}
    assert complete("kernels", "") == {"check", "pack", "list", "clear"}
    assert complete("manual", "be") == {"bench"}
    assert complete("verify", "--") == options_of("verify") | {"--help"}
    assert complete("bench", "softmax", "--") == options_of("bench", "softmax") | {"--help"}
    assert complete("apply", "-i", "x", "matmul", "--transpose") == {"--transpose-a", "--transpose-b"}


def test_bash_values(complete, tmp_path):
    assert complete("apply", "attention", "--mask", "") == {"none", "causal", "causal-top-left"}
    assert complete("apply", "attention", "--mask", "=", "ca") == {"causal", "causal-top-left"}
    assert complete("bench", "--format", "js") == {"json", "jsonl"}
    assert complete("verify", "--seed", "") == set()
    (tmp_path / "a b.safetensors").touch()
    (tmp_path / "folder").mkdir()
    for option in ("--input", "-i"):
        assert complete("apply", option, "", cwd=tmp_path) == {"a b.safetensors", "folder"}
    assert complete("report", "--save-dir", "", cwd=tmp_path) == {"folder"}


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh")
def test_zsh_tables(tmp_path):
    """Sourcing the script only defines functions, and its tables match --help."""
    (tmp_path / "_tessera").write_text(run("completion", "zsh"))
    ask = ("compdef() { :; }; . ./_tessera; ask() { local -a commands operands options; local command=apply "
           "operand=attention; _tessera_commands; _tessera_operands; _tessera_options; print -l $commands; "
           "print -l $operands; print -lr -- $options; }; ask")
    done = subprocess.run(["zsh", "-f", "-c", ask], capture_output=True, text=True, cwd=tmp_path, check=True)
    lines = done.stdout.splitlines()
    assert {line.split(":")[0] for line in lines[:len(COMMANDS)]} == set(COMMANDS)
    assert "attention-decode" in lines
    options = {re.match(r"--[\w-]+", line)[0] for line in lines if line.startswith("--")}
    assert options == options_of("apply", "attention")
    assert any(line.startswith("--mask=[") and line.endswith(":NAME:(none causal causal-top-left)") for line in lines)
