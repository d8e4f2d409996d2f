"""The real server in a thread, and a client that can send what no browser would."""

import contextlib
import http.client
import json
import signal
import threading
import time
from urllib.parse import quote, urlencode

from turnwise.view.runs import Library
from turnwise.view.server import Viewer, ViewServer, listening, make_app


class Client:
    """Asks the viewer at a port."""

    def __init__(self, port, viewer):
        self.port = port
        self.viewer = viewer

    def request(self, path, method="GET", body=None, **headers):
        """Status, headers and body of whatever is asked."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, names)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path, **query):
        """What it answers, which must be well."""
        status, _, body = self.request(address(path, query))
        assert status == 200, body
        return json.loads(body)

    def error(self, path, status, **query):
        found, _, body = self.request(address(path, query))
        assert found == status, body
        return json.loads(body)["error"]


def address(path, query):
    return f"{quote(path, safe='/~.')}?{urlencode(query)}" if query else quote(path, safe="/~.%")


def open_library(*places):
    """The runs in these folders, with all of their episodes."""
    library = Library(places)
    library.find()
    for run in library.runs:
        refresh(run)
    return library


def refresh(run):
    run.open_episodes(60.0)


@contextlib.contextmanager
def serving(*places, is_read_only=False):
    """A client of a viewer that runs until the end of the block."""
    viewer = Viewer(open_library(*places), is_read_only)
    door = listening(0)
    port = door.getsockname()[1]
    server = ViewServer(viewer, make_app(viewer))
    thread = threading.Thread(target=server.run, args=([door],))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield Client(port, viewer)
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join(timeout=60)
        door.close()
        assert not thread.is_alive()


def eventually(check, seconds=60.0):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found
