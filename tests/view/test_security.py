"""Nothing gets through: other sites, other folders, other methods, text that would be a page."""

import json
import socket

import pytest

from view.runs_to_view import said, write_run
from view.serving import serving

NASTY = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "<!--",
    "]]>",
    "</textarea></style></title><b>",
    "{{7*7}}${7*7}<%= 7 %>",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202eright to left\u2066\u2069",
    "\u2028\u2029\ufeff\u200b\u00ad",
    "half \ud800 a pair",
    "nul \x00 byte",
    "&lt;b&gt;&amp;",
    "\x00<script\x00>",
]


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
    """A run of nasty texts."""
    folder = tmp_path_factory.mktemp("nasty")
    write_run(
        folder / "nasty", {1: [said(text, told=text, tools=[text], error=text) for text in NASTY]}
    )
    with serving(folder) as client:
        yield client


class TestWhoMayAsk:
    @pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", ""])
    def test_a_foreign_host_is_turned_away(self, client, host):
        for path in ("/", "/api/runs", "/api/events", "/export/talk/train-3-0.html"):
            status, _, body = client.request(path, Host=host.format(port=client.port))
            assert status in (400, 403)
            assert b"talk" not in body

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
    def test_its_own_names_are_fine(self, client, host):
        assert client.request("/api/runs", Host=f"{host}:{client.port}")[0] == 200

    def test_no_host_or_two(self, client):
        for hosts in ("", f"Host: localhost:{client.port}\r\nHost: evil.example\r\n"):
            with socket.create_connection(("127.0.0.1", client.port), timeout=60) as raw:
                raw.sendall(f"GET /api/runs HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
                answer = b"".join(iter(lambda raw=raw: raw.recv(65536), b""))
            assert answer.split(b" ")[1] in (b"400", b"403")
            assert b"talk" not in answer

    @pytest.mark.parametrize("origin", ["http://evil.example", "null", "file://"])
    def test_a_foreign_origin_is_turned_away(self, client, origin):
        assert client.request("/api/runs", Origin=origin)[0] == 403

    def test_its_own_origin_is_fine_and_nobody_else_may_read(self, client):
        status, headers, _ = client.request("/api/runs", Origin=f"http://localhost:{client.port}")
        assert status == 200
        assert "access-control-allow-origin" not in {name.lower() for name in headers}

    def test_what_a_browser_says_of_another_site_counts(self, client):
        for site in ("cross-site", "same-site"):
            assert client.request("/api/runs", Sec_Fetch_Site=site)[0] == 403
            assert client.request("/assets/js/main.js", Sec_Fetch_Site=site)[0] == 403
            assert client.request("/", Sec_Fetch_Site=site)[0] == 200  # somebody's link to it
        assert client.request("/api/runs", Sec_Fetch_Site="same-origin")[0] == 200


class TestWhatMayBeAsked:
    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
    def test_only_reading(self, client, shown_runs, method):
        before = {path: path.stat().st_mtime_ns for path in shown_runs.rglob("*")}
        for path in ("/", "/api/runs", "/api/runs/talk/episodes/train-3-0", "/assets/js/main.js"):
            status, headers, _ = client.request(path, method)
            assert status == 405
            assert headers["allow"] == "GET, HEAD"
        assert {path: path.stat().st_mtime_ns for path in shown_runs.rglob("*")} == before

    def test_every_answer_has_its_headers(self, client):
        paths = ("/", "/api/runs", "/api/none", "/assets/js/main.js", "/assets/none")
        for path in (*paths, "/export/talk/train-3-0.html"):
            _, headers, _ = client.request(path)
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
        policy = client.request("/")[1]["content-security-policy"]
        assert "unsafe" not in policy
        assert "http:" not in policy

    @pytest.mark.parametrize(
        "way",
        [
            "../../../../etc/passwd",
            "..%2f..%2f..%2f..%2fetc%2fpasswd",
            "%2e%2e/%2e%2e/etc/passwd",
            "%00",
            "train-1-0%00.html",
            "/etc/passwd",
            "..",
            ".",
        ],
    )
    def test_no_way_leads_out(self, client, way):
        for before in ("/", "/assets/", "/api/runs/", "/api/runs/talk/episodes/", "/export/talk/"):
            for after in ("", "/tokens", ".html", "/metrics"):
                status, _, body = client.request(f"{before}{way}{after}".replace("\\", "%5c"))
                assert status in (200, 400, 404)
                assert b"root:x:" not in body
                if status == 200:  # `.` is the page itself
                    assert b"<!doctype html>" in body.lower() or b'"runs"' in body

    def test_nonsense_is_told_as_json(self, client):
        talk = "/api/runs/talk"
        for path in (
            f"{talk}/steps/999999999999999999999/timeline",
            f"{talk}/episodes?seed={'9' * 60}",
            f"{talk}/episodes?seed=x",
            f"{talk}/metrics?since=x",
            f"{talk}/episodes/train-1-0/tokens?agent=-1",
            f"{talk}/episodes/train-1-0/tokens?agent={'1' * 30}",
            f"{talk}/episodes?text=%ff%fe",
            f"{talk}/episodes?{'x' * 5000}=1",
            f"{talk}/steps/1/timeline?kind=../x",
            f"/export/talk/{'a' * 3000}.html",
        ):
            status, _, body = client.request(path)
            assert status in (200, 400, 404), path
            assert isinstance(json.loads(body), dict)


class TestWhatModelsSay:
    def test_all_of_it_goes_out_as_plain_json(self, nasty):
        for place, text in enumerate(NASTY):
            status, headers, body = nasty.request(f"/api/runs/nasty/episodes/train-1-{place}")
            assert (status, headers["content-type"]) == (200, "application/json")
            assert max(body) < 0x80
            kept = text.replace("\ud800", "\ufffd")  # half of a pair is no text in a file
            assert json.loads(body)["agents"][0]["turns"][0]["text"] == kept

    def test_names_of_tools_are_only_words(self, nasty):
        assert len(nasty.get("/api/runs/nasty")["tools"]) == len(NASTY)
        found = nasty.get("/api/runs/nasty/episodes", tool=NASTY[0])
        assert [episode["tools"] for episode in found["episodes"]] == [[NASTY[0]]]
