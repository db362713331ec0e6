// Small arrays as float32 values.

#pragma once

#include <vector>

#include "mlx/array.h"

namespace pomona::ops {

// A copy; waits for an array that has not been evaluated.
std::vector<float> values_of(const mlx::core::array& x);

}  // namespace pomona::ops
