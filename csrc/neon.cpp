// NEON: part of every aarch64 machine.
#include "isa.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include "kernels.inl"
#include "portable.h"

namespace pulsecast {
namespace {

// Table j counts class 2j in the low nibble and class 2j + 1 in the high one, so one look-up and one addition serve two classes.
struct NibbleTables {
    uint8_t t[8][16];
    constexpr NibbleTables() : t() {
        for (int j = 0; j < 8; ++j) {
            t[j][2 * j] = 0x01;
            t[j][2 * j + 1] = 0x10;
        }
    }
};
constexpr NibbleTables kNibbles;

// The tree of pairwise sums in count() leaves the classes in this order.
constexpr uint8_t kOrder[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};

// 64 bytes from position 64 - i are 0xFF for the first i.
struct FirstTable {
    uint8_t bytes[128];
    constexpr FirstTable() : bytes() {
        for (int i = 0; i < 64; ++i) bytes[i] = 0xFF;
    }
};
constexpr FirstTable kFirst;

struct Neon {
    static constexpr const char *kName = "neon";

    // Through bytes, because lanes lie at any address and a load of wider elements promises the compiler an even one.
    static uint8x16_t bytes16(const char *p) { return vld1q_u8(reinterpret_cast<const uint8_t *>(p)); }
    static uint16x8_t lanes2(const char *p) { return vreinterpretq_u16_u8(bytes16(p)); }
    static uint32x4_t lanes4(const char *p) { return vreinterpretq_u32_u8(bytes16(p)); }

