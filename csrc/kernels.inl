// The kernels that touch every weight, written once over an instruction set `V`. V works on a *chunk* of 64 weights and gives
//   differ<T>(a, b)            bit i set where lane i differs
//   classify<T>(w, map, cls)   64 class bytes
//   Counter(classes), and of it (cls, before, after)  after[c] = before[c] + how many have class c, for 16 classes; bytes above 15 are not counted
//   count_before(cls, c, i)    how many of the first i have class c
//   match(cls, c, bytes)       bit i set where the class is c, and the number of set bits in each of its bytes
//   ahead<T>(chunk)            asks for weights that come later, where the hardware does not do so by itself
//   digest<T>(w, n, j, q)      sum of w[i] · (T[j + i] xor q), j + n <= 1024
#include <string.h>

#include <new>
#include <vector>

#include "isa.h"
#include "keys.h"

namespace pulsecast {
namespace {

constexpr int kChunk = 64;
constexpr uint8_t kNoClass = 0xFF;

// Lanes lie at any alignment in mapped files, so single lanes go through memcpy; vector loads are unaligned ones.
template <class T>
inline T load(const void *base, int64_t i) {
    T v;
    memcpy(&v, static_cast<const char *>(base) + i * int64_t(sizeof(T)), sizeof(T));
    return v;
}

template <class T>
inline void store(void *base, int64_t i, T v) {
    memcpy(static_cast<char *>(base) + i * int64_t(sizeof(T)), &v, sizeof(T));
}

template <class T>
inline const char *at(const void *base, int64_t i) {
    return static_cast<const char *>(base) + i * int64_t(sizeof(T));
}

// ULP order: a bijection on bit patterns that is monotone in the value of floats (spec 8). It is its own way back but for the sign test.
template <class T>
inline T to_order(T u, bool is_float) {
    constexpr int top = 8 * sizeof(T) - 1;
    const T negative = T(T(0) - T(u >> top));  // all ones or none: signs are random, so a branch would be mispredicted
    return is_float ? T(u ^ T(negative | T(T(1) << top))) : u;
}

template <class T>
inline T from_order(T o, bool is_float) {
    constexpr int top = 8 * sizeof(T) - 1;
    const T negative = T(T(o >> top) - T(1));
    return is_float ? T(o ^ T(negative | T(T(1) << top))) : o;
}

template <class T>
inline uint64_t zigzag(T before, T after, bool is_float) {
    const T d = T(to_order(after, is_float) - to_order(before, is_float));
    const T sign = T(d >> (8 * sizeof(T) - 1));
    const T flip = T(T(0) - sign);
    return uint64_t(T(T(T(d ^ flip) + sign) - 1)) * 2 + sign;
}

template <class T>
inline T unzigzag(T before, uint64_t z, bool is_float) {
    const T sign = T(z & 1);
    const T d = T(T(T(T(z >> 1) + 1) ^ T(T(0) - sign)) + sign);
    return from_order(T(to_order(before, is_float) + d), is_float);
}

// A *tile* is 64 chunks. Its class bytes stay in the first-level cache, and so does a table of how many weights of each class lie before each chunk,
// so that ranks and places of changes are found without a branch that depends on them.
constexpr int kTileChunks = 64;
constexpr int kTile = kChunk * kTileChunks;

struct Tile {
    alignas(64) uint8_t cls[kTile];
    alignas(64) uint16_t before[kTileChunks + 1][PC_CLASSES];
};

// Fills a tile from up to kTile weights; what is missing has no class.
template <class V, class T>
inline void fill(Tile &tile, const char *lanes, int n, const pc_class_map map) {
    const typename V::Counter count(map.classes);
    memset(tile.before[0], 0, sizeof(tile.before[0]));
    for (int chunk = 0; chunk < kTileChunks; ++chunk) {
        uint8_t *cls = tile.cls + chunk * kChunk;
        const int filled = n - chunk * kChunk;
        if (filled >= kChunk) {
            V::template classify<T>(at<T>(lanes, chunk * kChunk), map, cls);
            V::template ahead<T>(at<T>(lanes, chunk * kChunk));
        } else {
            char padded[kChunk * sizeof(T)] = {};
            if (filled > 0) memcpy(padded, at<T>(lanes, chunk * kChunk), size_t(filled) * sizeof(T));
            V::template classify<T>(padded, map, cls);
            for (int i = filled > 0 ? filled : 0; i < kChunk; ++i) cls[i] = kNoClass;
        }
        count(cls, tile.before[chunk], tile.before[chunk + 1]);
    }
}

// Place of the lowest set bit, something when there is none.
inline int lowest(uint64_t bits) { return __builtin_ctzll(bits | uint64_t{1} << 63); }

// Writes the places of the set bits, and up to two more that are of no meaning; returns how many count. Two at a time without a look: at the usual
// densities a branch on "is there one?" would be mispredicted half the time.
inline int list_bits(uint64_t bits, int first, uint16_t *out) {
    const int n = __builtin_popcountll(bits);
    for (int i = 0; i == 0 || i < n; i += 2) {
        out[i] = uint16_t(first + lowest(bits));
        bits &= bits - 1;
        out[i + 1] = uint16_t(first + lowest(bits));
        bits &= bits - 1;
    }
    return n;
}

// Lists the weights of a tile that differ; `out` holds kTile + 2.
template <class V, class T>
inline int list_changes(const char *before, const char *after, int n, uint16_t *out) {
    int m = 0, i = 0;
    for (; i + kChunk <= n; i += kChunk) {
        const uint64_t changed = V::template differ<T>(at<T>(before, i), at<T>(after, i));
        V::template ahead<T>(at<T>(before, i));
        V::template ahead<T>(at<T>(after, i));
        m += list_bits(changed, i, out + m);
    }
    uint64_t changed = 0;
    for (int j = i; j < n; ++j) changed |= uint64_t(load<T>(before, j) != load<T>(after, j)) << (j - i);
    return m + list_bits(changed, i, out + m);
}

template <class V, class T>
int64_t diff_lanes(const void *before, const void *after, int64_t n, int64_t origin, int64_t *places, void *values) {
    uint16_t local[kTile + 2];
    int64_t k = 0;
    for (int64_t start = 0; start < n; start += kTile) {
        const char *const new_lanes = at<T>(after, start);
        const int m = list_changes<V, T>(at<T>(before, start), new_lanes, int(n - start < kTile ? n - start : kTile), local);
        for (int j = 0; j < m; ++j, ++k) {
            places[k] = origin + start + local[j];
            store<T>(values, k, load<T>(new_lanes, local[j]));
        }
    }
    return k;
}

template <class V, class T>
uint64_t digest_lanes(const void *lanes, int64_t n, uint64_t start) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < n;) {
        const uint64_t j = (start + uint64_t(i)) % kKeyRun;
        const int64_t run = n - i < int64_t(kKeyRun - j) ? n - i : int64_t(kKeyRun - j);
        sum += V::template digest<T>(at<T>(lanes, i), int(run), int(j), run_key((start + uint64_t(i)) / kKeyRun));
        i += run;
    }
    return sum;
}

