// The seam between the instruction sets and the C ABI: each set fills one table of functions from the templates in kernels.inl.
#ifndef PULSECAST_ISA_H
#define PULSECAST_ISA_H

#include "pulsecast_core.h"

namespace pulsecast {

struct Isa {
    const char *name;
    int64_t (*diff)(int width, const void *before, const void *after, int64_t n, int64_t origin, int64_t *places, void *values);
    uint64_t (*digest)(int width, const void *lanes, int64_t n, uint64_t start);
    int64_t (*tokenise)(const pc_class_map &map, const void *before, const void *after, int64_t n, int64_t *places, void *old_values,
                        void *new_values, uint32_t *gaps, uint64_t *diffs, uint32_t *counts);
    int (*locate)(const pc_class_map &map, const void *base, int64_t n, const uint32_t *counts, const uint32_t *gaps, const uint64_t *diffs,
                  int64_t *places, void *old_values, void *new_values);
};

// Null where the build has no such instruction set. Whether the machine has it is the caller's question.
const Isa *scalar_isa();
const Isa *neon_isa();
const Isa *avx2_isa();

}  // namespace pulsecast
#endif
