"""Asks the studio's server as its page does."""

import base64
import io
import time

import numpy as np
from PIL import Image
from segmenting import scene
from starlette.testclient import TestClient

from cyctr.studio.serving import application

PORT, TOKEN = 4321, "a-token-of-the-tests"
HEADERS = {"Authorization": f"token {TOKEN}", "X-Cyctr": "1"}


class Page(TestClient):
    """Asks as the page does, and waits for what comes later."""

    def __init__(self, studio):
        super().__init__(application(studio, TOKEN, PORT), base_url=f"http://127.0.0.1:{PORT}", headers=HEADERS)
        self.studio = studio

    def photos(self, **query):
        return self.get("/api/photos", params=query).json()["items"]

    def named(self, name):
        return next(one for one in self.photos() if one["name"] == name)

    def add_class(self, name="cup"):
        return self.post("/api/classes", json={"name": name}).json()["id"]

    def paint(self, photo, class_id, mask, left=0, top=0, base=0):
        place = {"x": left, "y": top, "width": mask.shape[1], "height": mask.shape[0], "base": base}
        return self.put(f"/api/photos/{photo['id']}/mask/{class_id}", params=place, content=png(mask))

    def mask(self, photo, class_id, **query):
        answer = self.get(f"/api/photos/{photo['id']}/mask/{class_id}", params=query)
        return None if answer.status_code == 204 else read(answer.content)

    def make_example(self, name, class_id):
        """Paints the disc of a scene, and uses it as an example."""
        one = self.named(name)
        assert self.paint(one, class_id, scene((60, 80), int(name[0]))[1]).status_code == 200
        return self.post(f"/api/photos/{one['id']}/example", json={"on": True}).json()

    def start(self):
        self.studio.worker.start()
        wait(lambda: self.get("/api/project").json()["model"]["ready"])

    def segment_all(self, only="open"):
        assert self.post("/api/job", json={"what": "segment", "only": only}).status_code == 200
        wait(lambda: self.get("/api/job").json()["state"] != "running")
        return self.get("/api/job").json()


def wait(true, seconds=30):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def png(mask):
    content = io.BytesIO()
    Image.fromarray(np.asarray(mask, bool).astype(np.uint8) * np.uint8(255)).save(content, "PNG")
    return content.getvalue()


def read(content):
    return np.asarray(Image.open(io.BytesIO(content))) > 0


def unpacked(proposal, photo):
    """(H, W) the mask of a proposal."""
    whole = np.zeros((photo["height"], photo["width"]), bool)
    if proposal["area"]:
        rows, columns = (slice(proposal[at], proposal[at] + proposal[side]) for at, side in (("y", "height"), ("x", "width")))
        whole[rows, columns] = read(base64.b64decode(proposal["png"]))
    return whole
