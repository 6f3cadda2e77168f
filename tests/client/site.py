"""A toy server on a real socket."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from .toy import ToyServer


class Site:
    """A toy server on a free port. `spoil` lists how to ruin the next answers, after the server has done its work."""

    def __init__(self, server: ToyServer, context: ssl.SSLContext | None = None) -> None:
        self.server, self.spoil, self.is_off = server, [], False
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                site.serve(self)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        scheme = "http"
        if context is not None:
            scheme, self.http.socket = "https", context.wrap_socket(self.http.socket, server_side=True)
        self.url = f"{scheme}://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def serve(self, connection: BaseHTTPRequestHandler) -> None:
        body = connection.rfile.read(int(connection.headers.get("Content-Length", 0)))
        if self.is_off:
            connection.close_connection = True
            return
        url = f"{self.url}{connection.path}"
        request = httpx.Request(connection.command, url, headers=dict(connection.headers), content=body)
        response = self.server.handle(request)
        body = b"".join(response.stream)
        spoil = self.spoil.pop(0) if self.spoil else None
        connection.close_connection = spoil is not None
        if spoil == "no answer":
            return
        connection.send_response(response.status_code)
        for name, value in response.headers.items():
            if name != "content-length":
                connection.send_header(name, value)
        connection.send_header("Content-Length", str(len(body)))
        connection.end_headers()
        connection.wfile.write(body[: len(body) // 2] if spoil == "cut" else body)

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()
