"""A name server on loopback: every name under the domains it is given is this machine.

name-server.py DOMAIN...
"""

import socket
import struct
import sys

ours = [domain.lower() for domain in sys.argv[1:]]
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
while True:
    query, client = server.recvfrom(512)
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    question = query[12 : at + 5]
    (kind,) = struct.unpack(">H", query[at + 1 : at + 3])
    name = ".".join(labels)
    known = any(name == domain or name.endswith("." + domain) for domain in ours)
    answers = [b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + bytes([127, 0, 0, 1])] if known and kind == 1 else []
    # Recursion was wanted and is had; what is not ours does not exist.
    flags = 0x8580 | (0 if known else 3)
    header = query[:2] + struct.pack(">HHHHH", flags, 1, len(answers), 0, 0)
    server.sendto(header + question + b"".join(answers), client)
