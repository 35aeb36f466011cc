# SPDX-License-Identifier: Apache-2.0
"""scripts/figures: README and docs/figures.md match the data, and a figure that was changed in one of them is reported."""
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(tree, *arguments):
    return subprocess.run([tree / "scripts/figures", *arguments], capture_output=True, text=True)


def copy_of_tree(tmp_path):
    shutil.copytree(ROOT / "docs/figures", tmp_path / "docs/figures")
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/figures", "docs/figures.md", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def replace(path, old, new):
    text = path.read_text()
    assert text.count(old) >= 1, old
    path.write_text(text.replace(old, new, 1))


def test_pages_show_the_data():
    done = run(ROOT, "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_figure_changed_in_a_page_is_told(tmp_path):
    tree = copy_of_tree(tmp_path)
    before = (tree / "README.md").read_text()
    replace(tree / "README.md", "1.125 / 1.140", "1.225 / 1.140")
    done = run(tree, "--check")
    assert done.returncode == 1 and done.stdout.startswith("README.md is not") and "figures.md" not in done.stdout
    assert run(tree).returncode == 0 and (tree / "README.md").read_text() == before


def test_a_named_figure_reaches_both_pages(tmp_path):
    tree = copy_of_tree(tmp_path)
    replace(tree / "docs/figures/h200.json", "{attention_forward:1.125}", "{attention_forward:7.531}")
    assert run(tree, "--check").returncode == 1
    assert run(tree).returncode == 0
    for page in ("README.md", "docs/figures.md"):
        assert "7.531 / 1.140" in (tree / page).read_text()
        assert "1.125" not in (tree / page).read_text()


def test_a_row_that_asks_for_no_figure_fails(tmp_path):
    tree = copy_of_tree(tmp_path)
    replace(tree / "docs/figures/h200.json", "{matmul_gelu:", "{matmul_other:")
    done = run(tree)
    assert done.returncode == 1 and "h200" in done.stderr and "matmul_gelu" in done.stderr
