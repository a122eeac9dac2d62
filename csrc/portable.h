// Chunk operations in plain C++: the whole of the scalar set, and what the vector sets do not write by hand. The compiler vectorises the loops.
#ifndef PULSECAST_PORTABLE_H
#define PULSECAST_PORTABLE_H

#include <string.h>

#include "keys.h"
#include "pulsecast_core.h"

namespace pulsecast {
namespace {

template <class T>
inline void unequal_bytes(const char *a, const char *b, uint8_t *out) {
    T x[64], y[64];
    memcpy(x, a, sizeof(x));
    memcpy(y, b, sizeof(y));
    for (int i = 0; i < 64; ++i) out[i] = x[i] != y[i] ? 0xFF : 0;
}

template <class T>
inline void classify_portable(const char *w, const pc_class_map &map, uint8_t *cls) {
    T lanes[64];
    memcpy(lanes, w, sizeof(lanes));
    const T mask = T(map.exponent_mask), lo = T(map.lo), top = T(map.classes - 1);
    const int shift = map.mantissa_bits;
    for (int i = 0; i < 64; ++i) {
        const T e = T(T(lanes[i] >> shift) & mask);
        const T above = e > lo ? T(e - lo) : T(0);
        cls[i] = uint8_t(above < top ? above : top);
    }
}

// Number of set bits of each byte.
inline uint64_t byte_counts(uint64_t mask) {
    uint64_t s = mask - ((mask >> 1) & 0x5555555555555555ull);
    s = (s & 0x3333333333333333ull) + ((s >> 2) & 0x3333333333333333ull);
    return (s + (s >> 4)) & 0x0F0F0F0F0F0F0F0Full;
}

template <class T>
inline uint64_t digest_portable(const char *w, int n, int j, uint64_t q) {
    uint64_t sum = 0;
    for (int i = 0; i < n; ++i) {
        T lane;
        memcpy(&lane, w + i * int(sizeof(T)), sizeof(T));
        const uint64_t key = ((uint64_t(kKeys.hi[j + i]) << 32) | kKeys.lo[j + i]) ^ q;
        sum += uint64_t(lane) * key;
    }
    return sum;
}

}  // namespace
}  // namespace pulsecast
#endif
