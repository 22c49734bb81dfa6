import json
import threading

import pytest

from fullscale.engine.http.client import Client, Patience, ServerError
from tests.fullscale.engine.http.standin import DropError, Server, standing


def in_turn(*answers):
    """Answers one after the other, the last for ever."""
    left = list(answers)

    def hook(path, body):
        said = left.pop(0) if len(left) > 1 else left[0]
        if said is DropError:
            raise DropError
        return said

    return hook


@pytest.fixture
def server():
    with standing() as found:
        yield found


def client(server, naps=None, **more):
    patience = Patience(**({"timeout_s": 5.0, "attempts": 3, "backoff_s": 0.5} | more))
    return Client(server.url, patience, sleep=(naps if naps is not None else []).append)


def test_sends_json_and_reads_json(server):
    server.hook = in_turn((200, {"found": [1, 2.5, None]}))
    assert client(server).post("/there", {"ids": [1, 2]}) == {"found": [1, 2.5, None]}
    assert client(server).get("/here?x=1") == {"found": [1, 2.5, None]}
    assert server.seen == [("/there", {"ids": [1, 2]}), ("/here?x=1", None)]


def test_an_empty_answer_is_none(server):
    server.hook = in_turn((200, b""))
    assert client(server).post("/resume", {}) is None


def test_asks_again_after_5xx_and_broken_connections_and_waits_longer_each_time(server):
    naps = []
    server.hook = in_turn((503, b"busy"), DropError, (200, {"ok": 1}))
    assert client(server, naps).post("/x", {}) == {"ok": 1}
    assert naps == [0.5, 1.0]
    assert len(server.seen) == 3


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_gives_up_after_the_last_attempt_and_says_so(server, status):
    server.hook = in_turn((status, b"no memory"))
    with pytest.raises(ServerError, match=rf"status {status}: no memory \(attempt 3 of 3\)") as raised:
        client(server).post("/x", {})
    assert (raised.value.kind, raised.value.status, len(server.seen)) == ("status", status, 3)


@pytest.mark.parametrize("status", [302, 400, 404, 422])
def test_what_the_server_will_not_do_is_not_asked_again(server, status):
    server.hook = in_turn((status, {"error": "context"}))
    with pytest.raises(ServerError, match=f'status {status}: {{"error": "context"}}'):
        client(server).post("/x", {})
    assert len(server.seen) == 1


def test_a_request_that_ran_out_of_time_is_not_asked_again(server):
    free = threading.Event()
    server.hook = lambda path, body: (free.wait(10), (200, {}))[1]
    with pytest.raises(ServerError, match=r"no answer within 0.1 s") as raised:
        client(server, timeout_s=0.1).post("/x", {})
    free.set()
    assert (raised.value.kind, len(server.seen)) == ("timeout", 1)


def test_a_server_that_sends_byte_by_byte_runs_out_of_time_too():
    import socket
    import time

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def drip():
            there, _ = listening.accept()
            with there:
                there.recv(4096)
                there.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                for _ in range(40):
                    time.sleep(0.02)
                    try:
                        there.sendall(b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ServerError) as raised:
            Client(url, Patience(0.2, 1)).get("/x")
        thread.join()
    assert raised.value.kind == "timeout"


def test_a_body_that_stops_early_is_a_broken_connection():
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def half():
            there, _ = listening.accept()
            with there:
                there.recv(4096)
                there.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"a": 1}')

        thread = threading.Thread(target=half)
        thread.start()
        with pytest.raises(ServerError, match="IncompleteRead") as raised:
            Client(f"http://127.0.0.1:{listening.getsockname()[1]}", Patience(5, 1)).get("/x")
        thread.join()
    assert raised.value.kind == "connection"


@pytest.mark.parametrize("sent", [b"<html>", b'{"a":', b"\xff\xfe{}"])
def test_an_answer_that_is_not_json_is_malformed_and_not_asked_again(server, sent):
    server.hook = in_turn((200, sent))
    with pytest.raises(ServerError, match="not JSON") as raised:
        client(server).post("/x", {})
    assert (raised.value.kind, len(server.seen)) == ("malformed", 1)


def test_nobody_there():
    with standing() as gone:
        pass
    naps = []
    with pytest.raises(ServerError, match="Refused") as raised:
        client(gone, naps).get("/x")
    assert (raised.value.kind, raised.value.status, naps) == ("connection", None, [0.5, 1.0])


def test_no_proxy_is_used(server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    server.hook = in_turn((200, 7))
    assert client(server).get("/x") == 7


def test_sends_its_key_and_a_path_before_every_path(server):
    heard = {}

    class Listening(Server):
        def answer(self, path, body):
            heard["path"] = path
            return 200, {}

    with standing(Listening()) as found:
        Client(f"{found.url}/behind/", api_key="secret").get("/x")
    assert heard["path"] == "/behind/x"


def test_many_threads_have_their_own_answers(server):
    server.hook = lambda path, body: (200, {"square": body["n"] ** 2})
    asking, found = client(server), {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: asking.post("/x", {"n": n})["square"]})) for n in range(32)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: n * n for n in range(32)}


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://here", "http://"])
def test_an_address_that_is_none(url):
    with pytest.raises(ValueError, match="http://host:port"):
        Client(url)


def test_bounds():
    for bad in ({"timeout_s": 0.0}, {"attempts": 0}, {"backoff_s": -1.0}):
        with pytest.raises(ValueError):
            Patience(**bad)


def test_a_number_that_json_does_not_have_is_not_sent(server):
    with pytest.raises(ValueError):
        client(server).post("/x", {"temperature": float("nan")})
    assert server.seen == []
    assert json.dumps(float("nan")) == "NaN"
