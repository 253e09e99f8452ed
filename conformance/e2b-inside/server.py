"""A web server for the inside of a sandbox, with nothing but Python: server.py PORT [HOST]

/          says hello               /echo    says what was posted
/headers   says what it was sent    /events  three server-sent events, a moment apart
/slow      streams forever          /ws      a WebSocket that repeats what it hears
"""

import base64
import hashlib
import json
import struct
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body, kind="text/plain"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/ws":
            return self.socket_of_the_web()
        if self.path == "/headers":
            return self.answer(json.dumps(dict(self.headers)).encode(), "application/json")
        if self.path == "/events":
            return self.stream((f"data: {i}\n\n".encode() for i in range(3)), 0.2)
        if self.path == "/slow":
            return self.stream(iter(lambda: b"tick\n", None), 0.1)
        self.answer(b"hello from inside\n")

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def stream(self, parts, pause):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for part in parts:
            self.wfile.write(part)
            self.wfile.flush()
            time.sleep(pause)
        self.close_connection = True

    def socket_of_the_web(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest())
        self.send_header("Sec-WebSocket-Accept", accept.decode())
        self.end_headers()
        self.close_connection = True
        while True:
            first, length = self.rfile.read(2)
            length &= 0x7F
            if length == 126:
                (length,) = struct.unpack(">H", self.rfile.read(2))
            elif length == 127:
                (length,) = struct.unpack(">Q", self.rfile.read(8))
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(length)))
            short = struct.pack(">B", length) if length < 126 else None
            if short is None:
                short = struct.pack(">BH", 126, length) if length < 65536 else struct.pack(">BQ", 127, length)
            self.wfile.write(bytes([first]) + short + data)
            self.wfile.flush()
            if first & 0x0F == 8:
                return

    def log_message(self, *_):
        pass


ThreadingHTTPServer.daemon_threads = True
host = sys.argv[2] if len(sys.argv) > 2 else "0.0.0.0"
ThreadingHTTPServer((host, int(sys.argv[1])), Handler).serve_forever()
