// AVX2: compiled with its own flags, taken at run time only where the machine has it.
#include "isa.h"

#if defined(__x86_64__) && defined(__AVX2__)
#include <immintrin.h>

#include "kernels.inl"
#include "portable.h"

namespace pulsecast {
namespace {

struct Avx2 {
    static constexpr const char *kName = "avx2";

    static __m256i at32(const void *p, int i) { return _mm256_loadu_si256(static_cast<const __m256i *>(p) + i); }

    static uint64_t mask(__m256i a, __m256i b) {
        return uint64_t(uint32_t(_mm256_movemask_epi8(a))) | uint64_t(uint32_t(_mm256_movemask_epi8(b))) << 32;
    }
    template <class T>
    static uint64_t differ(const char *a, const char *b) {
        if constexpr (sizeof(T) == 2) {
            __m256i eq[4];
            for (int i = 0; i < 4; ++i) eq[i] = _mm256_cmpeq_epi16(at32(a, i), at32(b, i));
            // packs works on the halves of the register apart; the permutation puts the quarters back in order
            const __m256i lo = _mm256_permute4x64_epi64(_mm256_packs_epi16(eq[0], eq[1]), 0xD8);
            const __m256i hi = _mm256_permute4x64_epi64(_mm256_packs_epi16(eq[2], eq[3]), 0xD8);
            return ~mask(lo, hi);
        } else {
            alignas(32) uint8_t ne[64];
            unequal_bytes<T>(a, b, ne);
            return mask(at32(ne, 0), at32(ne, 1));
        }
    }
    template <class T>
    static void classify(const char *w, const pc_class_map &map, uint8_t *cls) {
        if constexpr (sizeof(T) == 2) {
            const __m256i exponent = _mm256_set1_epi16(int16_t(map.exponent_mask)), lo = _mm256_set1_epi16(int16_t(map.lo)),
                          top = _mm256_set1_epi16(int16_t(map.classes - 1));
            const __m128i shift = _mm_cvtsi32_si128(map.mantissa_bits);
            __m256i c[4];
            for (int i = 0; i < 4; ++i) {
                const __m256i e = _mm256_and_si256(_mm256_srl_epi16(at32(w, i), shift), exponent);
                c[i] = _mm256_min_epu16(_mm256_subs_epu16(e, lo), top);
            }
            for (int i = 0; i < 2; ++i) {
                const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(c[2 * i], c[2 * i + 1]), 0xD8);
                _mm256_storeu_si256(reinterpret_cast<__m256i *>(cls) + i, packed);
            }
        } else {
            classify_portable<T>(w, map, cls);
        }
    }
    // Table j counts class 2j by ones and class 2j + 1 by 64s, so one look-up and one addition serve two classes: a byte holds at most 2 of either,
    // eight bytes at most 16, and half a chunk at most 32, which is below 64.
    struct Counter {
        __m256i table[8];
        explicit Counter(int) {
            for (int j = 0; j < 8; ++j) {
                alignas(16) uint8_t t[16] = {};
                t[2 * j] = 1;
                t[2 * j + 1] = 64;
                table[j] = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(t)));
            }
        }
        void operator()(const uint8_t *cls, const uint16_t *before, uint16_t *after) const {
            const __m256i a = at32(cls, 0), b = at32(cls, 1), zero = _mm256_setzero_si256();
            __m128i four[2];  // 16-bit sums of four tables, for the two halves of the chunk
            for (int i = 0; i < 2; ++i) {
                __m128i sum[4];
                for (int j = 0; j < 4; ++j) {
                    const __m256i t = table[4 * i + j];
                    const __m256i s = _mm256_sad_epu8(_mm256_add_epi8(_mm256_shuffle_epi8(t, a), _mm256_shuffle_epi8(t, b)), zero);
                    sum[j] = _mm_add_epi64(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
                }
                four[i] = _mm_or_si128(_mm_or_si128(sum[0], _mm_slli_epi64(sum[1], 16)),
                                       _mm_or_si128(_mm_slli_epi64(sum[2], 32), _mm_slli_epi64(sum[3], 48)));
            }
            const __m128i x = _mm_unpacklo_epi64(four[0], four[1]), y = _mm_unpackhi_epi64(four[0], four[1]), ones = _mm_set1_epi16(63);
            const __m128i even = _mm_add_epi16(_mm_and_si128(x, ones), _mm_and_si128(y, ones));
            const __m128i odd = _mm_add_epi16(_mm_srli_epi16(x, 6), _mm_srli_epi16(y, 6));
            put(before, after, _mm_unpacklo_epi16(even, odd));
            put(before + 8, after + 8, _mm_unpackhi_epi16(even, odd));
        }
        static void put(const uint16_t *before, uint16_t *after, __m128i counts) {
            const __m128i sum = _mm_add_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(before)), counts);
            _mm_storeu_si128(reinterpret_cast<__m128i *>(after), sum);
        }
    };
    static uint64_t members(const uint8_t *cls, uint8_t c) {
        const __m256i v = _mm256_set1_epi8(char(c));
        return mask(_mm256_cmpeq_epi8(at32(cls, 0), v), _mm256_cmpeq_epi8(at32(cls, 1), v));
    }
    static uint32_t count_before(const uint8_t *cls, uint8_t c, int i) {
        return uint32_t(__builtin_popcountll(members(cls, c) & ((uint64_t{1} << i) - 1)));
    }
    static uint64_t match(const uint8_t *cls, uint8_t c, uint64_t *bytes) {
        const uint64_t m = members(cls, c);
        *bytes = byte_counts(m);
        return m;
    }
    // A page ahead. As an integer: the address may lie beyond the array, where a pointer may not.
    template <class T>
    static void ahead(const char *chunk) {
        for (size_t line = 0; line < 64 * sizeof(T); line += 64)
            _mm_prefetch(reinterpret_cast<const char *>(reinterpret_cast<uintptr_t>(chunk) + 4096 + line), _MM_HINT_T0);
    }
    template <class T>
    static uint64_t digest(const char *w, int n, int j, uint64_t q) {
        const __m256i q_lo = _mm256_set1_epi32(int32_t(q)), q_hi = _mm256_set1_epi32(int32_t(q >> 32));
        __m256i even = _mm256_setzero_si256(), odd = even, high = even;
        int i = 0;
        for (; i + 8 <= n; i += 8) {
            const char *p = w + i * int(sizeof(T));
            __m256i v;
            if constexpr (sizeof(T) == 4)
                v = at32(p, 0);
            else if constexpr (sizeof(T) == 2)
                v = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
            else
                v = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
            const __m256i k_lo = _mm256_xor_si256(at32(kKeys.lo + j + i, 0), q_lo), k_hi = _mm256_xor_si256(at32(kKeys.hi + j + i, 0), q_hi);
            even = _mm256_add_epi64(even, _mm256_mul_epu32(v, k_lo));
            odd = _mm256_add_epi64(odd, _mm256_mul_epu32(_mm256_srli_epi64(v, 32), _mm256_srli_epi64(k_lo, 32)));
            high = _mm256_add_epi32(high, _mm256_mullo_epi32(v, k_hi));
        }
        alignas(32) uint64_t low[4];
        alignas(32) uint32_t top[8];
        _mm256_store_si256(reinterpret_cast<__m256i *>(low), _mm256_add_epi64(even, odd));
        _mm256_store_si256(reinterpret_cast<__m256i *>(top), high);
        uint64_t sum = low[0] + low[1] + low[2] + low[3];
        for (uint32_t t : top) sum += uint64_t(t) << 32;
        return sum + digest_portable<T>(w + i * int(sizeof(T)), n - i, j + i, q);
    }
};

constexpr Isa kIsa = make_isa<Avx2>();

}  // namespace

const Isa *avx2_isa() { return &kIsa; }

}  // namespace pulsecast
#else
namespace pulsecast {
const Isa *avx2_isa() { return nullptr; }
}  // namespace pulsecast
#endif
