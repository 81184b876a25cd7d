import numpy as np
import pytest
from reading import Reader

from cyctr.visual.contact import Block
from cyctr.visual.page import Section, page

EVIL = """<script>alert("1")</script> & 'x' "y" </td>"""


def picture(colour, side=40):
    return np.full((side, side, 3), colour, np.uint8)


def made(name="cat", side=40):
    table = [["class", "1-shot"], [name, "12.3"], ["dog", "4.5"]]
    blocks = [
        Block([picture((200, 0, 0), side), picture((0, 0, 200), side)], f"{name}, first"),
        Block([picture((0, 200, 0))], "2"),
    ]
    return page(f"{name} on data", f"lead {name}", [table, table], [Section(f"Best {name}", f"about {name}", blocks)])


def test_a_page_holds_its_title_tables_and_captions():
    read = Reader(made())
    assert read.texts["title"] == read.texts["h1"] == ["cat on data"]
    assert read.texts["p"] == ["lead cat", "about cat"]
    assert read.texts["h2"] == ["Best cat"]
    assert read.texts["th"] == ["class", "1-shot"] * 2
    assert read.texts["td"] == ["cat", "12.3", "dog", "4.5"] * 2
    assert read.texts["figcaption"] == ["cat, first", "2"]
    assert read.tags.count("tr") == 6


def test_the_pictures_are_part_of_the_file_in_order():
    read = Reader(made())
    pictures = read.pictures()
    assert [each.size for each in pictures] == [(40, 40)] * 3
    colours = [np.asarray(each.convert("RGB")).reshape(-1, 3).mean(0) for each in pictures]
    assert [int(colour.argmax()) for colour in colours] == [0, 2, 1]
    linked = [value for _, attributes in read.attributes for name, value in attributes.items() if name in ("src", "href")]
    assert all(value.startswith("data:") for value in linked)


@pytest.mark.parametrize(("side", "shown"), [(40, "40"), (360, "180")])
def test_large_pictures_are_shown_at_half_for_sharp_screens(side, shown):
    widths = [attributes["width"] for tag, attributes in Reader(made(side=side)).attributes if tag == "img"]
    assert widths[:2] == [shown, shown]


def test_names_are_text_whatever_they_hold():
    text = made(EVIL)
    assert "<script" not in text
    read = Reader(text)
    assert "script" not in read.tags
    assert read.texts["h1"] == [f"{EVIL} on data"]
    assert read.texts["td"][0] == EVIL
    assert read.texts["figcaption"][0] == f"{EVIL}, first"
    images = [attributes for tag, attributes in read.attributes if tag == "img"]
    assert images[0]["alt"] == f"{EVIL}, first"
    assert set(images[0]) == {"width", "src", "alt"}
    assert [tag for tag in read.tags if tag != "img"] == [tag for tag in Reader(made()).tags if tag != "img"]


def test_a_page_without_episodes_is_a_page():
    read = Reader(page("t", "l", [[["a"]]], []))
    assert read.texts["th"] == ["a"]
    assert read.pictures() == []
    assert page("t", "l", [], []).startswith("<!doctype html>")


def test_letters_beyond_ascii_are_kept():
    text = page("Käfer 猫 ±", "–", [], [])
    assert "Käfer 猫 ±" in text
    assert '<meta charset="utf-8">' in text
