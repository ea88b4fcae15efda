"""Receives OTLP over HTTP and prints every span as a line of JSON. It ends when its standard input closes."""

import http.server
import json
import sys
import threading

try:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
    )
except ImportError:
    print("no opentelemetry-proto", flush=True)
    sys.exit(0)


def value_text(value):
    kind = value.WhichOneof("value")
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind == "array_value":
        return "[" + ",".join(json.dumps(value_text(one)) for one in value.array_value.values) + "]"
    return str(getattr(value, kind))


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    print(
                        json.dumps(
                            {
                                "trace": span.trace_id.hex(),
                                "id": span.span_id.hex(),
                                "parent": span.parent_span_id.hex(),
                                "name": span.name,
                                "start": str(span.start_time_unix_nano),
                                "end": str(span.end_time_unix_nano),
                                "attributes": {one.key: value_text(one.value) for one in span.attributes},
                                "schema": scope.schema_url,
                            }
                        ),
                        flush=True,
                    )
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(f"port {server.server_address[1]}", flush=True)
sys.stdin.read()