struct Change {
    uint64_t diff;
    uint32_t gap;
    uint32_t cls;
};

// The loops over changes are cut into short phases over a tile: what one change waits for then overlaps with the next ones'.
template <class V, class T>
int64_t tokenise_lanes(const pc_class_map map, const void *before, const void *after, int64_t n, int64_t *places, void *old_values,
                       void *new_values, uint32_t *gaps, uint64_t *diffs, uint32_t *counts) {
    const bool is_float = map.exponent_mask != 0;
    thread_local std::vector<Change> changes;
    changes.clear();
    Tile tile;
    uint16_t local[kTile + 2], rank[kTile];
    uint32_t next[PC_CLASSES] = {};  // rank after the class's last change, counted from this tile
    uint32_t total[PC_CLASSES] = {};
    int64_t k = 0;
    for (int64_t start = 0; start < n; start += kTile) {
        const char *const old_lanes = at<T>(before, start), *const new_lanes = at<T>(after, start);
        const int filled = int(n - start < kTile ? n - start : kTile);
        fill<V, T>(tile, old_lanes, filled, map);
        const int m = list_changes<V, T>(old_lanes, new_lanes, filled, local);
        for (int j = 0; j < m; ++j) {
            const int i = local[j], chunk = i / kChunk;
            const uint8_t c = tile.cls[i];
            rank[j] = uint16_t(tile.before[chunk][c] + V::count_before(tile.cls + chunk * kChunk, c, i % kChunk));
        }
        changes.resize(size_t(k + m));
        Change *const out = changes.data() + k;
        for (int j = 0; j < m; ++j) {
            const int i = local[j];
            const uint32_t c = tile.cls[i];
            const T u = load<T>(old_lanes, i), v = load<T>(new_lanes, i);
            out[j] = {zigzag(u, v, is_float), rank[j] - next[c], c};
            store<T>(old_values, k + j, u);
            store<T>(new_values, k + j, v);
            next[c] = rank[j] + 1u;
            ++total[c];
            places[k + j] = start + i;
        }
        k += m;
        for (int c = 0; c < PC_CLASSES; ++c) next[c] -= tile.before[kTileChunks][c];  // below zero, mod 2^32: weights passed since
    }
    uint32_t cursor[PC_CLASSES];
    for (uint32_t c = 0, sum = 0; c < PC_CLASSES; sum += total[c++]) cursor[c] = sum;
    for (const Change &change : changes) {
        const uint32_t slot = cursor[change.cls]++;
        gaps[slot] = change.gap;
        diffs[slot] = change.diff;
    }
    memcpy(counts, total, sizeof(total));
    if (changes.capacity() > (size_t{1} << 20)) std::vector<Change>().swap(changes);  // one dense block must not hold its memory for ever
    return k;
}

