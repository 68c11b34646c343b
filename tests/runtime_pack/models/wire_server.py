"""A server that answers with the bytes it is told to: for what llmock does not do.

Run as a process of its own: `python wire_server.py`; it prints its port. `POST /_script` takes a
list of answers (`status`, `headers`, `body`, `cut`, `hold`), given to the next requests in order; `GET
/_seen` gives back what was requested. `cut` breaks the connection off after the body, and `hold` keeps
it open until the client leaves.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: ClassVar[list[dict[str, Any]]] = []
    seen: ClassVar[list[dict[str, Any]]] = []

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        body = json.dumps(self.seen).encode()
        self.seen.clear()
        self._answer({"status": 200, "headers": {"Content-Type": "application/json"}}, body)

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/_script":
            self.script[:] = json.loads(sent)
            self.seen.clear()
            self._answer({"status": 200}, b"{}")
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.seen.append({"path": self.path, "headers": headers, "body": json.loads(sent)})
        answer = self.script.pop(0) if self.script else {"status": 599, "body": "not in the script"}
        self._answer(answer, str(answer.get("body", "")).encode())

    def _answer(self, answer: dict[str, Any], body: bytes) -> None:
        self.send_response(answer.get("status", 200))
        for name, value in answer.get("headers", {}).items():
            self.send_header(name, value)
        is_short = bool(answer.get("cut") or answer.get("hold"))
        self.send_header("Content-Length", str(len(body) + (100 if is_short else 0)))
        self.end_headers()
        self.wfile.write(body)
        if answer.get("hold"):
            self.wfile.flush()
            self.rfile.read(1)
        self.close_connection = is_short


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
