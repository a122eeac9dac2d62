// Entropy coding of class-major gaps and differences (spec 8.1, 8.2). Cost follows the changes; no weight is read.
#include <string.h>

#include <new>
#include <vector>

#include "pulsecast_core.h"

namespace {

constexpr uint32_t kStart = 1u << 16;  // lower end of the states' interval
constexpr int kSlotBits = 12;
constexpr uint32_t kLastToken = 251;   // of 2^64 - 1

struct Token {
    uint32_t symbol;
    int extra;  // low bits of the number that follow raw
};

// Without a branch: whether a gap is below 4 cannot be foretold.
inline Token token_of(uint64_t v) {
    const int e = 63 - __builtin_clzll(v | 4);
    return {uint32_t(4 * (e - 1)) + uint32_t((v >> (e - 2)) & 3) - (v < 4 ? 4 : 0), e - 2};
}

// The number that a token starts at, and how many raw bits follow it. Symbols that are no tokens have room too: a wrong table must not read beyond.
struct TokenTable {
    uint64_t start[PC_SYMBOLS];
    uint8_t extra[PC_SYMBOLS];
    constexpr TokenTable() : start(), extra() {
        for (uint32_t t = 0; t <= kLastToken; ++t) {
            extra[t] = t < 4 ? 0 : uint8_t((t >> 2) - 1);
            start[t] = t < 4 ? t : uint64_t(4 | (t & 3)) << extra[t];
        }
    }
};
constexpr TokenTable kTokens;

class BitWriter {
public:
    BitWriter(uint8_t *out, const uint8_t *end) : out_(out), end_(end) {}
    void put(uint64_t value, int bits) {
        if (bits > 32) {
            put(value & 0xFFFFFFFF, 32);
            value >>= 32;
            bits -= 32;
        }
        held_ |= (value & ((uint64_t{1} << bits) - 1)) << filled_;
        if ((filled_ += bits) >= 32) {
            flush(4);
            held_ >>= 32;
            filled_ -= 32;
        }
    }
    // One past the last byte, or null when they did not fit.
    uint8_t *finish() {
        flush((filled_ + 7) / 8);
        return out_;
    }

private:
    void flush(int bytes) {
        if (out_ == nullptr || end_ - out_ < bytes) {
            out_ = nullptr;
            return;
        }
        memcpy(out_, &held_, size_t(bytes));
        out_ += bytes;
    }
    uint8_t *out_;
    const uint8_t *end_;
    uint64_t held_ = 0;
    int filled_ = 0;  // below 32 between calls
};

class BitReader {
public:
    BitReader(const uint8_t *data, int64_t size) : data_(data), size_(size) {}
    uint64_t take(int bits) {
        if (bits > 32) {
            const uint64_t low = take(32);
            return low | take(bits - 32) << 32;
        }
        const int64_t byte = position_ >> 3;
        uint64_t window = 0;
        if (byte + 8 <= size_)
            memcpy(&window, data_ + byte, 8);
        else if (byte < size_)
            memcpy(&window, data_ + byte, size_t(size_ - byte));
        const uint64_t value = (window >> (position_ & 7)) & ((uint64_t{1} << bits) - 1);
        position_ += bits;
        return value;
    }
    void refuse() { position_ = 8 * size_ + 1; }
    // Overrun reads zeros, and is told here.
    bool overrun() const { return position_ > 8 * size_; }
    bool spent() const {
        if (overrun() || 8 * size_ - position_ >= 8) return false;
        return (position_ & 7) == 0 || (data_[size_ - 1] >> (position_ & 7)) == 0;
    }

private:
    const uint8_t *data_;
    int64_t size_;
    int64_t position_ = 0;
};

inline uint8_t *put_varint(uint8_t *out, const uint8_t *end, uint64_t v) {
    do {
        if (out >= end) return nullptr;
        *out++ = uint8_t((v & 0x7F) | (v > 0x7F ? 0x80 : 0));
    } while (v >>= 7);
    return out;
}

// Null when it is cut off, longer than ten bytes or not minimal.
inline const uint8_t *take_varint(const uint8_t *p, const uint8_t *end, uint64_t *v) {
    *v = 0;
    for (int shift = 0; shift < 70 && p < end; shift += 7) {
        const uint8_t b = *p++;
        if (shift == 63 && b > 1) return nullptr;
        *v |= uint64_t(b & 0x7F) << shift;
        if (!(b & 0x80)) return b == 0 && shift > 0 ? nullptr : p;
    }
    return nullptr;
}

// What it takes to push a symbol without a division: x div f is the upper half of x · ceil(2^64 / f), exact for all 32-bit x.
// For f = 1 the factor does not fit; 2^64 - 1 gives x - 1, and `bias` makes up for it.
struct Pushes {
    uint64_t factor[PC_SYMBOLS];
    uint32_t bias[PC_SYMBOLS];
    explicit Pushes(const uint16_t *frequencies) {
        uint32_t start = 0;
        for (int s = 0; s < PC_SYMBOLS; start += frequencies[s++]) {
            const uint64_t f = frequencies[s];
            if (!f) continue;
            factor[s] = f > 1 ? ~uint64_t{0} / f + 1 : ~uint64_t{0};
            bias[s] = f > 1 ? start : start + PC_SLOTS - 1;
        }
    }
};

// Writes a word below `words` whether it counts or not: when a state runs over cannot be foretold.
inline void push(uint32_t &x, uint32_t f, uint64_t factor, uint32_t bias, uint16_t *&words) {
    const bool full = x >= f << (32 - kSlotBits);
    words[-1] = uint16_t(x);
    words -= full;
    x = full ? x >> 16 : x;
    const uint32_t quotient = uint32_t((unsigned __int128)x * factor >> 64);
    x += quotient * (PC_SLOTS - f) + bias;
}

// Codes one class backwards, as rANS wants it; the states run on from class to class.
void push_class(const uint32_t *gaps, const uint64_t *diffs, uint32_t count, const uint16_t *gap_f, const uint16_t *value_f, uint32_t &gap_state,
                uint32_t &value_state, uint16_t *&words) {
    if (!count) return;
    const Pushes gap(gap_f), value(value_f);
    for (uint32_t i = count; i-- > 0;) {
        uint32_t v = token_of(diffs[i]).symbol, g = token_of(gaps[i]).symbol;
        if (!value_f[v]) v = PC_ESCAPE;
        if (!gap_f[g]) g = PC_ESCAPE;
        push(value_state, value_f[v], value.factor[v], value.bias[v], words);
        push(gap_state, gap_f[g], gap.factor[g], gap.bias[g], words);
    }
}

inline void put_extra(BitWriter &bits, uint64_t v, const uint16_t *frequencies) {
    const Token t = token_of(v);
    if (!frequencies[t.symbol]) bits.put(t.symbol, 8);
    bits.put(v, t.extra);
}

int64_t encode(const uint32_t *gaps, const uint64_t *diffs, const uint32_t *counts, int classes, const uint16_t *frequencies, uint8_t *out,
               int64_t capacity) {
    uint8_t *p = out;
    const uint8_t *end = out + capacity;
    size_t k = 0;
    for (int c = 0; c < classes; ++c) {
        if (!(p = put_varint(p, end, counts[c]))) return PC_TOO_LARGE;
        k += counts[c];
    }
    const uint16_t *gap_tables = frequencies, *value_tables = frequencies + PC_CLASSES * PC_SYMBOLS;
    thread_local std::vector<uint16_t> room;
    room.resize(2 * k + 1);  // push writes one below
    uint16_t *const words_end = room.data() + room.size();
    uint16_t *words = words_end;
    uint32_t gap_state = kStart, value_state = kStart;
    size_t first = k;
    for (int c = classes; c-- > 0;) {
        first -= counts[c];
        push_class(gaps + first, diffs + first, counts[c], gap_tables + c * PC_SYMBOLS, value_tables + c * PC_SYMBOLS, gap_state, value_state, words);
    }
    const uint64_t n_words = uint64_t(words_end - words);
    if (end - p < 8) return PC_TOO_LARGE;
    memcpy(p, &gap_state, 4);
    memcpy(p + 4, &value_state, 4);
    if (!(p = put_varint(p + 8, end, n_words)) || uint64_t(end - p) < 2 * n_words) return PC_TOO_LARGE;
    if (n_words) memcpy(p, words, 2 * n_words);
    BitWriter bits(p + 2 * n_words, end);
    for (int c = 0; c < classes; ++c)
        for (const size_t stop = first + counts[c]; first < stop; ++first) {
            put_extra(bits, gaps[first], gap_tables + c * PC_SYMBOLS);
            put_extra(bits, diffs[first], value_tables + c * PC_SYMBOLS);
        }
    if (room.capacity() > (size_t{1} << 21)) std::vector<uint16_t>().swap(room);
    uint8_t *const last = bits.finish();
    return last ? last - out : int64_t(PC_TOO_LARGE);
}

// One decoder table. A byte per slot instead of all a symbol needs: the tables of a part then stay in the cache beside the weights.
struct Pulls {
    const uint8_t *symbols;
    uint32_t packed[PC_SYMBOLS];  // frequency | start << 16
    Pulls(const uint8_t *slots, const uint16_t *frequencies) : symbols(slots) {
        uint32_t start = 0;
        for (int s = 0; s < PC_SYMBOLS; start += frequencies[s++]) packed[s] = frequencies[s] | start << 16;
    }
};

// Takes one symbol; words that are not there read as zeros and are noticed at the end, because `word` then lies behind `n_words`.
inline uint32_t pull(uint32_t &x, const Pulls &table, const uint8_t *words, int64_t n_words, int64_t &word) {
    const uint32_t slot = x & (PC_SLOTS - 1), symbol = table.symbols[slot], packed = table.packed[symbol];
    x = (packed & 0xFFFF) * (x >> kSlotBits) + slot - (packed >> 16);
    uint16_t next = 0;
    if (word < n_words) memcpy(&next, words + 2 * word, 2);
    const bool low = x < kStart;
    x = low ? (x << 16 | next) : x;
    word += low;
    return symbol;
}

inline uint64_t take_number(uint32_t symbol, BitReader &bits) {
    if (symbol == PC_ESCAPE && (symbol = uint32_t(bits.take(8))) > kLastToken) {
        bits.refuse();
        return 0;
    }
    return kTokens.start[symbol] + bits.take(kTokens.extra[symbol]);
}

}  // namespace

