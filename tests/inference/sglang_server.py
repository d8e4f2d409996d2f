"""A small server that speaks SGLang's wire format, as recorded from a real one."""

import base64
import io
import json
import pickle
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from inference.sglang_runtime import Exited, Refused


class SGLangServer:
    """Serves a `TinySGLang` on a port of its own; `calls` remembers what it was asked."""

    def __init__(self, runtime):
        self.runtime, self.calls = runtime, []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.runtime.is_dead = True
        self._server.shutdown()
        self._server.server_close()

    def asked(self, path):
        return [body for called, body in self.calls if called == path]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # requests that come at once


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._serve(GET)

    def do_POST(self):
        self._serve(POST)

    def log_message(self, *_):
        pass

    def _serve(self, routes):
        owner = self.server.owner
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        owner.calls.append((self.path, body))
        try:
            if owner.runtime.is_dead:
                raise Exited
            if self.path in routes:
                routes[self.path](self, owner.runtime, body)
            else:
                self.send(404, {"detail": "Not Found"})
        except Refused as error:
            self.send(400, {"error": {"message": str(error)}})
        except (Exited, BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def send(self, status, content=b""):
        """JSON, or bytes without a type."""
        is_json = not isinstance(content, bytes)
        data = json.dumps(content).encode() if is_json else content
        self.send_response(status)
        if is_json:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _generate(handler, runtime, body):
    handler.send(200, runtime.generate(body))


def _update(handler, runtime, body):
    path, flush_cache = body["model_path"], body["flush_cache"]
    _send_outcome(handler, *runtime.update_weights_from_disk(path, flush_cache=flush_cache))


def _abort(handler, runtime, body):
    runtime.abort(body["rid"])
    handler.send(200)


def _join(handler, runtime, body):
    _send_outcome(handler, *runtime.init_weights_update_group(body))


def _receive(handler, runtime, body):
    _send_outcome(handler, *runtime.update_weights_from_distributed(body))


def _open(handler, runtime, body):
    (payload,) = body["serialized_named_tensors"]  # one for each worker
    named = _HandleUnpickler(io.BytesIO(base64.b64decode(payload, validate=True))).load()
    outcome = runtime.update_weights_from_tensor(named, flush_cache=body["flush_cache"])
    _send_outcome(handler, *outcome)


def _send_outcome(handler, success, message):
    handler.send(200 if success else 400, {"success": success, "message": message})


class _HandleUnpickler(pickle.Unpickler):
    """Reads what SGLang's `SafeUnpickler` reads, as far as tensors need it."""

    def find_class(self, module, name):
        if module.split(".")[0] not in ("builtins", "collections", "torch") and module not in (
            "multiprocessing.reduction",
            "multiprocessing.resource_sharer",
        ):
            raise Exited
        return super().find_class(module, name)


def _release(handler, runtime, body):
    runtime.is_released |= set(body["tags"])
    handler.send(200)


def _take_back(handler, runtime, body):
    if not set(body["tags"]) <= runtime.is_released:
        runtime._exit()
    runtime.is_released -= set(body["tags"])
    handler.send(200)


GET = {"/server_info": lambda handler, runtime, _: handler.send(200, runtime.server_info())}
POST = {
    "/generate": _generate,
    "/abort_request": _abort,
    "/update_weights_from_disk": _update,
    "/init_weights_update_group": _join,
    "/release_memory_occupation": _release,
    "/resume_memory_occupation": _take_back,
    "/update_weights_from_distributed": _receive,
    "/update_weights_from_tensor": _open,
}
