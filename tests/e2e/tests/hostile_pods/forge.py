"""Sends packets that the kernel of a pod would not send: with addresses of others, in odd shapes, in tunnels, to the
node's loopback, and neighbour messages that lie. The payload says what it is, after the word that the caller gives."""
import json
import random
import socket
import struct
import sys

word, config = sys.argv[1], json.loads(sys.argv[2])
PORT, ALLOWED, OVERLAY = 9999, 7007, 8472


def hardware(text):
    return bytes(int(part, 16) for part in text.split(":"))


own = hardware(config["hardware"])
gateway = hardware(config["gateway"])
own4, own6 = config["attacker"]
friend4, friend6 = config["friend"]
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(("eth0", 0))


def bytes4(ip):
    return socket.inet_pton(socket.AF_INET, ip)


def bytes6(ip):
    return socket.inet_pton(socket.AF_INET6, ip)


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def with_sum6(source, target, protocol, data, at):
    pseudo = bytes6(source) + bytes6(target) + struct.pack("!II", len(data), protocol)
    total = checksum(pseudo + data) or 0xFFFF
    return data[:at] + struct.pack("!H", total) + data[at + 2 :]


def packet4(source, target, protocol, body, ident=None, more=0, offset=0, options=b""):
    words = 5 + len(options) // 4
    ident = random.getrandbits(16) if ident is None else ident
    head = struct.pack("!BBHHHBBH", 0x40 | words, 0, words * 4 + len(body), ident, more << 13 | offset, 64, protocol, 0)
    head += bytes4(source) + bytes4(target) + options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + body


def packet6(source, target, next_header, body, hops=64):
    head = struct.pack("!IHBB", 6 << 28, len(body), next_header, hops)
    return head + bytes6(source) + bytes6(target) + body


def udp4(port, what, source_port=5555):
    data = ("%s %s" % (word, what)).ljust(48).encode()
    return struct.pack("!HHHH", source_port, port, 8 + len(data), 0) + data


def udp6(source, target, port, what):
    return with_sum6(source, target, 17, udp4(port, what), 6)


def send4(packet):
    link.send(gateway + own + b"\x08\x00" + packet)


def send6(packet):
    link.send(gateway + own + b"\x86\xdd" + packet)


def addresses_of_others(victim4, victim6):
    node4, node6 = zip(*config["nodes"])
    for source in [friend4, *node4, victim4, "127.0.0.1", "0.0.0.0", "169.254.1.1", "10.43.0.10", "198.51.100.9"]:
        send4(packet4(source, victim4, 17, udp4(PORT, "forged " + source)))
    for source in [friend6, *node6, victim6, "::1", "::", "fe80::1", "fd43::a", "::ffff:" + friend4]:
        send6(packet6(source, victim6, 17, udp6(source, victim6, PORT, "forged " + source)))


def odd_shapes(victim4, victim6):
    """All with the pod's own address."""
    send4(packet4(own4, victim4, 17, udp4(PORT, "honest plain4")))
    send6(packet6(own6, victim6, 17, udp6(own6, victim6, PORT, "honest plain6")))
    whole = udp4(PORT, "honest fragments4", 5556)
    send4(packet4(own4, victim4, 17, whole[:8], 78, 1, 0))
    send4(packet4(own4, victim4, 17, whole[8:], 78, 0, 1))
    send4(packet4(own4, victim4, 17, udp4(PORT, "forged rest4")[8:], 79, 0, 1))
    whole = udp6(own6, victim6, PORT, "honest fragments6")
    send6(packet6(own6, victim6, 44, struct.pack("!BBHI", 17, 0, 1, 5) + whole[:8]))
    send6(packet6(own6, victim6, 44, struct.pack("!BBHI", 17, 0, 1 << 3, 5) + whole[8:]))
    # The second names another port than the first.
    allowed, other = udp4(ALLOWED, "forged overlap4", 5557), udp4(PORT, "forged overlap4", 5557)
    send4(packet4(own4, victim4, 17, allowed[:8], 77, 1, 0))
    send4(packet4(own4, victim4, 17, other[:16], 77, 1, 0))
    send4(packet4(own4, victim4, 17, allowed[16:], 77, 0, 2))
    padding = b"\0\x01\x04\0\0\0\0"
    whole = udp6(own6, victim6, PORT, "honest options6")
    send6(packet6(own6, victim6, 0, b"\x3c" + padding + b"\x11" + padding + whole))
    send6(packet6(own6, victim6, 60, (b"\x3c" + padding) * 20 + b"\x11" + padding + whole))
    through = bytes6(victim6) + udp6(own6, victim6, PORT, "forged routing6")
    for kind in [0, 2]:
        send6(packet6(own6, friend6, 43, bytes([17, 2, kind, 1, 0, 0, 0, 0]) + through))
    options = b"\x83\x07\x04" + bytes4(friend4) + b"\0"
    send4(packet4(own4, victim4, 17, udp4(PORT, "forged routing4"), options=options))


