// The instruction set of last resort, and the oracle of the vector ones.
#include "kernels.inl"
#include "portable.h"

namespace pulsecast {
namespace {

struct Scalar {
    static constexpr const char *kName = "scalar";

    static uint64_t mask(const uint8_t *bytes) {
        uint64_t m = 0;
        for (int i = 0; i < 64; ++i) m |= uint64_t(bytes[i] & 1) << i;
        return m;
    }
    template <class T>
    static uint64_t differ(const char *a, const char *b) {
        if (memcmp(a, b, 64 * sizeof(T)) == 0) return 0;
        uint8_t bytes[64];
        unequal_bytes<T>(a, b, bytes);
        return mask(bytes);
    }
    template <class T>
    static void classify(const char *w, const pc_class_map &map, uint8_t *cls) {
        classify_portable<T>(w, map, cls);
    }
    struct Counter {
        explicit Counter(int) {}
        void operator()(const uint8_t *cls, const uint16_t *before, uint16_t *after) const {
            uint8_t all[256] = {};  // padding falls outside the first 16
            for (int i = 0; i < 64; ++i) ++all[cls[i]];
            for (int c = 0; c < PC_CLASSES; ++c) after[c] = uint16_t(before[c] + all[c]);
        }
    };
    static uint32_t count_before(const uint8_t *cls, uint8_t c, int i) {
        uint32_t n = 0;
        for (int j = 0; j < i; ++j) n += cls[j] == c;
        return n;
    }
    static uint64_t match(const uint8_t *cls, uint8_t c, uint64_t *bytes) {
        uint64_t m = 0;
        for (int i = 0; i < 64; ++i) m |= uint64_t(cls[i] == c) << i;
        *bytes = byte_counts(m);
        return m;
    }
    template <class T>
    static void ahead(const char *) {}
    template <class T>
    static uint64_t digest(const char *w, int n, int j, uint64_t q) {
        return digest_portable<T>(w, n, j, q);
    }
};

constexpr Isa kIsa = make_isa<Scalar>();

}  // namespace

const Isa *scalar_isa() { return &kIsa; }

}  // namespace pulsecast
