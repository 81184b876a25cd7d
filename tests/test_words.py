from cyctr.words import counted, listed, one_line


def test_one_thing_is_one_and_others_are_many():
    assert [counted(number, "image") for number in (0, 1, 2, 1200)] == ["0 images", "1 image", "2 images", "1,200 images"]
    assert [counted(number, "held-out class") for number in (1, 3)] == ["1 held-out class", "3 held-out classes"]


def test_of_many_names_the_first_are_listed():
    assert listed(["cup"]) == "cup"
    assert listed([f"{i}" for i in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert listed([f"{i}" for i in range(11)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."


def test_what_cannot_be_printed_is_escaped_so_that_a_message_is_one_line():
    assert one_line("Tür/two words") == "Tür/two words"
    assert one_line("a\nb\u2028\udcff") == "a\\nb\\u2028\\udcff"
