"""Keys, hosts, origins, and what may be listened on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests import tiny_tokenizer
from tests.server.conftest import MODEL, Server, StartServer, body

from pomona.config import ServeSettings, WorkerOptions
from pomona.config.keys import KeyStore
from pomona.conversation.errors import PomonaError
from pomona.server.security import Gate, check_exposure, is_loopback

PAGE = "https://chat.example"
ROUTES = [
    ("GET", "/"),
    ("GET", "/api/hello"),
    ("GET", "/v1/models"),
    ("GET", f"/v1/models/{MODEL}"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing/here"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/models"),
]


def settings(**fields: Any) -> ServeSettings:
    return ServeSettings(model_name=MODEL, worker=WorkerOptions(model=""), **fields)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server with a key, an allowed origin and an allowed host; and the key."""
    folder = tiny_tokenizer.build(tmp_path_factory.mktemp("locked") / "tiny")
    _, key = KeyStore(folder / "keys.json").create("laptop")
    server = Server(folder, cors_origins=(PAGE,), allowed_hosts=("pomona.example",))
    yield server, key
    _, _, err = server.terminate()
    assert key not in err
    assert "Traceback" not in err


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyStore:
    store = KeyStore(tmp_path_factory.mktemp("keys") / "keys.json")
    store.create("laptop")
    return store


def refusal(reply: httpx.Response, status: int) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["x-request-id"]
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return dict(error)


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_needs_a_key(locked: tuple[Server, str], method: str, path: str) -> None:
    server, key = locked
    with server.http as client:
        missing = client.request(method, path)
        assert refusal(missing, 401)["code"] == "invalid_api_key"
        assert missing.headers["www-authenticate"] == "Bearer"
        wrong = client.request(method, path, headers={"authorization": "Bearer pomona-wrong"})
        assert refusal(wrong, 401) == refusal(missing, 401)
        assert client.request(method, path, headers={"x-api-key": key}).status_code != 401


@pytest.mark.parametrize(
    ("name", "form", "good"),
    [
        ("authorization", "Bearer {}", True),
        ("authorization", "bearer  {}", True),
        ("x-api-key", "{}", True),
        ("authorization", "{}", False),
        ("authorization", "Basic {}", False),
        ("authorization", "Bearer", False),
        ("authorization", "Bearer {}x", False),
        ("x-api-key", "Bearer {}", False),
        ("api-key", "{}", False),
        ("cookie", "key={}", False),
    ],
)
def test_where_a_key_is_looked_for(locked: tuple[Server, str], name: str, form: str, good: bool) -> None:
    server, key = locked
    reply = server.http.get("/v1/models", headers={name: form.format(key)})
    assert reply.status_code == (200 if good else 401)


def test_a_wrong_bearer_does_not_hide_a_good_key(locked: tuple[Server, str]) -> None:
    server, key = locked
    headers = {"authorization": "Bearer dummy", "x-api-key": key}
    assert server.http.get("/v1/models", headers=headers).status_code == 200


def test_a_key_in_the_url_is_no_key(locked: tuple[Server, str]) -> None:
    server, _ = locked
    for name in ("api_key", "key", "token", "access_token"):
        refusal(server.http.get("/v1/models", params={name: "pomona-x"}), 401)


def test_health_is_open_but_says_little(locked: tuple[Server, str]) -> None:
    server, key = locked
    with server.http as client:
        assert client.get("/health/live").json() == {"status": "ok"}
        for path in ("/health", "/health/ready"):
            assert client.get(path).json() == {"status": "ready"}
            assert client.get(path, headers={"x-api-key": key}).json()["model"] == MODEL


def test_a_body_is_not_read_without_a_key(locked: tuple[Server, str]) -> None:
    server, _ = locked
    url = httpx.URL(server.root)
    with socket.create_connection((url.host, url.port or 0), timeout=30) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n"
        )
        assert b" 401 " in sock.recv(1000).partition(b"\r\n")[0]


def test_a_new_and_a_revoked_key_count_at_once(start_server: StartServer) -> None:
    server = start_server()
    store = KeyStore(Path(server.settings.api_keys_file or ""))
    with server.http as client:
        assert client.get("/v1/models").status_code == 200
        _, key = store.create("first")
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"x-api-key": key}).status_code == 200
        store.create("second")
        store.revoke("first")
        assert client.get("/v1/models", headers={"x-api-key": key}).status_code == 401


def test_the_last_key_revoked_does_not_open_a_server_to_the_network(
    tmp_path: Path, start_server: StartServer
) -> None:
    store = KeyStore(tmp_path / "network-keys.json")
    _, key = store.create("only")
    server = start_server(host="0.0.0.0", api_keys_file=str(store.path))
    headers = {"x-api-key": key}
    with server.http as client:
        assert client.get("/v1/models", headers=headers).status_code == 200
        store.revoke("only")
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers=headers).status_code == 401
        assert client.get("/health").json() == {"status": "ready"}
        store.path.unlink()
        assert client.get("/v1/models").status_code == 401


def test_a_broken_key_file_opens_nothing(start_server: StartServer) -> None:
    server = start_server()
    Path(server.settings.api_keys_file or "").write_text("{}broken")
    assert server.post("say hi").status_code == 500
    assert server.http.get("/health/live").status_code == 200


