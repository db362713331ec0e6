// Rows of a model's embedding.
//
// Thread-safety: as ThreadPool::run, which shares out the work.

#pragma once

#include <cstdint>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/weights.h"

namespace pomona::kernels {

// Rows of the weights by ids, [count, depth]; NaN for an id outside.
void embed(const int32_t* ids, int64_t count, const Weights& weights, const Target& out);

}  // namespace pomona::kernels
