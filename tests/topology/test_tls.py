"""TLS connections: a URL configures everything, and an untrusted server is refused."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from urllib.parse import urlencode

import pytest

import backstay.sync
from backstay import ConfigError, EngineRefused, EngineUnavailable
from backstay.engine.redis.link import async_link, blocking_link
from backstay.engine.redis.link.protocol import sign_in
from backstay.testing.servers import RedisServer
from backstay.testing.servers.certificates import Certificates
from backstay.testing.waiting import WITHIN, eventually
from support.servers import running

pytestmark = pytest.mark.redis


def url(server, host="127.0.0.1", scheme="rediss", user="", **options):
    return f"{scheme}://{user}{host}:{server.port}/0?{urlencode(options)}"


@pytest.fixture(scope="module")
def strict_redis(certificates):
    """A server that requires client certificates."""
    with running(RedisServer(tls=certificates, client_certificates=True)) as server:
        yield server


@pytest.fixture(scope="module")
def foreign_certificates():
    """Certificates of another authority, for another host."""
    with Certificates(names="DNS:elsewhere.test") as made:
        yield made


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_a_url_alone_is_enough(take, tls_redis, certificates, scheme):
    assert take(url(tls_redis, scheme=scheme, ca=certificates.ca)) > 0


def test_a_host_name_in_the_certificate_is_accepted(take, tls_redis, certificates):
    assert take(url(tls_redis, "localhost", ca=certificates.ca)) > 0


def test_a_server_with_an_untrusted_certificate_is_refused(take, tls_redis, foreign_certificates):
    with pytest.raises(EngineRefused, match=r"certificate of rediss://127.0.0.1.*\?ca="):
        take(url(tls_redis))
    with pytest.raises(EngineRefused, match=r"certificate of rediss://127.0.0.1.*\?ca="):
        take(url(tls_redis, ca=foreign_certificates.ca))


def test_a_certificate_for_another_host_is_refused_by_default(take, foreign_certificates):
    with running(RedisServer(tls=foreign_certificates)) as server:
        with pytest.raises(EngineRefused, match="certificate"):
            take(url(server, ca=foreign_certificates.ca))
        assert take(url(server, ca=foreign_certificates.ca, insecure_skip_hostname_check="yes")) > 0
        with pytest.raises(EngineRefused, match="certificate"):  # the authority is checked nevertheless
            take(url(server, insecure_skip_hostname_check="yes"))


def test_a_client_certificate_is_sent_when_the_server_requires_it(
    take, strict_redis, certificates, foreign_certificates
):
    cert, key = certificates.client
    assert take(url(strict_redis, ca=certificates.ca, cert=cert, key=key)) > 0
    with pytest.raises(EngineRefused, match=r"client certificate.*cert=FILE&key=FILE"):
        take(url(strict_redis, ca=certificates.ca))
    cert, key = foreign_certificates.client
    with pytest.raises(EngineRefused, match="client certificate"):
        take(url(strict_redis, ca=certificates.ca, cert=cert, key=key))


def test_the_tls_alert_is_reported_even_when_the_write_meets_a_reset(take, certificates, monkeypatch):
    """The server's TLS alert is in flight while the client writes its first command to a connection that is already
    reset.
    """
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.ca)
    tls.load_cert_chain(*certificates.server)
    tls.verify_mode = ssl.CERT_REQUIRED
    refused = threading.Event()
    clients = []

    def hang_up():
        with contextlib.suppress(OSError):
            while True:
                sock, _ = server.accept()
                clients.append(sock.getpeername())
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with sock, pytest.raises(ssl.SSLError):
                    tls.wrap_socket(sock, server_side=True)
                refused.set()

    def sign_in_after_the_reset(*args):
        assert refused.wait(WITHIN)
        time.sleep(0.05)  # the reset is a separate packet
        return sign_in(*args)

    monkeypatch.setattr(async_link, "sign_in", sign_in_after_the_reset)
    monkeypatch.setattr(blocking_link, "sign_in", sign_in_after_the_reset)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        with pytest.raises(EngineRefused, match="client certificate"):
            take(f"rediss://127.0.0.1:{server.getsockname()[1]}/0?{urlencode({'ca': certificates.ca})}")
        server.shutdown(socket.SHUT_RDWR)
        thread.join(WITHIN)
    assert clients


def test_a_redis_server_without_tls_is_recognized(take, backstay_redis, certificates):
    """The server takes the handshake for the beginning of a command, and waits for the rest of it."""
    with pytest.raises(EngineUnavailable, match=r"no answer in time.*TLS"):
        take(url(backstay_redis, ca=certificates.ca, connect_timeout="0.3"))


def test_a_non_redis_server_without_tls_is_recognized(take, certificates):
    def hang_up():
        with contextlib.suppress(OSError):
            sock, _ = server.accept()
            with sock:
                sock.recv(1)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(EngineRefused, match="does not speak TLS"):
            take(f"rediss://127.0.0.1:{server.getsockname()[1]}/0?{urlencode({'ca': certificates.ca})}")
        thread.join()


def test_a_plaintext_client_is_refused_by_a_tls_server(take, tls_redis):
    with pytest.raises(EngineUnavailable, match=str(tls_redis.port)):
        take(f"redis://127.0.0.1:{tls_redis.port}/0?connect_timeout=1", profile=backstay.MAX_AVAILABILITY)


def test_a_tls_handshake_without_a_reply_times_out(take, certificates):
    """The server accepts the connection and sends nothing: the handshake itself has no timeout."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(EngineUnavailable, match="no answer in time"):
            take(
                f"rediss://127.0.0.1:{port}/0?{urlencode({'ca': certificates.ca})}&connect_timeout=0.3",
                profile=backstay.MAX_AVAILABILITY,
            )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ca": "/no/such/file"}, "ca=/no/such/file"),
        ({"ca": "{folder}/server.key"}, "ca="),
        ({"cert": "/no/such/file", "key": "/no/such/file"}, "cert=/no/such/file"),
        ({"key": "{folder}/client.key"}, "a key needs its certificate"),
        ({"cert": "{folder}/client.crt", "key": "{folder}/server.key"}, "not a certificate with its key"),
        ({"insecure_skip_hostname_check": "1"}, "yes or no"),
    ],
)
def test_a_wrong_option_is_a_config_error_that_names_it(certificates, options, message):
    options = {name: value.format(folder=certificates.folder) for name, value in options.items()}
    with pytest.raises(ConfigError, match=message):
        backstay.sync.Backstay(f"rediss://127.0.0.1:1/0?{urlencode(options)}")


def test_certificate_options_without_tls_are_a_config_error():
    with pytest.raises(ConfigError, match="write rediss"):
        backstay.sync.Backstay("redis://127.0.0.1:1/0?ca=/etc/ca.crt")


def test_a_waiting_thread_is_woken(tls_redis, namespace):
    """Without TLS, threads receive hints on their own connections; with TLS, the hub receives for them."""
    with backstay.sync.Backstay(tls_redis.url, namespace=namespace) as stay:
        assert stay.engine.thread_subscribers() is None
        held = stay.lock("x", wait=0).acquire()
        waited = []

        def wait():
            with stay.lock("x", wait=WITHIN) as lease:
                waited.append(lease.fence)

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert eventually(lambda: stay.locks.inspect("x").queue)
        assert eventually(lambda: "running" in stay._core.hub.states().values())
        held.release()
        waiter.join(2)  # a lost hint would take 10 s
        assert waited
        assert waited[0] > held.fence
