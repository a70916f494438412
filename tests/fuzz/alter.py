"""Changes of files by chance, which keep their formats more or less."""
import copy
import json
import pickletools
import re
import struct
import zipfile

from generator.exchange.protobuf import Message

NUMBERS = (0, 1, 2, 3, -1, 7, 255, 65535, 1 << 20, 2147483647, -2147483648, 1 << 32, 1 << 62,
           (1 << 63) - 1, -1 << 63)
VALUES = [0, -1, 2.5, 2147483647, "inf", None, True, [], {}]


def of_bytes(rng, data):
    """One to four edits: a byte, an integer, a part left out or repeated, the rest cut off."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, rng.randrange(64)))
        kind = rng.randrange(16)
        if kind == 0:
            del data[at:]
        elif kind < 3:
            del data[at:at + size]
        elif kind < 5:
            data[at:at] = data[at:at + size] * rng.choice((1, 1, 2, 70))
        elif kind < 8:
            form = rng.choice("BHIQ")
            piece = struct.pack("<" + form, rng.choice(NUMBERS) & (1 << 8 * struct.calcsize(form)) - 1)
            data[at:at + len(piece)] = piece
        else:
            data[at:at + 1] = bytes((rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256))),))
    return bytes(data)


def of_text(rng, data):
    """A word or number of a text replaced by another one of its own, or a line of it repeated."""
    text = data.decode("latin-1")
    words = re.findall(r"[\w.+-]+|[^\w\s]", text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(re.finditer(r"[\w.+-]+|[^\w\s]|\n[^\n]*", text))
        if not places:
            break
        found = rng.choice(places)
        instead = rng.choice((rng.choice(words), str(rng.choice(NUMBERS)), "", found[0] * 2, "nan", "1e999"))
        text = text[:found.start()] + instead + text[found.end():]
    return text.encode("latin-1")


def of_json(rng, text):
    """JSON with one value replaced by another of its own, or one item of a list repeated."""
    root, places, lists, values = json.loads(text), [], [], list(VALUES)

    def walk(part):
        for key, item in part.items() if isinstance(part, dict) else enumerate(part):
            places.append((part, key))
            values.append(item)
            if isinstance(item, (dict, list)):
                walk(item)
        if isinstance(part, list) and part:
            lists.append(part)

    walk(root)
    if rng.randrange(3) or not lists:
        part, key = rng.choice(places)
        part[key] = copy.deepcopy(rng.choice(values))
    else:
        part = rng.choice(lists)
        part += [rng.choice(part)] * rng.choice((1, 2, 3, 7, 70))
    return json.dumps(root)


def copied(item):
    """A field of a message, with bytes of its own."""
    if isinstance(item, Message):
        return Message(item._fields, **{name: copied(value) for name, value in item._values.items()})
    return list(map(copied, item)) if isinstance(item, list) else (
        bytes(item) if isinstance(item, memoryview) else item)


def fields(message):
    """(message, name) of each field that is set, by the type of its values."""
    found, pending = {}, [message]
    while pending:
        one = pending.pop()
        for name, value in one._values.items():
            items = value if isinstance(value, list) else [value]
            pending += [item for item in items if isinstance(item, Message)]
            found.setdefault(type(items[0]) if items else None, []).append((one, name))
    return found


def of_message(rng, message):
    """A message of protocol buffers with a field left out, repeated, or replaced by another of its type."""
    message = copied(message)
    for _ in range(rng.choice((1, 1, 2, 3))):
        known = fields(message)
        if not known:
            break
        same = rng.choice(list(known.values()))
        (owner, name), (other, of) = rng.choice(same), rng.choice(same)
        value, donor = owner._values[name], copied(other._values[of])
        donor = rng.choice(donor) if isinstance(donor, list) and donor else donor
        if isinstance(donor, (int, float)) and rng.randrange(3) == 0:
            donor = type(donor)(rng.choice(NUMBERS))
        if isinstance(value, list) and not isinstance(donor, list):
            at = rng.randrange(len(value) + 1)
            value[at:at + rng.randrange(2)] = rng.choice(([], [donor], [donor, donor]))
        elif rng.randrange(4) or isinstance(value, list):
            owner._values[name] = donor
        else:
            del owner._values[name]
    return message


def of_pickle(rng, data):
    """A pickle with an instruction left out, repeated, or replaced by another of its own."""
    places = [place for _, _, place in pickletools.genops(data)] + [len(data)]
    parts = [data[start:end] for start, end in zip(places, places[1:])]
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(parts))
        parts[at:at + rng.randrange(2)] = rng.choice(([], [rng.choice(parts)], [of_bytes(rng, parts[at])]))
        parts = parts or [b"."]
    return b"".join(parts)


def save_zip(path, inputs):
    """Writes inputs by name, always the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(inputs.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
