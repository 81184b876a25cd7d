"""Reads what is written for people."""

import base64
import io
from html.parser import HTMLParser

from PIL import Image

VOID = {"meta", "img"}


class Reader(HTMLParser):
    """What a page holds, and whether every tag that opens closes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def pictures(self):
        sources = [attributes["src"] for tag, attributes in self.attributes if tag == "img"]
        assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
        return [Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) for source in sources]
