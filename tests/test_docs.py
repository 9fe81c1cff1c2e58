"""The pages are true: their examples run, their links lead somewhere, and no name is missing."""

import doctest
import inspect
import io
import json
import re
import runpy
import shutil
import subprocess
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cases import for_each

import penstock as ps
from penstock import ops, testing

with suppress(ImportError):
    from pyarrow.csv import read_csv

    read_csv(io.BytesIO(b"a\n1\n"))  # the first call in a process opens a pipe for signals, which stays open

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
#: design.md shows what is still to come
RUN = [ROOT / "README.md", *sorted(page for page in DOCS.glob("*.md") if page.name != "design.md")]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md")), ROOT / "benchmarks" / "README.md"]

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def name(page):
    return str(page.relative_to(ROOT))


@dataclass
class Block:
    """A fenced block: what it is, its text, and the line on its page where the text begins."""

    kind: str
    text: str
    line: int


def blocks(page):
    text = page.read_text(encoding="utf-8")
    return [
        Block(match[2], textwrap.dedent(match[3]), text.count("\n", 0, match.start(3)) + 1)
        for match in _FENCE.finditer(text)
    ]


def prose(page):
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def run_python(block, page, names):
    # As if the block were a file of the user's: messages then name it as they would name theirs.
    try:
        exec(compile(block.text, "train.py", "exec"), names)
    except BaseException as exc:
        exc.add_note(f"in the block at {name(page)}:{block.line}")
        raise


def run_doctest(block, page, names):
    test = doctest.DocTestParser().get_doctest(block.text, names, name(page), str(page), block.line - 1)
    report = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append, clear_globs=False)
    names.update(test.globs)
    assert not runner.failures, "".join(report)


# ---------------------------------------------------------------------- examples


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of images with a folder for each class, where the first page has it."""
    from PIL import Image

    for label, colour in (("cat", "brown"), ("dog", "gray")):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(50):
            image = Image.new("RGB", (320 + number, 240), colour)
            image.save(tmp_path / "photos" / label / f"{number}.jpg")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("warm_processes", "photos")
@for_each("page", RUN)
def test_the_examples_of_a_page_run_in_their_order(page, monkeypatch):
    # What a check of ours checks is for the tests of that check; here, its name and arguments must be right.
    monkeypatch.setattr(testing.executors, "_PIPELINES", testing.executors._PIPELINES[:1])
    for checks in (testing.ops, testing.sources):
        monkeypatch.setattr(checks, "LAYOUTS", checks.LAYOUTS[:1])
        monkeypatch.setattr(checks, "FEW_PROCESS_LAYOUTS", ())
    monkeypatch.setattr(testing.ops, "_PLACES", 1)
    if page.name in ("torch.md", "README.md"):  # both make tensors
        pytest.importorskip("torch")
    names = {"__name__": "train"}
    for block in blocks(page):
        if block.kind == "python":
            run_python(block, page, names)
        elif block.kind == "pycon":
            run_doctest(block, page, names)


@for_each("page", RUN)
def test_a_block_that_looks_like_python_is_run(page):
    for block in blocks(page):
        if block.kind not in ("python", "pycon"):
            assert "import penstock" not in block.text, f"{name(page)}:{block.line}"
            assert ">>>" not in block.text, f"{name(page)}:{block.line}"


# ---------------------------------------------------------------------- links


def anchors(page):
    """The anchors that a page's headings get, as code hosts make them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(prose(page))}


@for_each("page", PAGES)
def test_every_relative_link_leads_somewhere(page):
    for link in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name(page)}: {link} has no such heading"


def test_every_page_of_the_docs_is_reached_from_the_index_and_from_the_readme():
    for start in (DOCS / "index.md", ROOT / "README.md"):
        linked = {(start.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(prose(start))}
        assert {page for page in DOCS.glob("*.md") if page.name != "index.md"} <= linked, name(start)


def test_the_measured_picture_is_drawn_from_the_committed_results():
    drawing = runpy.run_path(str(ROOT / "benchmarks" / "_training_picture.py"))
    results = json.loads(drawing["RESULTS"].read_text(encoding="utf-8"))
    assert drawing["PICTURE"].read_text(encoding="utf-8") == drawing["picture"](results)


# ---------------------------------------------------------------------- nothing missing

API = (DOCS / "api.md").read_text(encoding="utf-8")


def public_members(cls):
    own = [base for base in cls.__mro__ if base.__module__.startswith("penstock")]
    return sorted({member for base in own for member in vars(base) if not member.startswith("_")})


def keywords(function):
    return [one.name for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]


@for_each("public", ps.__all__)
def test_the_api_page_names_every_public_name(public):
    assert re.search(rf"`ps\.{public}\b", API)


@for_each("member", [*public_members(ps.Pipeline), *public_members(ps.Loader)])
def test_the_api_page_names_every_method(member):
    assert re.search(rf"`\.{member}\b", API)


@for_each("argument", [*keywords(ps.Pipeline.map), *keywords(ps.Pipeline.loader)])
def test_the_api_page_names_every_argument_of_map_and_of_loader(argument):
    assert f"`{argument}=" in API


@for_each("public", [*ops.__all__, *testing.__all__])
def test_the_api_page_names_every_op_and_every_check(public):
    assert re.search(rf"`{public}\b", API)


def test_the_stats_page_names_every_counter():
    page = (DOCS / "stats.md").read_text(encoding="utf-8")
    with ps.from_sequence(range(4)).map(abs).loader() as loader:
        list(loader)
        keys = {key.replace("stage.abs.", "stage.<label>.") for key in loader.stats()}
        keys = {re.sub(r"\.op\.[^.]+\.", ".op.<op>.", key) for key in keys}
    assert [key for key in keys if f"`{key}`" not in page] == []


# ---------------------------------------------------------------------- nothing of the machine it was written on

_PLACES = re.compile("(?<![\\w.*])/(?:" + "|".join(("work", "root")) + ")/")


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="not a git checkout")
def test_no_file_names_a_path_of_one_machine():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = []
    for path in filter(None, listed.split("\0")):
        file = ROOT / path
        if file.is_file():  # one that was deleted is still listed
            text = file.read_text(encoding="utf-8", errors="replace")
            found += [f"{path}: {match[0]}" for match in _PLACES.finditer(text)]
    assert found == []
