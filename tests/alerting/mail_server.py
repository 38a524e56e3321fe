"""An SMTP server that stores the messages that it receives."""

from __future__ import annotations

import email
import email.policy
import queue
import socketserver
import threading
from email.message import EmailMessage

_GREETING, _DONE, _BYE, _GO_ON = b"220 ready\r\n", b"250 done\r\n", b"221 bye\r\n", b"354 go on\r\n"


class MailServer:
    """Accepts mail for every recipient."""

    def __init__(self) -> None:
        self.mails: queue.SimpleQueue[EmailMessage] = queue.SimpleQueue()
        received = self.mails

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(_GREETING)
                while command := self.rfile.readline().strip().upper():
                    if command == b"QUIT":
                        self.wfile.write(_BYE)
                        return
                    if command == b"DATA":
                        self.wfile.write(_GO_ON)
                        received.put(self._mail())
                    self.wfile.write(_DONE)

            def _mail(self) -> EmailMessage:
                lines = []
                while (line := self.rfile.readline()) != b".\r\n":
                    lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
                return email.message_from_bytes(b"".join(lines), policy=email.policy.default)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Close the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