constexpr int kSearches = 4;

// Finds the chunks of the tile that hold the weights of these ranks in their classes (the last ones with before <= rank), and makes the ranks count
// from there. By halving without a branch, several at once: one alone would wait for its loads only.
inline void find_chunks(const Tile &tile, const uint8_t *cls, uint16_t *rank, uint8_t *chunk) {
    const uint16_t *p[kSearches];
    for (int q = 0; q < kSearches; ++q) p[q] = &tile.before[0][cls[q]];
    for (int half = kTileChunks / 2 * PC_CLASSES; half >= PC_CLASSES; half /= 2)
        for (int q = 0; q < kSearches; ++q) {
            p[q] = p[q][half] <= rank[q] ? p[q] + half : p[q];
            asm("" : "+r"(p[q]));  // or the compiler turns the last choice into a branch
        }
    for (int q = 0; q < kSearches; ++q) {
        rank[q] = uint16_t(rank[q] - *p[q]);
        chunk[q] = uint8_t(size_t(p[q] - tile.before[0]) / PC_CLASSES);
    }
}

// For every byte and rank the place of its rank-th set bit.
struct SelectTable {
    uint8_t place[8][256];
    constexpr SelectTable() : place() {
        for (int byte = 0; byte < 256; ++byte)
            for (int i = 0, rank = 0; i < 8; ++i)
                if (byte >> i & 1) place[rank++][byte] = uint8_t(i);
    }
};
inline constexpr SelectTable kSelect;

// Place of the rank-th set bit of a mask with more than `rank` bits; `bytes` holds the number of set bits of each of its bytes.
inline int select_bit(uint64_t mask, uint64_t bytes, uint32_t rank) {
    constexpr uint64_t ones = 0x0101010101010101ull, tops = 0x8080808080808080ull;
    const uint64_t sums = bytes * ones;                          // byte i: set bits in bytes 0..i
    const uint64_t above = ~((rank * ones | tops) - sums) & tops;  // bytes whose sum is above rank
    const int byte = __builtin_ctzll(above) & ~7;
    const uint32_t below = uint32_t((sums << 8) >> byte) & 0xFF;
    return byte + kSelect.place[rank - below][(mask >> byte) & 0xFF];
}

// Asks early for what lies some bytes ahead. That may be behind the end, so it is a number to the compiler, not a pointer.
inline void prefetch(const void *p, uintptr_t ahead) { __builtin_prefetch(reinterpret_cast<const void *>(reinterpret_cast<uintptr_t>(p) + ahead)); }

