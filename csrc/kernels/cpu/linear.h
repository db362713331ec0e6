// A whole product with model weights: activations of any float type in, the same out.
//
// Thread-safety: as ThreadPool::run, which shares out the work.

#pragma once

#include <cstdint>

#include "kernels/cpu/weights.h"

namespace pomona::kernels {

// out[m, n] = sum over k of x[m, k] * weights[n, k], plus bias[n] where bias is not null. x is
// dense [rows, depth], out dense [rows, weights.rows], both in `type`.
void linear(const void* x, Float type, int64_t rows, const Weights& weights, const float* bias,
            void* out);

// Rows of the weights by ids, dense [count, depth] in `type`; NaN for an id outside.
void embed(const int32_t* ids, int64_t count, const Weights& weights, Float type, void* out);

}  // namespace pomona::kernels
