// What the core must compute, in the plainest loops over the text of the specification. Shares no code with the kernels.
#ifndef PULSECAST_SELFTEST_ORACLE_H
#define PULSECAST_SELFTEST_ORACLE_H

#include <stddef.h>

#include <vector>

#include "pulsecast_core.h"

namespace oracle {

// Bit patterns in a heap block of exactly their size, so that the address sanitizer sees one byte too many; `offset` makes their address odd.
struct Lanes {
    int width, offset;
    std::vector<uint8_t> raw;
    Lanes(int w, int64_t n, int off) : width(w), offset(off), raw(size_t(n * w + off)) {}
    int64_t size() const { return int64_t(raw.size() - size_t(offset)) / width; }
    uint8_t *data() { return raw.data() + offset; }
    const uint8_t *data() const { return raw.data() + offset; }
    uint64_t get(int64_t i) const {
        uint64_t u = 0;
        for (int b = width; b-- > 0;) u = u << 8 | data()[i * width + b];
        return u;
    }
    void set(int64_t i, uint64_t u) {
        for (int b = 0; b < width; ++b, u >>= 8) data()[i * width + b] = uint8_t(u);
    }
};

// A block's changes: in place order, then class by class.
struct Tokens {
    std::vector<int64_t> places;
    std::vector<uint64_t> before, after;
    std::vector<uint32_t> counts = std::vector<uint32_t>(PC_CLASSES), gaps;
    std::vector<uint64_t> diffs;
};

inline uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9;
    x ^= x >> 27;
    x *= 0x94D049BB133111EB;
    return x ^ x >> 31;
}

inline uint64_t key(uint64_t i) { return (mix((i % 1024 + 1) * 0x9E3779B97F4A7C15) | 1) ^ (mix((i / 1024 + 1) * 0xD1342543DE82EF95) & ~1ull); }

// Spec 2.
inline uint64_t digest(const Lanes &lanes, uint64_t start) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < lanes.size(); ++i) {
        const uint64_t u = lanes.get(i), at = start + uint64_t(i);
        sum += lanes.width < 8 ? u * key(at) : (u & 0xFFFFFFFF) * key(2 * at) + (u >> 32) * key(2 * at + 1);
    }
    return sum;
}

// Spec 8, with numbers of w bits held in 64.
inline int class_of(const pc_class_map &map, uint64_t u) {
    const int64_t e = int64_t(u >> map.mantissa_bits) & map.exponent_mask, above = (e > map.lo ? e : map.lo) - map.lo;
    return int(above < map.classes ? above : map.classes - 1);
}

inline uint64_t cut(const pc_class_map &map, uint64_t u) { return map.width == 8 ? u : u & ((uint64_t{1} << 8 * map.width) - 1); }

inline uint64_t order(const pc_class_map &map, uint64_t u) {
    const uint64_t sign = uint64_t{1} << (8 * map.width - 1);
    return map.exponent_mask == 0 ? u : u & sign ? cut(map, ~u) : u ^ sign;
}

inline uint64_t written(const pc_class_map &map, uint64_t before, uint64_t after) {
    const uint64_t d = cut(map, order(map, after) - order(map, before)), sign = uint64_t{1} << (8 * map.width - 1);
    return d & sign ? 2 * (cut(map, ~d) + 1) - 1 : 2 * d - 2;
}

inline uint64_t changed(const pc_class_map &map, uint64_t before, uint64_t z) {
    const uint64_t d = z & 1 ? 0 - (z / 2 + 1) : z / 2 + 1, o = cut(map, order(map, before) + d), sign = uint64_t{1} << (8 * map.width - 1);
    return map.exponent_mask == 0 ? o : o & sign ? o ^ sign : cut(map, ~o);
}

inline Tokens tokenise(const pc_class_map &map, const Lanes &before, const Lanes &after) {
    Tokens t;
    std::vector<uint32_t> gaps[PC_CLASSES];
    std::vector<uint64_t> diffs[PC_CLASSES];
    uint32_t unchanged[PC_CLASSES] = {};
    for (int64_t i = 0; i < before.size(); ++i) {
        const uint64_t u = before.get(i), v = after.get(i);
        const int c = class_of(map, u);
        if (u == v) {
            ++unchanged[c];
            continue;
        }
        t.places.push_back(i);
        t.before.push_back(u);
        t.after.push_back(v);
        gaps[c].push_back(unchanged[c]);
        diffs[c].push_back(written(map, u, v));
        unchanged[c] = 0;
        ++t.counts[size_t(c)];
    }
    for (int c = 0; c < PC_CLASSES; ++c) {
        t.gaps.insert(t.gaps.end(), gaps[c].begin(), gaps[c].end());
        t.diffs.insert(t.diffs.end(), diffs[c].begin(), diffs[c].end());
    }
    return t;
}

