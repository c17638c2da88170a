"""Philox4x32-10 as instructions of a loop program, so that random numbers cost no memory."""

from __future__ import annotations

from codegen.index import Expr
from codegen.loops import Program

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(program: Program, seed: int, offset: int, element: Expr) -> int:
    """32 random bits (u32) for element number `element`: lane element % 4 of counter offset + element // 4.

    seed, offset: i64 instructions; the key is the 64-bit seed, the upper counter words are zero.
    """
    low, high = _halves(program, seed)
    number = program.emit("index", "i64", (), (element // 4,))
    c = [*_halves(program, program.map("add", "i64", number, offset)), *[program.const(0, "u32")] * 2]
    keys = [low, high]
    for _ in range(ROUNDS):
        (h0, l0), (h1, l1) = _product(program, c[0], MULTIPLIERS[0]), _product(program, c[2], MULTIPLIERS[1])
        c = [_xor(program, h1, c[1], keys[0]), l1, _xor(program, h0, c[3], keys[1]), l0]
        keys = [program.map("add", "u32", k, program.const(w, "u32")) for k, w in zip(keys, WEYL, strict=True)]
    lane = element % 4
    result = c[3]
    for i in (2, 1, 0):
        here = program.emit("inside", "bool", (), (lane, i, i + 1))
        result = program.map("where", "u32", here, c[i], result)
    return result


def _halves(program: Program, value: int) -> tuple[int, int]:
    """The low and high words of a 64-bit instruction."""
    wide = program.map("convert", "u64", value)
    high = program.map("shr", "u64", wide, program.const(32, "u64"))
    return program.map("convert", "u32", wide), program.map("convert", "u32", high)


def _product(program: Program, a: int, factor: int) -> tuple[int, int]:
    """The high and low words of a * factor."""
    wide = program.map("mul", "u64", program.map("convert", "u64", a), program.const(factor, "u64"))
    low, high = _halves(program, wide)
    return high, low


def _xor(program: Program, *words: int) -> int:
    a, b, c = words
    return program.map("xor", "u32", program.map("xor", "u32", a, b), c)
