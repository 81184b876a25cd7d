"""Good files -> damaged and hostile ones, by their format; each is a function of a `random.Random` alone."""

import io
import json
import struct
import zipfile
import zlib

_SIZES = (0, 1, 2, 7, 255, 256, 65_500, 65_536, 2**17, 2**17 + 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
_ODD = (
    *(None, True, 0, -1, 1, 2, 0.5, -1e300, 1e308, 2**31, 2**63, 2**64, float("nan"), float("inf")),
    *("", " ", "a\nb", "\0", "\ud800", "é" * 300, "../../../../etc/passwd", "/etc/hostname", "C:\\x.png", "#"),
    *([], {}, [[]], [None], [1, 2], ["x"], {"x": 1}, [0.1] * 7, [-1] * 6, [1e6, -1e6] * 4),
)


def bits(chance, content):
    """Flips, cuts, inserts and repeats bytes; the beginning, where headers are, more often."""
    made = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        if not made:
            break
        reach = chance.choice((16, 64, 256, len(made)))
        place = chance.randrange(min(reach, len(made)))
        match chance.randrange(7):
            case 0 | 1:
                made[place] ^= 1 << chance.randrange(8)
            case 2:
                made[place] = chance.choice((0, 1, 127, 128, 255))
            case 3:
                del made[place : place + chance.choice((1, 4, 100))]
            case 4:
                made[place:place] = chance.randbytes(chance.choice((1, 4, 100)))
            case 5:
                made[place:place] = made[place : place + chance.choice((4, 50, 400))]
            case 6:
                made[place : place + 4] = struct.pack(chance.choice("<>") + "I", chance.choice(_SIZES) & 0xFFFFFFFF)
    if chance.random() < 0.2:
        del made[chance.randrange(len(made) + 1) :]
    return bytes(made)


def png(chance, content):
    """Changes fields of the header, lengths and the order of chunks; their checksums are right, so that they are believed."""
    if chance.random() < 0.3:
        return bits(chance, content)
    chunks, place = [], 8
    while place + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, place)
        chunks.append([kind, content[place + 8 : place + 8 + length]])
        place += 12 + length
    for _ in range(chance.choice((1, 1, 2))):
        one = chance.choice(chunks)
        match chance.randrange(7):
            case 0 | 1 | 2:
                header = list(struct.unpack(">IIBBBBB", chunks[0][1][:13])) if len(chunks[0][1]) == 13 else [1] * 7
                field = chance.randrange(7)
                header[field] = chance.choice(_SIZES) if field < 2 else chance.choice((0, 1, 2, 3, 4, 6, 8, 16, 255))
                chunks[0][1] = struct.pack(">IIBBBBB", *header)
            case 3:
                one[1] = bits(chance, one[1])
            case 4:
                chunks.insert(chance.randrange(len(chunks) + 1), list(one))
            case 5:
                kind = chance.choice((b"zTXt", b"iCCP", b"eXIf", b"tRNS", b"PLTE", b"acTL", b"gAMA"))
                body = chance.choice((b"x\0\0" + zlib.compress(bytes(10**6)), chance.randbytes(30), b"MM\0*" + b"\xff" * 40))
                chunks.insert(min(1, len(chunks)), [kind, body])
            case 6 if len(chunks) > 1:
                chunks.remove(one)
    parts = [struct.pack(">I4s", len(body), kind) + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff(chance, content):
    """Changes entries of the first directory: tags, types, counts and values."""
    if chance.random() < 0.3:
        return bits(chance, content)
    made = bytearray(content)
    (start,) = struct.unpack_from("<I", made, 4)
    if start + 2 > len(made):
        return bits(chance, content)
    (count,) = struct.unpack_from("<H", made, start)
    for _ in range(chance.choice((1, 1, 3))):
        entry = start + 2 + 12 * chance.randrange(max(1, count))
        kind, offset = chance.choice((("<H", 0), ("<H", 2), ("<I", 4), ("<I", 8), ("<I", 8)))
        if entry + 12 <= len(made):
            struct.pack_into(kind, made, entry + offset, chance.choice(_SIZES) & (0xFFFF if kind == "<H" else 0xFFFFFFFF))
    return bytes(made)


def value(chance, document):
    """Another value in the place of one within a JSON document, or a part less, twice, or under another name."""
    places = list(_places(document))
    if not places:
        return chance.choice(_ODD)
    most = 1000  # copies; of copies they would be so many that the document is never written
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        owner, key = chance.choice(places)
        if (isinstance(owner, list) and key >= len(owner)) or (isinstance(owner, dict) and key not in owner):
            continue
        match chance.randrange(8):
            case 0 | 1 | 2 | 3:
                owner[key] = _deep(chance) if chance.random() < 0.1 else chance.choice(_ODD)
            case 4:
                del owner[key]
            case 5:
                copies = min(most, chance.choice((1, 2, 1000)))
                most = 2 if copies > 2 else most
                owner[key] = [owner[key]] * copies
            case 6 if isinstance(owner, dict):
                owner[chance.choice(("", "x", "\0", "../up", key + "2"))] = owner.pop(key)
            case _ if most > 2:
                other, name = chance.choice(places)
                if (isinstance(other, dict) and name in other) or (isinstance(other, list) and name < len(other)):
                    owner[key] = json.loads(json.dumps(other[name]))
    return document


def _deep(chance):
    made = 1
    for _ in range(chance.choice((70, 400))):
        made = [made] if chance.random() < 0.5 else {"x": made}
    return made


def _places(document):
    pairs = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    for key, inner in list(pairs):
        yield document, key
        yield from _places(inner)


def text_of_json(chance, document):
    """A document as bytes, now and then in another encoding, cut short, nested very deep, or with bytes that are no text."""
    text = json.dumps(document, ensure_ascii=chance.random() < 0.7)
    match chance.randrange(12):
        case 0:
            return text.encode(chance.choice(("utf-16", "utf-32", "utf-8-sig", "utf-7")), "replace")
        case 1:
            return text.encode("utf-8", "replace")[: chance.randrange(len(text) + 1)]
        case 2:
            return b"[" * chance.choice((65, 990, 10**5)) + chance.choice((b"", b"1")) + b"]" * chance.choice((0, 990))
        case 3:
            return bits(chance, text.encode("utf-8", "replace"))
        case 4:
            return text.encode("utf-8", "replace").replace(b'"', b'"\xff', 1)
        case 5:
            return text.replace("1", "1" * 5000, 1).encode("utf-8", "replace")
    return text.encode("utf-8", "replace")


def json_document(chance, content):
    return text_of_json(chance, value(chance, json.loads(content)))


def json_lines(chance, content):
    """One line changed, cut, doubled or joined with the next."""
    lines = content.splitlines(keepends=True)
    place = chance.randrange(len(lines))
    match chance.randrange(5):
        case 0:
            return bits(chance, content)
        case 1:
            lines.insert(place, lines[place])
        case 2:
            lines[place] = lines[place].rstrip(b"\n")
        case _:
            document = json.loads(lines[place])
            if isinstance(document, list) and len(document) in (2, 5) and chance.random() < 0.7:
                document.pop()  # as an earlier version wrote it: no checksum stands in the way
            lines[place] = text_of_json(chance, value(chance, document)) + b"\n"
    return b"".join(lines)


def safetensors(chance, content):
    """The header changed: lengths, kinds, shapes, places, and the document in it, whose checksum may be gone."""
    if chance.random() < 0.3:
        return bits(chance, content)
    (length,) = struct.unpack_from("<Q", content)
    header, rest = json.loads(content[8 : 8 + length]), content[8 + length :]
    about = json.loads(header["__metadata__"]["about"])
    if chance.random() < 0.7:
        about.pop("sha256", None)
    if chance.random() < 0.6:
        header["__metadata__"]["about"] = text_of_json(chance, value(chance, about)).decode("utf-8", "replace")
    else:
        header["__metadata__"]["about"] = json.dumps(about)
        header = value(chance, header)
    made = json.dumps(header).encode()
    claimed = len(made) if chance.random() < 0.9 else chance.choice((*_SIZES, 2**40, 2**63))
    return struct.pack("<Q", claimed) + made + rest


def archive(chance, content):
    """A zip whose members are changed, and whose checksums of them are right; or the zip itself."""
    if chance.random() < 0.3:
        return bits(chance, content)
    with zipfile.ZipFile(io.BytesIO(content)) as given:
        members = {name: given.read(name) for name in given.namelist()}
    name = chance.choice(list(members))
    if name.endswith(".json"):
        about = json.loads(members[name])
        about.pop("digest", None)
        members[name] = text_of_json(chance, value(chance, about))
    elif chance.random() < 0.2:
        members[name] = members[chance.choice(list(members))]
    elif chance.random() < 0.1:
        del members[name]
    else:
        members[name] = png(chance, members[name])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as out:
        for name, body in members.items():
            out.writestr(name, body)
    return made.getvalue()


def torch_file(chance, content):
    """A file of `torch.save`, one member of its zip changed, or the zip itself."""
    if chance.random() < 0.3:
        return bits(chance, content)
    with zipfile.ZipFile(io.BytesIO(content)) as given:
        members = {name: given.read(name) for name in given.namelist()}
    names = [name for name in members if name.endswith("data.pkl")] if chance.random() < 0.7 else list(members)
    name = chance.choice(names)
    members[name] = bits(chance, members[name])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as out:
        for name, body in members.items():
            out.writestr(name, body)
    return made.getvalue()


def text(chance, content):
    """Lines of names, changed."""
    lines = content.decode().splitlines()
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(("", "#", "\0", "cup", "é" * 999, "a,b", "/", "..", "\u2028")))
    made = "\n".join(lines).encode(chance.choice(("utf-8", "utf-8", "utf-16", "utf-8-sig")))
    return bits(chance, made) if chance.random() < 0.5 else made
