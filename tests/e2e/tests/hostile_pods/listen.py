"""Writes what arrives at a UDP port to a file, one datagram a line, until the file is removed."""
import os
import socket
import sys

host, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
family = socket.AF_INET6 if ":" in host else socket.AF_INET
receiver = socket.socket(family, socket.SOCK_DGRAM)
if host == "::":
    receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
receiver.bind((host, port))
receiver.settimeout(1)
with open(path, "w", buffering=1) as log:
    log.write("ready\n")
    while os.path.exists(path):
        try:
            log.write(receiver.recv(2000).decode("latin1").strip() + "\n")
        except TimeoutError:
            pass