    // Bytes of 0x00 or 0xFF to one bit each.
    static uint8x8_t mask(uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d) {
        const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ull));
        const uint8x16_t ab = vpaddq_u8(vandq_u8(a, bits), vandq_u8(b, bits));
        const uint8x16_t cd = vpaddq_u8(vandq_u8(c, bits), vandq_u8(d, bits));
        const uint8x16_t abcd = vpaddq_u8(ab, cd);
        return vget_low_u8(vpaddq_u8(abcd, abcd));
    }
    static uint64_t word(uint8x8_t v) { return vget_lane_u64(vreinterpret_u64_u8(v), 0); }
    template <class T>
    static uint64_t differ(const char *a, const char *b) {
        if constexpr (sizeof(T) == 2) {
            uint16x8_t x[8];
            for (int i = 0; i < 8; ++i) x[i] = veorq_u16(lanes2(a + 16 * i), lanes2(b + 16 * i));
            uint8x16_t ne[4];
            for (int i = 0; i < 4; ++i) {
                const uint16x8_t lo = vtstq_u16(x[2 * i], x[2 * i]), hi = vtstq_u16(x[2 * i + 1], x[2 * i + 1]);
                ne[i] = vuzp1q_u8(vreinterpretq_u8_u16(lo), vreinterpretq_u8_u16(hi));
            }
            return word(mask(ne[0], ne[1], ne[2], ne[3]));
        } else {
            alignas(16) uint8_t ne[64];
            unequal_bytes<T>(a, b, ne);
            return word(mask(vld1q_u8(ne), vld1q_u8(ne + 16), vld1q_u8(ne + 32), vld1q_u8(ne + 48)));
        }
    }
    template <class T>
    static void classify(const char *w, const pc_class_map &map, uint8_t *cls) {
        if constexpr (sizeof(T) == 2) {
            if (map.mantissa_bits == 7) {  // bf16: the narrowing shift drops mantissa and sign at once
                const uint8x16_t lo = vdupq_n_u8(uint8_t(map.lo)), top = vdupq_n_u8(uint8_t(map.classes - 1));
                for (int i = 0; i < 4; ++i) {
                    const uint8x8_t e0 = vshrn_n_u16(lanes2(w + 32 * i), 7);
                    const uint8x16_t e = vshrn_high_n_u16(e0, lanes2(w + 32 * i + 16), 7);
                    vst1q_u8(cls + 16 * i, vminq_u8(vqsubq_u8(e, lo), top));
                }
                return;
            }
        }
        classify_portable<T>(w, map, cls);
    }
    // Holds its tables in registers for a whole tile, and leaves out the quarters of the classes that nothing belongs to.
    struct Counter {
        uint8x16_t table[8];
        uint8x16_t order;
        int quarters;
        explicit Counter(int classes) : order(vld1q_u8(kOrder)), quarters((classes + 3) / 4) {
            const uint8_t *p = kNibbles.t[0];
            asm("" : "+r"(p));  // otherwise the compiler loads each constant anew in every chunk
            for (int j = 0; j < 8; ++j) table[j] = vld1q_u8(p + 16 * j);
        }
        void operator()(const uint8_t *cls, const uint16_t *before, uint16_t *after) const {
            const uint8x16_t c0 = vld1q_u8(cls), c1 = vld1q_u8(cls + 16), c2 = vld1q_u8(cls + 32), c3 = vld1q_u8(cls + 48);
            const uint8x16_t nibble = vdupq_n_u8(0x0F), zero = vdupq_n_u8(0);
            auto quarter = [&](int j) {
                uint8x16_t s[2];  // nibbles of at most 4
                for (int h = 0; h < 2; ++h) {
                    const uint8x16_t t = table[2 * j + h];
                    s[h] = vaddq_u8(vaddq_u8(vqtbl1q_u8(t, c0), vqtbl1q_u8(t, c1)), vaddq_u8(vqtbl1q_u8(t, c2), vqtbl1q_u8(t, c3)));
                }
                const uint8x16_t pair = vpaddq_u8(s[0], s[1]);  // nibbles of at most 8
                return vpaddq_u8(vandq_u8(pair, nibble), vshrq_n_u8(pair, 4));
            };
            const uint8x16_t u0 = quarter(0), u1 = quarters > 1 ? quarter(1) : zero, u2 = quarters > 2 ? quarter(2) : zero,
                             u3 = quarters > 3 ? quarter(3) : zero;
            const uint8x16_t counts = vqtbl1q_u8(vpaddq_u8(vpaddq_u8(u0, u1), vpaddq_u8(u2, u3)), order);
            vst1q_u16(after, vaddw_u8(vld1q_u16(before), vget_low_u8(counts)));
            vst1q_u16(after + 8, vaddw_high_u8(vld1q_u16(before + 8), counts));
        }
    };
    static uint32_t count_before(const uint8_t *cls, uint8_t c, int i) {
        const uint8x16_t v = vdupq_n_u8(c);
        const uint8_t *window = kFirst.bytes + 64 - i;
        uint8x16_t n = vdupq_n_u8(0);  // each match is subtracted as -1
        for (int q = 0; q < 64; q += 16) n = vsubq_u8(n, vandq_u8(vceqq_u8(vld1q_u8(cls + q), v), vld1q_u8(window + q)));
        return vaddvq_u8(n);
    }
    static uint64_t match(const uint8_t *cls, uint8_t c, uint64_t *bytes) {
        const uint8x16_t v = vdupq_n_u8(c);
        const uint8x8_t m = mask(vceqq_u8(vld1q_u8(cls), v), vceqq_u8(vld1q_u8(cls + 16), v), vceqq_u8(vld1q_u8(cls + 32), v),
                                 vceqq_u8(vld1q_u8(cls + 48), v));
        *bytes = word(vcnt_u8(m));
        return word(m);
    }
    // Measured: every distance is slower than none.
    template <class T>
    static void ahead(const char *) {}
    template <class T>
    static uint64_t digest(const char *w, int n, int j, uint64_t q) {
        const uint32x4_t q_lo = vdupq_n_u32(uint32_t(q)), q_hi = vdupq_n_u32(uint32_t(q >> 32));
        uint64x2_t low[4] = {vdupq_n_u64(0), vdupq_n_u64(0), vdupq_n_u64(0), vdupq_n_u64(0)};
        uint32x4_t high[2] = {vdupq_n_u32(0), vdupq_n_u32(0)};
        int i = 0;
        for (; i + 8 <= n; i += 8) {
            const char *p = w + i * int(sizeof(T));
            uint32x4_t v[2];
            if constexpr (sizeof(T) == 4) {
                v[0] = lanes4(p);
                v[1] = lanes4(p + 16);
            } else {
                uint16x8_t narrow;
                if constexpr (sizeof(T) == 2)
                    narrow = lanes2(p);
                else
                    narrow = vmovl_u8(vld1_u8(reinterpret_cast<const uint8_t *>(p)));
                v[0] = vmovl_u16(vget_low_u16(narrow));
                v[1] = vmovl_high_u16(narrow);
            }
            for (int h = 0; h < 2; ++h) {
                const uint32x4_t k_lo = veorq_u32(vld1q_u32(kKeys.lo + j + i + 4 * h), q_lo);
                const uint32x4_t k_hi = veorq_u32(vld1q_u32(kKeys.hi + j + i + 4 * h), q_hi);
                low[2 * h] = vmlal_u32(low[2 * h], vget_low_u32(v[h]), vget_low_u32(k_lo));
                low[2 * h + 1] = vmlal_high_u32(low[2 * h + 1], v[h], k_lo);
                high[h] = vmlaq_u32(high[h], v[h], k_hi);
            }
        }
        const uint64_t sum = vaddvq_u64(vaddq_u64(vaddq_u64(low[0], low[1]), vaddq_u64(low[2], low[3])));
        const uint64_t top = vaddvq_u32(vaddq_u32(high[0], high[1]));
        return sum + (top << 32) + digest_portable<T>(w + i * int(sizeof(T)), n - i, j + i, q);
    }
};

constexpr Isa kIsa = make_isa<Neon>();

}  // namespace

const Isa *neon_isa() { return &kIsa; }

}  // namespace pulsecast
#else
namespace pulsecast {
const Isa *neon_isa() { return nullptr; }
}  // namespace pulsecast
#endif
