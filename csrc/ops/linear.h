// Products with model weights, and rows of them.

#pragma once

#include <memory>
#include <vector>

#include "mlx/array.h"
#include "ops/weights.h"

namespace pomona::ops {

// x [..., depth] times the transposed matrix, plus its bias: [..., rows] in x's dtype. Throws
// std::invalid_argument when x does not fit.
mlx::core::array linear(const mlx::core::array& x, std::shared_ptr<const Weights> weights);

// Rows of the matrix by int32 or uint32 ids [...]: [..., depth] in the weights' dtype. An id
// outside gives NaN.
mlx::core::array embed(const mlx::core::array& ids, std::shared_ptr<const Weights> weights);

}  // namespace pomona::ops
