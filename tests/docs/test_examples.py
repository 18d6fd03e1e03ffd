"""Run the code of README, docs/ and examples/.

Every ```python block runs, the blocks of one page in order and in one namespace, with `await` allowed at the top
level. A block that cannot run is preceded by `<!-- not run: reason -->`.
"""

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from backstay import Backstay, sync

TOP = Path(__file__).resolve().parents[2]
PAGES = sorted([TOP / "README.md", *(TOP / "docs").rglob("*.md")])
EXAMPLES = sorted((TOP / "examples").glob("*.py"))

BLOCK = re.compile(r"^(<!-- not run: .+ -->\n+)?```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
UNREASONED = re.compile(r"<!--\s*not run\s*:?\s*-->")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name(page):
    return str(page.relative_to(TOP))


def blocks(page):
    """Return source and first line of each block that runs."""
    text = page.read_text(encoding="utf-8")
    return [(m[2], text.count("\n", 0, m.start(2)) + 1) for m in BLOCK.finditer(text) if not m[1]]


def compiled(source, line, page):
    """Compile a block so that tracebacks show the line numbers of the page."""
    tree = ast.parse(source, name(page))
    ast.increment_lineno(tree, line - 1)
    return compile(tree, name(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def close_all(namespace):
    for thing in namespace.values():
        if isinstance(thing, Backstay):
            await thing.close()
        elif isinstance(thing, sync.Backstay):
            thing.close()


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_the_code_on_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKSTAY_URL", "memory://")
    monkeypatch.delenv("BACKSTAY_NAMESPACE", raising=False)
    module = types.ModuleType("__main__")
    with asyncio.Runner() as runner:
        try:
            for source, line in blocks(page):
                code = compiled(source, line, page)
                if code.co_flags & inspect.CO_COROUTINE:
                    runner.run(types.FunctionType(code, vars(module))())
                else:
                    exec(code, vars(module))  # noqa: S102 - that is the point
        finally:
            runner.run(close_all(vars(module)))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_block_that_is_not_run_has_a_reason(page):
    assert not UNREASONED.search(page.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_an_example_runs(example, tmp_path):
    env = {key: value for key, value in os.environ.items() if not key.startswith("BACKSTAY_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert not done.stderr
    assert not list(tmp_path.iterdir()), "the example left files behind"


def anchors(page):
    """Return the anchors of a page's headings in rendered Markdown."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.mark.parametrize("page", [*PAGES, TOP / "CHANGELOG.md", TOP / "CONTRIBUTING.md"], ids=name)
def test_links_have_existing_targets(page):
    broken = []
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_is_in_the_index():
    index = TOP / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text("utf-8"))}
    assert {page for page in PAGES if page.is_relative_to(TOP / "docs")} - linked == {index}


def test_generated_tables_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(TOP / "scripts" / "docs_tables"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_engines_page_lists_every_option_and_variable():
    """A new option or variable must be documented."""
    page = (TOP / "docs" / "reference" / "engines.md").read_text(encoding="utf-8")
    source = "".join(path.read_text(encoding="utf-8") for path in (TOP / "src" / "backstay" / "assembly").rglob("*.py"))
    variables = set(re.findall(r'environ(?:\.get\(|\[)"(BACKSTAY_\w+)"', source))
    assert variables
    for variable in variables:
        assert f"`{variable}`" in page
    for option in ("synchronous", "timeout", "connect_timeout", "db"):
        assert f"| `{option}` |" in page
