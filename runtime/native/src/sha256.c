#include <smmintrin.h> /* not immintrin.h, which takes a third of the time to compile the driver in */
#include <string.h>

#include "rp.h"

/* FIPS 180-4. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t ror(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void plain_blocks(uint32_t h[8], const uint8_t *p, size_t blocks) {
    for (; blocks > 0; blocks--, p += 64) {
        uint32_t w[64], s[8];
        for (int i = 0; i < 16; i++) w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
        for (int i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (ror(a, 7) ^ ror(a, 18) ^ a >> 3) + w[i - 7] + (ror(b, 17) ^ ror(b, 19) ^ b >> 10);
        }
        memcpy(s, h, sizeof s);
        for (int i = 0; i < 64; i++) {
            uint32_t e = s[4], a = s[0];
            uint32_t t1 = s[7] + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + K[i] + w[i];
            uint32_t t2 = (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
            s[7] = s[6], s[6] = s[5], s[5] = e, s[4] = s[3] + t1;
            s[3] = s[2], s[2] = s[1], s[1] = a, s[0] = t1 + t2;
        }
        for (int i = 0; i < 8; i++) h[i] += s[i];
    }
}

#define SHA __attribute__((target("sha,sse4.1")))

SHA static __m128i two_rounds(__m128i cdgh, __m128i abef, __m128i k) { return (__m128i)__builtin_ia32_sha256rnds2((__v4si)cdgh, (__v4si)abef, (__v4si)k); }

/* The same with the instructions made for it, several times as fast: the state of a large model
 * takes seconds otherwise. Registers hold the words a b e f and c d g h, highest lane first. */
SHA static void sha_blocks(uint32_t h[8], const uint8_t *p, size_t blocks) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)h), 0xb1);
    __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(h + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
    for (; blocks > 0; blocks--, p += 64) {
        __m128i w[4], abef0 = abef, cdgh0 = cdgh;
        for (int i = 0; i < 16; i++) { /* four rounds each */
            __m128i *m = &w[i & 3];
            if (i < 4) {
                *m = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)p + i), swap);
            } else {
                __m128i last = w[(i + 3) & 3];
                *m = _mm_add_epi32((__m128i)__builtin_ia32_sha256msg1((__v4si)*m, (__v4si)w[(i + 1) & 3]), _mm_alignr_epi8(last, w[(i + 2) & 3], 4));
                *m = (__m128i)__builtin_ia32_sha256msg2((__v4si)*m, (__v4si)last);
            }
            __m128i k = _mm_add_epi32(*m, _mm_loadu_si128((const __m128i *)(K + 4 * i)));
            cdgh = two_rounds(cdgh, abef, k);
            abef = two_rounds(abef, cdgh, _mm_shuffle_epi32(k, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef0);
        cdgh = _mm_add_epi32(cdgh, cdgh0);
    }
    low = _mm_shuffle_epi32(abef, 0x1b);
    high = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)h, _mm_blend_epi16(low, high, 0xf0));
    _mm_storeu_si128((__m128i *)(h + 4), _mm_alignr_epi8(high, low, 8));
}

void rp_sha256_start(rp_sha256 *s) {
    static const uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(s, 0, sizeof *s);
    memcpy(s->h, h, sizeof h);
    s->blocks = rp_cpu_has("sha") && rp_cpu_has("sse4.1") ? sha_blocks : plain_blocks;
}

void rp_sha256_add(rp_sha256 *s, const void *data, size_t bytes) {
    const uint8_t *p = data;
    size_t used = s->bytes % 64;
    s->bytes += bytes;
    if (used != 0) {
        size_t n = 64 - used < bytes ? 64 - used : bytes;
        memcpy(s->block + used, p, n);
        p += n;
        bytes -= n;
        if (used + n == 64) s->blocks(s->h, s->block, 1);
    }
    s->blocks(s->h, p, bytes / 64);
    memcpy(s->block, p + bytes / 64 * 64, bytes % 64);
}

void rp_sha256_end(rp_sha256 *s, char hex[65]) {
    static const uint8_t pad[64] = {0x80};
    static const char digits[] = "0123456789abcdef";
    uint64_t bits = s->bytes * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    rp_sha256_add(s, pad, 1 + (119 - s->bytes % 64) % 64);
    rp_sha256_add(s, length, 8);
    for (int i = 0; i < 64; i++) hex[i] = digits[s->h[i / 8] >> (28 - 4 * (i % 8)) & 15];
    hex[64] = 0;
}
