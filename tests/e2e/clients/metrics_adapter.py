#!/usr/bin/env python3
"""An API server for custom and external metrics, as small as it can be: answers lie in a JSON file by path.

usage: metrics_adapter.py ADDRESS PORT CERTIFICATE KEY ANSWERS
"""

import http.server
import json
import ssl
import sys
import urllib.parse

address, port, certificate, key, answers = sys.argv[1:]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        with open(answers, encoding="utf-8") as file:
            found = json.load(file).get(path)
        code = 200 if found is not None else 404
        if found is None:
            found = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404,
                     "reason": "NotFound", "message": f"no answer for {path}"}
        body = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server = http.server.ThreadingHTTPServer((address, int(port)), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
