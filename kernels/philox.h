/* philox.h - the one random number generator of the project, and how dropout addresses it.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3",
 * table 2): a pure function from a 128-bit counter and a 64-bit key to four 32-bit words. Every
 * device includes this file, so that the same dropout mask comes out everywhere, whatever the order
 * or the layout of the calls. */
#ifndef PLIMSOLL_KERNELS_PHILOX_H
#define PLIMSOLL_KERNELS_PHILOX_H

#include <stdint.h>

/* The same functions on the host and in kernels. */
#ifdef __CUDACC__
#define PHILOX_FUNCTION static __host__ __device__ inline
#else
#define PHILOX_FUNCTION static inline
#endif

struct philox {
    uint32_t word[4];
};

#define PHILOX_MULTIPLIER_0 UINT32_C(0xD2511F53)
#define PHILOX_MULTIPLIER_1 UINT32_C(0xCD9E8D57)
#define PHILOX_WEYL_0 UINT32_C(0x9E3779B9)
#define PHILOX_WEYL_1 UINT32_C(0xBB67AE85)

/* The four words at this counter under this key. */
PHILOX_FUNCTION struct philox philox(struct philox counter, uint32_t key_0, uint32_t key_1) {
    uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)PHILOX_MULTIPLIER_0 * c0;
        const uint64_t p1 = (uint64_t)PHILOX_MULTIPLIER_1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ key_0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ key_1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        key_0 += PHILOX_WEYL_0;
        key_1 += PHILOX_WEYL_1;
    }
    const struct philox block = {{c0, c1, c2, c3}};
    return block;
}

/* Dropout has 64 bits of seed and 64 of stream, more than the key holds: the key of a call is the
 * first half of the block at counter (stream, 0) under the seed. */
PHILOX_FUNCTION uint64_t philox_stream_key(uint64_t seed, uint64_t stream) {
    const struct philox counter = {{(uint32_t)stream, (uint32_t)(stream >> 32), 0, 0}};
    const struct philox block = philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
    return (uint64_t)block.word[1] << 32 | block.word[0];
}

/* The words for columns 4*quad .. 4*quad+3 of the row with this key: counter (quad, row key low,
 * row key high, 0). */
PHILOX_FUNCTION struct philox philox_quad(uint64_t stream_key, int64_t row_key, uint32_t quad) {
    const uint64_t row = (uint64_t)row_key;
    const struct philox counter = {{quad, (uint32_t)row, (uint32_t)(row >> 32), 0}};
    return philox(counter, (uint32_t)stream_key, (uint32_t)(stream_key >> 32));
}

/* A value is dropped when its word is below this: p in units of 2^-32. p is in [0,1). */
PHILOX_FUNCTION uint32_t philox_drop_threshold(float p) {
    const double scaled = (double)p * 4294967296.0;
    return scaled >= 4294967295.0 ? UINT32_MAX : (uint32_t)scaled;
}

#endif
