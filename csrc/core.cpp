// The C ABI over the chosen instruction set, and the kernels whose cost follows the change, not the model.
#include <string.h>

#include <initializer_list>

#include "isa.h"
#include "keys.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files and lanes are little-endian");

namespace pulsecast {
namespace {

bool machine_has(const Isa *isa) {
    if (isa == nullptr) return false;
#if defined(__x86_64__)
    if (isa == avx2_isa()) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
#endif
    return true;
}

const Isa *best() {
    for (const Isa *isa : {avx2_isa(), neon_isa()})
        if (machine_has(isa)) return isa;
    return scalar_isa();
}

const Isa *chosen = best();

template <class T>
void apply_lanes(void *target, const int64_t *places, const void *values, int64_t k, void *old) {
    char *bytes = static_cast<char *>(target);
    for (int64_t i = 0; i < k; ++i) {
        char *lane = bytes + places[i] * int64_t(sizeof(T));
        memcpy(static_cast<char *>(old) + i * int64_t(sizeof(T)), lane, sizeof(T));
        memcpy(lane, static_cast<const char *>(values) + i * int64_t(sizeof(T)), sizeof(T));
    }
}

template <class T>
void gather_lanes(const void *source, const int64_t *places, int64_t k, void *out) {
    const char *bytes = static_cast<const char *>(source);
    for (int64_t i = 0; i < k; ++i) memcpy(static_cast<char *>(out) + i * int64_t(sizeof(T)), bytes + places[i] * int64_t(sizeof(T)), sizeof(T));
}

template <class T>
uint64_t lane(const void *lanes, int64_t i) {
    T v;
    memcpy(&v, static_cast<const char *>(lanes) + i * int64_t(sizeof(T)), sizeof(T));
    return v;
}

// Sums a run of positions under one run key at a time: the key costs more than the rest.
template <class T>
uint64_t change_sum(const int64_t *places, int64_t k, uint64_t start, const void *before, const void *after) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < k;) {
        const uint64_t run = (start + uint64_t(places[i])) / kKeyRun, key = run_key(run);
        for (; i < k && (start + uint64_t(places[i])) / kKeyRun == run; ++i)
            sum += (lane<T>(after, i) - lane<T>(before, i)) * (kKeys.first(start + uint64_t(places[i])) ^ key);
    }
    return sum;
}

// 8-byte lanes are two 4-byte ones with two keys (spec 2).
uint64_t change_sum_halves(const int64_t *places, int64_t k, uint64_t start, const void *before, const void *after) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < k; ++i) {
        const uint64_t position = 2 * (start + uint64_t(places[i]));
        for (int h = 0; h < 2; ++h) sum += (lane<uint32_t>(after, 2 * i + h) - lane<uint32_t>(before, 2 * i + h)) * kKeys.key(position + uint64_t(h));
    }
    return sum;
}

// Groups of changes stay in the first-level cache between writing and reading back.
constexpr int64_t kGroup = 1024;

template <class T>
uint64_t write_lanes(void *target, const int64_t *places, int64_t k, uint64_t start, const void *before, const void *after) {
    char *bytes = static_cast<char *>(target);
    uint64_t sum = 0;
    for (int64_t first = 0; first < k; first += kGroup) {
        const int64_t m = k - first < kGroup ? k - first : kGroup;
        const char *old_lanes = static_cast<const char *>(before) + first * int64_t(sizeof(T));
        const char *new_lanes = static_cast<const char *>(after) + first * int64_t(sizeof(T));
        for (int64_t i = 0; i < m; ++i) memcpy(bytes + places[first + i] * int64_t(sizeof(T)), new_lanes + i * int64_t(sizeof(T)), sizeof(T));
        T now[kGroup];
        asm volatile("" ::: "memory");  // read what is in memory, not what was just written
        gather_lanes<T>(target, places + first, m, now);
        if constexpr (sizeof(T) == 8)
            sum += change_sum_halves(places + first, m, start, old_lanes, now);
        else
            sum += change_sum<T>(places + first, m, start, old_lanes, now);
    }
    return sum;
}

