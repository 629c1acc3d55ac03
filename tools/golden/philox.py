"""Tarn's random numbers: Philox4x32-10 (Salmon et al. 2011, SC '11, section 3.3) with the block's
number and the stream as its counter and the seed as its key, both as two words, low word first."""

import math

import numpy

WORD = 0xFFFFFFFF


def block(counter, key):
    """Ten rounds on four 32-bit words under a key of two."""
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right >> 32) ^ b ^ k, right & WORD, (left >> 32) ^ d ^ m, left & WORD
        k, m = (k + 0x9E3779B9) & WORD, (m + 0xBB67AE85) & WORD
    return a, b, c, d


class Stream:
    def __init__(self, seed, stream):
        self.words = self._words(seed, stream)

    @staticmethod
    def _words(seed, stream):
        number = 0
        while True:
            yield from block((number & WORD, number >> 32, stream & WORD, stream >> 32),
                             (seed & WORD, seed >> 32))
            number += 1

    def below(self, bound):
        return next(self.words) * bound >> 32

    def normal(self):
        """Box and Muller's cosine of two words, 23 bits of radius and 24 of angle; an f32."""
        radius = math.sqrt(-2.0 * math.log(((next(self.words) >> 9) + 0.5) * 2.0 ** -23))
        angle = 2.0 * math.pi * (next(self.words) >> 8) * 2.0 ** -24
        return float(numpy.float32(radius * math.cos(angle)))

    def normals(self, *shape):
        return numpy.array([self.normal() for _ in range(math.prod(shape))]).reshape(shape)


# The paper's published test vector of an all-ones counter and key.
assert block((WORD,) * 4, (WORD,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
