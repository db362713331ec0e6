// Writes token rows into one half of a slab and returns their history as a dense array: the
// gathered reader, for models whose own code touches K/V.

#pragma once

#include <memory>
#include <vector>

#include "mlx/array.h"
#include "ops/slab.h"
#include "ops/step_table.h"

namespace pomona::ops {

// x: [1, H, L, D], rows of one sequence. Returns [1, H, visible of the last row, D] of K or, with
// `values`, of V; the table's block copies are made for that half only. Throws
// std::invalid_argument when x does not fit the slab and the table.
mlx::core::array update_and_gather(const mlx::core::array& x, const Slab& slab, bool values,
                                   std::shared_ptr<const StepTable> table);

}  // namespace pomona::ops
