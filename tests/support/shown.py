"""What a crash report or a debugger shows of an object: its attributes, theirs, and what lies in plain containers."""


def shown(it, depth=8):
    """Return every text reached from ``it`` by attributes, mappings and sequences, as one that dumps them would."""
    strings, seen = [], set()

    def look(each, left):
        if not left or id(each) in seen:
            return
        seen.add(id(each))
        strings.append(repr(each))
        if isinstance(each, dict):
            inside = [*each, *each.values()]
        elif isinstance(each, (list, tuple, set, frozenset)):
            inside = list(each)
        else:
            slots = [getattr(each, name, None) for kind in type(each).__mro__ for name in _slots(kind)]
            inside = [*getattr(each, "__dict__", {}).values(), *slots]
        for inner in inside:
            look(inner, left - 1)

    look(it, depth)
    return "\n".join(strings)


def _slots(kind):
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