void pc_histogram(const uint32_t *gaps, const uint64_t *diffs, const uint32_t *counts, uint32_t *gap_tokens, uint32_t *value_tokens) {
    for (int c = 0; c < PC_CLASSES; ++c)
        for (uint32_t i = 0; i < counts[c]; ++i, ++gaps, ++diffs) {
            ++gap_tokens[c * PC_SYMBOLS + token_of(*gaps).symbol];
            ++value_tokens[c * PC_SYMBOLS + token_of(*diffs).symbol];
        }
}

int64_t pc_encode(const uint32_t *gaps, const uint64_t *diffs, const uint32_t *counts, int classes, const uint16_t *frequencies, uint8_t *out,
                  int64_t capacity) {
    if (classes < 1 || classes > PC_CLASSES) return PC_ARGUMENT;
    for (int c = 0; c < classes; ++c)
        for (int table = 0; table < 2; ++table)
            if (counts[c] && !frequencies[(table * PC_CLASSES + c) * PC_SYMBOLS + PC_ESCAPE]) return PC_ARGUMENT;
    try {
        return encode(gaps, diffs, counts, classes, frequencies, out, capacity);
    } catch (const std::bad_alloc &) {
        return PC_NO_MEMORY;
    }
}

int64_t pc_decode_counts(const uint8_t *data, int64_t size, int classes, int64_t n, uint32_t *counts) {
    if (classes < 1 || classes > PC_CLASSES || n < 0 || n > PC_MAX_BLOCK) return PC_ARGUMENT;
    memset(counts, 0, PC_CLASSES * sizeof(uint32_t));
    const uint8_t *p = data, *end = data + size;
    uint64_t k = 0;
    for (int c = 0; c < classes; ++c) {
        uint64_t count;
        if (!(p = take_varint(p, end, &count))) return PC_TRUNCATED;
        if (count > uint64_t(n) || (k += count) > uint64_t(n)) return PC_RANGE;
        counts[c] = uint32_t(count);
    }
    return int64_t(k);
}

