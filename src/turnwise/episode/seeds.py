"""Seeds derived from names, so that no draw depends on the order in which things happen."""

from hashlib import blake2b


def derive_seed(*names: int | str) -> int:
    """Returns a seed that depends on these names alone.

    >>> derive_seed(0, "turn", 1) == derive_seed(0, "turn", 1) != derive_seed(0, "turn", 2)
    True
    """
    digest = blake2b("/".join(map(str, names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1  # 63 bits: every engine takes them as they are


_HELD_OUT_BITS, _HELD_OUT = 16, 0xE7A1


def held_out_seed(*names: int | str) -> int:
    """Returns a seed that `training_seed` never returns, also modulo 2**16 or more.

    >>> hex(held_out_seed(0, "eval", 7))[-4:]
    'e7a1'
    """
    return derive_seed(*names) >> _HELD_OUT_BITS << _HELD_OUT_BITS | _HELD_OUT


def training_seed(*names: int | str) -> int:
    """Returns a seed that `held_out_seed` never returns."""
    seed = derive_seed(*names)
    while seed % 2**_HELD_OUT_BITS == _HELD_OUT:
        names = (*names, "again")
        seed = derive_seed(*names)
    return seed
