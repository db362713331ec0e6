// The form that most primitives share: dense rows in, dense rows out, on the stream's thread.

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/cpu/rows.h"
#include "mlx/array.h"

namespace pomona::ops {

// Gets the inputs as they lie in memory, and the rows of x and of the output over their last axes.
// Whatever it refers to must be captured by share: it runs after the call that made the node has
// returned.
using RowBody = std::function<void(const std::vector<mlx::core::array>& inputs,
                                   const kernels::Rows& x, const kernels::Target& out)>;

// A node (see cpu_node.h) over inputs, x first, whose output has `shape` and x's dtype. Throws
// std::invalid_argument when x has a dtype that the kernels lack.
mlx::core::array row_primitive(const char* name, std::vector<mlx::core::array> inputs,
                               mlx::core::Shape shape, RowBody body);

}  // namespace pomona::ops
