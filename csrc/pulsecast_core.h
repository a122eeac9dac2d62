// The whole native surface of pulsecast: a C ABI without Python, torch or exceptions.
//
// Weights are *lanes*: bit patterns of `width` = 1, 2, 4 or 8 bytes, at any alignment. No function keeps a pointer after it returns,
// none starts a thread, all may run at once in many threads on disjoint outputs. Negative results are errors (enum pc_error).
#ifndef PULSECAST_CORE_H
#define PULSECAST_CORE_H

#include <stdint.h>

#if defined(__GNUC__)
#define PC_API __attribute__((visibility("default")))
#else
#define PC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PC_ABI = 1,
    PC_CLASSES = 16,    // most classes of a dtype (spec 8)
    PC_SYMBOLS = 256,   // tokens 0..251, PC_ESCAPE
    PC_ESCAPE = 255,
    PC_SLOTS = 4096,    // M of spec 8.2
    PC_MAX_BLOCK = 1 << 24,
};

enum pc_error {
    PC_TRUNCATED = -1,  // the bytes end before what they declare
    PC_RANGE = -2,      // a count, gap, place or difference is out of range
    PC_TRAILING = -3,   // bytes, words, bits or a state are left over
    PC_NO_MEMORY = -4,
    PC_TOO_LARGE = -5,  // the output does not fit: not an error of the input
    PC_ARGUMENT = -6,   // width, class map or block size is not one of the allowed
};

// How the class of a weight follows from its base lane (spec 8).
typedef struct pc_class_map {
    int32_t width;
    int32_t mantissa_bits;
    int32_t exponent_mask;  // 0: integers, one class
    int32_t lo;
    int32_t classes;
} pc_class_map;

PC_API int pc_abi(void);
// Name of the instruction set in use: "scalar", "neon" or "avx2".
PC_API const char *pc_simd(void);
// Takes another instruction set; 0, or PC_ARGUMENT when this machine or build has none of that name. Not thread-safe: call it before work starts.
PC_API int pc_use(const char *name);

// Writes the places where the lanes differ, ascending and counted from `origin`, and the new lanes there. Returns their number; both outputs hold up
// to n.
PC_API int64_t pc_diff(int width, const void *before, const void *after, int64_t n, int64_t origin, int64_t *places, void *values);

// Index of the first place that is not above its predecessor or not in [0, n); k when all are good.
PC_API int64_t pc_check_places(const int64_t *places, int64_t k, int64_t n);
// target[place] = value, after saving the old lanes; the places must have been checked. 0 or PC_ARGUMENT.
PC_API int pc_apply(int width, void *target, const int64_t *places, const void *values, int64_t k, void *old);
PC_API int pc_gather(int width, const void *source, const int64_t *places, int64_t k, void *out);

// Sum of spec 2 over n lanes of a tensor whose first one stands at position `start`.
PC_API uint64_t pc_digest(int width, const void *lanes, int64_t n, uint64_t start);
// What the sum changes by when the lanes at `start + places` turn from `before` into `after` (one lane per place).
PC_API uint64_t pc_digest_change(int width, const int64_t *places, int64_t k, uint64_t start, const void *before, const void *after);

// target[place] = after, then reads every place back and returns what the sum changes by from `before` to what was read. The places must have been
// checked; `start` is the position of target[0] in its tensor.
PC_API uint64_t pc_write(int width, void *target, const int64_t *places, int64_t k, uint64_t start, const void *before, const void *after);

// Diffs a block and splits its changes into class-major gaps and zig-zag ULP differences (spec 8). Returns their number k. `places` (ascending) and
// both lanes there are in place order, `gaps` and `diffs` in class order, `counts` has PC_CLASSES entries; the others hold up to n.
PC_API int64_t pc_tokenise(const pc_class_map *map, const void *before, const void *after, int64_t n, int64_t *places, void *old_values,
                           void *new_values, uint32_t *gaps, uint64_t *diffs, uint32_t *counts);
// Adds the tokens of a block to two histograms of [PC_CLASSES][PC_SYMBOLS].
PC_API void pc_histogram(const uint32_t *gaps, const uint64_t *diffs, const uint32_t *counts, uint32_t *gap_tokens, uint32_t *value_tokens);
// Writes a sparse block (spec 8.2). `frequencies` is [2][PC_CLASSES][PC_SYMBOLS]: gap tables, then value tables; 0 means escaped. Returns its bytes.
PC_API int64_t pc_encode(const uint32_t *gaps, const uint64_t *diffs, const uint32_t *counts, int classes, const uint16_t *frequencies,
                         uint8_t *out, int64_t capacity);

// Reads a sparse block's counts. Returns the number of changes, at most n.
PC_API int64_t pc_decode_counts(const uint8_t *data, int64_t size, int classes, int64_t n, uint32_t *counts);
// Decodes gaps and differences in class order without a look at any weight. `frequencies` is [2][PC_CLASSES][PC_SYMBOLS] as for pc_encode, `slots` is
// [2][PC_CLASSES][PC_SLOTS]: the symbol of every slot; both must agree. A table of zeros means that the class has none. 0 or an error.
PC_API int pc_decode(const uint8_t *data, int64_t size, int classes, int width, int64_t n, const uint16_t *frequencies, const uint8_t *slots,
                     uint32_t *gaps, uint64_t *diffs);
// Turns (class, rank) into places, and differences into new lanes beside the old ones. The outputs hold the sum of counts. 0 or an error.
PC_API int pc_locate(const pc_class_map *map, const void *base, int64_t n, const uint32_t *counts, const uint32_t *gaps, const uint64_t *diffs,
                     int64_t *places, void *old_values, void *new_values);

#ifdef __cplusplus
}
#endif
#endif
