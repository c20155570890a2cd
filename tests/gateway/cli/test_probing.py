"""A container's health check asks at the configured port."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.main import main
from gateway.cli.probing import not_ready
from gateway.config.settings import ServerSettings


@contextmanager
def answering(reply: bytes) -> Iterator[int]:
    """The port of a server that answers once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(4096).startswith(b"GET /ready HTTP/1.1\r\n")
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
LOADING = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 7\r\n\r\nloading"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_that_is_ready(host: str) -> None:
    with answering(OK) as port:
        assert not_ready(ServerSettings(host=host, port=port), 5) is None


def test_one_that_is_loading_and_one_that_is_not_there() -> None:
    with answering(LOADING) as port:
        assert "answers 503: loading" in str(not_ready(ServerSettings(port=port), 5))
    assert "does not answer" in str(not_ready(ServerSettings(port=port), 5))
    with answering(b"SSH-2.0\r\n") as port:
        assert "does not answer" in str(not_ready(ServerSettings(port=port), 5))


def test_the_command_takes_the_port_from_wherever_it_is_configured(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    for write in (
        lambda port: (f"[server]\nport = {port}\n", {}, []),
        lambda port: ("", {"GATEWAY_PORT": str(port)}, []),
        lambda port: ("[server]\nport = 1\n", {"GATEWAY_SERVER__PORT": str(port)}, []),
        lambda port: ("", {}, ["--port", str(port)]),
    ):
        for reply, status in ((OK, 0), (LOADING, 1)):
            with answering(reply) as port:
                config, environ, options = write(port)
                file.write_text(config)
                done = CliRunner().invoke(main, ["ready", "--config", str(file), *options], env=environ)
            assert (done.exit_code, bool(done.output)) == (status, bool(status)), done.output
