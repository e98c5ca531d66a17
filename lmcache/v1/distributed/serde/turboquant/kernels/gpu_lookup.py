# SPDX-License-Identifier: Apache-2.0
"""PTX that looks up eight packed indices in a table of float16 numbers.

``prmt`` picks four bytes of an eight-byte table at once, by the low three bits
of four nibbles. The table's upper and lower bytes are looked up apart and then
interleaved; operands are ``$0`` to ``$7``, the numbers, and ``$8``, the word.
Needs no Triton.
"""

_FRAME = """
{{
.reg .b32 word, upper, above, flips, signs, high0, high1, low0, low1, pair;
mov.b32 word, $8;
{select}
shr.u32 upper, word, 16;
prmt.b32 high0, {high[0]}, {high[1]}, word;
prmt.b32 high1, {high[0]}, {high[1]}, upper;
prmt.b32 low0, {low[0]}, {low[1]}, word;
prmt.b32 low1, {low[0]}, {low[1]}, upper;
{negate}
prmt.b32 pair, low0, high0, 0x5140;
mov.b32 {{$0, $1}}, pair;
prmt.b32 pair, low0, high0, 0x7362;
mov.b32 {{$2, $3}}, pair;
prmt.b32 pair, low1, high1, 0x5140;
mov.b32 {{$4, $5}}, pair;
prmt.b32 pair, low1, high1, 0x7362;
mov.b32 {{$6, $7}}, pair;
}}
"""

# Spreads eight 2-bit indices over nibbles; `above` is `word` moved into place.
_SELECT_2_BITS = """
shl.b32 above, word, 8;
lop3.b32 word, word, above, 0x000000FF, 0xE4;
shl.b32 above, word, 4;
lop3.b32 word, word, above, 0x000F000F, 0xE4;
shl.b32 above, word, 2;
lop3.b32 word, word, above, 0x03030303, 0xE4;
and.b32 word, word, 0x33333333;
"""

# The same of 3-bit indices.
_SELECT_3_BITS = """
shl.b32 above, word, 4;
lop3.b32 word, word, above, 0x00000FFF, 0xE4;
shl.b32 above, word, 2;
lop3.b32 word, word, above, 0x003F003F, 0xE4;
shl.b32 above, word, 1;
lop3.b32 word, word, above, 0x07070707, 0xE4;
and.b32 word, word, 0x77777777;
"""

# The table holds magnitudes: indices below 8 are negative and count down.
_SELECT_4_BITS = """
not.b32 signs, word;
and.b32 signs, signs, 0x88888888;
shr.u32 flips, signs, 3;
sub.u32 flips, signs, flips;
xor.b32 word, word, flips;
and.b32 word, word, 0x77777777;
"""

# Moves the sign of each nibble to the top of the byte that it selected.
_NEGATE_4_BITS = """
shl.b32 above, signs, 4;
prmt.b32 flips, above, signs, 0x5140;
and.b32 flips, flips, 0x80808080;
xor.b32 high0, high0, flips;
prmt.b32 flips, above, signs, 0x7362;
and.b32 flips, flips, 0x80808080;
xor.b32 high1, high1, flips;
"""

_SELECT = {2: _SELECT_2_BITS, 3: _SELECT_3_BITS, 4: _SELECT_4_BITS}


def assembly(bits: int, numbers: tuple[int, ...]) -> str:
    """Write the assembly for one table.

    Args:
        bits: Bits an index, 2 to 4.
        numbers: Bit patterns of ``2 ** bits`` float16 numbers. At 4 bits the
            lower half mirrors the upper one, negated.

    Returns:
        PTX for ``tl.inline_asm_elementwise``.

    Raises:
        ValueError: If the table does not have that form.
    """
    if len(numbers) != 2**bits or bits not in _SELECT:
        raise ValueError(f"Expected 2**bits numbers, bits 2 to 4, got {numbers}")
    table = numbers[-8:] if bits > 2 else numbers * 2
    if bits == 4 and numbers[:8] != tuple(n ^ 0x8000 for n in reversed(table)):
        raise ValueError(f"Expected a table that mirrors its upper half: {numbers}")
    return _FRAME.format(
        select=_SELECT[bits],
        negate=_NEGATE_4_BITS if bits == 4 else "",
        high=_words([number >> 8 for number in table]),
        low=_words([number & 0xFF for number in table]),
    )


def _words(table: list[int]) -> tuple[str, str]:
    """Write eight bytes as two little-endian words."""
    first = int.from_bytes(bytes(table[:4]), "little")
    second = int.from_bytes(bytes(table[4:]), "little")
    return f"0x{first:08X}", f"0x{second:08X}"
