"""Write straight-line C for the discrete Fourier transform of n real numbers and zeros behind them.

The transform is taken apart by the prime factors of its length L, on symbols in place of numbers.
Products with 0 and 1 vanish, and equal terms are found once: for 28 numbers of 32, 228 operations
remain of 28·32 multiplications and sums. As every step is linear, the adjoint is the same program
backwards.
"""

import math
from collections.abc import Callable, Iterable

# A signed term of a program, or None for 0.
Term = tuple[int, int] | None
Complex = tuple[Term, Term]  # real and imaginary part
# Factors closer than this to 0 or 1 are meant to be 0 or 1.
TINY = 1e-12


class Program:
    """Terms, each an operation on earlier ones; equal ones are stored once."""

    def __init__(self) -> None:
        self.terms: list[tuple[str, float, int, int]] = []  # operation, factor, two terms
        self.numbers: dict[tuple[str, float, int, int], int] = {}

    def _term(self, operation: str, a: int, b: int = 0, factor: float = 1.0) -> int:
        term = (operation, factor, a, b)
        if term not in self.numbers:
            self.numbers[term] = len(self.terms)
            self.terms.append(term)
        return self.numbers[term]

    def read(self, i: int) -> tuple[int, int]:
        """Input i."""
        return 1, self._term("read", i)

    def add(self, x: Term, y: Term) -> Term:
        """x + y."""
        if x is None or y is None:
            return x or y
        (sign, a), (other, b) = x, y
        if sign == other:
            return sign, self._term("+", min(a, b), max(a, b))
        if a == b:
            return None
        # ±(a − b), of which one may be known already.
        swapped = ("-", 1.0, b, a) in self.numbers
        return (-sign, self._term("-", b, a)) if swapped else (sign, self._term("-", a, b))

    def subtract(self, x: Term, y: Term) -> Term:
        """x − y."""
        return self.add(x, negative(y))

    def scale(self, factor: float, x: Term) -> Term:
        """factor·x."""
        if x is None or abs(factor) < TINY:
            return None
        sign, a = x
        if factor < 0:
            sign, factor = -sign, -factor
        if abs(factor - 1) < TINY:
            return sign, a
        return sign, self._term("*", a, factor=round(factor, 15))

    def needed(self, results: Iterable[Term]) -> list[int]:
        """Numbers of the terms that the results depend on, in order."""
        found: set[int] = set()
        open_ends = [term[1] for term in results if term is not None]
        while open_ends:
            i = open_ends.pop()
            operation, _, a, b = self.terms[i]
            if i in found:
                continue
            found.add(i)
            if operation != "read":
                open_ends.append(a)
            if operation in "+-":
                open_ends.append(b)
        return sorted(found)

    def source(self, name: str, results: list[Term]) -> str:
        """Write it as a C function of vectors V, `sx` apart, with results `sy` apart."""
        lines = [f"static inline void {name}(const V *restrict x, long sx, V *y, long sy) {{"]
        for i in self.needed(results):
            operation, factor, a, b = self.terms[i]
            if operation == "read":
                value = f"x[{a} * sx]"
            elif operation == "*":
                value = f"{factor!r}f * t{a}"
            else:
                value = f"t{a} {operation} t{b}"
            lines.append(f"  const V t{i} = {value};")
        for i, term in enumerate(results):
            sign, a = term or (1, -1)
            value = "(V){0}" if term is None else f"{'-' if sign < 0 else ''}t{a}"
            lines.append(f"  y[{i} * sy] = {value};")
        return "\n".join([*lines, "}"]) + "\n"


def negative(x: Term) -> Term:
    """−x."""
    return None if x is None else (-x[0], x[1])


def codelets(n: int, length: int, first: int = 0) -> str:
    """Return C with N, L and the functions dft and adjoint.

    Args:
        n: numbers that are transformed.
        length: L, even, of the transform; all but n of L numbers are 0.
        first: place of the first of them; −1 is the last of the L.
    """
    forward, results = _transform(n, length, first)
    backward, gradients = _adjoint(forward, results, n)
    return (
        f"#define N {n}\n#define L {length}\n"
        + forward.source("dft", results)
        + backward.source("adjoint", gradients)
    )


