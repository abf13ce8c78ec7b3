"""An admission webhook: refuses ConfigMaps without an owner, and warns about empty ones."""

import json
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, CERTIFICATE, KEY = int(sys.argv[1]), sys.argv[2], sys.argv[3]


class Webhook(BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        labels = request["object"]["metadata"].get("labels", {})
        response = {"uid": request["uid"], "allowed": "owner" in labels}
        if not response["allowed"]:
            response["status"] = {"message": "a ConfigMap needs the label owner"}
        elif not request["object"].get("data"):
            response["warnings"] = ["this ConfigMap is empty"]
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(CERTIFICATE, KEY)
server = ThreadingHTTPServer(("127.0.0.1", PORT), Webhook)
server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
