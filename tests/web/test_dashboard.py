"""The dashboard in a real browser, against a real server and worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from urllib.parse import quote

import pytest
from served import serve

from backstay import Backstay, current_job
from backstay.testing.waiting import eventually

pytestmark = [pytest.mark.slow]

YAML = {"content-type": "application/yaml"}


def begin(api, name, text, **inputs):
    made = api.post("/api/workflows", content=text, headers=YAML)
    assert made.status_code == 201, made.text
    return api.post(f"/api/workflows/{name}/run", json={"inputs": inputs}).json()["run_id"]


def gate(path):
    """Return a shell command that waits until a file exists."""
    return f"while [ ! -e '{path}' ]; do sleep 0.05; done"


def test_a_run_is_watched_from_its_start_to_its_success(at, api, open_page, shots, tmp_path):
    go = tmp_path / "go"
    page = open_page(at)
    page.shows("h1", "Runs")
    page.shows(".live.on")
    run = begin(
        api,
        "release",
        f"""
name: release
inputs:
  branch: {{default: main}}
jobs:
  checkout:
    run: echo "revision=4711" >> $BACKSTAY_OUTPUT
  lint:
    needs: checkout
    run: echo no complaints
  build:
    needs: checkout
    run: |
      echo building $(( 6 * 7 ))
      {gate(go)}
      echo "wheel=release-1.whl" >> $BACKSTAY_OUTPUT
      echo built
  test:
    needs: build
    run: echo all is well
  docs:
    needs: build
    if: needs.build.outputs.wheel == 'another'
    run: echo never
  publish:
    needs: [lint, test]
    run: echo published
