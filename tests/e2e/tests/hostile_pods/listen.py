"""Writes what arrives at a UDP port to a file, one datagram a line, for five minutes."""
import socket
import sys
import time

host, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
family = socket.AF_INET6 if ":" in host else socket.AF_INET
receiver = socket.socket(family, socket.SOCK_DGRAM)
if host == "::":
    receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
receiver.bind((host, port))
receiver.settimeout(1)
with open(path, "w", buffering=1) as log:
    log.write("ready\n")
    end = time.time() + 300
    while time.time() < end:
        try:
            log.write(receiver.recv(2000).decode("latin1").strip() + "\n")
        except TimeoutError:
            pass
