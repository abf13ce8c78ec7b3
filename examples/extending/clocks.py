"""An API server for the group clocks.example.com, to run behind an APIService: it serves the time."""

import json
import ssl
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, CERTIFICATE, KEY, FRONT_PROXY_CA = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
VERSION = "clocks.example.com/v1"
ROOT = f"/apis/{VERSION}"
RESOURCE = {"name": "clocks", "singularName": "clock", "namespaced": False, "kind": "Clock", "verbs": ["get", "list"]}


def clock(user):
    spec = {"time": time.strftime("%H:%M:%S"), "askedBy": user}
    return {"apiVersion": VERSION, "kind": "Clock", "metadata": {"name": "utc"}, "spec": spec}


class Api(BaseHTTPRequestHandler):
    def do_GET(self):
        # Only the front proxy's certificate is accepted, so this header is true.
        user = self.headers.get("X-Remote-User", "")
        answers = {
            ROOT: {"kind": "APIResourceList", "groupVersion": VERSION, "resources": [RESOURCE]},
            f"{ROOT}/clocks": {"apiVersion": VERSION, "kind": "ClockList", "metadata": {}, "items": [clock(user)]},
            f"{ROOT}/clocks/utc": clock(user),
        }
        found = answers.get(self.path.split("?")[0])
        body = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(CERTIFICATE, KEY)
tls.verify_mode = ssl.CERT_REQUIRED
tls.load_verify_locations(FRONT_PROXY_CA)
server = ThreadingHTTPServer(("", PORT), Api)
server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
