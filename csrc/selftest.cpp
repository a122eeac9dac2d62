// The core's test driver without Python: every instruction set of the machine against selftest_oracle.h. Run it under the sanitizers and an emulator.
// usage: pulsecast_selftest [the instruction set that must have been chosen]
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "pulsecast_core.h"
#include "selftest_oracle.h"

using oracle::Lanes;
using oracle::Tokens;

namespace {

int64_t passed = 0, failed = 0;
char scene[160] = "";

void check(bool good, const char *what) {
    ++(good ? passed : failed);
    if (!good && failed <= 20) printf("FAILED: %s [%s: %s]\n", what, pc_simd(), scene);
}

uint64_t seed = 1;
uint64_t random64() { return oracle::mix(++seed * 0x9E3779B97F4A7C15); }
uint64_t below(uint64_t n) { return random64() % n; }
bool chance(double p) { return double(random64() >> 11) < p * 9007199254740992.0; }

struct Kind {
    const char *name;
    int width, exponent, mantissa;
};
const Kind kKinds[] = {{"bf16", 2, 8, 7}, {"f16", 2, 5, 10}, {"f32", 4, 8, 23}, {"f64", 8, 11, 52}, {"e4m3", 1, 4, 3},
                       {"e5m2", 1, 5, 2}, {"i8", 1, 0, 0},   {"i16", 2, 0, 0},  {"i32", 4, 0, 0},   {"i64", 8, 0, 0}};

pc_class_map random_map(const Kind &kind) {
    pc_class_map map = {kind.width, kind.mantissa, (1 << kind.exponent) - 1, 0, 1};
    if (kind.exponent == 0) return map;
    map.lo = int32_t(below(uint64_t(map.exponent_mask) + 1));
    map.classes = chance(0.5) ? PC_CLASSES : 1 + int32_t(below(PC_CLASSES));
    return map;
}

// Half of the exponents lie around the classes, the others anywhere.
Lanes random_lanes(const pc_class_map &map, int64_t n, int offset) {
    Lanes lanes(map.width, n, offset);
    for (int64_t i = 0; i < n; ++i) {
        uint64_t u = random64();
        if (map.exponent_mask && chance(0.5)) {
            const uint64_t field = uint64_t(map.exponent_mask), e = (uint64_t(map.lo) + below(20) - 2) & field;
            u = (u & ~(field << map.mantissa_bits)) | e << map.mantissa_bits;
        }
        lanes.set(i, u);
    }
    return lanes;
}

Lanes random_change(const Lanes &before, double density, int offset) {
    Lanes after(before.width, before.size(), offset);
    for (int64_t i = 0; i < before.size(); ++i) {
        const uint64_t u = before.get(i), steps[] = {u + 1, u - 1, u ^ uint64_t{1} << below(uint64_t(8 * before.width)), ~u};
        after.set(i, chance(density) ? steps[below(4)] : u);
    }
    return after;
}

bool same(const Lanes &lanes, const std::vector<uint64_t> &expected) {
    for (size_t i = 0; i < expected.size(); ++i)
        if (lanes.get(int64_t(i)) != expected[i]) return false;
    return true;
}

void test_places(const pc_class_map &map, const Lanes &before, const Lanes &after, const Tokens &expected, int offset) {
    const int64_t n = before.size(), k = int64_t(expected.places.size());
    std::vector<int64_t> places(static_cast<size_t>(n));
    Lanes values(map.width, n, offset);
    const int64_t origin = int64_t(below(uint64_t{1} << 48));
    check(pc_diff(map.width, before.data(), after.data(), n, origin, places.data(), values.data()) == k, "diff: number");
    places.resize(size_t(k));
    for (int64_t &place : places) place -= origin;
    check(places == expected.places && same(values, expected.after), "diff: places and lanes");

    Lanes target = before, old(map.width, k, offset), gathered = old, exact = old;
    for (int64_t i = 0; i < k; ++i) exact.set(i, expected.after[size_t(i)]);
    check(pc_check_places(expected.places.data(), k, n) == k, "check_places: good ones");
    check(pc_apply(map.width, target.data(), expected.places.data(), exact.data(), k, old.data()) == 0, "apply");
    check(same(old, expected.before) && target.raw == after.raw, "apply: lanes");
    check(pc_gather(map.width, before.data(), expected.places.data(), k, gathered.data()) == 0 && gathered.raw == old.raw, "gather");

    Lanes rewritten = before;
    const uint64_t shift = below(uint64_t{1} << 40);
    check(pc_write(map.width, rewritten.data(), expected.places.data(), k, shift, old.data(), exact.data()) ==
              oracle::digest(after, shift) - oracle::digest(before, shift), "write: sum");
    check(rewritten.raw == target.raw, "write: lanes");
    for (const uint64_t start : {uint64_t{0}, uint64_t{1}, uint64_t{1023}, (uint64_t{1} << 40) + 1000, below(uint64_t{1} << 47)}) {
        const uint64_t sum = oracle::digest(before, start), target_sum = oracle::digest(after, start);
        check(pc_digest(map.width, before.data(), n, start) == sum, "digest");
        check(pc_digest_change(map.width, expected.places.data(), k, start, old.data(), exact.data()) == target_sum - sum, "digest_change");
    }
    if (k == 0) return;
    const size_t i = below(uint64_t(k));
    for (const int64_t bad : {i ? places[i - 1] : int64_t{-1}, n, INT64_MIN, INT64_MAX}) {
        places[i] = bad;
        check(pc_check_places(places.data(), k, n) == int64_t(i), "check_places: a bad one");
    }
}

void test_tokenise(const pc_class_map &map, const Lanes &before, const Lanes &after, const Tokens &expected, int offset) {
    const int64_t n = before.size(), k = int64_t(expected.places.size());
    Lanes old(map.width, n, offset), fresh = old;
    Tokens t;
    t.places.resize(size_t(n));
    t.gaps.resize(size_t(n));
    t.diffs.resize(size_t(n));
    t.counts.assign(PC_CLASSES, 77);
    check(pc_tokenise(&map, before.data(), after.data(), n, t.places.data(), old.data(), fresh.data(), t.gaps.data(), t.diffs.data(),
                      t.counts.data()) == k, "tokenise: number");
    t.places.resize(size_t(k));
    t.gaps.resize(size_t(k));
    t.diffs.resize(size_t(k));
    check(t.counts == expected.counts, "tokenise: counts");
    check(t.places == expected.places && same(old, expected.before) && same(fresh, expected.after), "tokenise: places and lanes");
    check(t.gaps == expected.gaps, "tokenise: gaps");
    check(t.diffs == expected.diffs, "tokenise: differences");
}

// Locates counts, gaps and differences that may be anything, with room for exactly so many.
void test_locate(const pc_class_map &map, const Lanes &base, Tokens t, const char *what) {
    const size_t k = t.gaps.size();
    const bool good = oracle::locate(map, base, t);
    std::vector<int64_t> places(k);
    Lanes old(map.width, int64_t(k), base.offset), fresh = old;
    const int code = pc_locate(&map, base.data(), base.size(), t.counts.data(), t.gaps.data(), t.diffs.data(), places.data(), old.data(), fresh.data());
    check(code == (good ? 0 : int(PC_RANGE)), what);
    if (good && code == 0) check(places == t.places && same(old, t.before) && same(fresh, t.after), what);
}

void test_hostile_ranks(const pc_class_map &map, const Lanes &base, const Tokens &real) {
    const uint32_t n = uint32_t(base.size());
    for (int round = 0; round < 3 && !real.gaps.empty(); ++round) {
        Tokens t;
        t.counts = real.counts;
        t.gaps = real.gaps;
        t.diffs = real.diffs;
        const uint32_t gaps[] = {n, n - 1, ~0u, ~0u - 1, ~0u - uint32_t(below(5000)), uint32_t(below(n)), uint32_t(random64())};
        for (uint64_t i = 0; i <= below(3); ++i) t.gaps[below(t.gaps.size())] = gaps[below(7)];
        if (chance(0.2)) std::fill(t.gaps.begin(), t.gaps.end(), ~0u);
        if (chance(0.3)) std::swap(t.counts[0], t.counts[below(PC_CLASSES)]);
        test_locate(map, base, t, "locate: hostile gaps and counts");
    }
    Tokens t;
    t.counts[below(PC_CLASSES)] = n + 1;
    t.gaps.assign(n + 1, 0);
    t.diffs.assign(n + 1, random64());
    test_locate(map, base, t, "locate: more than there are");
}

// Frequencies that add up to PC_SLOTS. 0: fitted, but some tokens are escaped; 1, 2: everything is, with a frequent and a rare escape.
void make_row(const uint32_t *tokens, int style, uint16_t *row) {
    int sum = 0, top = 251;
    for (int s = 0; s <= 251 && style == 0; ++s) {
        row[s] = uint16_t(tokens[s] && chance(0.9) ? 1 + below(14) : 0);
        sum += row[s];
        if (tokens[s] > tokens[top]) top = s;
    }
    row[PC_ESCAPE] = uint16_t(style == 1 ? PC_SLOTS - 1 : 1);
    row[top] = uint16_t(row[top] + PC_SLOTS - row[PC_ESCAPE] - sum);
}

std::vector<uint8_t> make_slots(const std::vector<uint16_t> &frequencies) {
    std::vector<uint8_t> slots(2 * PC_CLASSES * PC_SLOTS);
    for (size_t table = 0; table < 2 * PC_CLASSES; ++table) {
        uint8_t *slot = slots.data() + table * PC_SLOTS;
        for (size_t s = 0; s < PC_SYMBOLS; ++s) slot = std::fill_n(slot, frequencies[table * PC_SYMBOLS + s], uint8_t(s));
    }
    return slots;
}

// Decodes bytes that may be anything; what the oracle takes must come out the same, what it refuses must be refused.
void test_decode(const pc_class_map &map, const Lanes &base, const std::vector<uint8_t> &block, const std::vector<uint16_t> &frequencies,
                 const std::vector<uint8_t> &slots, const char *what) {
    const std::vector<uint8_t> data(block.begin(), block.end());  // a heap block of exactly this size
    Tokens expected, t;
    const bool good = oracle::Decoder(data, frequencies).run(map.classes, map.width, base.size(), expected);
    const int64_t k = pc_decode_counts(data.data(), int64_t(data.size()), map.classes, base.size(), t.counts.data());
    t.gaps.resize(size_t(k < 0 ? 0 : k));
    t.diffs.resize(t.gaps.size());
    const int code = pc_decode(data.data(), int64_t(data.size()), map.classes, map.width, base.size(), frequencies.data(), slots.data(),
                               t.gaps.data(), t.diffs.data());
    check((code == 0) == good && (k >= 0 || code == k), what);
    if (!good || code != 0) return;
    check(t.counts == expected.counts && t.gaps == expected.gaps && t.diffs == expected.diffs, what);
    test_locate(map, base, t, what);
}

void test_block(const pc_class_map &map, const Lanes &base, const Tokens &t, int style) {
    std::vector<uint32_t> histogram(2 * PC_CLASSES * PC_SYMBOLS), counted(histogram);
    size_t j = 0;
    for (int c = 0; c < PC_CLASSES; ++c)
        for (uint32_t i = 0; i < t.counts[size_t(c)]; ++i, ++j) {
            ++counted[size_t(c * PC_SYMBOLS + oracle::token(t.gaps[j]))];
            ++counted[size_t((PC_CLASSES + c) * PC_SYMBOLS + oracle::token(t.diffs[j]))];
        }
    pc_histogram(t.gaps.data(), t.diffs.data(), t.counts.data(), histogram.data(), histogram.data() + PC_CLASSES * PC_SYMBOLS);
    check(histogram == counted, "histogram");

    std::vector<uint16_t> frequencies(histogram.size());
    for (int table = 0; table < 2 * PC_CLASSES; ++table)
        if (t.counts[size_t(table % PC_CLASSES)] || chance(0.5))
            make_row(&counted[size_t(table * PC_SYMBOLS)], style, &frequencies[size_t(table * PC_SYMBOLS)]);
    const std::vector<uint8_t> slots = make_slots(frequencies);
    const auto encode = [&](std::vector<uint8_t> &out) {
        return pc_encode(t.gaps.data(), t.diffs.data(), t.counts.data(), map.classes, frequencies.data(), out.data(), int64_t(out.size()));
    };
    std::vector<uint8_t> room(22 * t.gaps.size() + 256);
    const int64_t size = encode(room);
    check(size > 0, "encode");
    if (size <= 0) return;
    std::vector<uint8_t> block(static_cast<size_t>(size)), tight(size_t(size) - 1), shorter(below(uint64_t(size)));
    check(encode(block) == size && std::equal(block.begin(), block.end(), room.begin()), "encode: into exact room");
    check(encode(tight) == PC_TOO_LARGE && encode(shorter) == PC_TOO_LARGE, "encode: without room");
    test_decode(map, base, block, frequencies, slots, "decode: what was encoded");
    Tokens back;
    check(oracle::Decoder(block, frequencies).run(map.classes, map.width, base.size(), back), "encode: a block of the specification");
    check(back.counts == t.counts && back.gaps == t.gaps && back.diffs == t.diffs, "encode: the same numbers");

    for (int round = 0; round < 12; ++round) {
        std::vector<uint8_t> bad = block;
        for (uint64_t i = below(4); i-- > 0;) bad[chance(0.5) ? below(std::min(bad.size(), size_t{40})) : below(bad.size())] = uint8_t(random64());
        if (chance(0.5)) bad[below(bad.size())] ^= uint8_t(1 << below(8));
        if (chance(0.2)) bad.resize(below(bad.size() + 1));
        if (chance(0.2)) bad.resize(bad.size() + 1 + below(3));
        test_decode(map, base, bad, frequencies, slots, "decode: a mutated block");
    }
    for (int round = 0; round < 6; ++round) {
        std::vector<uint8_t> bad(below(200));
        for (size_t i = 0; i < bad.size(); ++i) bad[i] = uint8_t(i < size_t(map.classes) ? below(4) : random64());  // counts that get past the first gate
        test_decode(map, base, bad, frequencies, slots, "decode: random bytes");
    }
}

void test_arguments() {
    Lanes lanes(2, 1, 0), old = lanes, fresh = lanes;
    int64_t place;
    uint32_t gap, counts[PC_CLASSES] = {};
    uint64_t diff;
    for (const pc_class_map &map : {pc_class_map{3, 7, 255, 0, 16}, {0, 0, 0, 0, 1}, {INT32_MAX, 7, 255, 0, 16}, {2, 7, 255, 256, 16}, {2, 7, 255, 0, 17},
                                    {2, 7, 255, 0, 0}, {2, 7, 255, -1, 16}, {2, 16, 255, 0, 16}, {2, -1, 255, 0, 16}, {2, 0, 0, 0, 2}, {2, 7, 254, 0, 16}}) {
        check(pc_tokenise(&map, lanes.data(), lanes.data(), 1, &place, old.data(), fresh.data(), &gap, &diff, counts) == PC_ARGUMENT, "tokenise: a bad map");
        check(pc_locate(&map, lanes.data(), 1, counts, &gap, &diff, &place, old.data(), fresh.data()) == PC_ARGUMENT, "locate: a bad map");
    }
    const pc_class_map map = {2, 7, 255, 100, 16};
    for (const int64_t n : {int64_t{-1}, int64_t{PC_MAX_BLOCK} + 1, INT64_MIN, INT64_MAX})
        check(pc_locate(&map, lanes.data(), n, counts, &gap, &diff, &place, old.data(), fresh.data()) == PC_ARGUMENT, "locate: a bad size");
    check(pc_diff(3, lanes.data(), lanes.data(), 1, 0, &place, old.data()) == PC_ARGUMENT, "diff: a bad width");
    check(pc_use("abacus") == PC_ARGUMENT, "use: a name that is none");
}

void test_instruction_set() {
    test_arguments();
    int style = 0;
    for (const Kind &kind : kKinds)
        for (const int64_t n : {0, 1, 2, 63, 64, 65, 127, 4095, 4096, 4097, 10000})
            for (const double density : {0.0, 0.01, 0.3, 1.0})
                for (const int offset : {0, 1}) {
                    const pc_class_map map = random_map(kind);
                    snprintf(scene, sizeof(scene), "%s n=%d density=%g offset=%d lo=%d classes=%d", kind.name, int(n), density, offset, map.lo, map.classes);
                    const Lanes before = random_lanes(map, n, offset), after = random_change(before, density, offset);
                    const Tokens found = oracle::tokenise(map, before, after), expected = found;  // a copy has no spare room behind it
                    test_places(map, before, after, expected, offset);
                    test_tokenise(map, before, after, expected, offset);
                    test_hostile_ranks(map, before, expected);
                    test_block(map, before, expected, style++ % 3);
                }
}

}  // namespace

int main(int argc, char **argv) {
    printf("chosen: %s\n", pc_simd());
    if (argc > 1) check(strcmp(pc_simd(), argv[1]) == 0, "the chosen instruction set");
    int sets = 0;
    for (const char *name : {"scalar", "neon", "avx2"}) {
        if (pc_use(name) != 0) continue;
        seed = 1;
        test_instruction_set();
        printf("%s: %lld passed, %lld failed so far\n", pc_simd(), static_cast<long long>(passed), static_cast<long long>(failed));
        ++sets;
    }
    check(sets > 0, "an instruction set");
    printf("%lld passed, %lld failed\n", static_cast<long long>(passed), static_cast<long long>(failed));
    return failed ? 1 : 0;
}