def _transform(n: int, length: int, first: int) -> tuple[Program, list[Term]]:
    """The transform: real parts of k = 0 … L/2, then imaginary parts of k = 1 … L/2 − 1."""
    program = Program()
    numbers: list[Term] = [None] * length
    for i in range(n):
        numbers[(first + i) % length] = program.read(i)
    spectrum = _dft(program, numbers)
    half = length // 2
    return program, [spectrum[k][0] for k in range(half + 1)] + [
        spectrum[k][1] for k in range(1, half)
    ]


def _adjoint(program: Program, results: list[Term], inputs: int) -> tuple[Program, list[Term]]:
    """The program backwards: from factors of its results to factors of its inputs."""
    backward = Program()
    factors: dict[int, Term] = {}

    def give(i: int, factor: Term) -> None:
        factors[i] = backward.add(factors.get(i), factor)

    for i, term in enumerate(results):
        if term is not None:
            sign, a = term
            give(a, (sign, backward.read(i)[1]))
    for i in reversed(program.needed(results)):
        operation, constant, a, b = program.terms[i]
        if operation == "*":
            give(a, backward.scale(constant, factors[i]))
        elif operation in "+-":
            give(a, factors[i])
            give(b, factors[i] if operation == "+" else negative(factors[i]))
    return backward, [factors[program.read(i)[1]] for i in range(inputs)]


def _dft(program: Program, numbers: list[Term]) -> list[Complex]:
    """Σ_p numbers[p] e^(−2πikp/L) for k = 0 … L−1, of real numbers.

    With a prime factor r of L, every r-th number has a shorter transform; r of those make r values.
    """
    length = len(numbers)
    if length == 1:
        return [(numbers[0], None)]
    r = next(f for f in range(2, length + 1) if length % f == 0)
    parts = [_dft(program, numbers[j::r]) for j in range(r)]
    spectrum: list[Complex] = [(None, None)] * length
    for k in range(length // r):
        turned = [_turn(program, part[k], j * k, length) for j, part in enumerate(parts)]
        spectrum[k :: length // r] = _butterfly(program, turned)
    for k in range(length // 2 + 1, length):  # of real numbers, the other half follows
        re, im = spectrum[length - k]
        spectrum[k] = re, negative(im)
    return spectrum


def _turn(program: Program, z: Complex, k: int, length: int) -> Complex:
    """z·e^(−2πik/L)."""
    (re, im), angle = z, 2 * math.pi * (k % length) / length
    cos, sin = math.cos(angle), math.sin(angle)
    if abs(abs(cos) - abs(sin)) < TINY:  # an eighth of a turn: one factor for both
        if cos * sin > 0:
            return program.scale(cos, program.add(re, im)), program.scale(
                cos, program.subtract(im, re)
            )
        return program.scale(cos, program.subtract(re, im)), program.scale(cos, program.add(im, re))
    return (
        program.add(program.scale(cos, re), program.scale(sin, im)),
        program.subtract(program.scale(cos, im), program.scale(sin, re)),
    )


def _butterfly(program: Program, z: list[Complex]) -> list[Complex]:
    """The transform of a prime number of complex values; j and −j share their products."""
    both: Callable[[Callable[[Term, Term], Term], Complex, Complex], Complex] = (
        lambda operation, a, b: (operation(a[0], b[0]), operation(a[1], b[1]))
    )
    r = len(z)
    if r == 2:
        return [both(program.add, *z), both(program.subtract, *z)]
    pairs = [(j, z[j], z[r - j]) for j in range(1, r // 2 + 1)]
    first = z[0]
    for _, a, b in pairs:
        first = both(program.add, first, both(program.add, a, b))
    results = [first] + [z[0]] * (r - 1)
    for k in range(1, r // 2 + 1):
        even: Complex = z[0]
        odd: Complex = (None, None)
        for j, a, b in pairs:
            angle = 2 * math.pi * j * k / r
            (c, d), (e, f) = both(program.add, a, b), both(program.subtract, a, b)
            cos, sin = math.cos(angle), math.sin(angle)
            even = both(program.add, even, (program.scale(cos, c), program.scale(cos, d)))
            odd = both(program.add, odd, (program.scale(sin, e), program.scale(sin, f)))
        # even ∓ i·odd
        turned = (odd[1], negative(odd[0]))
        results[k] = both(program.add, even, turned)
        results[r - k] = both(program.subtract, even, turned)
    return results
