"""The pages: their readers, their links, the files they name, and no unknown sources.

`DESIGN.md` names files in two places, the file map and "Where do I look?"; both are checked here.
Tests of a page's content are beside the tests of the code that it describes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.repository.sources import ROOT, tracked

GRAMMAR = ROOT / "protocol"
"""Folder of `GRAMMAR.md`, which pages name without it."""
DESIGN = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "bench/*.md", "tests/*.md", "docker/*.md")
    for path in ROOT.glob(pattern)
)
SOURCES = ("protocol", "assignor", "state", "streams", "muster")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
TICKED = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CITED = re.compile(r"(?<![\w./-])((?:\.\./)*[\w.-]+(?:/[\w.-]+)*\.md)\b")
PRIVATE = re.compile(r"\bdesign, idea|\b(?:the )?first design\b|\bdesign\.md\b|\bformat [1-6]\b")
"""Names of sources that are not in the repository."""


def lines(path: Path) -> list[tuple[int, str]]:
    """The numbered lines of a file; none if it is not text."""
    try:
        return list(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
    except UnicodeDecodeError:
        return []


def section(heading: str) -> str:
    """The text of `DESIGN.md` between a heading and the next heading of its rank."""
    return DESIGN.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and GitLab build them."""
    headings = re.findall(
        r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    )
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def exists(name: str, path: Path, line: str) -> bool:
    """Whether a page is beside the file that names it, in the root, or beside the grammar."""
    in_docs = f'"{name}"' in line and (ROOT / "docs" / name).exists()  # a path built in code
    return in_docs or any((place / name).exists() for place in (path.parent, ROOT, GRAMMAR))


def test_no_file_cites_a_page_that_is_not_here() -> None:
    """Every page that a file names exists."""
    missing = [
        f"{path.relative_to(ROOT)}:{number} {name}"
        for path in tracked()
        if path != Path(__file__)
        for number, line in lines(path)
        for name in CITED.findall(line)
        if not exists(name, path, line)
    ]
    assert missing == []


def test_no_file_cites_notes_that_are_not_here() -> None:
    """No file cites notes that are not in the repository."""
    cited = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in tracked()
        if path != Path(__file__)
        for number, line in lines(path)
        if PRIVATE.search(line)
    ]
    assert cited == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_whom_it_is_for(page: str) -> None:
    """The first lines of a page say for whom it is and what its readers know afterwards."""
    paragraphs = (ROOT / page).read_text(encoding="utf-8").split("\n\n")
    for_whom = next((text for text in paragraphs[1:3] if text.startswith("**For** ")), "")
    assert "**After reading** you " in for_whom.replace("\n", " "), paragraphs[1]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_pages_and_headings(page: str) -> None:
    """A link within the repository names an existing file and heading."""
    path = ROOT / page
    text = CODE.sub("", FENCED.sub("", path.read_text(encoding="utf-8")))
    broken = []
    for target, anchor in LINK.findall(text):
        if target.startswith("http"):
            continue
        file = path.parent / target if target else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def test_the_file_map_names_files_that_exist() -> None:
    """Every name in the file map is an existing file or folder."""
    missing = []
    for part in section("File map").split("\n### ")[1:]:
        room, *names = TICKED.findall(part)
        missing += [n for n in names if not ((ROOT / room / n).exists() or (ROOT / n).exists())]
    assert missing == []


def test_the_file_map_has_every_room() -> None:
    """Each package of the source folders has a heading."""
    rooms = set(re.findall(r"^### `([\w/]+)/`", section("File map"), re.MULTILINE))
    packages = {
        init.parent.relative_to(ROOT).as_posix()
        for room in SOURCES
        for init in (ROOT / room).rglob("__init__.py")
        if not any(part.is_symlink() for part in init.parents)
    }
    assert rooms == packages


def test_the_file_map_has_every_module() -> None:
    """Except a room's exceptions, and commands, whose names say what they are."""
    mapped = set()
    for part in section("File map").split("\n### ")[1:]:
        room, *names = TICKED.findall(part)
        mapped |= {*names, *(f"{room.rstrip('/')}/{name}" for name in names)}
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in tracked()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in SOURCES
    }
    own_names = {path for path in modules if path.endswith(("/__init__.py", "/errors.py"))}
    own_names |= {path for path in modules if path.startswith("muster/cli/")}
    assert sorted(modules - own_names - mapped) == []


def test_where_do_i_look_names_files_that_exist() -> None:
    """Every answer is an existing path from the root."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", section("Where do I look?"), re.MULTILINE)[2:]
    assert len(rows) >= 20
    answers = {question: TICKED.findall(answer) for question, answer in rows}
    wrong = {
        question: paths
        for question, paths in answers.items()
        if not paths or not all((ROOT / path).exists() for path in paths)
    }
    assert wrong == {}


def test_the_design_is_wrapped() -> None:
    """Lines of the design have at most 120 characters, so that diffs are readable."""
    long = [number for number, line in enumerate(DESIGN.splitlines(), 1) if len(line) > 120]
    assert long == []