# ---------------------------------------------------------------- hosts

LOCAL_HOSTS = [
    *("localhost", "localhost:8642", "LocalHost.:1", "127.0.0.1", "127.0.0.1:8642", "127.8.9.1"),
    *("[::1]", "[::1]:8642", "[::ffff:127.0.0.1]:80"),
]
FOREIGN_HOSTS = [
    *("", "evil.example", "evil.example:8642", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("192.168.1.7", "0.0.0.0", "2130706433", "[::]", "[fe80::1]:1", "[::1"),
    *("user@localhost", "localhost@evil.example", "localhost:port", "localhost:99999", "localhost/x"),
    *(":8642", "a b", " localhost"),
]


@pytest.mark.parametrize("host", LOCAL_HOSTS)
def test_this_machine_is_always_an_allowed_host(keys: KeyStore, host: str) -> None:
    assert Gate(settings(allowed_hosts=()), keys).allows_host(host)


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_other_hosts_are_not(keys: KeyStore, host: str) -> None:
    assert not Gate(settings(), keys).allows_host(host)


def test_allowed_hosts(keys: KeyStore) -> None:
    gate = Gate(settings(allowed_hosts=("Pomona.example", "[fe80::1]")), keys)
    assert gate.allows_host("pomona.EXAMPLE:80")
    assert gate.allows_host("[fe80::1]:80")
    assert not gate.allows_host("x.pomona.example")
    assert Gate(settings(allowed_hosts=("*",)), keys).allows_host("anything.example")


def test_a_server_for_the_network_answers_for_addresses_and_its_own_name(keys: KeyStore) -> None:
    gate = Gate(settings(host="0.0.0.0"), keys)
    assert gate.allows_host("192.168.1.7:8642")
    assert not gate.allows_host("evil.example")
    assert Gate(settings(host="mac.local"), keys).allows_host("mac.local:8642")


def test_a_foreign_host_gets_no_further(locked: tuple[Server, str]) -> None:
    server, key = locked
    with server.http as client:
        for path in ("/v1/models", "/health/live", "/nothing"):
            headers = {"host": "evil.example", "x-api-key": key}
            assert refusal(client.get(path, headers=headers), 421)["code"] == "host_not_allowed"
        headers = {"host": "pomona.example", "x-api-key": key}
        assert client.get("/v1/models", headers=headers).status_code == 200


# ---------------------------------------------------------------- web pages


def test_an_allowed_page_may_call(locked: tuple[Server, str]) -> None:
    server, key = locked
    headers = {"origin": PAGE, "x-api-key": key}
    reply = server.http.post("/v1/chat/completions", json=body("say hi", stream=True), headers=headers)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in reply.headers["access-control-expose-headers"]
    assert reply.headers["vary"] == "origin"
    refused = server.http.get("/v1/models", headers={"origin": PAGE})
    assert refusal(refused, 401)
    assert refused.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/nothing"])
def test_a_preflight(locked: tuple[Server, str], path: str) -> None:
    server, _ = locked
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-a"}
    reply = server.http.options(path, headers={"origin": PAGE, **asked})
    assert (reply.status_code, reply.content) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "authorization,x-a"
    refused = server.http.options(path, headers={"origin": "https://evil.example", **asked})
    assert refusal(refused, 403)["code"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize("origin", ["https://evil.example", "null", f"{PAGE}.evil", "http://chat.example"])
def test_other_pages_may_not(locked: tuple[Server, str], origin: str) -> None:
    server, key = locked
    headers = {"origin": origin, "x-api-key": key}
    sent = server.http.post("/v1/chat/completions", json=body("say hi"), headers=headers)
    assert refusal(sent, 403)["code"] == "origin_not_allowed"
    read = server.http.get("/v1/models", headers=headers)
    assert "access-control-allow-origin" not in read.headers


def test_a_page_of_the_server_itself_may(server: Server) -> None:
    reply = server.http.post("/v1/chat/completions", json=body("say hi"), headers={"origin": server.root})
    assert reply.status_code == 200


def test_options_without_a_page_is_a_method_like_any_other(server: Server) -> None:
    assert refusal(server.http.options("/v1/models"), 405)["code"] == "method_not_allowed"


# ---------------------------------------------------------------- exposure


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.1.2.3"])
def test_loopback_needs_no_key(tmp_path: Path, host: str) -> None:
    check_exposure(settings(host=host), KeyStore(tmp_path / "none"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.7", "mac.local"])
def test_the_network_needs_a_key_or_a_word(tmp_path: Path, keys: KeyStore, host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(PomonaError, match="pomona keys create"):
        check_exposure(settings(host=host), KeyStore(tmp_path / "none"))
    check_exposure(settings(host=host, allow_remote=True), KeyStore(tmp_path / "none"))
    check_exposure(settings(host=host), keys)


def test_unreadable_keys_stop_the_start(tmp_path: Path) -> None:
    broken = tmp_path / "keys.json"
    broken.write_text("{}x")
    with pytest.raises(PomonaError):
        check_exposure(settings(), KeyStore(broken))


def test_the_server_refuses_before_it_binds(start_server: StartServer) -> None:
    server = start_server(host="0.0.0.0")
    status, out, err = server.end()
    assert (status, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "--allow-remote" in err