// Integers, or floats whose sign, exponent and mantissa fill the lane: the kernels rely on it.
bool valid(const pc_class_map &map, int64_t n) {
    if (map.width != 1 && map.width != 2 && map.width != 4 && map.width != 8) return false;
    if (n < 0 || n > PC_MAX_BLOCK || map.mantissa_bits < 0 || map.lo < 0 || map.lo > map.exponent_mask || map.classes < 1) return false;
    if (map.exponent_mask == 0) return map.mantissa_bits < 8 * map.width && map.classes == 1;
    const int exponent_bits = 8 * map.width - 1 - map.mantissa_bits;
    return exponent_bits >= 1 && exponent_bits <= 30 && map.exponent_mask == (1 << exponent_bits) - 1 && map.classes <= PC_CLASSES;
}

}  // namespace
}  // namespace pulsecast

using namespace pulsecast;

int pc_abi(void) { return PC_ABI; }

const char *pc_simd(void) { return chosen->name; }

int pc_use(const char *name) {
    for (const Isa *isa : {scalar_isa(), neon_isa(), avx2_isa()}) {
        if (machine_has(isa) && strcmp(isa->name, name) == 0) {
            chosen = isa;
            return 0;
        }
    }
    return PC_ARGUMENT;
}

int64_t pc_diff(int width, const void *before, const void *after, int64_t n, int64_t origin, int64_t *places, void *values) {
    return chosen->diff(width, before, after, n, origin, places, values);
}

int64_t pc_check_places(const int64_t *places, int64_t k, int64_t n) {
    int64_t previous = -1;
    for (int64_t i = 0; i < k; previous = places[i++])
        if (places[i] <= previous || places[i] >= n) return i;
    return k;
}

int pc_apply(int width, void *target, const int64_t *places, const void *values, int64_t k, void *old) {
    switch (width) {
        case 1: apply_lanes<uint8_t>(target, places, values, k, old); return 0;
        case 2: apply_lanes<uint16_t>(target, places, values, k, old); return 0;
        case 4: apply_lanes<uint32_t>(target, places, values, k, old); return 0;
        case 8: apply_lanes<uint64_t>(target, places, values, k, old); return 0;
        default: return PC_ARGUMENT;
    }
}

int pc_gather(int width, const void *source, const int64_t *places, int64_t k, void *out) {
    switch (width) {
        case 1: gather_lanes<uint8_t>(source, places, k, out); return 0;
        case 2: gather_lanes<uint16_t>(source, places, k, out); return 0;
        case 4: gather_lanes<uint32_t>(source, places, k, out); return 0;
        case 8: gather_lanes<uint64_t>(source, places, k, out); return 0;
        default: return PC_ARGUMENT;
    }
}

uint64_t pc_write(int width, void *target, const int64_t *places, int64_t k, uint64_t start, const void *before, const void *after) {
    switch (width) {
        case 1: return write_lanes<uint8_t>(target, places, k, start, before, after);
        case 2: return write_lanes<uint16_t>(target, places, k, start, before, after);
        case 4: return write_lanes<uint32_t>(target, places, k, start, before, after);
        default: return write_lanes<uint64_t>(target, places, k, start, before, after);
    }
}

uint64_t pc_digest(int width, const void *lanes, int64_t n, uint64_t start) { return chosen->digest(width, lanes, n, start); }

uint64_t pc_digest_change(int width, const int64_t *places, int64_t k, uint64_t start, const void *before, const void *after) {
    switch (width) {
        case 1: return change_sum<uint8_t>(places, k, start, before, after);
        case 2: return change_sum<uint16_t>(places, k, start, before, after);
        case 4: return change_sum<uint32_t>(places, k, start, before, after);
        default: return change_sum_halves(places, k, start, before, after);
    }
}

int64_t pc_tokenise(const pc_class_map *map, const void *before, const void *after, int64_t n, int64_t *places, void *old_values, void *new_values,
                    uint32_t *gaps, uint64_t *diffs, uint32_t *counts) {
    if (!valid(*map, n)) return PC_ARGUMENT;
    return chosen->tokenise(*map, before, after, n, places, old_values, new_values, gaps, diffs, counts);
}

int pc_locate(const pc_class_map *map, const void *base, int64_t n, const uint32_t *counts, const uint32_t *gaps, const uint64_t *diffs,
              int64_t *places, void *old_values, void *new_values) {
    return valid(*map, n) ? chosen->locate(*map, base, n, counts, gaps, diffs, places, old_values, new_values) : int(PC_ARGUMENT);
}