""",
        branch="main",
    )
    # The list updates by itself.
    page.shows("tr", run)
    page.shows(f"tr:has(a[href*='{run}']) .status.running")
    page.click("a", "release")
    page.shows(".node.success", "lint")
    page.shows(".node.running", "build")
    page.shows(".node.queued", "publish")
    page.click(".node", "build")
    page.shows(".panel h2", "build")
    page.shows("[role=log]", "building 42")
    page.shows(".panel", "checkout.revision")
    assert "built" not in page.evaluate("document.querySelector('[role=log]').innerText").split()
    page.screenshot(shots / "running-light.png")
    go.touch()
    # No input from here on: the page follows the run.
    page.shows("[role=status]", "success")
    page.shows("[role=log]", "built")
    page.shows(".panel", "release-1.whl")
    page.shows(".node.success.critical", "publish")
    page.shows(".node.skipped", "docs")
    assert "lint" not in page.evaluate("[...document.querySelectorAll('.node.critical')].map(n => n.innerText).join()")
    page.waits_for("document.querySelectorAll('.react-flow__edge').length === 6")  # drawn once the nodes are measured
    # The log has no gap and no duplicate.
    lines = page.evaluate("document.querySelector('[role=log]').innerText").split("\n")
    assert [line for line in lines if line] == ["building 42", "built"]
    page.screenshot(shots / "success-light.png")
    page.set_color_scheme("dark")
    page.screenshot(shots / "success-dark.png")
    page.open(f"{at}/#/")
    page.shows(f"tr:has(a[href*='{run}']) .status.success")
    page.screenshot(shots / "runs-dark.png")
    page.set_color_scheme("light")
    page.screenshot(shots / "runs-light.png")


def test_a_failed_job_is_shown_and_rerun(at, api, open_page, shots, tmp_path):
    fixed = tmp_path / "fixed"
    run = begin(
        api,
        "fragile",
        f"name: fragile\njobs:\n  a: {{run: \"echo trying >&2; test -e '{fixed}'\"}}\n"
        "  b: {needs: a, run: echo after}\n",
    )
    assert eventually(lambda: api.get(f"/api/runs/{run}").json()["status"] == "failure", 60)
    page = open_page(f"{at}/#/runs/{run}/a")
    page.shows("[role=status]", "failure")
    page.shows("pre.error", "1")
    page.shows("[role=log] .stderr", "trying")
    page.shows(".node.skipped", "b")
    page.shows("button", "Retry job")
    page.screenshot(shots / "failure-light.png")
    fixed.touch()
    page.click("button", "Re-run failed")
    page.shows("[role=status]", "success")
    page.shows(".node.success", "b")
    page.waits_for("document.querySelector('[role=log]').innerText.split('trying').length === 3")
    page.waits_for("!document.querySelector('pre.error')")


def test_a_job_that_continues_as_another_has_one_log(start, open_page, tmp_path):
    """The log is complete and without duplicates, opened while the first job runs and after the end."""
    at = serve(start, tmp_path)
    go = asyncio.Event()

    async def work(logs_shown):
        async with Backstay(f"sqlite:///{tmp_path / 'backstay.db'}?synchronous=normal") as stay:

            @stay.job()
            async def first() -> None:
                current_job().log("log of the first")
                await go.wait()
                current_job().continue_with(second)

            @stay.job()
            async def second() -> None:
                current_job().log("log of the second")

            @stay.workflow
            def relay(flow):
                flow.add(first, key="a/b (relay)")

            run = await relay.start()
            working = asyncio.create_task(stay.worker(signals=False).run(burst=True))
            page = await asyncio.to_thread(open_page, f"{at}/#/runs/{run.id}/{quote('a/b (relay)', safe='')}")
            await asyncio.to_thread(page.shows, "[role=log]", "log of the first")
            go.set()
            await working
            await asyncio.to_thread(page.shows, "[role=status]", "success")
            for _ in range(2):
                await asyncio.to_thread(page.shows, "[role=log]", "log of the second")
                text = await asyncio.to_thread(page.evaluate, "document.querySelector('[role=log]').innerText")
                logs_shown.append([line for line in text.split("\n") if line])
                await asyncio.to_thread(page.open, f"{at}/#/")
                await asyncio.to_thread(page.shows, "h1", "Runs")
                await asyncio.to_thread(page.open, f"{at}/#/runs/{run.id}/{quote('a/b (relay)', safe='')}")

    logs_shown = []
    asyncio.run(work(logs_shown))
    assert logs_shown == [["log of the first", "log of the second"]] * 2


def test_a_run_is_cancelled_after_a_confirmation(at, api, open_page, tmp_path):
    run = begin(api, "endless", f'name: endless\njobs:\n  a: {{run: "{gate(tmp_path / "never")}"}}\n')
    page = open_page(f"{at}/#/runs/{run}")
    page.shows(".node.running", "a")
    page.click("button", "Cancel run")
    page.click("button", "Cancel this run")
    page.shows("[role=status]", "cancelled")
    assert api.get(f"/api/runs/{run}").json()["status"] == "cancelled"


def test_runs_can_be_browsed_by_keyboard(at, api, open_page):
    run = begin(api, "keys", "name: keys\njobs:\n  a: {run: echo one}\n  b: {needs: a, run: echo two}\n")
    page = open_page(f"{at}/#/runs/{run}")
    page.shows("[role=status]", "success")
    page.evaluate("document.querySelector('.jobs button').focus()")
    page.press("ArrowDown", 40)
    page.press("Enter", 13, "\r")
    page.shows("[role=log]", "two")
    label = page.evaluate("document.activeElement.textContent")
    assert label.startswith("b, success, on the critical path")
    # One tab stop in the list; the next one is in the panel's controls.
    assert page.evaluate("document.querySelectorAll('.jobs button[tabindex=\"0\"]').length") == 1
    page.evaluate("document.querySelector('.panel button').focus()")
    page.press("Escape", 27)
    page.waits_for("!document.querySelector('.panel')")


def test_a_token_is_requested_and_sent_only_as_a_header(start, browser, tmp_path):
    url = f"sqlite:///{tmp_path / 'backstay.db'}?synchronous=normal"
    made = subprocess.run(
        [sys.executable, "-m", "backstay", "--url", url, "token", "create", "--role", "submit"],
        capture_output=True,
        text=True,
        check=True,
    )
    token = made.stdout.strip()
    at = serve(start, tmp_path)
    page = browser.page()
    page.open(at)
    page.shows("h1", "Enter an access token")
    page.waits_for("document.activeElement.id === 'token'")
    page.write("bst_wrong_token")
    page.press("Enter", 13, "\r")
    page.shows("[role=alert]", "This token is unknown")
    page.write(token)
    page.press("Enter", 13, "\r")
    page.shows("p", "No runs yet")
    page.shows(".live.on")
    assert page.evaluate("sessionStorage.length") == 1
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    assert [one["url"] for one in page.requests if token in one["url"]] == []
    # The browser itself logs the 401s to the console; there is nothing else.
    assert [one for one in page.errors if "401" not in str(one)] == []
    page.click("button", "Forget token")
    page.shows("h1", "Enter an access token")
    page.close()


def test_panning_a_graph_of_a_thousand_jobs_redraws_no_job(at, api, open_page, shots, record_property):
    jobs = {"start": {"run": "true", "labels": ["nobody"]}}
    for layer in range(27):
        for number in range(37):
            needs = ["start"] if layer == 0 else [f"j{layer - 1}-{number}", f"j{layer - 1}-{(number * 7 + layer) % 37}"]
            jobs[f"j{layer}-{number}"] = {"run": "true", "needs": sorted(set(needs))}
    made = api.post("/api/workflows", json={"name": "large", "jobs": jobs})
    assert made.status_code == 201, made.text
    run = api.post("/api/workflows/large/run", json={}).json()["run_id"]
    page = open_page(f"{at}/#/runs/{run}")
    page.waits_for("document.querySelectorAll('.jobs li').length === 1000")
    page.waits_for("document.querySelectorAll('.node').length > 0", 120)
    page.screenshot(shots / "large-light.png")
    # Two thousand edges are one SVG path: separate elements would be composited anew for each frame.
    assert page.evaluate("document.querySelectorAll('svg.edges .react-flow__edge-path').length") == 1
    assert page.evaluate("document.querySelector('svg.edges path').getAttribute('d').split('M').length") == 1936
    assert page.evaluate("document.querySelectorAll('.react-flow__edges .react-flow__edge').length") == 0
    assert [one["url"] for one in page.requests if "elk-worker" in one["url"]], "the layout is made in a worker"
    # While the graph moves, no job is redrawn; frame times depend on the machine and are only recorded.
    page.evaluate(
        "window.redrawn = 0; window.frames_ = []; window.last_ = performance.now();"
        "new MutationObserver(found => redrawn += found.filter(one => one.target.closest?.('.node')).length)"
        ".observe(document.querySelector('.react-flow'), {subtree: true, childList: true, attributes: true});"
        "(function tick(now) { frames_.push(now - last_); last_ = now; requestAnimationFrame(tick); })(last_)"
    )
    before = page.evaluate("document.querySelector('.react-flow__viewport').style.transform")
    page.call("Input.dispatchMouseEvent", type="mousePressed", x=700, y=880, button="left", clickCount=1)
    for step in range(20):
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=700 - step * 8, y=880 - step * 4, button="left")
    page.call("Input.dispatchMouseEvent", type="mouseReleased", x=540, y=800, button="left", clickCount=1)
    assert page.evaluate("document.querySelector('.react-flow__viewport').style.transform") != before
    assert page.evaluate("redrawn") == 0
    frames = sorted(page.evaluate("frames_"))
    record_property("measured", f"1,000 jobs in the dashboard: frames of {frames[len(frames) // 2]:.0f} ms while moved")
    assert api.post(f"/api/runs/{run}/cancel", json={}).status_code == 200
    page.shows("[role=status]", "cancelled")
