# SPDX-License-Identifier: Apache-2.0
"""tessera report: its folder is complete, its JSON follows the schema, its page loads nothing from elsewhere, and its
numbers are numbers. Failures are in test_report_refusals.py."""

import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

TESSERA = os.environ.get("TESSERA") or str(
    pathlib.Path(__file__).parents[2] / "build" / "release" / "tessera"
)
pytestmark = [
    pytest.mark.skipif(not pathlib.Path(TESSERA).exists(), reason=f"no tessera command at {TESSERA}"),
    pytest.mark.xdist_group("report"),  # all tests share one report, so they run in one process
]

MINIMAL = ["report", "--quick", "--rep", "1", "--warmup", "1", "--dtype", "f32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report. On a busy machine its verification takes long, because --seconds does not limit it."""
    place = tmp_path_factory.mktemp("report") / "out"
    run = subprocess.run(
        [TESSERA, *MINIMAL, "--seconds", "45", "--theme", "dark", "--save-dir", str(place)],
        capture_output=True, text=True, timeout=1500,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    return place


# ---- The folder -----------------------------------------------------------------------------------


def test_folder_is_complete(folder):
    assert sorted(p.name for p in folder.iterdir()) == [
        "plots", "report.html", "results.json", "results.md",
    ]
    scripts = sorted((folder / "plots").glob("*.gp"))
    assert len(scripts) >= 4
    for script in scripts:
        assert script.with_suffix(".dat").stat().st_size > 0
        if shutil.which("gnuplot"):
            png = script.with_suffix(".png").read_bytes()
            assert png.startswith(b"\x89PNG\r\n"), script.name
            assert "<svg" in script.with_suffix(".svg").read_text(), script.name


# ---- results.json ---------------------------------------------------------------------------------

NUMBER_OR_NULL = [
    "p20_ms", "p80_ms", "graph_ms", "tflops", "gb_s", "share_of_ceiling", "speedup_over_naive",
    "max_abs_err", "peak_bytes", "predicted_bytes", "joules",
]


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def test_results_keep_to_the_schema(folder):
    document = json.loads((folder / "results.json").read_text(), parse_constant=pytest.fail)
    assert document["schema"] == 1
    for key in ("host", "cpu", "isa", "threads", "version"):
        assert document["env"][key], key
    results = document["results"]
    assert len(results) >= 8
    for result in results:
        assert re.fullmatch(r"[a-z0-9_]+", result["op"])
        assert isinstance(result["params"], dict)
        assert result["dtype"] == "f32"
        assert result["device"] == "cpu"
        assert is_number(result["median_ms"]) and result["median_ms"] > 0
        for key in NUMBER_OR_NULL:
            assert result[key] is None or is_number(result[key]), key
        assert result["peer"] is None or isinstance(result["peer"], str)
        if result["peer"] is None:
            assert is_number(result["err_over_bound"])
            assert 0 <= result["err_over_bound"] <= 1
            assert isinstance(result["variant"], str)
        assert result["cache"] in ("cold", "warm")
        assert isinstance(result["throttled"], bool)
        assert result["scaled_from"] is None or result["scaled_from"]


def test_fused_and_unfused_softmax_are_both_there(folder):
    results = json.loads((folder / "results.json").read_text())["results"]
    softmax = [r for r in results if r["op"] == "softmax_forward"]
    assert "unfused" in {r["variant"] for r in softmax}
    assert len({r["variant"] for r in softmax}) >= 2


# ---- report.html ----------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Collects the tables and the page's external resources, and whether its elements are closed in order."""

    VOID = {"meta", "link", "br", "img", "input", "hr"}

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.loads, self.captions, self.numbers, self.ids = [], [], [], []
        self.stack, self.text, self.raw = [], None, {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        for name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href"):
            if name in attributes:
                self.loads.append(attributes[name])
        if tag == "link" or "style" in attributes:
            assert "url(" not in attributes.get("style", "")
        if tag not in self.VOID:
            self.stack.append(tag)
        if tag == "caption" or tag == "td" and "n" in attributes.get("class", "").split():
            self.text = [tag, attributes.get("class", ""), ""]
        if tag in ("script", "style"):
            self.text = [tag, attributes.get("id") or "", ""]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.stack.pop()

    def handle_data(self, data):
        if self.text is not None:
            self.text[2] += data

    def handle_endtag(self, tag):
        assert self.stack and self.stack.pop() == tag, f"</{tag}> closes nothing"
        if self.text is not None and self.text[0] == tag:
            kind, note, text = self.text
            self.text = None
            if kind == "caption":
                self.captions.append(text)
            elif kind == "td":
                self.numbers.append((note, text))
            else:
                self.raw.setdefault(kind, []).append((note, text))


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_page_is_well_formed(page):
    assert page.stack == []
    assert len(page.ids) == len(set(page.ids))


def test_page_loads_nothing_from_elsewhere(page):
    for load in page.loads:
        assert load.startswith("#") or load == "data:,", load
    for _, style in page.raw["style"]:
        assert "@import" not in style
        assert not re.search(r"url\(\s*['\"]?(?!#|data:)", style)
    for name, script in page.raw["script"]:
        for call in ("fetch(", "XMLHttpRequest", "importScripts", "WebSocket", "sendBeacon"):
            assert call not in script, (name, call)
        assert not re.search(r"\bimport\s*[('\"]", script)


def test_page_has_its_tables_and_every_number_parses(page):
    for caption in ("Softmax", "What limits each kernel", "Verification", "Validation",
                    "Measured ceilings", "All measured operations", "Memory"):
        assert any(title.startswith(caption) for title in page.captions), caption
    assert len(page.numbers) > 100
    for note, text in page.numbers:
        if "none" in note.split():
            assert text == "–"
        else:
            float(text)


STUDIES = {"length", "length-gqa", "sweep", "grid", "shapes", "batch", "problem", "threads", "overhead",
           "moe", "moe-dense"}


def test_page_has_attention_and_scaling(folder, page):
    text = (folder / "report.html").read_text()
    results = json.loads((folder / "results.json").read_text())["results"]
    studies = {result["study"] for result in results} - {None}
    assert studies <= STUDIES
    if "The time limit ended the measuring" in text:  # a busy machine
        return
    assert studies == STUDIES
    captions = {"Attention by sequence length", "Attention: memory and time",
                "Attention compared with a reference", "Attention forward and backward",
                "Mixture of experts", "Scaling over the batch", "Scaling over the problem", "Utilisation"}
    assert captions <= set(page.captions)
    ids = {chart["id"] for chart in json.loads(dict(page.raw["script"])["data"])["charts"]}
    assert ids >= {"attention-time", "attention-rate", "attention-memory", "attention-speedup",
                   "attention-grid", "scaling", "utilisation"}
    layers = [r["params"] for r in results if r["study"] == "moe" and r["op"] == "moe_forward"]
    assert [p["tokens"] / layers[0]["tokens"] for p in layers] == [1, 16, 32]
    assert len({(p["hidden"], p["intermediate"]) for p in layers}) == 1
    lengths = [r for r in results if r["study"] == "length"]
    assert {r["variant"] for r in lengths} == {"naive", "flash1", "flash2", "tuned"}
    assert {r["params"]["seqlen_q"] for r in lengths} == {256, 512, 1024, 2048, 4096, 8192}
    assert {r["params"]["mask"] for r in lengths} == {"causal"}
    # Curves of one shape, and the published one beside them.
    assert len({(r["params"]["batch_size"], r["params"]["num_heads"]) for r in lengths}) == 1
    for result in lengths:
        assert result["asked_bytes"] >= result["predicted_bytes"] > 0
        if result["scaled_from"] is None:
            assert result["asked_bytes"] == result["predicted_bytes"]


def test_page_opens_in_the_theme_asked_for(folder):
    assert '<html lang="en" data-theme="dark">' in (folder / "report.html").read_text()


def test_page_holds_its_data_once(page, folder):
    blocks = [json.loads(text) for name, text in page.raw["script"] if name == "data"]
    assert len(blocks) == 1
    assert blocks[0]["results"] == json.loads((folder / "results.json").read_text())
    assert {chart["id"] for chart in blocks[0]["charts"]} >= {"share", "softmax", "roofline"}


def test_markdown_tables_are_rectangular(folder):
    widths = []
    for line in (folder / "results.md").read_text().splitlines() + [""]:
        if line.startswith("|"):
            widths.append(len(re.findall(r"(?<!\\)\|", line)))
            continue
        assert len(set(widths)) <= 1, line
        widths = []