// Fills places and lanes from counts, gaps and differences; false when a gap does not end inside the class.
inline bool locate(const pc_class_map &map, const Lanes &base, Tokens &t) {
    std::vector<int64_t> members[PC_CLASSES];
    for (int64_t i = 0; i < base.size(); ++i) members[class_of(map, base.get(i))].push_back(i);
    std::vector<uint64_t> z(size_t(base.size()));
    std::vector<bool> hit(size_t(base.size()));
    size_t j = 0;
    for (int c = 0; c < PC_CLASSES; ++c) {
        uint64_t rank = 0;
        for (uint32_t i = 0; i < t.counts[size_t(c)]; ++i, ++j, ++rank) {
            if ((rank += t.gaps[j]) >= members[c].size()) return false;
            const size_t place = size_t(members[c][rank]);
            hit[place] = true;
            z[place] = t.diffs[j];
        }
    }
    for (int64_t i = 0; i < base.size(); ++i) {
        if (!hit[size_t(i)]) continue;
        t.places.push_back(i);
        t.before.push_back(base.get(i));
        t.after.push_back(changed(map, base.get(i), z[size_t(i)]));
    }
    return true;
}

// Spec 8.1.
inline int token(uint64_t v) {
    int e = 0;
    while (e < 63 && v >> (e + 1)) ++e;
    return v < 4 ? int(v) : 4 * (e - 1) + int(v >> (e - 2) & 3);
}

// Spec 8.2, one bit and one symbol at a time. False for whatever is not a block of n weights with these frequencies.
class Decoder {
public:
    Decoder(const std::vector<uint8_t> &data, const std::vector<uint16_t> &frequencies) : data_(data), frequencies_(frequencies) {}

    bool run(int classes, int width, int64_t n, Tokens &t) {
        uint64_t sum = 0, n_words, count, limit = width == 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * width) - 1;
        for (int c = 0; c < classes; ++c) {
            if (!varint(count) || count > uint64_t(n) || (sum += count) > uint64_t(n)) return false;
            t.counts[size_t(c)] = uint32_t(count);
        }
        uint64_t state[2];
        for (uint64_t &x : state)
            if (!little(4, x) || x < 65536) return false;
        if (!varint(n_words) || n_words > (data_.size() - at_) / 2) return false;
        words_end_ = at_ + 2 * size_t(n_words);
        bit_ = 8 * words_end_;
        for (int c = 0; c < classes; ++c) {
            uint64_t rank = 0;
            for (uint32_t i = 0; i < t.counts[size_t(c)]; ++i) {
                int s[2];
                uint64_t v[2];
                for (int kind = 0; kind < 2; ++kind)
                    if (!symbol(state[kind], &frequencies_[size_t((kind * PC_CLASSES + c) * PC_SYMBOLS)], s[kind])) return false;
                for (int kind = 0; kind < 2; ++kind)
                    if (!number(s[kind], v[kind])) return false;
                if (v[0] >= uint64_t(n) || (rank += v[0] + 1) > uint64_t(n) || v[1] > limit) return false;
                t.gaps.push_back(uint32_t(v[0]));
                t.diffs.push_back(v[1]);
            }
        }
        uint64_t rest = 0;
        const size_t left = 8 * data_.size() - bit_;
        return state[0] == 65536 && state[1] == 65536 && at_ == words_end_ && left < 8 && bits(int(left), rest) && rest == 0;
    }

private:
    bool little(int bytes, uint64_t &v) {
        v = 0;
        for (int b = 0; b < bytes; ++b, ++at_) {
            if (at_ >= data_.size()) return false;
            v |= uint64_t(data_[at_]) << 8 * b;
        }
        return true;
    }
    bool varint(uint64_t &v) {
        v = 0;
        for (int i = 0; i < 10 && at_ < data_.size(); ++i) {
            const uint8_t b = data_[at_++];
            if (i == 9 && b > 1) return false;
            v |= uint64_t(b & 0x7F) << 7 * i;
            if (b < 0x80) return b != 0 || i == 0;
        }
        return false;
    }
    bool bits(int n, uint64_t &v) {
        v = 0;
        for (int i = 0; i < n; ++i, ++bit_) {
            if (bit_ >= 8 * data_.size()) return false;
            v |= uint64_t(data_[bit_ / 8] >> bit_ % 8 & 1) << i;
        }
        return true;
    }
    bool symbol(uint64_t &x, const uint16_t *f, int &s) {
        uint64_t slot = x % PC_SLOTS, start = 0, word;
        for (s = 0; s < PC_SYMBOLS && slot >= start + f[s]; ++s) start += f[s];
        if (s == PC_SYMBOLS) return false;  // no table
        x = f[s] * (x / PC_SLOTS) + slot - start;
        if (x >= 65536) return true;
        if (at_ == words_end_ || !little(2, word)) return false;
        x = x << 16 | word;
        return true;
    }
    bool number(int s, uint64_t &v) {
        uint64_t t = uint64_t(s), extra = 0;
        if (s == PC_ESCAPE && !bits(8, t)) return false;
        if (t > 251 || (t >= 4 && !bits(int(t / 4) - 1, extra))) return false;
        v = t < 4 ? t : ((4 + (t & 3)) << (t / 4 - 1)) + extra;
        return true;
    }
    const std::vector<uint8_t> &data_;
    const std::vector<uint16_t> &frequencies_;
    size_t at_ = 0, words_end_ = 0, bit_ = 0;
};

}  // namespace oracle
#endif