template <class V, class T>
int locate_lanes(const pc_class_map map, const void *base, int64_t n, const uint32_t *counts, const uint32_t *gaps, const uint64_t *diffs,
                 int64_t *places, void *old_values, void *new_values) {
    const bool is_float = map.exponent_mask != 0;
    Tile tile;
    uint64_t diff_at[kTile], found_diff[kTile];
    uint16_t found_rank[kTile + kSearches], local[kTile + 2];
    uint8_t found_class[kTile + kSearches], found_chunk[kTile + kSearches];
    uint32_t next[PC_CLASSES], end[PC_CLASSES];
    uint64_t left[PC_CLASSES];  // rank of the class's next change, counted from this tile; 64 bits, so that no gap can lead back
    for (uint32_t c = 0, sum = 0; c < PC_CLASSES; ++c) {
        next[c] = sum;
        end[c] = sum += counts[c];
        left[c] = counts[c] ? gaps[next[c]] : 0;
    }
    int64_t k = 0;
    for (int64_t start = 0; start < n; start += kTile) {
        const char *lanes = at<T>(base, start);
        fill<V, T>(tile, lanes, int(n - start < kTile ? n - start : kTile), map);
        int m = 0;
        for (int c = 0; c < map.classes; ++c) {
            const uint32_t members = tile.before[kTileChunks][c];
            uint32_t j = next[c];
            uint64_t rank = left[c];
            for (; j < end[c] && rank < members; ++m) {
                found_class[m] = uint8_t(c);
                found_rank[m] = uint16_t(rank);
                found_diff[m] = diffs[j];
                if (++j < end[c]) rank += uint64_t{gaps[j]} + 1;
            }
            next[c] = j;
            left[c] = rank - members;  // of no meaning once the class is done
            prefetch(gaps + j, 64);
            prefetch(diffs + j, 64);
        }
        memset(found_class + m, 0, kSearches);  // what fills up the last group is found too, and not used
        memset(found_rank + m, 0, kSearches * sizeof(uint16_t));
        for (int j = 0; j < m; j += kSearches) find_chunks(tile, found_class + j, found_rank + j, found_chunk + j);
        uint64_t changed[kTileChunks] = {}, active = 0;  // bits of weights in chunks, and of chunks with any
        for (int j = 0; j < m; ++j) {
            const int chunk = found_chunk[j];
            uint64_t bytes;
            const uint64_t mask = V::match(tile.cls + chunk * kChunk, found_class[j], &bytes);
            const int i = select_bit(mask, bytes, found_rank[j]);
            changed[chunk] |= uint64_t{1} << i;
            active |= uint64_t{1} << chunk;
            diff_at[chunk * kChunk + i] = found_diff[j];
        }
        for (int listed = 0; active; active &= active - 1) {
            const int chunk = __builtin_ctzll(active);
            listed += list_bits(changed[chunk], chunk * kChunk, local + listed);
        }
        for (int j = 0; j < m; ++j, ++k) {
            const int i = local[j];
            const T u = load<T>(lanes, i);
            places[k] = start + i;
            store<T>(old_values, k, u);
            store<T>(new_values, k, unzigzag<T>(u, diff_at[i], is_float));
        }
    }
    for (int c = 0; c < PC_CLASSES; ++c)
        if (next[c] != end[c]) return PC_RANGE;
    return 0;
}

// Calls f with a zero of the lane type; 8-byte lanes are digested as pairs of 4-byte ones.
template <class R, class F>
inline R by_width(int width, R otherwise, F &&f) {
    switch (width) {
        case 1: return f(uint8_t{});
        case 2: return f(uint16_t{});
        case 4: return f(uint32_t{});
        case 8: return f(uint64_t{});
        default: return otherwise;
    }
}

template <class V>
int64_t diff_entry(int width, const void *before, const void *after, int64_t n, int64_t origin, int64_t *places, void *values) {
    return by_width<int64_t>(width, PC_ARGUMENT, [&](auto zero) { return diff_lanes<V, decltype(zero)>(before, after, n, origin, places, values); });
}

template <class V>
uint64_t digest_entry(int width, const void *lanes, int64_t n, uint64_t start) {
    switch (width) {
        case 1: return digest_lanes<V, uint8_t>(lanes, n, start);
        case 2: return digest_lanes<V, uint16_t>(lanes, n, start);
        case 4: return digest_lanes<V, uint32_t>(lanes, n, start);
        default: return digest_lanes<V, uint32_t>(lanes, 2 * n, 2 * start);
    }
}

template <class V>
int64_t tokenise_entry(const pc_class_map &map, const void *before, const void *after, int64_t n, int64_t *places, void *old_values,
                       void *new_values, uint32_t *gaps, uint64_t *diffs, uint32_t *counts) {
    try {
        return by_width<int64_t>(map.width, PC_ARGUMENT, [&](auto zero) {
            return tokenise_lanes<V, decltype(zero)>(map, before, after, n, places, old_values, new_values, gaps, diffs, counts);
        });
    } catch (const std::bad_alloc &) {
        return PC_NO_MEMORY;
    }
}

template <class V>
int locate_entry(const pc_class_map &map, const void *base, int64_t n, const uint32_t *counts, const uint32_t *gaps, const uint64_t *diffs,
                 int64_t *places, void *old_values, void *new_values) {
    return by_width<int>(map.width, PC_ARGUMENT, [&](auto zero) {
        return locate_lanes<V, decltype(zero)>(map, base, n, counts, gaps, diffs, places, old_values, new_values);
    });
}

template <class V>
constexpr Isa make_isa() {
    return {V::kName, diff_entry<V>, digest_entry<V>, tokenise_entry<V>, locate_entry<V>};
}

}  // namespace
}  // namespace pulsecast
