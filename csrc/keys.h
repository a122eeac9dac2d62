// The keys of the state root (spec 2).
#ifndef PULSECAST_KEYS_H
#define PULSECAST_KEYS_H

#include <stdint.h>

namespace pulsecast {
namespace {  // each file its own copy: what one file compiles for its instruction set must not be linked into another

constexpr int kKeyRun = 1024;

constexpr uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// Q(b): the key shared by the run of 1024 positions that starts at 1024·b.
constexpr uint64_t run_key(uint64_t b) { return mix((b + 1) * 0xD1342543DE82EF95ull) & ~uint64_t{1}; }

// T, its halves apart: no instruction set here multiplies 64-bit lanes, so sums are built from 32-bit products.
struct KeyTable {
    uint32_t lo[kKeyRun];
    uint32_t hi[kKeyRun];
    constexpr KeyTable() : lo(), hi() {
        for (int j = 0; j < kKeyRun; ++j) {
            const uint64_t t = mix((uint64_t(j) + 1) * 0x9E3779B97F4A7C15ull) | 1;
            lo[j] = uint32_t(t);
            hi[j] = uint32_t(t >> 32);
        }
    }
    // T[i mod 1024], and K(i) as a whole.
    constexpr uint64_t first(uint64_t i) const { return (uint64_t(hi[i % kKeyRun]) << 32) | lo[i % kKeyRun]; }
    constexpr uint64_t key(uint64_t i) const { return first(i) ^ run_key(i / kKeyRun); }
};

constexpr KeyTable kKeys;

}  // namespace
}  // namespace pulsecast
#endif
