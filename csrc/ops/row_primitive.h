// The form that most primitives share: dense rows in, dense rows out, on the stream's thread.

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/cpu/rows.h"
#include "mlx/primitives.h"

namespace pomona::ops {

// Gets the inputs as they lie in memory, and the rows of x and of the output over their last axes.
// Whatever it refers to must be captured by share: it runs after the call that made the node has
// returned.
using RowBody = std::function<void(const std::vector<mlx::core::array>& inputs,
                                   const kernels::Rows& x, const kernels::Target& out)>;

// A node over inputs (x first) whose single output has `shape` and x's dtype. It asks for no
// donation, so inputs that `body` writes in place, as a slab is, are not copied. Throws
// std::invalid_argument when x has a dtype that the kernels lack, and std::runtime_error when the
// instruction set that was asked for is missing.
mlx::core::array row_primitive(const char* name, std::vector<mlx::core::array> inputs,
                               mlx::core::Shape shape, RowBody body);

}  // namespace pomona::ops
