"""The server serves the dashboard's files with caching, compression and a content security policy."""

from __future__ import annotations

import re

import pytest

from backstay.server.routes import dashboard


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Replace the built dashboard by a small one."""
    folder = tmp_path / "dashboard"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text('<!doctype html><script type="module" src="./assets/a-1.js"></script>')
    (folder / "assets" / "a-1.js").write_text("export const a = 1;")
    (folder / "assets" / "a-1.js.map").write_text("{}")
    (folder / "secret.txt").write_text("secret")
    found = dashboard.read(folder)
    monkeypatch.setattr(dashboard, "load", lambda: found)


def test_the_page_is_revalidated_and_its_assets_are_cached(built, site):
    page = site.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    name = re.search(r"\./(assets/[^\"]+)", page.text)[1]
    script = site.get(f"/{name}")
    assert script.text == "export const a = 1;"
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert script.headers["x-content-type-options"] == "nosniff"


def test_the_content_security_policy_allows_only_own_files(built, site):
    policy = site.get("/").headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("frame-ancestors") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
    assert set(rules.values()) == {"'self'"}
    assert "script-src" in rules


@pytest.mark.parametrize(
    "path",
    [
        "/assets/a-1.js.map",
        "/assets/secret.txt",
        "/assets/../secret.txt",
        "/assets/..%2fsecret.txt",
        "/assets/%2e%2e%2findex.html",
        "/assets/%2fetc%2fpasswd",
        "/assets/",
        "/assets",
        "/index.html",
        "//",
    ],
)
def test_only_the_page_and_its_assets_are_served(built, site, path):
    # Send the path unchanged; the client would normalize it otherwise.
    response = site.http.send(site.http.build_request("GET", site.url, extensions={"target": path.encode()}))
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


def test_assets_are_gzipped_on_request(built, site):
    plain = site.get("/assets/a-1.js", headers={"accept-encoding": "identity"})
    pressed = site.get("/assets/a-1.js", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert pressed.headers["content-encoding"] == "gzip"
    assert plain.text == pressed.text
    assert site.http.head("/").text == ""


def test_a_missing_dashboard_build_names_the_build_command(site, monkeypatch, tmp_path):
    nothing = dashboard.read(tmp_path / "none")
    monkeypatch.setattr(dashboard, "load", lambda: nothing)
    response = site.get("/")
    assert response.status_code == 200
    assert "make web" in response.text
    assert "content-security-policy" in response.headers


def test_the_page_opens_without_a_token_and_the_api_does_not(built, site):
    site.server.keyring._required = True
    assert site.get("/").status_code == 200
    assert site.get("/assets/a-1.js").status_code == 200
    assert site.get("/api/runs").status_code == 401


def test_a_path_with_a_nul_in_it_is_refused(built, site):
    response = site.http.send(site.http.build_request("GET", site.url, extensions={"target": b"/assets/a-1.js%00"}))
    assert response.status_code == 400