def tunnels(victim4, victim6):
    inner4 = packet4(friend4, victim4, 17, udp4(PORT, "forged tunnel4"))
    inner6 = packet6(friend6, victim6, 17, udp6(friend6, victim6, PORT, "forged tunnel6"))
    for target in [victim4, config["nodes"][0][0], config["nodes"][1][0]]:
        send4(packet4(own4, target, 4, inner4))
        send4(packet4(own4, target, 41, inner6))
        send4(packet4(own4, target, 47, b"\0\0\x08\0" + inner4))
    send6(packet6(own6, victim6, 41, inner6))
    frame = hardware("02:00:00:00:00:01") + own + b"\x08\x00" + inner4
    overlay = struct.pack("!II", 0x08000000, config["vni"] << 8) + frame
    datagram = struct.pack("!HHHH", 40000, OVERLAY, 8 + len(overlay), 0) + overlay
    for node4, node6 in config["nodes"]:
        send4(packet4(own4, node4, 17, datagram))
        send6(packet6(own6, node6, 17, with_sum6(own6, node6, 17, datagram, 6)))


def loopback(node4):
    for source in [own4, "127.0.0.1"]:
        send4(packet4(source, "127.0.0.1", 17, udp4(PORT, "forged loopback4")))
    for source in [own6, "::1"]:
        send6(packet6(source, "::1", 17, udp6(source, "::1", PORT, "forged loopback6")))
    send4(packet4("127.0.0.1", node4, 17, udp4(PORT, "forged from loopback")))
    send4(packet4(friend4, node4, 17, udp4(PORT, "forged from a friend")))
    send4(packet4(own4, node4, 17, udp4(PORT, "honest to the node")))


def neighbour_messages():
    (node4, node6), (other4, _) = config["nodes"]
    for ip in [friend4, node4, other4, "169.254.1.1"]:
        for kind in [1, 2]:
            body = struct.pack("!HHBBH", 1, 0x800, 6, 4, kind) + own + bytes4(ip) + b"\0" * 6 + bytes4(ip)
            link.send(b"\xff" * 6 + own + b"\x08\x06" + body)
    router = struct.pack("!BBHIIBBH", 134, 0, 0, 0x40000708, 0, 0, 0, 0)[:16]
    prefix = b"\x03\x04\x40\xc0" + struct.pack("!III", 86400, 86400, 0) + bytes6("2001:db8:bad::")
    for source in ["fe80::1", "fe80::bad", own6]:
        send6(packet6(source, "ff02::1", 58, with_sum6(source, "ff02::1", 58, router + b"\x01\x01" + own + prefix, 2), 255))
        for ip in [friend6, node6, "fe80::1"]:
            for target in [node6, "ff02::1"]:
                body = struct.pack("!BBHI", 136, 0, 0, 0x20000000) + bytes6(ip) + b"\x02\x01" + own
                send6(packet6(source, target, 58, with_sum6(source, target, 58, body, 2), 255))


for victim in config["victims"]:
    addresses_of_others(*victim)
    odd_shapes(*victim)
    tunnels(*victim)
loopback(config["nodes"][0][0])
neighbour_messages()