int pc_decode(const uint8_t *data, int64_t size, int classes, int width, int64_t n, const uint16_t *frequencies, const uint8_t *slots, uint32_t *gaps,
              uint64_t *diffs) {
    uint32_t counts[PC_CLASSES];
    if (width != 1 && width != 2 && width != 4 && width != 8) return PC_ARGUMENT;
    const int64_t k = pc_decode_counts(data, size, classes, n, counts);
    if (k < 0) return int(k);
    const uint8_t *p = data, *end = data + size;
    uint64_t skipped, n_words;
    for (int c = 0; c < classes; ++c) p = take_varint(p, end, &skipped);
    if (end - p < 8) return PC_TRUNCATED;
    uint32_t gap_state, value_state;
    memcpy(&gap_state, p, 4);
    memcpy(&value_state, p + 4, 4);
    if (!(p = take_varint(p + 8, end, &n_words)) || n_words > uint64_t(end - p) / 2) return PC_TRUNCATED;
    if (gap_state < kStart || value_state < kStart) return PC_RANGE;
    const uint64_t limit = width == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * width)) - 1;
    const uint8_t *words = p;
    int64_t word = 0;
    BitReader bits(p + 2 * n_words, end - p - int64_t(2 * n_words));
    for (int c = 0; c < classes; ++c) {
        if (!counts[c]) continue;
        const uint16_t *const gap_f = frequencies + c * PC_SYMBOLS, *const value_f = gap_f + PC_CLASSES * PC_SYMBOLS;
        if (!gap_f[PC_ESCAPE] || !value_f[PC_ESCAPE]) return PC_RANGE;  // changes in a class without tables
        const Pulls gap_table(slots + int64_t(c) * PC_SLOTS, gap_f), value_table(slots + int64_t(PC_CLASSES + c) * PC_SLOTS, value_f);
        uint64_t rank = 0;
        for (uint32_t i = 0; i < counts[c]; ++i) {
            const uint32_t g = pull(gap_state, gap_table, words, int64_t(n_words), word);
            const uint32_t v = pull(value_state, value_table, words, int64_t(n_words), word);
            const uint64_t gap = take_number(g, bits), diff = take_number(v, bits);
            if (gap >= uint64_t(n) || (rank += gap + 1) > uint64_t(n) || diff > limit) return PC_RANGE;
            *gaps++ = uint32_t(gap);
            *diffs++ = diff;
        }
        if (word > int64_t(n_words) || bits.overrun()) return PC_TRUNCATED;
    }
    return gap_state == kStart && value_state == kStart && word == int64_t(n_words) && bits.spent() ? 0 : int(PC_TRAILING);
}
