"""Calls that replace values of a file: an initializer becomes an ordinary input.

remove_initializers(bytes of a file, names) -> bytes of a file

Only the fields that enclose an initializer are rewritten. The numbers are those of onnx.proto. libsol has read the file before, so
its fields are well-formed.
"""

GRAPH, INITIALIZER, TENSOR_NAME = 7, 5, 8  # of ModelProto, GraphProto, TensorProto
SIZES = {1: 8, 5: 4}  # bytes of a value, by wire type
LENGTH = 2  # the wire type of a value with a length


def remove_initializers(data, names):
    """Returns an ONNX file without the initializers ``names`` of its main graph."""
    return b"".join(_edit_model(memoryview(data), {name.encode() for name in names}))


def _edit_model(data, names):
    for number, field, content in _fields(data):
        if number != GRAPH:
            yield field
            continue
        graph = b"".join(
            inner for at, inner, value in _fields(content) if not _is_named(at, value, names)
        )
        yield bytes([GRAPH << 3 | LENGTH]) + _varint(len(graph)) + graph


def _is_named(number, content, names):
    if number != INITIALIZER:
        return False
    return any(at == TENSOR_NAME and bytes(name) in names for at, _, name in _fields(content))


def _fields(data):
    """Yields (number, bytes of the field, its content without tag and length) for each field of a message."""
    at = 0
    while at < len(data):
        tag, begin = _read_varint(data, at)
        kind = tag & 7
        if kind == LENGTH:
            size, begin = _read_varint(data, begin)
        else:
            size = SIZES.get(kind) or _read_varint(data, begin)[1] - begin
        yield tag >> 3, data[at : begin + size], data[begin : begin + size]
        at = begin + size


def _read_varint(data, at):
    """Returns (value, where it ends)."""
    value, shift = 0, 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def _varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
